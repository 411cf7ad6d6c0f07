"""Answers as spans of tokens: their loss, the best span of a window, and the best one of all windows of a question.

A window's candidates are the tokens of its context, and its first token, which stands for "the answer is not in here".
All other tokens (question, separators, padding) are left out before the softmax, so the probabilities of all windows of
a question can be compared: where the answer is elsewhere, the first token takes them away from the context.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F

from toolkit.data.labels import Array
from toolkit.losses import full_precision, output_of
from toolkit.task import Batch, Postprocessed
from toolkit.tasks.question_answering.windows import NOT_INPUTS, QuestionWindows


def log_probabilities(model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logarithms of the probabilities that the answer starts, and ends, at each token: (windows, tokens)."""
    output = output_of(model, batch, *NOT_INPUTS)
    candidates = batch["context"].scatter(1, batch["first"].unsqueeze(1), True)
    start, end = (
        full_precision(logits).masked_fill(~candidates, float("-inf")).log_softmax(-1)
        for logits in (output.start_logits, output.end_logits)
    )
    return start, end


def span_loss(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Return the cross-entropy of the first and of the last token of the answer, added up, summed over the windows."""
    start, end = log_probabilities(model, batch)
    return F.nll_loss(start, batch["labels"][:, 0], reduction="sum") + F.nll_loss(
        end, batch["labels"][:, 1], reduction="sum"
    )


def best_spans(model: torch.nn.Module, batch: Batch, max_tokens: int) -> torch.Tensor:
    """Return for each window its best span of at most `max_tokens` tokens: (windows, 4).

    The four are the first and the last token of the span, counted from the first token of the window; the logarithm of
    its probability; and that of "not in here". Memory: windows x tokens x `max_tokens` numbers, or tokens where they
    are fewer.
    """
    start, end = log_probabilities(model, batch)
    first = batch["first"].unsqueeze(1)
    nothing = (start + end).gather(1, first).squeeze(1)
    inside = batch["context"]
    starts, ends = (values.masked_fill(~inside, float("-inf")) for values in (start, end))
    width = min(max_tokens, ends.shape[1])
    # Row t of the reach holds the ends t, t + 1, ..., t + width - 1: a span never ends before it starts.
    reach = F.pad(ends, (0, width - 1), value=float("-inf")).unfold(1, width, 1)
    score, place = (starts.unsqueeze(-1) + reach).flatten(1).max(1)
    begin = place.div(width, rounding_mode="floor")
    span = torch.stack([begin, begin + place % width], 1) - first
    return torch.cat([span.to(score.dtype), score.unsqueeze(1), nothing.unsqueeze(1)], 1)


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


class Windows(Protocol):
    """Windows of questions, by number."""

    @property
    def question_of(self) -> Array:
        """The number of each window's question."""

    def characters(self, windows: Array, spans: Array) -> Array:
        """Return where the characters of spans of tokens begin and end in the context; see `QuestionWindows`."""

    def context(self, question: int) -> str:
        """Return the context of a question."""


def best_answers(windows: Windows, predictions: Mapping[int, Any], missing: bool, margin: float) -> Answers:
    """Return the answer to each question of which there are windows.

    Args:
        windows: those that the predictions are of.
        predictions: of each window what `best_spans` returns, by its number, in ascending order.
        missing: whether there are questions without an answer; if not, one is always given.
        margin: by how much "no answer" has to be more likely, as a difference of logarithms.

    The answer is the most likely span of all windows. That there is none is as likely as in the window that believes it
    least: one that has found the answer speaks for all.
    """
    rows = np.array([np.asarray(prediction, dtype=np.float64) for prediction in predictions.values()])
    numbers = np.fromiter(predictions, dtype=np.int64)
    questions = windows.question_of[numbers]
    # By question, the best score first; of equal ones the window that comes first.
    order = np.lexsort((-rows[:, 2], questions))
    asked, begins = np.unique(questions[order], return_index=True)
    best = order[begins]
    nothing = np.minimum.reduceat(rows[order, 3], begins)
    places = windows.characters(numbers[best], rows[best, :2].astype(np.int64))
    if missing:
        places[nothing > rows[best, 2] + margin] = -1
    answers = []
    for row, question in enumerate(asked.tolist()):
        begin, end = places[row].tolist()
        text = windows.context(question)[begin:end] if begin >= 0 else ""
        # Some tokenizers count the space before a word to its token.
        places[row] += [len(text) - len(text.lstrip()), len(text.rstrip()) - len(text)]
        answers.append(text.strip())
    probabilities = zip(np.exp(rows[best, 2]).tolist(), np.exp(nothing).tolist(), strict=True)
    scores = [{"answer": answer, "no answer": none} for answer, none in probabilities]
    return Answers(answers, places, asked.tolist(), scores)


def postprocess_answers(
    windows: QuestionWindows, missing: bool, margin: float, guesses: list[str]
) -> Callable[[Mapping[int, Any]], Postprocessed]:
    """Return a task's `postprocess`: answers, references, and as a baseline what can be guessed of each question."""

    def postprocess(predictions: Mapping[int, Any]) -> Postprocessed:
        found = best_answers(windows, predictions, missing, margin)
        references = [windows.questions.answers[number] for number in found.questions]
        return Postprocessed(found.texts, references, [guesses[number] for number in found.questions], found.scores)

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
            "context": questions.context(number),
            "answer": answer,
            "references": references,
        }

    return show
