"""CoNLL files: a word and its tags on a line, an empty line between two sentences."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.data.formats.text import LINES_LOOKED_AT, first_lines, open_text
from toolkit.errors import UserError

if TYPE_CHECKING:
    import pyarrow

DOCUMENT_START = "-DOCSTART-"
LINES_NAMED = 5
OTHERS = {"|": "bars", ";": "semicolons", ",": "commas"}
UNIVERSAL = 10
"""Fields of a line of CoNLL-U."""
NUMBERED = re.compile(r"[0-9]+([-.][0-9]+)?\t")
RANGE = re.compile(r"[0-9]+[-.][0-9]+")


def read_conll(path: Path) -> tuple["pyarrow.Table", str]:
    """Return the sentences of a file as rows, and what the plan should say of how; see `conll_table`."""
    with open_text(path, newline="\n") as file:
        return conll_table(file, str(path))


def looks_like_conll(path: Path, tags: Collection[str]) -> bool:
    """Tell whether most of the first lines have as many fields, two or more, and a tag behind the others.

    What stands at the end of a line is one if it is among `tags`, or if it comes again and again.
    """
    begin = first_lines(path, LINES_LOOKED_AT, newline="\n")
    lines = [line for line in begin if not line.startswith("#") and not _is_document_start(line)]
    separator = "\t" if lines and "\t" in lines[0].strip() else None
    fields = [_fields(line.rstrip("\r\n"), separator) for line in lines]
    if not fields:
        return False
    width, count = Counter(map(len, fields)).most_common(1)[0]
    ends = [line[-1] for line in fields]
    known = sum(end in tags for end in ends) > len(ends) / 2
    return width > 1 and count > 0.9 * len(fields) and (known or (len(ends) > 3 and len({*ends}) <= len(ends) / 2))


def conll_table(lines: Iterable[str], origin: str) -> tuple["pyarrow.Table", str]:
    """Return sentences as rows, and what the plan should say of how they were read.

    The rows have the columns "tokens" (the first field of each line) and "tags" (the last).

    Fields are separated by a tab where the first line has one, or else by spaces, or else by the one of `|`, `;` and
    `,` that divides all lines into equally many. Those between the first and the last
    are in "column_2" and so on. Lines that announce a document (-DOCSTART-) are left out, and so are comments: lines
    that begin with "#" and have another number of fields than the rest. In a file of CoNLL-U, where the first of ten
    fields is a number, so are the lines of ranges of words (3-4) and of words that nobody wrote (3.1).

    Raises UserError, naming the lines, if they differ in their number of fields or have no tag.
    """
    import pyarrow as pa

    numbered = [(number, line.rstrip("\r\n")) for number, line in enumerate(lines, start=1)]
    first = next(
        (
            (number, line)
            for number, line in numbered
            if line.strip() and not line.startswith("#") and not _is_document_start(line)
        ),
        None,
    )
    if first is None:
        raise UserError(f"{origin} holds no words; give a file with a word and its tag on a line")
    separator = "\t" if "\t" in first[1].strip() else None
    width = len(_fields(first[1], separator))
    note = ""
    if width < 2 and (sign := _other_separator([line for _, line in numbered])):
        separator, width = sign, len(first[1].split(sign))
        note = f"fields separated by {OTHERS[sign]}"
    if width < 2:
        raise UserError(
            f"{origin}, line {first[0]}: {first[1].strip()[:60]!r} is a word without a tag; a CoNLL file has a word "
            "and its tag on each line, separated by a tab or a space, and an empty line between two sentences"
        )
    universal = width == UNIVERSAL and NUMBERED.match(first[1]) is not None
    sentences: list[list[list[str]]] = [[]]
    extra = 0
    wrong: list[int] = []
    for number, line in numbered:
        fields = _fields(line, separator)
        if not line.strip() or _is_document_start(line):
            sentences.append([])
        elif universal and RANGE.fullmatch(fields[0]):
            extra += 1
        elif len(fields) == width:
            sentences[-1].append(fields)
        elif not line.startswith("#"):
            wrong.append(number)
    if wrong:
        named = ", ".join(map(str, wrong[:LINES_NAMED])) + (", ..." if len(wrong) > LINES_NAMED else "")
        line = numbered[wrong[0] - 1][1]
        raise UserError(
            f"{origin}: {len(wrong):,} line{'s' * (len(wrong) > 1)} (number {named}) with another number of fields "
            f"than the {width} of line {first[0]}, such as {line.strip()[:60]!r}; a word and its tags are separated by "
            f"{'spaces or tabs' if separator is None else OTHERS.get(separator, 'tabs')}: correct these lines"
        )
    names = ["tokens", *(f"column_{place}" for place in range(2, width)), "tags"]
    kept = [sentence for sentence in sentences if sentence]
    texts = pa.list_(pa.string())
    table = pa.table(
        {name: pa.array([[line[at] for line in sentence] for sentence in kept], texts) for at, name in enumerate(names)}
    )
    if extra:
        note = f"CoNLL-U, {extra:,} lines of ranges or empty words left out"
    return table, note


def has_sentences_of_conll(path: Path) -> bool:
    """Tell whether blank lines divide a text into lines of equally many words, two or more, as sentences have them."""
    with open_text(path, newline="\n") as file:
        lines = [line.rstrip("\r\n") for line in islice(file, LINES_LOOKED_AT)]
    words = [line for line in lines if line.strip() and not line.startswith("#") and not _is_document_start(line)]
    # A word may be a space of another kind, so such lines are divided as those of sentences are.
    widths = {len(_fields(line, "\t" if "\t" in line else None)) for line in words}
    divided = any(not line.strip() for line in lines)
    return divided and len(words) > 3 and len(widths) == 1 and widths != {1}


def _other_separator(lines: Sequence[str]) -> str | None:
    words = [line for line in lines if line.strip() and not line.startswith("#") and not _is_document_start(line)]
    for sign in OTHERS:
        widths = {line.count(sign) for line in words}
        if len(widths) == 1 and widths != {0}:
            return sign
    return None


def _is_document_start(line: str) -> bool:
    # Such a line may have other fields than the words have, and another separator.
    return line.split(maxsplit=1)[:1] == [DOCUMENT_START]


def _fields(line: str, separator: str | None) -> list[str]:
    # Not str.split(): a word may be a no-break space.
    return line.split(separator) if separator else re.split("[ \t]+", line.strip(" \t"))
