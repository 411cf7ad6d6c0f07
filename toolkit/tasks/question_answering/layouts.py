"""Questions as files bring them: the nested layout of SQuAD, and tables with a question a row."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from toolkit.data.columns import find_column

ROWS_AT_ONCE = 1000
"""Rows that are Python objects at one time."""
ARTICLES_AT_ONCE = 10
NESTED = "paragraphs"
"""The column by which the nested layout is recognised."""

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
    """Texts, and the start that the data gives each; None where the cell holds something else."""
    impossible: bool | None
    """Whether the data marks it as without an answer; None where it does not say."""


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
        UserError: a column that was given does not exist, is given twice, or cannot be found.
    """
    names = table.column_names
    if NESTED in names and given.question is None and given.context is None:
        return _nested(table), "SQuAD layout: articles, paragraphs, questions"
    chosen = {flag: name for flag, name in asdict(given).items() if name is not None}
    free = [name for name in names if name not in chosen.values()]

    def find(flag: str, tiers: Sequence[Sequence[str]], what: str) -> str:
        others = [name for other, name in chosen.items() if other != flag]
        return find_column(names, flag, chosen.get(flag), tiers, what, taken=others)

    def find_optional(flag: str, usual: Sequence[str]) -> str | None:
        return find(flag, [], "") if flag in chosen else _usual(free, usual)

    question = find("question", QUESTION_NAMES, "the questions")
    context = find("context", CONTEXT_NAMES, "the contexts")
    answers = find("answers", ANSWER_NAMES, "the answers")
    start = find_optional("answer_start", START_NAMES)
    title = find_optional("title", TITLE_NAMES)
    impossible, number = _usual(free, IMPOSSIBLE_NAMES), _usual(free, ID_NAMES)
    found = {"question": question, "context": context, "answers": answers, "answer start": start, "title": title}
    line = ", ".join(f"{what} {name!r}" for what, name in found.items() if name is not None)
    return _flat(table, question, context, answers, start, title, impossible, number), line


def answers_in(cell: Any, start: Any = None) -> list[tuple[Any, Any]] | None:
    """Return the answers of a cell with their starts, None for those that have none; None for what is no answer.

    A cell holds a text, a list of texts (`start` is then a list too, or None), a mapping of both lists, or a list of
    mappings with "text" and "answer_start". Null and the empty text mean that there is no answer.
    """
    match cell:
        case None:
            return []
        case str():
            return answers_in([cell], start)
        case bool():
            return None
        case int() | float():  # of a column that holds nothing but numbers; one with a fraction makes fractions of all
            return answers_in([str(int(cell)) if cell == cell // 1 else str(cell)], start)
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
    """Return the truth value of a cell: true or false, a number or a word; None where it is empty."""
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
            for at, paragraph in enumerate(_objects(row[NESTED]), start=1):
                questions = _objects(paragraph.get("qas")) if paragraph else [{}]
                for position, asked in enumerate(questions, start=1):
                    yield Raw(
                        (article, at, position),
                        str(asked.get("id") or f"{article}.{at}.{position}"),
                        None if row.get("title") is None else str(row["title"]),
                        asked.get("question"),
                        paragraph.get("context"),
                        answers_in(asked.get("answers")),
                        truth(asked.get("is_impossible")),
                    )


def _objects(cell: Any) -> list[Mapping[str, Any]]:
    """Return the objects of a list; what is no object, or no list, becomes an empty one, which the check refuses."""
    entries = cell if isinstance(cell, list) else [] if cell is None else [cell]
    return [entry if isinstance(entry, Mapping) else {} for entry in entries]


def _usual(existing: Sequence[str], names: Sequence[str]) -> str | None:
    plain = {name.strip().lower(): name for name in reversed(existing)}
    return next((plain[name] for name in names if name in plain), None)
