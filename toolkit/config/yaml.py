"""Configurations as YAML: written in field order, read by plain rules, compared key by key."""

import re
import sys
from collections.abc import Container, Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import yaml

from toolkit.errors import UserError

# YAML 1.1, which PyYAML speaks, reads 1e-3 as text, `no` as false, 010 as eight and 1:30 as ninety. The core schema of
# YAML 1.2 does what a reader expects.
INTEGER = re.compile(r"[-+]?(0|[1-9]\d*)")
FLOAT = re.compile(r"[-+]?((\.\d+|\d+\.\d*)([eE][-+]?\d+)?|\d+[eE][-+]?\d+|\.(inf|Inf|INF))|\.(nan|NaN|NAN)")
CORE_SCHEMA = {
    "null": re.compile(r"~|null|Null|NULL|"),
    "bool": re.compile(r"true|True|TRUE|false|False|FALSE"),
    "int": INTEGER,
    "float": FLOAT,
    "merge": re.compile(r"<<"),
}

# A setting that had another name in earlier versions: the config.yaml and the checkpoints of a run begun with one say
# the old name, and are read as if they said the new one. As a flag the old name is unknown, and the hint names the new.
RENAMED = {"timeout.meeting": "timeout.rendezvous"}


class Loader(yaml.SafeLoader):
    """Reads scalars by the core schema and refuses a key that stands twice, which PyYAML lets pass."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the name and the type are PyYAML's
        None: [
            (f"tag:yaml.org,2002:{name}", re.compile(rf"(?:{rule.pattern})\Z")) for name, rule in CORE_SCHEMA.items()
        ]
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(problem=f"the key {key.value} stands twice", problem_mark=key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


class Dumper(yaml.SafeDumper):
    """Quotes what YAML 1.1 would misread and also what only the core schema reads as a number, such as 1e-3."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_list(self, data: Any) -> yaml.SequenceNode:
        return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)

    def represent_text(self, data: str) -> yaml.ScalarNode:
        # PyYAML leaves some of Unicode's line breaks bare, and would read them back as a space.
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=None if data.isprintable() else '"')


Dumper.add_representer(str, Dumper.represent_text)
Dumper.add_representer(list, Dumper.represent_list)
Dumper.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(rf"(?:{FLOAT.pattern})\Z"), list("-+.0123456789"))


def is_number(text: str) -> bool:
    """Tell whether a text reads as a whole or other number."""
    return bool(INTEGER.fullmatch(text) or FLOAT.fullmatch(text))


def read_text(text: str) -> Any:
    """Return what a text is to YAML, by the rules of a file; the text itself where it is empty, a remark or no YAML."""
    try:
        value = yaml.load(text, Loader=Loader)
    except (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return text
    return text if value is None and text.strip().lower() not in ("null", "~") else value


class NotFiniteError(Exception):
    """A float that is infinite or no number: no setting means that, and YAML and JSON disagree on how to write it."""


WORDS_FOR_BOOL = {"yes": True, "on": True, "no": False, "off": False}
"""What a flag that is true or false may say too; to YAML they are texts."""


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
        if not abs(value) <= sys.float_info.max:
            raise NotFiniteError
        return float(value)
    elif origin is bool and isinstance(value, str) and value.lower() in WORDS_FOR_BOOL:
        return WORDS_FOR_BOOL[value.lower()]
    elif origin is str and text is not None:
        return text
    elif origin in (list, tuple) and isinstance(value, list):
        types = members if origin is tuple and Ellipsis not in members else [(*members, Any)[0]] * len(value)
        return origin(as_type(member, entry) for member, entry in zip(types, value, strict=True))
    elif origin is dict and isinstance(value, dict):
        key_type, value_type = members or (Any, Any)
        return {as_type(key_type, key): as_type(value_type, entry) for key, entry in value.items()}
    elif type(value) is origin:  # true is no whole number here
        return value
    raise ValueError


def as_mapping(config: Any) -> Any:
    """Return a configuration as plain mappings, lists and scalars, in field order."""
    if is_dataclass(config):
        return {field.name: as_mapping(getattr(config, field.name)) for field in fields(config)}
    if isinstance(config, Mapping):
        return {key: as_mapping(value) for key, value in config.items()}
    if isinstance(config, tuple | list):
        return [as_mapping(value) for value in config]
    return config


def to_yaml(config: Any) -> str:
    """Return the configuration as YAML in field order; given back with `--config` it yields an equal one."""
    plain = as_mapping(config)
    return yaml.dump(plain, Dumper=Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=2**31)


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Return the nested mapping in a YAML file; an empty file is an empty mapping.

    Raises UserError where it is missing, a folder, unreadable, not UTF-8, malformed (with the line) or not a mapping.
    """
    try:
        loaded = yaml.load(Path(path).read_bytes().decode("utf-8-sig"), Loader=Loader)
    except (OSError, RecursionError, yaml.YAMLError, ValueError, AttributeError, TypeError) as error:
        raise UserError(f"the configuration file {path} {what_is_wrong(error)}") from None
    if loaded is not None and not isinstance(loaded, dict):
        kind = "a list" if isinstance(loaded, list) else f"the single value {str(loaded)[:80]!r}"
        raise UserError(f"the configuration file {path} holds {kind}; it must hold lines such as `seed: 1`")
    return loaded or {}


def what_is_wrong(error: Exception) -> str:
    """Return the end of a sentence about a file that can't be read."""
    match error:
        case FileNotFoundError():
            return "does not exist"
        case IsADirectoryError():
            return "is a folder; name a YAML file in it"
        case OSError():
            return f"can't be read: {error.strerror}"
        case UnicodeDecodeError(object=content, start=start):
            line = content.count(b"\n", 0, start) + 1
            return f"is not UTF-8: line {line} holds the byte {content[start]:#04x}; save it as UTF-8"
        case yaml.MarkedYAMLError():
            mark = error.problem_mark or error.context_mark
            where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"
            return f"is not YAML: {where}: {error.problem}"
        case RecursionError():
            return "is nested too deeply"
    # A control character, or an explicit tag such as !!int before text: PyYAML raises what it meets.
    return f"is not YAML: {' '.join(str(error).split())}"


def entries(mapping: Mapping[Any, Any], fields: Container[str] = (), prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings under dotted keys; an empty mapping, and one that `fields` names, stays whole."""
    for name, value in mapping.items():
        key = RENAMED.get(f"{prefix}{name}", f"{prefix}{name}")
        if isinstance(value, Mapping) and value and key not in fields:
            yield from entries(value, fields, f"{key}.")
        else:
            yield key, value


def flatten(mapping: Mapping[Any, Any]) -> dict[str, Any]:
    """Return nested mappings as one, under dotted keys; an empty mapping stays as a value."""
    return {key: as_mapping(value) for key, value in entries(mapping)}


def differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return (key, value in the first, value in the second) for every dotted key whose values differ.

    An absent key counts as null, so that a configuration written before a field existed compares with a newer one.
    """
    a, b = flatten(first), flatten(second)
    return [(key, a.get(key), b.get(key)) for key in dict.fromkeys([*a, *b]) if a.get(key) != b.get(key)]
