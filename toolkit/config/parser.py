"""The configuration of a run from its command line: arguments -> settings -> values -> configuration -> problems.

Defaults come first, then `--config` files, then flags. No parser of a library does this: each stops at the first error,
and a user should see all problems of a command at once (docs/architecture.md). No torch is imported here: `--help` and
a mistyped flag answer at once.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import takewhile
from typing import Any

from toolkit.config.fields import leaves
from toolkit.config.help import help_parser
from toolkit.config.schema import AnyConfig, Config
from toolkit.config.stray_words import has_long_dash, split_value, stray_word
from toolkit.config.suggestions import is_called_elsewhere, nearest, show, suggestion
from toolkit.config.values import NotFiniteError, allowed, as_type, remedy, takes
from toolkit.config.yaml import entries, is_number, read_text, read_yaml, to_yaml
from toolkit.errors import UserError

OF_A_LAUNCH_FILE = ("compute_environment", "distributed_type", "machine_rank", "main_training_function")
"""Keys that tell a launch file of Accelerate from settings of a recipe."""


def parse(config_class: type[AnyConfig], description: str, arguments: Sequence[str] | None = None) -> AnyConfig:
    """Return the configuration that the arguments (those of the process by default) ask for.

    `description` is shown by `--help` as it is. Raises UserError with all problems together, and SystemExit(0) after
    `--help` and `--print_config`.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if "--help" in arguments or "-h" in arguments:
        help_parser(config_class(), description).print_help()
        raise SystemExit(0)
    settings = read(config_class, arguments)
    config = settings.applied_to(config_class())
    problems = [*settings.problems, *settings.problems_of(config)]
    if problems:
        raise UserError(*dict.fromkeys(problems))
    if settings.print_config:
        print(to_yaml(config), end="")
        raise SystemExit(0)
    return config


def read(config_class: type[Config], arguments: Sequence[str] | None = None) -> "Settings":
    """Return what the arguments (those of the process by default) set, and what is wrong with them; no defaults."""
    settings = Settings({key: hint for key, hint, _ in leaves(config_class())})
    settings.read_arguments(sys.argv[1:] if arguments is None else arguments)
    return settings


@dataclass(frozen=True)
class Setting:
    """A key and the value that was given for it: text if a flag gave it, or what YAML made of it in a file."""

    key: str
    value: Any
    file: str | None = None
    """The configuration file that it stands in; None if it is a flag."""

    @property
    def origin(self) -> str:
        """How a sentence names the place: `by --batch.size`, `in run.yaml`."""
        return f"by --{self.key}" if self.file is None else f"in {self.file}"

    def value_as(self, hint: Any) -> Any:
        """Return the value as the type of a field. Raises ValueError or NotFiniteError if the type does not take it."""
        text = self.value
        if not isinstance(text, str) or (self.file is not None and takes(hint, str)):
            return as_type(hint, text)
        text.encode()  # an argument that is not UTF-8 could not be written to the run folder later
        return as_type(hint, read_text(text), text)


@dataclass
class Settings:
    """What the files and flags of one command set, and what is wrong with it."""

    known: Mapping[str, Any]
    """The type of every field, by its dotted key."""
    values: dict[str, Any] = field(default_factory=dict)
    """The values that can be used, by dotted key."""
    origins: dict[str, str] = field(default_factory=dict)
    """Where each of them was given."""
    files: list[str] = field(default_factory=list)
    """The configuration files that were named, in their order."""
    problems: list[str] = field(default_factory=list)
    doubtful: set[str] = field(default_factory=set)
    """Keys whose value could not be used: a later sentence about them would speak of a default that nobody chose."""
    has_unread_file: bool = False
    """A file could not be read: what the flags leave open may be set in it."""
    print_config: bool = False

    def read_arguments(self, arguments: Sequence[str]) -> None:
        """Read all arguments: the files at once, in their order, then the flags."""
        flags: list[Setting] = []
        rest = list(arguments)
        while rest:
            token = rest.pop(0)
            name, equals, text = token.lstrip("-").partition("=")
            value = text if equals else None
            if not looks_like_flag(token):
                self.problems.append(stray_word(token, self.known, arguments))
                if has_long_dash(token) and rest and not looks_like_flag(rest[0]):
                    rest.pop(0)
                continue
            if name == "print_config" and value is None:
                self.print_config = True
                continue
            if value is None and rest and not looks_like_flag(rest[0]):
                value = rest.pop(0)
                more = list(takewhile(lambda word: not looks_like_flag(word), rest))
                if more and (problem := split_value(name, self.known, [value, *more])):
                    self.problems.append(problem)
                    self.doubtful.add(name)
                    del rest[: len(more)]
                    continue
            elif value is None and takes(self.known.get(name), bool):
                value = "true"
            if not token.startswith("--") or not name:
                meant = suggestion(name, self.known, "--")
                self.problems.append(f"{show(token)} is not a flag, flags begin with two dashes; {meant}")
            elif (value is None and name in self.known) or (not value and name == "config"):
                what = allowed(self.known[name]) if name in self.known else "the path of a YAML file"
                self.problems.append(f"--{name} has no value; it must be {what}")
                self.doubtful.add(name)
            elif name == "config":
                self.read_file(str(value))
            else:
                flags.append(Setting(name, value))
        self.add(flags)

    def read_file(self, path: str) -> None:
        """Read one configuration file; what it sets replaces what files before it set."""
        self.files.append(path)
        try:
            content = read_yaml(path)
            found = [Setting(key, value, path) for key, value in entries(content, self.known)]
        except UserError as error:
            self.problems += error.problems
            self.has_unread_file = True
        except RecursionError:
            self.problems.append(f"the configuration file {path} refers to itself")
            self.has_unread_file = True
        else:
            if not content.keys().isdisjoint(OF_A_LAUNCH_FILE):
                self.problems.append(
                    f"{path} is a launch file of Accelerate, and --config takes settings of the recipe; give it to the "
                    f"launcher: accelerate launch --config_file {path} before the recipe"
                )
                return
            # A section with nothing under it is allowed: its lines may be commented out.
            self.add([setting for setting in found if setting.value or not self.is_section(setting.key)])

    def is_section(self, key: str) -> bool:
        """Return whether there are fields under a key, as under `model` and `model.lora`."""
        return any(name.startswith(f"{key}.") for name in self.known)

    def add(self, settings: Sequence[Setting]) -> None:
        """Check the settings of one file, or all flags: keep each value that can be used, and note the problems."""
        for setting in settings:
            key = setting.key
            if key not in self.known:
                self.refuse_unknown(setting)
                continue
            try:
                value = setting.value_as(self.known[key])
            except (ValueError, NotFiniteError, RecursionError) as error:
                self.refuse_value(setting, not_finite=isinstance(error, NotFiniteError))
                continue
            if self.origins.get(key) == setting.origin and self.values[key] != value:
                given = ", ".join(show(other.value) for other in settings if other.key == key)
                self.problems.append(f"{key} is given more than once {setting.origin}: {given}; give one value")
            self.values[key] = value
            self.origins[key] = setting.origin

    def refuse_value(self, setting: Setting, not_finite: bool) -> None:
        """Say which values the field takes, and what to write if that can be guessed."""
        hint = self.known[setting.key]
        what = allowed(hint).replace("a number", "a finite number") if not_finite else allowed(hint)
        advice = remedy(hint, setting.value, from_file=setting.file is not None)
        self.problems.append(
            f"{setting.key} is {show(setting.value)}; it must be {what} (given {setting.origin}){advice}"
        )
        self.doubtful.add(setting.key)

    def refuse_unknown(self, setting: Setting) -> None:
        """Say that there is no such key, and which one was probably meant."""
        key, dashes = setting.key, "--" if setting.file is None else ""
        if setting.file is None:
            written = f"--{key}" if setting.value is None else f"--{key} {show(setting.value)}"
        else:
            written = f"{key}: {show(setting.value)} ({setting.origin})"
        if self.is_section(key):
            meant = [name for name in nearest(key, self.known) if name.startswith(f"{key}.")]
            if meant and is_called_elsewhere(key, meant[0]):
                self.doubtful.add(meant[0])
                self.problems.append(
                    f"{written} can't be set, {key} is a section; did you mean {dashes}{meant[0]}? (Others in it: "
                    f"{', '.join(name for name in self.known if name.startswith(f'{key}.') and name not in meant)})"
                )
                return
            inside = ", ".join(dashes + name for name in self.known if name.startswith(f"{key}."))
            self.problems.append(f"{written} can't be set, {key} is a section; give one of {inside}")
            return
        self.problems.append(f"{written} is unknown; {suggestion(key, self.known, dashes)}")
        self.doubtful.update(nearest(key, self.known))

    def applied_to(self, default: AnyConfig) -> AnyConfig:
        """Return the configuration with every value that can be used in place of its own."""
        values = dict(self.values)
        # epochs and steps say the same thing in two units: giving one takes the place of a default of the other.
        for one, other in (("steps", "epochs"), ("epochs", "steps")):
            if values.get(one) is not None and other not in self.origins:
                values[other] = None
        config: AnyConfig = with_values(default, values)
        return config

    def problems_of(self, config: Config) -> Iterator[str]:
        """Yield what the configuration says of its values, each sentence with the place where the value was given."""
        unknown = self.known.keys() - self.origins.keys() if self.has_unread_file else set()
        for sentence in config.problems():
            if any(mentions(sentence, key) for key in self.doubtful | unknown):
                continue
            origins = [origin for key, origin in self.origins.items() if mentions(sentence, key)]
            yield sentence + (f" (given {' and '.join(origins)})" if origins else "")


def looks_like_flag(token: str) -> bool:
    """Tell a flag from a value; a negative number is a value, also -1e-3."""
    return len(token) > 1 and token[0] == "-" and not is_number(token)


def mentions(sentence: str, key: str) -> bool:
    """Return whether a key stands in a sentence, and not as a part of a longer key."""
    return re.search(rf"(?<![\w.]){re.escape(key)}(?!\w|\.\w)", sentence) is not None


def with_values(config: Any, values: Mapping[str, Any], prefix: str = "") -> Any:
    """Return the configuration with the values under these dotted keys in place of its own."""
    changes = {}
    for entry in fields(config):
        key, value = f"{prefix}{entry.name}", getattr(config, entry.name)
        if is_dataclass(value):
            changes[entry.name] = with_values(value, values, f"{key}.")
        elif key in values:
            changes[entry.name] = values[key]
    return replace(config, **changes)
