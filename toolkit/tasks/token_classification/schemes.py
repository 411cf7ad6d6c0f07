"""Tags of words: plain ones, one class for each word, or BIO, which marks where entities begin and go on.

In BIO (also called IOB2) the first word of a person is tagged B-person, each further one I-person, and a word outside of any
entity O. Arrays here are flat: the tags of all sentences one after the other, and where each sentence starts.
"""

import re
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from toolkit.data.labels import Array, ordered

Kind = Literal["bio", "plain"]

OUTSIDE = "O"
MARKED = re.compile(r"[BIESLU](-.+)?")
"""B and I; and of the longer schemes E or L (last word of an entity) and S or U (its only word)."""
SHORTER = {"E": "I", "L": "I", "S": "B", "U": "B"}


def kind_of_tags(names: Sequence[str], asked: str) -> tuple[Kind | None, str]:
    """Return the kind of tags that have these names, or None and what is wrong with them."""
    strange = [name for name in names if name != OUTSIDE and not MARKED.fullmatch(name)]
    begins = [name for name in names if name[:2] in ("B-", "S-", "U-")]
    inside = [name for name in names if name[:2] == "I-"]
    if asked == "plain":
        return "plain", ""
    if asked == "bio":
        if strange:
            return None, f"data.kind is bio, but these tags are neither O nor begin with B- or I-: {_shown(strange)}"
        return "bio", ""
    if strange and OUTSIDE in names and (begins or inside):
        return None, (
            f"some tags are BIO ({_shown(begins + inside)}) and some are not ({_shown(strange)}); correct them, or "
            "take each tag as a class of its own with --data.kind plain"
        )
    bare = set(names) <= {"B", "I", OUTSIDE} and OUTSIDE in names and len(names) > 1
    return ("bio" if bare or (not strange and (begins or inside)) else "plain"), ""


def as_bio(name: str) -> str:
    """Return a tag of a longer scheme (BIOES, BILOU) in BIO, which says the same of where entities are."""
    return SHORTER.get(name[:1], name[:1]) + name[1:] if name != OUTSIDE else name


def bio_names(names: Sequence[str], in_order: bool) -> list[str]:
    """Return O and the beginning and the inside of each type that is named.

    A rare type may have words of one of the two alone in training. In the order of the data if it gives one, or else O
    first and types sorted.
    """
    types = {name[1:] for name in names if name != OUTSIDE}
    whole = [OUTSIDE, *(mark + kind for kind in sorted(types) for mark in "BI")]
    given = list(dict.fromkeys(names)) if in_order else []
    return [*given, *(name for name in whole if name not in given)]


def tag_names(kind: Kind, names: Sequence[str], in_order: bool) -> list[str]:
    """Return the tag of each id."""
    if kind == "bio":
        return bio_names(names, in_order)
    return list(names) if in_order else ordered(names)


def broken_starts(names: Sequence[str], tags: Array, starts: Array) -> Array:
    """Return which words are tagged as inside of an entity that did not begin: I-x at a sentence's start or after another type."""
    kinds = {kind: number for number, kind in enumerate(dict.fromkeys(name[1:] for name in names if name != OUTSIDE))}
    kind = np.array([kinds[name[1:]] if name != OUTSIDE else -1 for name in names], dtype=np.int64)[tags]
    inside = np.array([name != OUTSIDE and name[0] == "I" for name in names], dtype=bool)[tags]
    before = np.concatenate([np.full(1, -1, dtype=np.int64), kind[:-1]])[: len(kind)]
    before[starts[:-1][starts[:-1] < len(kind)]] = -1
    broken: Array = inside & (before != kind)
    return broken


def repaired(names: Sequence[str], tags: Array, broken: Array) -> Array:
    """Return the tags with a beginning wherever an entity had none; in the older scheme IOB1 that is what they mean."""
    begin = np.array([names.index("B" + name[1:]) if name != OUTSIDE else at for at, name in enumerate(names)])
    return np.where(broken, begin[tags], tags)


def entities(words: Sequence[str], tags: Sequence[str]) -> list[str]:
    """Return the entities of a sentence in words, such as "Empire State Building (location)"."""
    found: list[tuple[str, list[str]]] = []
    before = OUTSIDE
    for word, tag in zip(words, tags, strict=True):
        if tag != OUTSIDE:
            if tag[0] == "B" or before[1:] != tag[1:] or before == OUTSIDE:
                found.append((tag[2:], []))
            found[-1][1].append(word)
        before = tag
    return [" ".join(parts) + (f" ({kind})" if kind else "") for kind, parts in found]


def _shown(names: Sequence[Any]) -> str:
    return ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
