"""Which values the type of a field takes: the check, the words for it, and advice where a value is refused."""

import math
import re
from contextlib import suppress
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from toolkit.config.suggestions import nearest_value, show
from toolkit.config.yaml import is_number, read_text

PLAIN_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    NoneType: "null",
}

WORDS_FOR_BOOL = {"yes": True, "on": True, "no": False, "off": False}
"""What a flag that is true or false may say too; to YAML they are texts."""


class NotFiniteError(Exception):
    """A float that is infinite or no number: no setting means that, and YAML and JSON disagree on how to write it."""


def as_type(hint: Any, value: Any, text: str | None = None) -> Any:
    """Return a value of YAML as the type of a field.

    Args:
        hint: null, bool, int, float or str, a Literal, a list, tuple or dict, a union of such types, or Any.
        value: what YAML has read.
        text: what it was read from, if a flag gave it: a field that takes text takes this, so that 5 stays "5".

    Raises:
        ValueError: the type does not take this value.
        NotFiniteError: the value is an infinite number, or none, where a number is asked for.
    """
    hint = type(value) if hint is Any else hint
    origin, members = get_origin(hint) or hint, get_args(hint)
    if origin in (Union, UnionType):
        # Null comes first, because a flag's `null` is text too.
        for member in sorted(members, key=lambda member: member is not NoneType):
            with suppress(ValueError):
                return as_type(member, value, text)
    elif origin is Literal:
        for choice in members:
            given = text if isinstance(choice, str) and text is not None else value
            if choice == given and type(choice) is type(given):
                return choice
    elif origin is float and type(value) in (int, float):
        with suppress(OverflowError):
            if math.isfinite(value):
                return float(value)
        raise NotFiniteError
    elif origin is bool and isinstance(value, str) and value.lower() in WORDS_FOR_BOOL:
        return WORDS_FOR_BOOL[value.lower()]
    elif origin is str and text is not None:
        return text
    elif origin in (list, tuple) and isinstance(value, list):
        types = members if origin is tuple and Ellipsis not in members else [(*members, Any)[0]] * len(value)
        return origin(as_type(member, entry) for member, entry in zip(types, value, strict=True))
    elif origin is dict and isinstance(value, dict):
        key_type, value_type = members or (Any, Any)
        names = [as_type(key_type, name_of(key) if key_type is str else key) for key in value]
        if len(set(names)) == len(names):
            return dict(zip(names, (as_type(value_type, entry) for entry in value.values()), strict=True))
    elif type(value) is origin:  # true is no whole number here
        return value
    raise ValueError


def name_of(key: Any) -> Any:
    """Return the key of a mapping of names as text, where YAML has read a number or a truth."""
    if isinstance(key, bool):
        return str(key).lower()
    return str(key) if isinstance(key, int | float) else key


def allowed(hint: Any) -> str:
    """Return in plain words which values a type takes."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "one of: " + ", ".join(show(choice) for choice in arguments)
    if origin in (Union, UnionType):
        return " or ".join(allowed(argument) for argument in arguments)
    if origin is tuple and Ellipsis not in arguments:
        return f"a list of {len(arguments)}: [{', '.join(allowed(argument) for argument in arguments)}]"
    if origin in (tuple, list):
        return f"a list, each {allowed(arguments[0])}"
    if hint is dict or origin is dict:
        return "a mapping, such as {name: value}" + (f", each value {allowed(arguments[1])}" if arguments else "")
    return PLAIN_WORDS.get(hint) or str(getattr(hint, "__name__", hint))


def remedy(hint: Any, value: Any, from_file: bool) -> str:
    """Return the end of a sentence that says what to write instead, where that can be guessed."""
    if isinstance(value, str) and (meant := nearest_value(value, choices(hint))):
        return f"; did you mean {meant}?"
    if isinstance(value, str) and value.lower() in ("none", "nil", "") and takes(hint, NoneType):
        return "; write null" if value else "; write null for none"
    number = number_in(value, hint)
    if number is not None:
        return f"; write {number}"
    if isinstance(value, str) and (listed := as_list(hint, value)):
        return f"; write {listed}" if from_file else f'; write "{listed}"'
    if takes(hint, str) and from_file and not isinstance(value, list | dict):
        return "; put it in quotes"
    return ""


def number_in(value: Any, hint: Any) -> str | None:
    """Return the number that was meant, as it is written here: `1e3` or `1,000` steps, a rate of `0,1` or of `10%`."""
    text = str(value).strip().rstrip(",;")
    if takes(hint, int):
        # A comma divides thousands where they are round; 224,224 may be two numbers.
        number = read_text(re.sub(r"(?<=\d)(_(?=\d{3}\b)|[,'](?=\d00\b))", "", text))
        whole = isinstance(number, int | float) and not isinstance(number, bool) and float(number).is_integer()
        return f"{number:.0f}" if whole and math.isfinite(number) else None
    if not takes(hint, float):
        return None
    if text.endswith("%") and is_number(text[:-1]):
        return f"{float(text[:-1]) / 100:g}"
    text = re.sub(r"^([-+]?\d+),(\d+)$", r"\1.\2", text)
    return text if is_number(text) and text != str(value) else None


def as_list(hint: Any, text: str) -> str | None:
    """Return words or numbers with commas between them as a list of YAML, if the type takes that."""
    words = [word for word in re.split(r"[,\s]+", text.strip("()[]{} ")) if word]
    with suppress(ValueError, NotFiniteError):
        taken = as_type(hint, [read_text(word) for word in words]) if words else None
        return f"[{', '.join(words)}]" if isinstance(taken, list | tuple) else None
    return None


def choices(hint: Any) -> list[str]:
    """Return the words that a type lets one choose from, none for other types."""
    if get_origin(hint) is Literal:
        return [choice for choice in get_args(hint) if isinstance(choice, str)]
    return [choice for argument in get_args(hint) for choice in choices(argument)]


def takes(hint: Any, kind: type) -> bool:
    """Tell whether a type, or one of the members of a union, is this kind."""
    return hint is kind or (get_origin(hint) in (Union, UnionType) and kind in get_args(hint))
