"""Configurations as YAML: written in field order, read by plain rules, compared key by key."""

import re
from collections.abc import Container, Hashable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

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

# What PyYAML raises: at a control character or an explicit tag such as !!int before text, whatever it meets.
ERRORS = (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError, RecursionError)

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
    except ERRORS:
        return text
    return text if value is None and text.strip().lower() not in ("null", "~") else value


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
    except (OSError, *ERRORS) as error:
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
    return f"is not YAML: {' '.join(str(error).split())}"


def entries(mapping: Mapping[Any, Any], fields: Container[str] = (), prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of nested mappings. A mapping stays whole where it is empty or the value of a field."""
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
