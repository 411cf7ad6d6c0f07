"""Which columns of a table hold the texts and the labels: given by the user, or found by their usual names."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from toolkit.errors import UserError

# Tiers: the first one that has exactly one column in the table decides; two columns of one tier decide nothing.
TEXT_NAMES = (
    ("text",),
    ("sentence", "content", "review", "question", "utterance", "document", "comment", "tweet", "message", "body"),
    ("review_text", "review_body", "comment_text", "tweet_text", "full_text", "article", "post", "query", "abstract"),
    ("title", "headline", "description", "summary"),
)
LABEL_NAMES = (
    ("label", "labels"),
    ("category", "categories", "class", "classes", "target", "targets", "intent", "sentiment", "emotion", "topic"),
    ("gold_label", "label_text", "label_name", "class_name", "relation", "tag", "tags", "genre", "language", "y"),
    ("score", "stars", "rating", "ratings", "similarity", "similarity_score", "grade", "polarity", "is_duplicate"),
)
PAIR_NAMES = (
    ("sentence1", "sentence2"),
    ("sentence_1", "sentence_2"),
    ("sentence_a", "sentence_b"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("text1", "text2"),
    ("text_1", "text_2"),
    ("text_a", "text_b"),
    ("question", "sentence"),
    ("query", "passage"),
    ("query", "document"),
    ("question", "passage"),
    ("question", "answer"),
)

IN_ORDER = (
    ("text", "label"),
    ("source", "target"),
    ("prompt", "completion"),
    ("prompt", "chosen", "rejected"),
    ("question", "context", "answers"),
    ("anchor", "positive"),
)
"""How the columns of a task are often ordered, for messages: the user knows what the file holds."""

NUMBER = re.compile(r"[+-]?([0-9]+([.,][0-9]+)?|[.,][0-9]+)([eE][+-]?[0-9]+)?")
"""A number as tables have them, also with a decimal comma."""
NAME_LENGTH = 40
WORDS_OF_A_NAME = 4


@dataclass(frozen=True)
class Columns:
    """Names of columns: the text, the second text of a pair if there is one, and the label."""

    text: str
    text_pair: str | None
    label: str

    @property
    def texts(self) -> list[str]:
        """The columns that hold text."""
        return [self.text] if self.text_pair is None else [self.text, self.text_pair]


def find_columns(
    existing: Sequence[str],
    textual: Sequence[str],
    text: str | None = None,
    text_pair: str | None = None,
    label: str | None = None,
) -> Columns:
    """Return the columns to use: those given, and for the others the usual names, whatever their case.

    `textual` are the existing columns that hold text. A second text is looked for only where the first is not given.
    Raises UserError if a given column does not exist or one cannot be found; it lists the columns and the flags.
    """
    given = {"text": text, "text_pair": text_pair, "label": label}
    problems = [_missing(existing, flag, name) for flag, name in given.items() if name and name not in existing]
    chosen = [name for name in given.values() if name]
    problems += [
        f"the column {name!r} is given more than once among data.text, data.text_pair and data.label"
        for name in sorted({name for name in chosen if chosen.count(name) > 1})
    ]
    if problems:
        raise UserError(*problems)
    free = [name for name in existing if name not in chosen]
    if label is None:
        label = _first_tier(free, LABEL_NAMES)
        free = [name for name in free if name != label]
    if text is None:
        pair = _pair(free) if text_pair is None else None
        text = _first_tier(free, TEXT_NAMES)
        # "question" and "sentence" are a pair together; a plain "text" next to a pair leaves it undecided.
        if pair and (text is None or text in pair):
            text, text_pair = pair
        elif pair:
            text = None
    # A table of two columns needs no names: where one is known, the other is what remains.
    rest = [name for name in free if name not in (text, text_pair)]
    if text is None and label is not None and len(rest) == 1 and rest[0] in textual and not _pair(free):
        text = rest[0]
    if label is None and text is not None and len(rest) == 1:
        label = rest[0]
    if text is None or label is None:
        unknown = [name for name, value in (("text", text), ("label", label)) if value is None]
        flags = " and ".join(f"--data.{name} COLUMN" for name in unknown)
        raise UserError(
            f"cannot tell which column holds the {' and which the '.join(unknown)}; the data has {_listed(existing)}: "
            f"give {flags} (and --data.text_pair COLUMN for pairs of texts){_header_hint(existing)}"
        )
    return Columns(text, text_pair, label)


def find_column(
    existing: Sequence[str],
    flag: str,
    given: str | None,
    tiers: Sequence[Sequence[str]],
    what: str,
    taken: Collection[str] = (),
) -> str:
    """Return one column: the one that is given, or else the one with a usual name, whatever its case.

    Args:
        existing: the columns that there are.
        flag: the setting that names it, without "data.".
        given: what it was set to.
        tiers: usual names; the first tier that has exactly one of the columns decides.
        what: what the column holds, for the message.
        taken: columns that hold something else already.

    Raises:
        UserError: the given column does not exist or is taken, or none has a usual name.
    """
    if given is not None:
        if given not in existing:
            raise UserError(_missing(existing, flag, given))
        if given in taken:
            raise UserError(
                f"data.{flag} is {given!r}, a column that is taken for something else too; the data has "
                f"{_listed(existing)}: give each column one part"
            )
        return given
    found = _first_tier([name for name in existing if name not in taken], tiers)
    if found is None:
        usual = ", ".join(name for tier in tiers for name in tier)
        raise UserError(
            f"cannot tell which column holds {what} (usual names are {usual}); the data has {_listed(existing)}: "
            f"give --data.{flag} COLUMN{_header_hint(existing, flag)}"
        )
    return found


def _first_tier(names: Sequence[str], tiers: Sequence[Sequence[str]]) -> str | None:
    for tier in tiers:
        found = [name for name in names if plain_name(name) in tier]
        if found:
            return found[0] if len(found) == 1 else None
    return None


def _pair(names: Sequence[str]) -> tuple[str, str] | None:
    plain = {plain_name(name): name for name in names}
    for first, second in PAIR_NAMES:
        if first in plain and second in plain:
            return plain[first], plain[second]
    return None


def plain_name(name: str) -> str:
    """Return a column's name as it is compared with the usual names."""
    return name.strip().lower().replace(" ", "_").replace("-", "_")


def _missing(existing: Sequence[str], flag: str, name: str) -> str:
    near = get_close_matches(name.lower(), [column.lower() for column in existing], n=1)
    nearest = next((f"; did you mean {column!r}?" for column in existing if near and column.lower() == near[0]), "")
    return f"data.{flag} is {name!r}, but the data has {_listed(existing)}{nearest}{_header_hint(existing, flag)}"


def _listed(names: Sequence[str]) -> str:
    return "the columns " + ", ".join(repr(shortened(name)) for name in names) if names else "no columns"


def shortened(cell: str) -> str:
    """Return a cell of a header for a message: a sentence stands there where there is no header."""
    return cell if len(cell) <= NAME_LENGTH else cell[: NAME_LENGTH - 3] + "..."


def look_like_data(names: Sequence[str]) -> bool:
    """Tell whether there are numbers or sentences among the names of columns, as in a first row of data."""
    numbering = {str(place) for place in range(len(names))}  # what pandas calls columns without a name
    return any(
        NUMBER.fullmatch(name) is not None
        or len(name.split()) > WORDS_OF_A_NAME
        or name.endswith((".", "!", "?"))
        or len(name) > NAME_LENGTH
        for name in names
        if name not in numbering
    )


def _header_hint(existing: Sequence[str], flag: str = "text") -> str:
    if not look_like_data(existing):
        return ""
    first = next((names for names in IN_ORDER if flag in names), IN_ORDER[0])[: len(existing)]
    names = [*first, *(f"column {number}" for number in range(len(first) + 1, len(existing) + 1))]
    return (
        "; if these are the first row of data because the file has no header, say so with --data.header false, or name "
        f'the columns in their order, such as --data.header "[{", ".join(names)}]"'
    )
