"""Rows of pairs: which of the columns hold what, and every way in which a pair can be wrong."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import combinations
from typing import Any

import numpy as np

from toolkit.data.columns import LABEL_NAMES, PAIR_NAMES, TEXT_NAMES, find_column, plain_name
from toolkit.data.label_reading import is_text, read_labels
from toolkit.data.labelled_rows import check_columns, empty_texts
from toolkit.data.labels import Array
from toolkit.data.reading import Checked, checked_rows
from toolkit.data.tokenized import ROWS_AT_ONCE
from toolkit.errors import UserError
from toolkit.tasks.sentence_embedding.texts import EmbeddingRows, Kind

ANCHOR_PAIRS = (("anchor", "positive"), ("query", "positive"), ("question", "positive"), *PAIR_NAMES)
ANCHOR_NAMES = (("anchor",), ("sentence1", "sentence_1", "sentence_a"), ("query", "question"), *TEXT_NAMES)
POSITIVE_NAMES = (("positive",), ("sentence2", "sentence_2", "sentence_b"), ("answer", "passage", "document"))
NEGATIVE_NAMES = (("negative",), ("hard_negative", "negative_1", "neg"))
SCORE_NAMES = (("score", "scores"), ("similarity", "similarity_score", "relatedness_score", "relatedness"))


@dataclass(frozen=True)
class Roles:
    """What is learned from, and the names of the columns that hold it."""

    kind: Kind
    texts: tuple[str, ...]
    """A text; or the two sides of a pair, and a negative where there is one."""
    value: str | None = None
    """The score or the label."""


def find_roles(
    table: Any,
    kind: str = "auto",
    text: str | None = None,
    text_pair: str | None = None,
    negative: str | None = None,
    score: str | None = None,
    label: str | None = None,
) -> Roles:
    """Return what is learned from a `datasets.Dataset`: what was asked for, or what its columns' usual names mean.

    Raises:
        UserError: a given column does not exist, settings contradict each other, or the columns leave it open.
    """
    given = [flag for flag, name in (("score", score), ("label", label), ("negative", negative)) if name is not None]
    if len(given) > 1 or (label is not None and text_pair is not None):
        both = given if len(given) > 1 else ["label", "text_pair"]
        raise UserError(
            f"data.{both[0]} and data.{both[1]} are both given, but scores are of pairs, labels of single texts, and "
            "negatives belong to positives; leave one of them out"
        )
    existing = table.column_names
    plain = {plain_name(name): name for name in existing}
    pair = next(((plain[a], plain[b]) for a, b in ANCHOR_PAIRS if a in plain and b in plain), None)
    scores = [plain[name] for tier in SCORE_NAMES for name in tier if name in plain]
    labels = [plain[name] for tier in LABEL_NAMES[:2] for name in tier if name in plain and plain[name] not in scores]
    if pair is not None and not scores:
        scores = [name for name in labels if _is_float(table, name)]
    if kind == "auto":
        if score is not None or (scores and pair is not None and not given and text_pair is None):
            kind = "scores"
        elif negative is not None or text_pair is not None:
            kind = "positives"
        elif label is not None or pair is None:
            kind = "labels"
        elif labels:
            raise UserError(
                f"the data has pairs ({pair[0]!r} and {pair[1]!r}) and a column {labels[0]!r}, which may be a score or "
                f"a class: give --data.score {labels[0]} if it says how alike two texts are, or --data.kind positives "
                "to take every row as a pair of texts that belong together"
            )
        else:
            kind = "positives"
    if kind == "labels":
        only = find_column(existing, "text", text, TEXT_NAMES, "the text")
        return Roles("labels", (only,), find_column(existing, "label", label, LABEL_NAMES, "the label", [only]))
    if text is None and text_pair is None and pair is not None:
        text, text_pair = pair
    first = find_column(existing, "text", text, ANCHOR_NAMES, "the first text of a pair")
    second = find_column(existing, "text_pair", text_pair, POSITIVE_NAMES, "the second text of a pair", [first])
    texts = (first, second)
    if kind == "scores":
        score = score or (scores[0] if len(scores) == 1 else None)
        return Roles("scores", texts, find_column(existing, "score", score, SCORE_NAMES, "the score", texts))
    found = [plain[name] for tier in NEGATIVE_NAMES for name in tier if name in plain][:1]
    if negative is not None:
        found = [find_column(existing, "negative", negative, NEGATIVE_NAMES, "a negative", texts)]
    return Roles("positives", (*texts, *found))


def check_text_columns(tables: Mapping[str, Any], roles: Roles) -> None:
    """Raise UserError if a column is not in the evaluation data, or holds no text."""
    problems: list[str] = []
    try:
        check_columns(tables, roles.texts, () if roles.value is None else (roles.value,))
    except UserError as error:
        problems += error.problems
    train = tables["training data"]
    if roles.kind == "scores" and not is_number(train, str(roles.value)):
        type_ = train.data.schema.field(roles.value).type
        problems.append(
            f"the score column {roles.value!r} holds {type_}, no numbers; give another one with --data.score"
        )
    if problems:
        raise UserError(*dict.fromkeys(problems))


def check_pairs(name: str, table: Any, roles: Roles, score_range: Sequence[float] | None) -> Checked[EmbeddingRows]:
    """Return the rows of a table that are valid pairs, with the scores that the data gives."""
    texts = table.select_columns(list(roles.texts))
    wrong = {f"empty text in column {column!r}": empty for column, empty in empty_texts(texts).items()}
    identities, scores = text_identities(texts), None
    if roles.value is None:
        reported = np.any([*wrong.values()], axis=0)
        for one, other in combinations(range(len(roles.texts)), 2):
            what = f"the columns {roles.texts[one]!r} and {roles.texts[other]!r} hold the same text"
            equal = (identities[:, one] == identities[:, other]) & ~reported
            wrong[f"{what}, from which nothing can be learned,"] = equal
            reported = reported | equal
    else:
        # Two equal texts with a score are a pair like any other: some have the highest score.
        labels = read_labels(table, roles.value, "regression", None)
        scores = labels.values
        wrong[f"no score in column {roles.value!r}"] = labels.empty
        wrong[f"the score in column {roles.value!r} is not a finite number"] = labels.unreadable
        if score_range is not None:
            lowest, highest = score_range
            outside = ~labels.empty & ~labels.unreadable & ((scores < lowest) | (scores > highest))
            wrong[f"the score in column {roles.value!r} is outside {lowest:g} to {highest:g}"] = outside
    return checked_rows(EmbeddingRows(name, texts, np.arange(len(texts), dtype=np.int64), identities, scores), wrong)


def text_identities(texts: Any) -> Array:
    """Return a 63-bit hash of every text of a `datasets.Dataset`, shape (rows, columns).

    White space around a text counts for nothing.
    """
    parts: list[Array] = []
    for batch in texts.with_format("arrow").iter(ROWS_AT_ONCE):
        hashes = [[_hash(text) for text in column.to_pylist()] for column in batch.columns]
        parts.append(np.array(hashes, dtype=np.int64).T)
    return np.concatenate(parts) if parts else np.zeros((0, len(texts.column_names)), dtype=np.int64)


def is_number(table: Any, column: str) -> bool:
    """Return whether a column may hold numbers, if only as texts."""
    import pyarrow as pa

    type_ = table.data.schema.field(column).type
    return is_text(type_) or pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_)


def _is_float(table: Any, column: str) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_floating(table.data.schema.field(column).type))


def _hash(text: str | None) -> int:
    content = (text or "").strip().encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "big") >> 1
