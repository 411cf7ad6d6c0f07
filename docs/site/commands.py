"""The list of commands, made from the parsers that read them."""

import argparse
from functools import partial
from textwrap import dedent

from settings import in_markdown

from toolkit.cli import command_line


def commands() -> str:
    """Return each command of `toolkit` with what it takes."""
    _, found = command_line()
    lines: list[str] = []
    for name, parser in found.choices.items():
        # As wide here as anywhere, and without the head that the other lines are set under.
        parser.formatter_class = partial(argparse.HelpFormatter, width=100)
        usage = parser.format_usage().replace("usage: ", " " * 7)
        lines += [f"## toolkit {name}", "", in_markdown(parser.description or ""), "", "```bash"]
        lines += [*dedent(usage).splitlines(), "```", "", f"```{{program}} toolkit {name}", "```", ""]
        for action in parser._actions:
            if not isinstance(action, argparse._HelpAction):
                lines += argument(action)
    return "\n".join(lines)


def argument(action: argparse.Action) -> list[str]:
    """Return the lines of one argument of a command."""
    value = "" if action.nargs == 0 else str(action.metavar or "")
    if action.choices:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    name = f"{action.option_strings[-1]} {value}".strip() if action.option_strings else value or action.dest.upper()
    must = " *Has to be given.*" if action.required and action.option_strings else ""
    return [f"````{{option}} {name}", "", in_markdown(action.help or "") + must, "````", ""]
