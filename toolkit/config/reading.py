"""What the arguments and the configuration files say, setting by setting, and what is wrong with it.

Each setting is checked by jsonargparse on its own rather than all in one parse, because a parse stops at the first
error and a user should see every problem at once. A setting costs well under a millisecond.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from types import NoneType
from typing import Any, Protocol, TypeVar, get_type_hints

import jsonargparse
import yaml

from toolkit.config.suggestions import allowed, names, nearest, remedy, show, suggestion, takes
from toolkit.config.yaml import Loader, is_number, read_yaml
from toolkit.errors import UserError


class HasProblems(Protocol):
    """A frozen dataclass that knows what is wrong with its values."""

    def problems(self) -> Iterator[str]: ...


# A list or mapping in a flag is read by the same rules as one in a file.
jsonargparse.set_loader(
    "core_yaml", lambda text: yaml.load(text, Loader=Loader), (yaml.YAMLError, ValueError, TypeError, AttributeError)
)

C = TypeVar("C", bound=HasProblems)


class NotFiniteError(ValueError):
    """A float that is infinite or no number: no setting means that, and YAML and JSON disagree on how to write it."""


@dataclass(frozen=True)
class Setting:
    """A key with the value that was given for it; a flag's value is text, a file's is what YAML made of it."""

    key: str
    value: Any
    origin: str
    """How a sentence names the place: `by --batch.size`, `in run.yaml`."""

    @property
    def is_flag(self) -> bool:
        return self.origin.startswith("by ")


class Reading:
    """What was understood of the arguments so far, and what was not."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        self.known = known
        """The type of every field, by its dotted key."""
        self.sections = {key[: dot.start()] for key in known for dot in re.finditer(r"\.", key)}
        self.problems: list[str] = []
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self.doubtful: set[str] = set()
        """Keys whose value could not be used: a later sentence about them would speak of a default nobody chose."""
        self.files: list[str] = []
        """The configuration files that were named, in their order."""
        self.unread = False
        """A file could not be read: what the flags leave open may be set in it."""
        self.print_config = False
        # One parser of one argument per type: a parser of all fields would go through all of them for each value.
        self.parsers: dict[Any, jsonargparse.ArgumentParser] = {}

    def arguments(self, arguments: Sequence[str]) -> None:
        """Read all arguments: the files first, in their order, then the flags."""
        flags: list[Setting] = []
        rest = list(arguments)
        while rest:
            token = rest.pop(0)
            if not looks_like_flag(token):
                self.problems.append(f"{show(token)} is not a flag; a setting is given as --name value")
                continue
            name, equals, value = token.lstrip("-").partition("=")
            if name == "print_config" and not equals:
                self.print_config = True
                continue
            if not equals and rest and not looks_like_flag(rest[0]):
                equals, value = "=", rest.pop(0)
            if not equals and name in self.known and takes(self.known[name], bool):
                equals, value = "=", "true"
            if not token.startswith("--") or not name:
                hint = suggestion(name, self.known, "--")
                self.problems.append(f"{show(token)} is not a flag, flags begin with two dashes; {hint}")
            elif (not equals and name in self.known) or (name == "config" and not value):
                what = allowed(self.known[name]) if name in self.known else "the path of a YAML file"
                self.problems.append(f"--{name} has no value; it must be {what}")
                self.doubtful.add(name)
            elif name == "config":
                self.file(value)
            else:
                flags.append(Setting(name, value if equals else None, f"by --{name}"))
        for setting in flags:
            self.accept(setting, earlier=[flag for flag in flags if flag.key == setting.key])

    def file(self, path: str) -> None:
        """Read one configuration file; what it sets replaces what files before it set."""
        self.files.append(path)
        try:
            loaded = read_yaml(path)
            settings = [Setting(key, value, f"in {path}") for key, value in self.leaves_of(loaded)]
        except UserError as error:
            self.problems += error.problems
            self.unread = True
        except RecursionError:
            self.problems.append(f"the configuration file {path} refers to itself")
            self.unread = True
        else:
            for setting in settings:
                self.accept(setting, earlier=[other for other in settings if other.key == setting.key])

    def leaves_of(self, mapping: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
        """Yield the settings of a nested mapping, down to the fields of the configuration and no deeper."""
        for name, value in mapping.items():
            key = f"{prefix}{name}"
            if isinstance(value, Mapping) and value and key not in self.known:
                yield from self.leaves_of(value, f"{key}.")
            elif key not in self.sections or value:
                # A section with nothing under it is allowed: its lines may be commented out.
                yield key, value

    def accept(self, setting: Setting, earlier: Sequence[Setting]) -> None:
        """Check one setting and keep its value, or say what is wrong with it."""
        key, given = setting.key, show(setting.value)
        if key not in self.known:
            self.refuse_unknown(setting)
            return
        hint = self.known[key]
        if hint not in self.parsers:
            self.parsers[hint] = jsonargparse.ArgumentParser(
                exit_on_error=False, add_help=False, parser_mode="core_yaml"
            )
            self.parsers[hint].add_argument("--value", type=hint)
        try:
            value = self.checked(hint, setting)
        except (jsonargparse.ArgumentError, ValueError, TypeError, KeyError, RecursionError) as error:
            what = allowed(hint).replace(
                "a number", "a finite number" if isinstance(error, NotFiniteError) else "a number"
            )
            advice = remedy(hint, setting.value, from_file=not setting.is_flag)
            self.problems.append(f"{key} is {given}; it must be {what} (given {setting.origin}){advice}")
            self.doubtful.add(key)
            return
        others = [show(other.value) for other in earlier]
        if key in self.values and self.origins[key] == setting.origin and self.values[key] != value:
            self.problems.append(f"{key} is given more than once {setting.origin}: {', '.join(others)}; give one value")
        self.values[key] = value
        self.origins[key] = setting.origin

    def refuse_unknown(self, setting: Setting) -> None:
        """Say that there is no such key, and which one was probably meant."""
        key, given = setting.key, show(setting.value)
        written = f"--{key} {given if setting.value is not None else ''}".rstrip()
        written = written if setting.is_flag else f"{key}: {given} ({setting.origin})"
        dashes = "--" if setting.is_flag else ""
        if key in self.sections:
            inside = ", ".join(dashes + name for name in self.known if name.startswith(key + "."))
            self.problems.append(f"{written} can't be set, {key} is a section; give one of {inside}")
            return
        self.problems.append(f"{written} is unknown; {suggestion(key, self.known, dashes)}")
        self.doubtful.update(nearest(key, self.known))

    def checked(self, hint: Any, setting: Setting) -> Any:
        """Return the value as its type, by the rules of jsonargparse; raises what jsonargparse raises."""
        if isinstance(setting.value, str) and not setting.is_flag and takes(hint, str):
            # Quoted text of a file is text already; jsonargparse would read it again and make null of "null".
            return setting.value
        if isinstance(setting.value, str) and setting.value.lstrip().startswith("#") and takes(hint, str):
            # To YAML a remark, of which jsonargparse would make null.
            return setting.value
        if setting.value is None and not takes(hint, NoneType):
            raise ValueError("null")  # to jsonargparse a null in a mapping means that nothing was given
        parser = self.parsers[hint]
        if setting.is_flag:
            setting.value.encode()  # an argument that is not UTF-8 could not be written to the run folder later
            value = parser.parse_args([f"--value={setting.value}"]).value
        else:
            value = parser.parse_object({"value": setting.value}).value
        if not all(map(math.isfinite, floats(value))):
            raise NotFiniteError
        return value

    def build(self, default: C) -> C:
        """Return the configuration with every value that could be used, and add what it says is wrong with them."""
        values = dict(self.values)
        # epochs and steps say the same thing in two units: giving one takes the place of a default of the other.
        for one, other in (("steps", "epochs"), ("epochs", "steps")):
            if values.get(one) is not None and other in self.known and other not in self.origins:
                values[other] = None
        config: C = with_values(default, values)
        if self.unread:
            self.doubtful.update(self.known.keys() - self.origins.keys())
        for sentence in config.problems():
            if any(names(sentence, key) for key in self.doubtful):
                continue
            origins = [origin for key, origin in self.origins.items() if names(sentence, key)]
            self.problems.append(sentence + (f" (given {' and '.join(origins)})" if origins else ""))
        return config


def leaves(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, type) for every value of a configuration, in field order."""
    hints = get_type_hints(type(config))
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            yield from leaves(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", hints[field.name]


def with_values(config: Any, values: Mapping[str, Any], prefix: str = "") -> Any:
    """Return the configuration with the values under these dotted keys in place of its own."""
    changes = {}
    for field in fields(config):
        key = f"{prefix}{field.name}"
        value = getattr(config, field.name)
        if is_dataclass(value):
            changes[field.name] = with_values(value, values, f"{key}.")
        elif key in values:
            changes[field.name] = values[key]
    return replace(config, **changes)


def looks_like_flag(token: str) -> bool:
    """Tell a flag from a value; a negative number is a value, also -1e-3."""
    return len(token) > 1 and token[0] == "-" and not is_number(token)


def floats(value: Any) -> Iterator[float]:
    """Yield the floats in a value, also those in its lists and mappings."""
    if isinstance(value, float):
        yield value
    elif isinstance(value, Mapping):
        yield from floats(list(value.values()))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from floats(part)
