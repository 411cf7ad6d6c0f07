"""The command `toolkit`."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from toolkit.commands.parser import CommandParser, refuse_command
from toolkit.commands.predictions import add_chat, add_predict
from toolkit.commands.proof import add_compare, add_verify
from toolkit.commands.results import add_export, add_push, add_report, add_track
from toolkit.commands.status import add_status
from toolkit.errors import USER_CAN_FIX, UserError
from toolkit.output import pipes


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    pipes.prepare()
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser, commands = command_line()
    try:
        given = arguments_of(parser, commands.choices, words)
        code: int = given.command(given)
        pipes.flush()
        return code
    except UserError as error:
        with suppress(UserError):
            pipes.flush()
        pipes.print_line(
            "\n".join(["toolkit can't go on:", *(f"  - {problem}" for problem in error.problems)]), sys.stderr
        )
        return USER_CAN_FIX


def command_line() -> tuple[CommandParser, Any]:
    """Return what reads the command line, and its commands by name (`choices`), which the docs list too."""
    parser = CommandParser(prog="toolkit", description="Look after runs of finetune-toolkit.")
    parser.add_argument("--version", action="version", version=f"finetune-toolkit {own_version()}")
    names = "status,verify,compare,report,export,push,track,predict,chat"
    commands = parser.add_subparsers(required=True, metavar=f"{{{names}}}")
    add_status(commands)
    add_verify(commands)
    add_compare(commands)
    add_report(commands)
    add_export(commands)
    add_push(commands)
    add_track(commands)
    add_predict(commands)
    add_chat(commands)
    return parser, commands


def own_version() -> str:
    """Return the version of the toolkit, as far as it is known: it may be used without being installed."""
    try:
        return version("finetune-toolkit")
    except PackageNotFoundError:
        return "(not installed)"


def arguments_of(parser: CommandParser, commands: Mapping[str, CommandParser], words: list[str]) -> argparse.Namespace:
    """Return the arguments of a command.

    Raises:
        UserError: there is no such command, or what it is given is not what it takes.
    """
    if not words:
        raise UserError(f"there is no command; give one of {', '.join(commands)} (toolkit --help says what they do)")
    if not words[0].startswith("-") and words[0] not in commands:
        refuse_command(words[0], list(commands))
    # What comes after -- belongs to the recipe, whatever it looks like.
    end_of_own = words.index("--") if words[:1] == ["verify"] and "--" in words else len(words)
    own = argparse.Namespace(for_recipe=words[end_of_own + 1 :])
    given, unknown = parser.parse_known_args(words[:end_of_own], own)
    if unknown:
        command = commands.get(words[0], parser)
        resumes = words[0] == "verify" and "--resume" in words
        after = words.index(unknown[0])
        for_recipe = f": what belongs to the recipe comes after --, such as -- {' '.join(words[after : after + 2])}"
        command.refuse(unknown, for_recipe if resumes else "")
    return given
