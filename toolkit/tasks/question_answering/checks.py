"""Questions that were checked: what can be wrong with them, and what can be mended."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from toolkit.data.cache import digest_of
from toolkit.data.labels import Array
from toolkit.data.reading import Checked, row_numbers
from toolkit.tasks.question_answering.layouts import Raw

SHOWN = 5
"""Places in a nested file that a message names."""
NOWHERE = (-1, -1)
"""The span of an answer that does not exist."""

Span = tuple[int, int]
Place = tuple[int, ...]


@dataclass(frozen=True)
class QuestionSet:
    """Questions for training or for evaluation; the lists have one entry per question but for the contexts."""

    name: str
    contexts: list[str]
    """Each context once, in order of appearance."""
    context_of: Array
    """The number of a question's context."""
    ids: list[str]
    titles: list[str | None]
    """The article that a question belongs to, if the data names it."""
    questions: list[str]
    answers: list[list[str]]
    """The references; none where the question has no answer."""
    spans: Array
    """Where the first reference begins and ends in the context, in characters: (questions, 2), or -1."""
    places: list[Place]
    """Where a question stood in the data, counted from 1."""

    def __len__(self) -> int:
        return len(self.questions)

    def context(self, number: int) -> str:
        """Return the context of a question."""
        return self.contexts[int(self.context_of[number])]

    def named(self, numbers: Sequence[int]) -> str:
        """Return how a message names these questions: how many they are, and where the first stand in the data."""
        return named_places([self.places[number] for number in numbers])

    def take(self, rows: Array, name: str | None = None) -> "QuestionSet":
        """Return these questions, in this order, with the contexts that they need."""
        kept, context_of = np.unique(self.context_of[rows], return_inverse=True)
        lists = ("ids", "titles", "questions", "answers", "places")
        return QuestionSet(
            name or self.name,
            contexts=[self.contexts[number] for number in kept.tolist()],
            context_of=context_of,
            spans=self.spans[rows],
            **{column: [getattr(self, column)[row] for row in rows.tolist()] for column in lists},
        )

    @cached_property
    def digest(self) -> str:
        """A hash of everything that decides loss and metrics."""
        return digest_of(self.contexts, self.context_of, self.questions, self.answers, self.spans)


class WrongAnswerError(Exception):
    """An answer that cannot be found where it should be."""

    def __init__(self, kind: str, example: str = "") -> None:
        self.kind = kind
        self.example = f" (the first: {example})" if example else ""
        super().__init__(kind)


WRONG = {
    "question": "without a question (null, blank or no text); ",
    "context": "without a context (null, blank or no text); ",
    "form": (
        'whose answers are neither a text, nor a list of texts, nor {"text": [...], "answer_start": [...]} with as '
        "many starts as texts; correct them, or "
    ),
    "contradiction": (
        "marked as impossible to answer although they have an answer, or as possible although they have none; "
    ),
    "start": "with an answer_start that is no whole number; correct it, or ",
    "absent": (
        "with an answer that is not in the context (an extracted answer has to be, to the letter); correct them, or "
    ),
    "misplaced": (
        "whose answer_start does not point at the answer, which occurs elsewhere in the context; have the nearest "
        "place taken with --data.mend_answers, or "
    ),
}
"""What can be wrong with a question, in the words of a message."""
REPAIRS = {
    "mended": "answers moved to the nearest place where their text stands",
    "guessed": "answers without a start whose text occurs several times; the first is taken",
}
"""How an answer can be taken otherwise than it stands, in the words of the plan."""


def check_questions(name: str, found: Iterable[Raw], mend: bool, repairs: Counter[str]) -> Checked[QuestionSet]:
    """Return the questions that are right, and a sentence for each kind of wrong ones.

    With `mend` an answer that does not stand where it should is moved to the nearest place where it does. What is taken
    otherwise than it stands is counted in `repairs`, by the names of `REPAIRS`.
    """
    known: dict[str, int] = {}
    kept: list[Raw] = []
    spans: list[Span] = []
    wrong: dict[str, list[Place]] = {}
    examples: dict[str, str] = {}
    for raw in found:
        try:
            answers = spans_of(raw, mend, repairs)
        except WrongAnswerError as error:
            wrong.setdefault(error.kind, []).append(raw.place)
            examples.setdefault(error.kind, error.example)
            continue
        known.setdefault(raw.context, len(known))
        kept.append(raw)
        spans.append(answers[0] if answers else NOWHERE)
    questions = QuestionSet(
        name,
        contexts=list(known),
        context_of=np.array([known[raw.context] for raw in kept], dtype=np.int64),
        ids=[raw.id for raw in kept],
        titles=[raw.title for raw in kept],
        questions=[raw.question for raw in kept],
        answers=[[text for text, _ in raw.answers or []] for raw in kept],
        spans=np.array(spans, dtype=np.int64).reshape(-1, 2),
        places=[raw.place for raw in kept],
    )
    problems = [
        f"{name}: {named_places(wrong[kind])} {words}leave them out with --data.drop_invalid{examples[kind]}"
        for kind, words in WRONG.items()
        if kind in wrong
    ]
    return Checked(questions, problems, sum(map(len, wrong.values())))


def spans_of(raw: Raw, mend: bool, repairs: Counter[str]) -> list[Span]:
    """Return where the answers of a question begin and end in its context.

    Raises:
        WrongAnswerError: the question can't be used as it is.
    """
    for kind, text in (("question", raw.question), ("context", raw.context)):
        if not isinstance(text, str) or not text.strip():
            raise WrongAnswerError(kind)
    if raw.answers is None or any(not isinstance(text, str) or not text.strip() for text, _ in raw.answers):
        raise WrongAnswerError("form")
    if raw.impossible is not None and raw.impossible == bool(raw.answers):
        raise WrongAnswerError("contradiction")
    return [span_of(text, start, raw.context, mend, repairs) for text, start in raw.answers]


def span_of(text: str, start: Any, context: str, mend: bool, repairs: Counter[str]) -> Span:
    """Return where an answer begins and ends, without the white space around it."""
    first = context.find(text)
    if first < 0:
        raise WrongAnswerError("absent", shortened(text))
    # Nothing, or what is no number: so nothing is written among numbers.
    if start is None or start == "" or start != start:
        repairs["guessed"] += context.find(text, first + 1) >= 0
        begin = first
    else:
        begin = character(start)
        if begin < 0 or not context.startswith(text, begin):
            nearest = min(occurrences(text, context), key=lambda place: abs(place - begin))
            if not mend:
                example = f"{shortened(text)} is said to start at {begin}, and starts at {nearest}"
                raise WrongAnswerError("misplaced", example)
            repairs["mended"] += 1
            begin = nearest
    bare = text.strip()
    begin += text.index(bare)
    return begin, begin + len(bare)


def character(start: Any) -> int:
    """Return the number of the character that a cell names; raises WrongAnswerError if it is no whole number."""
    try:
        begin = int(start)
    except (TypeError, ValueError, OverflowError):
        raise WrongAnswerError("start", repr(start)) from None
    if isinstance(start, float) and begin != start:
        raise WrongAnswerError("start", repr(start))
    return begin


def occurrences(text: str, context: str) -> list[int]:
    """Return all places where a text begins in another."""
    places = []
    place = context.find(text)
    while place >= 0:
        places.append(place)
        place = context.find(text, place + 1)
    return places


def named_places(places: Sequence[Place]) -> str:
    """Return how many questions these are, and where the first stand."""
    if all(len(place) == 1 for place in places):
        return row_numbers(np.array([place[0] - 1 for place in places], dtype=np.int64))
    named = "; ".join(
        ", ".join(f"{what} {number}" for what, number in zip(("article", "paragraph", "question"), place, strict=True))
        for place in places[:SHOWN]
    )
    return f"{len(places):,} question{'s' * (len(places) > 1)} ({named}{'; ...' * (len(places) > SHOWN)})"


def shortened(text: str) -> str:
    """Return a text as it is quoted in a message."""
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
