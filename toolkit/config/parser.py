"""The configuration of a run from the command line: defaults, then `--config` files, then flags.

No torch is imported here: `--help` and a mistyped flag answer at once.
"""

import ast
import inspect
import sys
import textwrap
from argparse import RawDescriptionHelpFormatter
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from itertools import pairwise
from typing import Any, NoReturn, get_type_hints

import jsonargparse

from toolkit.config.reading import C, HasProblems, Reading, leaves
from toolkit.config.suggestions import allowed, show
from toolkit.config.yaml import as_mapping, differing, flatten, read_yaml, to_yaml
from toolkit.errors import UserError

__all__ = ["as_mapping", "differing", "flatten", "parse", "read", "read_yaml", "to_yaml"]


def parse(config_class: type[C], description: str, arguments: Sequence[str] | None = None) -> C:
    """Return the configuration that the arguments (those of the process by default) ask for.

    `description` is shown by `--help` as it is. Raises UserError with all problems together, and SystemExit(0) after
    `--help` and `--print_config`.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    default = config_class()
    if "--help" in arguments or "-h" in arguments:
        print_help(default, description)
    reading = read(config_class, arguments)
    config = reading.build(default)
    if reading.problems:
        raise UserError(*dict.fromkeys(reading.problems))
    if reading.print_config:
        print(to_yaml(config), end="")
        raise SystemExit(0)
    return config


def read(config_class: type[HasProblems], arguments: Sequence[str] | None = None) -> Reading:
    """Return what the arguments (those of the process by default) give, right or wrong, and nothing of the defaults."""
    reading = Reading(dict(leaves(config_class())))
    reading.arguments(list(sys.argv[1:] if arguments is None else arguments))
    return reading


def print_help(default: Any, description: str) -> NoReturn:
    """Print every field with the sentence under it and its default, a group for each section, and end the process."""
    parser = jsonargparse.ArgumentParser(
        description=description, usage="%(prog)s [--config run.yaml] [--name value ...]", formatter_class=Formatter
    )
    general = parser.add_argument_group("settings of the run")
    for action in parser._actions:
        action.help = "Show this and exit."
    parser.add_argument("--config", metavar="FILE", help="A YAML file of settings; a later file and flags win over it.")
    parser.add_argument("--print_config", action="store_true", help="Print the resulting settings as YAML and exit.")
    add_fields(parser, general, default, "")
    parser.print_help()
    raise SystemExit(0)


def add_fields(parser: Any, group: Any, section: Any, prefix: str) -> None:
    """Add the fields of one section to its group of the help, and each section in it as a group of its own."""
    hints, sentences = get_type_hints(type(section)), field_sentences(type(section))
    for field in fields(section):
        key, value, sentence = f"{prefix}{field.name}", getattr(section, field.name), sentences.get(field.name, "")
        if is_dataclass(value):
            add_fields(parser, parser.add_argument_group(key, sentence), value, f"{key}.")
        else:
            described = f"{sentence} ({allowed(hints[field.name])}; default: {show(as_mapping(value))})".strip()
            group.add_argument(f"--{key}", metavar="VALUE", help=described.replace("%", "%%"))


def field_sentences(config_class: type) -> dict[str, str]:
    """Return the docstring under each field of a dataclass and of those it builds on, by name.

    Empty where there is no source to read, as in an interactive session. Only the help needs it, so only it pays.
    """
    sentences: dict[str, str] = {}
    for base in reversed(config_class.__mro__[:-1]):
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        except (OSError, TypeError):
            continue
        lines = body.body if isinstance(body, ast.ClassDef) else []
        for line, below in pairwise(lines):
            match line, below:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                    sentences[name] = inspect.cleandoc(text)
    return sentences


class Formatter(RawDescriptionHelpFormatter):
    """Leaves the description as its author laid it out."""
