"""Answers to questions whose answers are not known."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from toolkit.config.model import ModelConfig
from toolkit.data.labels import Array
from toolkit.models.load import QUESTION_ANSWERER, load_model
from toolkit.models.tiny import encoder
from toolkit.models.tokenizer import tokenizer
from toolkit.predictor import EMPTY, Encoded, Predictor, Request, Row, rounded, text_of
from toolkit.task import Batch
from toolkit.tasks.question_answering.answers import best_answers, best_spans
from toolkit.tasks.question_answering.data import QuestionData
from toolkit.tasks.question_answering.windows import WindowSize, check_windows, pad_windows, windows_of

QUESTION_NAMES = (("question",), ("query",))
CONTEXT_NAMES = (("context",), ("passage", "paragraph", "document", "text"))


class HeldWindows(NamedTuple):
    """The windows of some rows, in memory."""

    windows: Sequence[Mapping[str, Sequence[int]]]
    question_of: Array
    contexts: Sequence[str]

    def characters(self, windows: Array, spans: Array) -> Array:
        """Return where the characters of spans begin and end in the context: (windows, 2)."""
        found = np.empty((len(windows), 2), dtype=np.int64)
        for place, (number, (begin, end)) in enumerate(zip(windows.tolist(), spans.tolist(), strict=True)):
            window = self.windows[number]
            first = window["context"][0]
            found[place] = window["begins"][begin - first], window["ends"][end - first]
        return found

    def context(self, question: int) -> str:
        """Return the context of a row."""
        return self.contexts[question]


def predictor(config: ModelConfig, request: Request) -> Predictor:
    """Return what answers the questions in a file.

    Raises:
        UserError: the model can't be loaded, or it can't be told which columns hold question and context.
    """
    columns = request.column("question", QUESTION_NAMES), request.column("context", CONTEXT_NAMES)
    tokens = tokenizer(config, (), "")
    check_windows(tokens)
    asked = {name: request.setting("data", name, None) for name in ("max_length", "stride")}
    data = QuestionData(**asked)
    longest = request.setting("data", "longest_answer", data.longest_answer)
    missing = bool(request.settings.get("missing_answers"))
    margin = request.setting("data", "no_answer_margin", data.no_answer_margin)
    return Predictor(
        load_model(config, QUESTION_ANSWERER, encoder, vocabulary=len(tokens), trained=True).eval(),
        {"prediction": "text", "score": "number", "start": "place"},
        ("question", "context"),
        partial(encode, tokens, columns, data.window(tokens)),
        pad_windows(tokens),
        lambda model, batch: spans(model, batch, longest),
        partial(decode, columns[1], missing, margin),
        {
            "asked": " about ".join(map(repr, columns)),
            "answers": "or none, where that is likelier" if missing else "one to each question",
        },
    )


def encode(tokens: Any, columns: tuple[str, str], size: WindowSize, rows: Sequence[Row]) -> Encoded:
    """Return the windows of questions."""
    texts = [[text_of(row.get(column)) for column in columns] for row in rows]
    asked = [place for place, own in enumerate(texts) if all(own)]
    remarks: dict[str, list[int]] = {}
    if len(asked) < len(rows):
        remarks[f"without a question or a context: {EMPTY}"] = sorted(set(range(len(rows))) - set(asked))
    samples: list[Any] = []
    owners: list[int] = []
    if asked:
        questions, contexts = ([str(texts[place][side]) for place in asked] for side in (0, 1))
        unknown = np.full((len(asked), 2), -1)
        for place, (known, windows) in zip(asked, windows_of(tokens, questions, contexts, unknown, size), strict=True):
            if not windows:
                what = "with a question that leaves no room for the context" if known else "without a single token"
                remarks.setdefault(f"{what}: {EMPTY}", []).append(place)
            samples += windows
            owners += [place] * len(windows)
    return Encoded(samples, owners, [len(sample["input_ids"]) for sample in samples], remarks)


def spans(model: torch.nn.Module, batch: Batch, longest: int) -> list[list[float]]:
    """Return for each window what `best_spans` does."""
    found: list[list[float]] = best_spans(model, batch, longest).cpu().tolist()
    return found


def decode(
    column: str, missing: bool, margin: float, rows: Sequence[Row], encoded: Encoded, found: Sequence[list[float]]
) -> Mapping[int, Mapping[str, Any]]:
    """Return the answer to each question, how probable it is, and at which character of the context it begins."""
    if not found:
        return {}
    contexts = [text_of(row.get(column)) or "" for row in rows]
    held = HeldWindows(encoded.samples, np.array(encoded.owners, dtype=np.int64), contexts)
    answers = best_answers(held, dict(enumerate(found)), missing, margin)
    made = {}
    for row, text, place, scores in zip(
        answers.questions, answers.texts, answers.places.tolist(), answers.scores, strict=True
    ):
        is_given = place[0] >= 0
        score = scores["answer" if is_given else "no answer"]
        made[row] = {"prediction": text, "score": rounded(score), "start": place[0] if is_given else None}
    return made
