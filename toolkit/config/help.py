"""What `--help` prints: each field of the configuration with the docstring under it, its type and its default."""

import argparse
import ast
import inspect
import textwrap
from dataclasses import fields, is_dataclass
from itertools import pairwise
from typing import Any, get_type_hints

from toolkit.config.schema import Config
from toolkit.config.suggestions import show
from toolkit.config.values import allowed
from toolkit.config.yaml import as_mapping


def help_parser(default: Config, description: str) -> argparse.ArgumentParser:
    """Return what prints `--help`: each field with its docstring and default, a group for each section."""
    parser = argparse.ArgumentParser(
        description=description,
        usage="%(prog)s [--config run.yaml] [--name value ...]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    parser.add_argument("-h", "--help", action="store_true", help="Show this and exit.")
    parser.add_argument("--config", metavar="FILE", help="A YAML file of settings; a later file and flags win over it.")
    parser.add_argument("--print_config", action="store_true", help="Print the resulting settings as YAML and exit.")

    def add_fields(group: Any, section: Any, prefix: str) -> None:
        hints, sentences = get_type_hints(type(section)), field_docstrings(type(section))
        for entry in fields(section):
            key, value = f"{prefix}{entry.name}", getattr(section, entry.name)
            sentence = sentences.get(entry.name, "")
            if is_dataclass(value):
                add_fields(parser.add_argument_group(key, sentence), value, f"{key}.")
            else:
                text = f"{sentence} ({allowed(hints[entry.name])}; default: {show(as_mapping(value))})".strip()
                group.add_argument(f"--{key}", metavar="VALUE", help=text.replace("%", "%%"))

    add_fields(parser.add_argument_group("settings of the run"), default, "")
    return parser


def field_docstrings(config_class: type) -> dict[str, str]:
    """Return the docstring under each field of a dataclass and of those it builds on, by name.

    Empty where there is no source to read, as in an interactive session. Only the help needs it, so only it pays.
    """
    found: dict[str, str] = {}
    for base in reversed(config_class.__mro__[:-1]):
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        except (OSError, TypeError):
            continue
        lines = body.body if isinstance(body, ast.ClassDef) else []
        for line, below in pairwise(lines):
            match line, below:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                    found[name] = " ".join(text.split())
    return found
