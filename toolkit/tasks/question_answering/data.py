"""Questions with answers to extract from a context: where they come from, and what they become before training."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from toolkit.config.fields import at_least, locates
from toolkit.data.config import DataConfig, embedded_splits, split_rows
from toolkit.data.labels import Array
from toolkit.data.reading import Checked, DataRead, hold_out, usable_rows
from toolkit.data.text_columns import length_limit
from toolkit.errors import UserError
from toolkit.sample_data.questions import questions_on_source
from toolkit.task import TaskData
from toolkit.tasks.question_answering.checks import REPAIRS, QuestionSet, check_questions
from toolkit.tasks.question_answering.layouts import raw_questions
from toolkit.tasks.question_answering.windows import QuestionWindows, WindowSize, question_windows

USUAL_LENGTH = 384
"""Tokens of a window where data.max_length is null."""


@dataclass(frozen=True)
class QuestionData(DataConfig):
    """The `data` section of a recipe that extracts answers from contexts."""

    question: str | None = locates(None)
    """The column with the question; null finds it by its name, or the data has the layout of SQuAD."""
    context: str | None = locates(None)
    """The column with the text that holds the answer; null finds it by its name."""
    answers: str | None = locates(None)
    """The column with the answers: a text, a list of texts, or texts with their starts; null finds it by its name."""
    answer_start: str | None = locates(None)
    """The column with the character at which the answer starts, counted from 0; null finds it by its name, or there is
    none."""
    title: str | None = locates(None)
    """The column with the article that a context belongs to, by which questions are held out; null finds it by its
    name."""
    max_length: int | None = None
    """Tokens of a window, the question and special tokens included; null means 384, or fewer if the model takes
    fewer."""
    stride: int | None = None
    """Tokens of the context that a window shares with the one before; null means a third of the window."""
    longest_answer: int = 30
    """Tokens of the longest answer that is given."""
    no_answer_margin: float = 0.0
    """Give no answer only if it is more likely than the best one by this much (natural logarithm); where the data has
    such questions."""
    mend_answers: bool = False
    """Move an answer that does not stand at its answer_start to the nearest place where it does; the plan counts
    them."""
    drop_invalid: bool = False
    """Leave out questions with something wrong about them instead of refusing them; the plan counts them."""

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the values, a sentence each."""
        yield from super().problems()
        yield from at_least(1, "data.longest_answer", self.longest_answer)
        if self.max_length is not None:
            yield from at_least(8, "data.max_length", self.max_length)
        if self.stride is not None:
            yield from at_least(0, "data.stride", self.stride)
            if self.max_length is not None and self.stride >= self.max_length:
                yield (
                    f"data.stride is {self.stride} and data.max_length {self.max_length}; windows that share all their "
                    "tokens get nowhere: give a smaller stride, such as a third of the window"
                )

    def read(self) -> "Questions":
        """Read the data and check it.

        Raises:
            UserError: everything that is wrong with it.
        """
        read = self.tables(
            lambda: embedded_splits(
                "questions on functions of this Python's standard library, each answered by a piece of the source",
                questions_on_source(),
            )
        )
        flags = ("question", "context", "answers", "answer_start", "title")
        given = {flag: name for flag in flags if (name := getattr(self, flag)) is not None}
        parts: list[Checked[QuestionSet]] = []
        lines: dict[str, None] = {}
        repairs: Counter[str] = Counter()
        for name, table in read.tables.items():
            try:
                found, line = raw_questions(table, given)
            except UserError as error:
                raise UserError(*(f"{name}: {problem}" for problem in error.problems)) from None
            lines[line] = None
            parts.append(check_questions(name, found, self.mend_answers, repairs))
        sets, dropped = usable_rows(
            parts,
            drop_invalid=self.drop_invalid,
            a_row="question that can be used",
            invalid="questions with something wrong about them",
            remedy=None,
        )
        summary = {"data": read.origin, "columns": "; ".join(lines), **dropped}
        summary |= {name: f"{repairs[name]:,} {what}" for name, what in REPAIRS.items() if repairs[name]}
        if len(sets) == 1:
            sets, summary["held out"] = hold_out_groups(sets[0], self.held_out)
        train, evaluate = sets
        summary["questions"] = f"{_counted(train)} to train on; {_counted(evaluate)} to evaluate on"
        if both := len(set(train.contexts) & set(evaluate.contexts)):
            summary["seen contexts"] = f"{both:,} of the contexts to evaluate on are in the training data too"
        return Questions(
            train,
            evaluate,
            self,
            summary=summary,
            files=read.files,
            workers=self.workers,
            groups=self.groups_of(read, self.row_numbers(evaluate)),
        )

    def row_numbers(self, questions: QuestionSet) -> Array:
        """Return the number of the row of each question, from 0, where they are to be grouped by it.

        Raises:
            UserError: the questions are no rows of a table.
        """
        if self.group is None and self.eval_sets is None:
            return np.zeros(0, dtype=np.int64)
        if any(len(place) != 1 for place in questions.places):
            raise UserError(
                "data.group and data.eval_sets need a row for each question, and the data has the layout of SQuAD's "
                "files; give a table"
            )
        return np.array([place[0] - 1 for place in questions.places], dtype=np.int64)

    def window(self, tokenizer: Any) -> WindowSize:
        """Return how contexts are divided into windows.

        Raises:
            UserError: the model takes less than data.max_length, or the stride is not below it.
        """
        limit = length_limit(tokenizer)
        if self.max_length is not None and limit is not None and self.max_length > limit:
            raise UserError(
                f"data.max_length is {self.max_length}, but the model takes at most {limit} tokens; give {limit} or "
                "less"
            )
        max_length = self.max_length or min(USUAL_LENGTH, limit or USUAL_LENGTH)
        stride = max_length // 3 if self.stride is None else self.stride
        if stride >= max_length:
            raise UserError(
                f"data.stride is {stride}, but a window has only {max_length} tokens; give a smaller data.stride"
            )
        return WindowSize(max_length, stride)


@dataclass(frozen=True)
class QuestionWindowData(TaskData):
    """The data of a task that answers questions."""

    train: QuestionWindows
    evaluate: QuestionWindows


@dataclass(frozen=True)
class Questions(DataRead):
    """Training and evaluation questions."""

    train: QuestionSet
    evaluate: QuestionSet
    config: QuestionData

    @property
    def missing(self) -> bool:
        """Whether some questions have no answer: only then is "no answer" ever given."""
        return any(not known for part in (self.train, self.evaluate) for known in part.answers)

    @cached_property
    def training_digest(self) -> str:
        """A hash of the training data: the key under which a tokenizer that was trained on it can be kept."""
        return self.train.digest

    def training_texts(self) -> Iterator[str]:
        """Yield contexts and questions, to train a tokenizer on."""
        yield from self.train.contexts
        yield from self.train.questions

    def tokenize(self, tokenizer: Any) -> QuestionWindowData:
        """Return the questions as windows of tokens.

        Raises:
            UserError: the tokenizer does not say which characters a token stands for, or a question fills the window.
        """
        size, max_tokens = self.config.window(tokenizer), self.config.longest_answer
        parts: list[QuestionWindows] = []
        problems: list[str] = []
        for questions in (self.train, self.evaluate):
            try:
                parts.append(question_windows(questions, tokenizer, size))
            except UserError as error:
                problems += error.problems
        if problems:
            raise UserError(*dict.fromkeys(problems))
        train, evaluate = parts
        several = sum(part.windowed for part in parts)
        summary = {
            "windows": f"{len(train):,} to train on, {len(evaluate):,} to evaluate on, of at most {size.max_length} "
            f"tokens; {several:,} of {len(self.train) + len(self.evaluate):,} questions have several, which share "
            f"{size.stride} tokens of the context"
        }
        if unreachable := sum(part.out_of_reach(max_tokens) for part in parts):
            summary["long answers"] = (
                f"{unreachable:,} questions have an answer that is longer than data.longest_answer, {max_tokens} "
                "tokens, or than what two windows share"
            )
        return QuestionWindowData(
            train,
            evaluate,
            self.files,
            self.workers,
            self.summary | summary,
            self.inputs,
            self.groups,
            item_of=evaluate.question_of,
        )

    def guesses(self) -> list[str]:
        """Return what can be answered to the evaluation questions without reading their contexts.

        It is the most frequent answer to the same question in the training data, or the most frequent of all answers
        where that question was not asked there; of equally frequent ones the first.
        """
        given: dict[str, Counter[str]] = {}
        overall: Counter[str] = Counter()
        for question, known in zip(self.train.questions, self.train.answers, strict=True):
            answer = known[0] if known else ""
            overall[answer] += 1
            given.setdefault(question, Counter())[answer] += 1
        most = {question: answers.most_common(1)[0][0] for question, answers in given.items()}
        usual = overall.most_common(1)[0][0]
        return [most.get(question, usual) for question in self.evaluate.questions]


def hold_out_groups(whole: QuestionSet, share: float) -> tuple[list[QuestionSet], str]:
    """Return the questions that stay in training and those that are held out, and a line for the plan.

    Whole articles are held out where the data names several, else whole contexts: no context stands on both sides.

    Raises:
        UserError: there is only one context.
    """
    group_of, groups = groups_of(whole)
    kind = "articles"
    if groups == 1:
        group_of, groups, kind = whole.context_of, len(whole.contexts), "contexts"
    if groups == 1:
        raise UserError(
            "there is no evaluation data, and all training questions have the same context, so that none can be held "
            "out; give data.eval"
        )
    _, held = split_rows(groups, share)
    if all(title is None for title in whole.titles):
        kind = "contexts"
    line = f"{len(held):,} of {groups:,} {kind} with all their questions, the same for every seed"
    return hold_out(whole, np.flatnonzero(np.isin(group_of, held)), "questions"), line


def groups_of(questions: QuestionSet) -> tuple[Array, int]:
    """Return the group of each question, and how many there are: an article, with what shares a context with it.

    Groups are numbered in the order in which they appear.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    keys: dict[int | str, int] = {}
    edges = [
        (number, len(questions.titles) + keys.setdefault(key, len(keys)))
        for number, both in enumerate(zip(questions.context_of.tolist(), questions.titles, strict=True))
        for key in both
        if key is not None
    ]
    nodes = len(questions.titles) + len(keys)
    graph = coo_array((np.ones(len(edges)), tuple(np.array(edges).T)), shape=(nodes, nodes))
    groups, group_of = connected_components(graph, directed=False)
    return group_of[: len(questions.titles)], groups


def _counted(questions: QuestionSet) -> str:
    without = sum(not known for known in questions.answers)
    missing = f", {without:,} of them without an answer" if without else ""
    return f"{len(questions):,} on {len(questions.contexts):,} contexts{missing}"
