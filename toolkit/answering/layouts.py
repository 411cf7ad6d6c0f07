"""Questions as files bring them: the nested layout of SQuAD, and tables with a question a row."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.columns import find_column

ROWS_AT_ONCE = 1000
"""Rows that are Python objects at one time."""
ARTICLES_AT_ONCE = 10
NESTED = "paragraphs"
"""The column that tells the nested layout."""

QUESTION_NAMES = (("question",), ("query", "questions", "ask"))
CONTEXT_NAMES = (("context",), ("passage", "paragraph", "document"), ("text", "source", "contexts"))
ANSWER_NAMES = (("answers",), ("answer", "answer_text"), ("span", "label"))
START_NAMES = ("answer_start", "answer_starts", "start", "start_char")
IMPOSSIBLE_NAMES = ("is_impossible", "impossible", "unanswerable")
TITLE_NAMES = ("title", "article", "article_id")
ID_NAMES = ("id", "question_id", "qid")


@dataclass(frozen=True)
class Raw:
    """A question as it was found, not checked."""

    place: tuple[int, ...]
    """The row, or article, paragraph and question, each counted from 1."""
    id: str
    title: str | None
    question: Any
    context: Any
    answers: list[tuple[Any, Any]] | None
    """Texts, and where each is said to start; None where the cell holds something else."""
    impossible: bool | None
    """Whether it is said to have no answer."""


@dataclass(frozen=True)
class QuestionColumns:
    """Names of columns, as far as they were given."""

    question: str | None
    context: str | None
    answers: str | None
    answer_start: str | None
    title: str | None


def raw_questions(table: Any, given: QuestionColumns) -> tuple[Iterator[Raw], str]:
    """Return the questions of a `datasets.Dataset`, and a line for the plan on where they were found.

    Raises:
        UserError: a column that was given does not exist, or one cannot be found.
    """
    names = table.column_names
    if NESTED in names and given.question is None and given.context is None:
        return _nested(table), "SQuAD layout: articles, paragraphs, questions"
    question = find_column(names, "question", given.question, QUESTION_NAMES, "the questions")
    rest = [name for name in names if name != question]
    context = find_column(rest, "context", given.context, CONTEXT_NAMES, "the contexts")
    rest.remove(context)
    answers = find_column(rest, "answers", given.answers, ANSWER_NAMES, "the answers")
    rest.remove(answers)
    start = _optional(rest, "answer_start", given.answer_start, START_NAMES)
    title = _optional(rest, "title", given.title, TITLE_NAMES)
    impossible = _optional(rest, "", None, IMPOSSIBLE_NAMES)
    number = _optional(rest, "", None, ID_NAMES)
    found = {"question": question, "context": context, "answers": answers, "answer start": start, "title": title}
    line = ", ".join(f"{what} {name!r}" for what, name in found.items() if name is not None)
    return _flat(table, question, context, answers, start, title, impossible, number), line


def answers_in(cell: Any, start: Any = None) -> list[tuple[Any, Any]] | None:
    """Return the answers of a cell with their starts, None for those that have none; None for what is no answer.

    A cell holds a text, a list of texts (`start` is then a list too, or None), a mapping of both lists, or a list of mappings
    with "text" and "answer_start". Null and the empty text mean that there is no answer.
    """
    match cell:
        case None:
            return []
        case str():
            return answers_in([cell], start)
        case {"text": texts}:
            return answers_in(texts, cell.get("answer_start"))
        case [*entries] if all(isinstance(entry, Mapping) and "text" in entry for entry in entries):
            return [(entry["text"], entry.get("answer_start")) for entry in entries]
        case [*entries] if all(isinstance(entry, str) for entry in entries):
            starts = start if isinstance(start, list) else [None] * len(entries) if start is None else [start]
            if len(starts) != len(entries):
                return None
            return [(text, place) for text, place in zip(entries, starts, strict=True) if text.strip()]
    return None


def truth(cell: Any) -> bool | None:
    """Return what a cell says: true or false, as such, as a number or as a word; None where it says nothing."""
    if cell is None or cell == "":
        return None
    return cell.strip().lower() in ("true", "yes", "1") if isinstance(cell, str) else bool(cell)


def _flat(
    table: Any,
    question: str,
    context: str,
    answers: str,
    start: str | None,
    title: str | None,
    impossible: str | None,
    number: str | None,
) -> Iterator[Raw]:
    wanted = [name for name in (question, context, answers, start, title, impossible, number) if name is not None]
    place = 0
    for batch in table.with_format("arrow").iter(ROWS_AT_ONCE):
        for row in batch.select(wanted).to_pylist():
            place += 1
            yield Raw(
                (place,),
                str(row[number]) if number else str(place),
                str(row[title]) if title and row[title] is not None else None,
                row[question],
                row[context],
                answers_in(row[answers], row[start] if start else None),
                truth(row[impossible]) if impossible else None,
            )


def _nested(table: Any) -> Iterator[Raw]:
    article = 0
    for batch in table.with_format("arrow").iter(ARTICLES_AT_ONCE):
        for row in batch.to_pylist():
            article += 1
            for at, paragraph in enumerate(row[NESTED] or [], start=1):
                for position, asked in enumerate(paragraph.get("qas") or [], start=1):
                    yield Raw(
                        (article, at, position),
                        str(asked.get("id") or f"{article}.{at}.{position}"),
                        None if row.get("title") is None else str(row["title"]),
                        asked.get("question"),
                        paragraph.get("context"),
                        answers_in(asked.get("answers")),
                        truth(asked.get("is_impossible")),
                    )


def _optional(existing: Sequence[str], flag: str, given: str | None, names: Sequence[str]) -> str | None:
    if given is not None:
        return find_column(existing, flag, given, [], "")
    plain = {name.strip().lower(): name for name in reversed(existing)}
    return next((plain[name] for name in names if name in plain), None)
