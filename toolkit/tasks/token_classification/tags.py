"""Tags of words, what can be wrong with them, and their ids.

Tags are plain, one class for each word, or BIO, which marks where entities begin and go on. In BIO (also called IOB2)
the first word of a person is tagged B-person, each further one I-person, and a word outside of any entity O. Arrays
here are flat: the tags of all sentences one after the other, and where each sentence starts.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from toolkit.data.held_out import held_out_rows
from toolkit.data.labels import UNKNOWN, Array, ordered, starts_of
from toolkit.data.reading import SHOWN, hold_out, listed, row_numbers
from toolkit.errors import UserError
from toolkit.tasks.token_classification.rows import TaggedRows

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
    """Return a tag of a longer scheme (BIOES, BILOU) in BIO, which marks the same entities."""
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


def broken_starts(names: Sequence[str], tags: Array, starts: Array) -> Array:
    """Return which words are tagged as inside of an entity that did not begin.

    Those are an I-x at the start of a sentence, and one after a word of another type.
    """
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


def in_scheme(splits: Sequence[TaggedRows], asked: str, repair: bool) -> tuple[Kind, list[TaggedRows], dict[str, str]]:
    """Return the kind of the tags, the rows, and lines for the plan; in BIO each entity then begins with a beginning.

    Args:
        splits: the training rows, and the evaluation rows if there are any.
        asked: data.kind.
        repair: whether a word inside of an entity that has not begun is taken for its beginning.

    Raises:
        UserError: the tags are of no kind, or not of the one that was asked for, or entities do not begin.
    """
    used = list(dict.fromkeys(name for rows in splits for name in rows.used()))
    kind, problem = kind_of_tags(used, asked)
    if kind is None:
        raise UserError(problem)
    if kind == "plain":
        if repair:
            raise UserError("data.repair is true, but the tags are plain ones, without beginnings; leave it out")
        return kind, list(splits), {}
    whole, problems, mended = [], [], 0
    for rows in splits:
        called = [as_bio(name) for name in rows.names]
        marked = [name for name in called if name == OUTSIDE or MARKED.fullmatch(name)]
        named = rows.renamed(bio_names(marked, rows.in_order), called)
        broken = broken_starts(named.names, named.tags, named.starts)
        if broken.any() and not repair:
            first = named.names[named.tags[int(broken.argmax())]]
            problems.append(
                f"{rows.name}: {int(broken.sum()):,} words are tagged as inside of an entity that has not begun, "
                f"such as {first!r}, in {row_numbers(named.rows_with(broken))}; correct them, or read them as "
                "beginnings with --data.repair true (files in the scheme IOB1 have many)"
            )
        mended += int(broken.sum())
        whole.append(replace(named, tags=repaired(named.names, named.tags, broken)))
    if problems:
        raise UserError(*problems)
    lines = {}
    if longer := [name for name in used if as_bio(name) != name]:
        lines["scheme"] = f"{listed(longer)} and the like are read as B- and I- (BIO)"
    if repair:
        lines["repaired"] = f"{mended:,} words inside of an entity that had not begun are now its beginning"
    return kind, whole, lines


def tag_names(kind: Kind, rows: TaggedRows) -> list[str]:
    """Return the tag of each id: in the order that the data gives, or else those that training has, sorted."""
    names = rows.names if rows.in_order else rows.used()
    if kind == "bio":
        return bio_names(names, rows.in_order)
    return list(names) if rows.in_order else ordered(names)


def names_for_head(names: list[str], saved: Sequence[str] | None) -> tuple[list[str], str]:
    """Return the tags, in the order of the model's own head if that is for the same ones, and a line for the plan."""
    if saved is None:
        return names, f"new weights, {len(names)} tags"
    if sorted(saved) == sorted(names):
        return list(saved), f"the model's own, {len(names)} tags"
    if len(saved) != len(names):
        return names, (f"new weights, {len(names)} tags, because the model's own is for {len(saved)} ({listed(saved)})")
    return names, f"starts from the model's own, which was trained for other tags ({listed(saved)})"


def numbered(kind: Kind, splits: Sequence[TaggedRows], names: list[str], known: bool) -> list[TaggedRows]:
    """Return rows with tags as ids of `names`.

    With `known` tags, those of a saved model, a tag need not be in the training data.

    Raises:
        UserError: a tag has no id or training never shows it, or all words of the training data have the same.
    """
    after = [rows.renamed(names) for rows in splits]
    seen = np.bincount(after[0].tags[after[0].tags >= 0], minlength=len(names)) > 0
    if kind == "bio":  # of a rare type training may have beginnings alone
        types = {name[1:] for name, there in zip(names, seen, strict=True) if there and name != OUTSIDE}
        seen = np.array([name == OUTSIDE or name[1:] in types for name in names])
    where = f"the model, whose tags are {listed(names)}," if known else "the training data"
    remedy = "take another model" if known else "add such rows to the training data"
    problems = []
    for before, rows in zip(splits, after, strict=True):
        strange = rows.tags == UNKNOWN
        if not known:
            strange |= ~seen[rows.tags]
        if not strange.any():
            continue
        found = np.bincount(before.tags[strange], minlength=len(before.names)).tolist()
        counts = [f"{name!r} ({count:,}x)" for name, count in zip(before.names, found, strict=True) if count]
        shown = ", ".join(counts[:SHOWN]) + (f", ... ({len(counts)} in all)" if len(counts) > SHOWN else "")
        problems.append(
            f"{before.name}: tags that {where} does not know: {shown}, in {row_numbers(before.rows_with(strange))}; "
            f"correct or remove these rows, or {remedy}"
        )
    if not known and len(present := after[0].used()) < 2:
        problems.append(f"training data: every word has the tag {present[0]!r}, so there is nothing to learn")
    if problems:
        raise UserError(*problems)
    return after


def hold_out_by_tag(whole: TaggedRows, share: float) -> tuple[list[TaggedRows], str]:
    """Return the rows that stay in training and those that are held out, and a line for the plan.

    Raises:
        UserError: no row can be held out, since each tag stays in training.
    """
    counts = np.diff(whole.starts)
    pairs = np.unique(np.repeat(np.arange(len(whole)), counts) * len(whole.names) + whole.tags)
    sentence, tag = np.divmod(pairs, len(whole.names))
    held = held_out_rows(starts_of(np.bincount(sentence, minlength=len(whole))), tag, share)
    if not len(held):
        raise UserError(
            f"there is no evaluation data, and none of the {len(whole)} training rows can be held out, since each "
            "tag must stay in training; give data.eval, or more rows"
        )
    line = f"{len(held) / len(whole):.1%} of the training rows, the same for every seed; each tag stays in training"
    return hold_out(whole, held), line


def tags_line(kind: Kind, rows: TaggedRows) -> str:
    """Return a line for the plan on the tags of the training data."""
    counts = np.bincount(rows.tags, minlength=len(rows.names))
    if kind == "bio":
        types = sorted({name[2:] for name in rows.names if name != OUTSIDE})
        begins = sum(int(counts[at]) for at, name in enumerate(rows.names) if name[0] == "B")
        return f"BIO, {len(types)} types of entity ({listed(types)}) with {begins:,} entities to train on"
    most = int(counts.argmax())
    share = counts[most] / len(rows.tags)
    return f"plain, {len(rows.names)}; the most frequent is {rows.names[most]!r} with {share:.1%} of the words"


def _shown(names: Sequence[Any]) -> str:
    return ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
