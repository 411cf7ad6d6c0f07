"""Questions as files bring them: the nested layout of SQuAD, and tables with a question a row."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.data.columns import find_column

ROWS_AT_ONCE = 1000
"""Rows that are Python objects at one time."""
ARTICLES_AT_ONCE = 10
NESTED = "paragraphs"
"""The column by which the nested layout is recognised."""

NEEDED = {
    "question": (("question",), ("query", "questions", "ask")),
    "context": (("context",), ("passage", "paragraph", "document"), ("text", "source", "contexts")),
    "answers": (("answers",), ("answer", "answer_text"), ("span", "label")),
}
"""The usual names of the columns that each table has, by the setting that names another one."""
OPTIONAL = {
    "answer_start": ("answer_start", "answer_starts", "start", "start_char"),
    "title": ("title", "article", "article_id"),
    "is_impossible": ("is_impossible", "impossible", "unanswerable"),
    "id": ("id", "question_id", "qid"),
}
UNNAMED = ("is_impossible", "id")
"""Columns that no setting names, and the plan does not show."""


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


def raw_questions(table: Any, given: Mapping[str, str]) -> tuple[Iterator[Raw], str]:
    """Return the questions of a `datasets.Dataset`, and a line for the plan on where they were found.

    `given` are the columns that were named, by the setting that names them, without "data.".

    Raises:
        UserError: a column that was given does not exist, is given twice, or cannot be found.
    """
    names = table.column_names
    if NESTED in names and not {"question", "context"} & set(given):
        return _nested(table), "SQuAD layout: articles, paragraphs, questions"
    free = [name for name in names if name not in given.values()]

    def find(flag: str, tiers: Sequence[Sequence[str]]) -> str:
        others = [name for other, name in given.items() if other != flag]
        return find_column(names, flag, given.get(flag), tiers, f"the {flag.removesuffix('s')}s", taken=others)

    columns = {flag: find(flag, tiers) for flag, tiers in NEEDED.items()}
    for flag, usual in OPTIONAL.items():
        name = find(flag, []) if flag in given else _usual(free, usual)
        if name is not None:
            columns[flag] = name
    line = ", ".join(f"{flag.replace('_', ' ')} {name!r}" for flag, name in columns.items() if flag not in UNNAMED)
    return _flat(table, columns), line


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


def _flat(table: Any, columns: Mapping[str, str]) -> Iterator[Raw]:
    place = 0
    for batch in table.with_format("arrow").iter(ROWS_AT_ONCE):
        for row in batch.select([*columns.values()]).to_pylist():
            place += 1
            cells = {flag: row[name] for flag, name in columns.items()}
            title = cells.get("title")
            yield Raw(
                (place,),
                str(cells.get("id", place)),
                None if title is None else str(title),
                cells["question"],
                cells["context"],
                answers_in(cells["answers"], cells.get("answer_start")),
                truth(cells.get("is_impossible")),
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
