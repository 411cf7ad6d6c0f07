"""The trained model for others, with lines that answer questions with it: Transformers 5 has no pipeline for that."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from toolkit.models.export import pretrained_folder
from toolkit.tasks.question_answering.data import QuestionData

LINES = '''```python
import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

folder = "<this folder>"
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForQuestionAnswering.from_pretrained(folder).eval()


def answer(question, context):
    """Return the answer, with where it begins and ends in the context; an empty answer if there is none."""
    windows = tokenizer(
        question, context, truncation="only_second", max_length={length}, stride={stride}, padding=True,
        return_overflowing_tokens=True, return_offsets_mapping=True, return_tensors="pt",
    )
    offsets = windows["offset_mapping"]
    inside = torch.tensor([[part == 1 for part in windows.sequence_ids(row)] for row in range(len(offsets))])
    candidates = inside.clone()
    first = windows["attention_mask"].argmax(1)  # the first token stands for "not in here"
    candidates[torch.arange(len(first)), first] = True
    with torch.no_grad():
        output = model(**{{name: windows[name] for name in tokenizer.model_input_names if name in windows}})
    start, end = (
        scores.masked_fill(~candidates, float("-inf")).log_softmax(-1)
        for scores in (output.start_logits, output.end_logits)
    )
    nothing = (start + end)[torch.arange(len(first)), first].min()
    spans = start[:, :, None] + end[:, None, :]
    allowed = (inside[:, :, None] & inside[:, None, :]).triu().tril({longest} - 1)
    spans = spans.masked_fill(~allowed, float("-inf"))
    row, begin, last = (int(place) for place in torch.unravel_index(spans.argmax(), spans.shape))
    if {missing} and nothing > spans[row, begin, last] + {margin}:
        return "", None, None
    begin, last = int(offsets[row, begin, 0]), int(offsets[row, last, 1])
    return context[begin:last].strip(), begin, last
```'''
"""For the reader of a model card; a test runs them."""


def answering_folder(
    tokenizer: Any, data: QuestionData, missing: bool
) -> Callable[[torch.nn.Module, Path, Mapping[str, Any]], None]:
    """Return a task's `export`: a model folder whose card shows how to answer a question as the evaluation did.

    Args:
        tokenizer: it is saved with the model.
        data: says how contexts are divided into windows and answers are chosen.
        missing: whether questions may have no answer.
    """
    size = data.window(tokenizer)
    lines = LINES.format(
        length=size.max_length,
        stride=size.stride,
        longest=data.longest_answer,
        margin=data.no_answer_margin,
        missing=missing,
    )

    # Longer texts are no problem of the model's: its own limit is what is saved with the tokenizer.
    usage = "Transformers 5 has no pipeline for this task. Answer questions as the evaluation did with:\n\n" + lines
    return pretrained_folder(
        tokenizer, None, "Question answering", "question-answering", usage, known={"missing_answers": missing}
    )
