"""What to say about a setting that can't be used: what is allowed, and which name was probably meant."""

import json
import re
from collections.abc import Iterable
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from toolkit.settings_file import is_number

PLAIN_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    NoneType: "null",
}

# What Transformers' Trainer and others call it: the names that a newcomer types first.
CALLED_ELSEWHERE = {
    "dataset_name": "data.name",
    "eval_steps": "evaluate.every",
    "gradient_accumulation_steps": "batch.micro",
    "learning_rate": "optim.lr",
    "lr_scheduler_type": "optim.schedule",
    "max_grad_norm": "optim.clip",
    "max_seq_length": "data.max_length",
    "max_steps": "steps",
    "model_name_or_path": "model.name",
    "num_epochs": "epochs",
    "num_train_epochs": "epochs",
    "num_workers": "data.workers",
    "output_dir": "output",
    "per_device_eval_batch_size": "batch.eval",
    "per_device_train_batch_size": "batch.micro",
    "save_steps": "checkpoint.every",
    "train_batch_size": "batch.size",
    "warmup_ratio": "optim.warmup",
    "warmup_steps": "optim.warmup",
}


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
        return "a mapping, such as {name: value}"
    return PLAIN_WORDS.get(hint) or str(getattr(hint, "__name__", hint))


def choices(hint: Any) -> list[str]:
    """Return the words that a type lets one choose from, none for other types."""
    if get_origin(hint) is Literal:
        return [choice for choice in get_args(hint) if isinstance(choice, str)]
    return [choice for argument in get_args(hint) for choice in choices(argument)]


def show(value: Any) -> str:
    """Return a value as a user would write it, on one line of bearable length."""
    if isinstance(value, str):
        text = value if value and value.isprintable() and value == value.strip() else repr(value)
    else:
        try:
            text = json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError):
            text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def nearest(given: str, names: Iterable[str]) -> list[str]:
    """Return the valid dotted names that a mistyped one may have meant, the likeliest first, at most three."""
    names = list(names)
    wanted = given.lower().replace("-", "_").strip("_")
    last = wanted.rpartition(".")[2]
    section = wanted[: -len(last)] if last else wanted
    beside = [name for name in names if section and name.startswith(section)]
    lasts = list(dict.fromkeys(name.rpartition(".")[2] for name in names if name not in beside))
    elsewhere = CALLED_ELSEWHERE.get(last)
    rules = (
        [name for name in names if name.replace(".", "_") == wanted.replace(".", "_")],
        [name for name in names if name == elsewhere],
        [name for name in names if name.rpartition(".")[2] == last],
        # Where the section exists only the last part can be wrong; the part they share would make all its names near.
        [section + found for found in get_close_matches(last, [name[len(section) :] for name in beside], 1, 0.6)],
        get_close_matches(wanted, [name for name in names if name not in beside], 1, 0.7),
        [name for name in names if name.rpartition(".")[2] in get_close_matches(last, lasts, 1, 0.7)],
    )
    return next((found[:3] for found in rules if found), [])


def suggestion(given: str, names: Iterable[str], dashes: str = "") -> str:
    """Return the end of a sentence about an unknown name: the nearest valid ones, or where all are listed."""
    names = list(names)
    if found := nearest(given, names):
        return f"did you mean {' or '.join(dashes + name for name in found)}?"
    section = given.partition(".")[0]
    if beside := [dashes + name for name in names if name.startswith(section + ".")]:
        return f"{section} has {', '.join(beside)}"
    return "--help lists every name"


def remedy(hint: Any, value: Any, from_file: bool) -> str:
    """Return the end of a sentence that says what to write instead, where that can be guessed."""
    if isinstance(value, str) and (words := nearest(value, choices(hint))):
        return f"; did you mean {words[0]}?"
    if takes(hint, int) and is_number(str(value)) and float(value).is_integer():
        return f"; write {float(value):.0f}"
    if takes(hint, str) and from_file and not isinstance(value, list | dict):
        return "; put it in quotes"
    return ""


def takes(hint: Any, kind: type) -> bool:
    """Tell whether a type, or one of the members of a union, is this kind."""
    return kind is hint or kind in get_args(hint)


def names(sentence: str, key: str) -> bool:
    """Tell whether a sentence speaks of a key."""
    return re.search(rf"(?<![\w.]){re.escape(key)}(?!\w|\.\w)", sentence) is not None
