"""From windows to answers: how they are padded, and the best span over all windows of a question."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from toolkit.attention_masks import note_padding
from toolkit.data.collate import padding_token
from toolkit.data.labels import Array
from toolkit.task import Postprocessed
from toolkit.tasks.question_answering.windows import QuestionWindows


def pad_windows(tokenizer: Any) -> Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]:
    """Return a collate function: windows to tensors of shape (windows, tokens of the longest), padded on the tokenizer's side.

    Beside the model's inputs it makes "context", "first" and "labels": see `toolkit.tasks.question_answering.spans.OWN`.

    Raises:
        UserError: the tokenizer has no padding token.
    """
    fillers = {
        "input_ids": padding_token(tokenizer, "windows"),
        "token_type_ids": getattr(tokenizer, "pad_token_type_id", 0),
    }
    from_left = tokenizer.padding_side == "left"

    def collate(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        counts = [len(sample["input_ids"]) for sample in samples]
        shape = (len(samples), max(counts))
        first = np.array([shape[1] - count if from_left else 0 for count in counts], dtype=np.int64)
        inputs = [name for name in samples[0] if name not in ("context", "labels")]
        arrays = {name: np.full(shape, fillers.get(name, 0), dtype=np.int64) for name in inputs}
        mask, context = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=bool)
        for row, (sample, start, count) in enumerate(zip(samples, first.tolist(), counts, strict=True)):
            for name in inputs:
                arrays[name][row, start : start + count] = sample[name]
            mask[row, start : start + count] = 1
            begin, end = sample["context"]
            context[row, start + begin : start + end] = True
        labels = np.array([sample["labels"] for sample in samples], dtype=np.int64) + first[:, None]
        arrays |= {"attention_mask": mask, "context": context, "first": first, "labels": labels}
        return {**{name: torch.from_numpy(array) for name, array in arrays.items()}, **note_padding(counts)}

    return collate


class Answers(NamedTuple):
    """What a model answers to some questions."""

    texts: list[str]
    """The answer to each, empty where none is given."""
    places: Array
    """Where it begins and ends in the context, in characters; -1 where none is given."""
    questions: list[int]
    """The number of each question."""
    scores: list[dict[str, float]]
    """The probability of each answer, and that there is none, in the window that speaks for the question."""


def best_answers(windows: QuestionWindows, predictions: Mapping[int, Any], missing: bool, margin: float) -> Answers:
    """Return the answer to each question of which there are windows.

    Args:
        windows: those that the predictions are of.
        predictions: of each window, by its number, in ascending order: see `toolkit.tasks.question_answering.spans.best_spans`.
        missing: whether there are questions without an answer; if not, one is always given.
        margin: by how much "no answer" has to be more likely, as a difference of logarithms.

    The answer is the most likely span of all windows. That there is none is as likely as in the window that believes it least:
    one that has found the answer speaks for all.
    """
    rows = np.array([np.asarray(prediction, dtype=np.float64) for prediction in predictions.values()])
    numbers = windows.question_of[np.fromiter(predictions, dtype=np.int64)]
    # By question, the best score first; of equal ones the window that comes first.
    order = np.lexsort((-rows[:, 2], numbers))
    asked, begins = np.unique(numbers[order], return_index=True)
    best = order[begins]
    nothing = np.minimum.reduceat(rows[order, 3], begins)
    chosen = np.fromiter(predictions, dtype=np.int64)[best]
    places = windows.characters(chosen, rows[best, :2].astype(np.int64))
    if missing:
        places[nothing > rows[best, 2] + margin] = -1
    answers = []
    for row, number in enumerate(asked.tolist()):
        begin, end = places[row].tolist()
        text = windows.questions.contexts[windows.questions.context_of[number]][begin:end] if begin >= 0 else ""
        # Some tokenizers count the space before a word to its token.
        places[row] += [len(text) - len(text.lstrip()), len(text.rstrip()) - len(text)]
        answers.append(text.strip())
    sure = zip(np.exp(rows[best, 2]).tolist(), np.exp(nothing).tolist(), strict=True)
    return Answers(answers, places, asked.tolist(), [{"answer": one, "no answer": none} for one, none in sure])


def postprocess_answers(
    windows: QuestionWindows, missing: bool, margin: float, guesses: list[str]
) -> Callable[[Mapping[int, Any]], Postprocessed]:
    """Return a task's `postprocess`: answers beside the references, and beside what can be guessed without the contexts."""

    def postprocess(predictions: Mapping[int, Any]) -> Postprocessed:
        found = best_answers(windows, predictions, missing, margin)
        wanted, guessed = (
            [values[number] for number in found.questions] for values in (windows.questions.answers, guesses)
        )
        return Postprocessed(found.texts, wanted, guessed, found.scores)

    return postprocess


def show_answer(windows: QuestionWindows) -> Callable[[int, str, list[str]], dict[str, Any]]:
    """Return a task's `show`: a question with its context, the answer that was given and those that are right."""

    def show(number: int, answer: str, references: list[str]) -> dict[str, Any]:
        questions = windows.questions
        place = questions.places[number]
        row = {"row": place[0]} if len(place) == 1 else {}  # questions in files of SQuAD have an id alone
        return {
            **row,
            "id": questions.ids[number],
            "question": questions.questions[number],
            "context": questions.contexts[questions.context_of[number]],
            "answer": answer,
            "references": references,
        }

    return show
