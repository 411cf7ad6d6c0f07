"""The arguments of `toolkit`: what is wrong with them is said as the recipes say it, with the nearest name."""

import argparse
import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import NoReturn

from toolkit.errors import UserError

KINDS = {"int": "a whole number", "float": "a number"}
"""The types of arguments, as argparse calls them, in plain words."""
CALLED_ELSEWHERE = {
    "--batch": "--batch_size --batch-size",
    "--dtype": "--torch_dtype --precision",
    "--overwrite": "--force --overwrite_output",
    "--tokens": "--max_length --max_new_tokens --max_tokens",
    "--column": "--text --text_column --columns --data.text --data.tokens --question --context",
    "--step": "--checkpoint",
}
"""What others call an argument."""
DONE_BY_RECIPES = ("train", "fit", "finetune", "fine-tune", "run", "start", "resume")
PREDICTING = ("infer", "inference", "generate", "pipeline", "classify")
EVALUATING = ("evaluate", "eval", "test", "score", "benchmark")


class CommandParser(argparse.ArgumentParser):
    """An `ArgumentParser` that raises `UserError`; one that argparse makes for a command is such a one too."""

    def error(self, message: str) -> NoReturn:
        """Raise the message of argparse in plain words.

        Raises:
            UserError: always.
        """
        raise UserError(self.in_words(message))

    def in_words(self, message: str) -> str:
        """Return a message of argparse as a sentence with what was given, what is allowed and what to do."""
        if found := re.fullmatch(r"the following arguments are required: (.*)", message):
            if found[1].startswith("{"):
                return f"there is no command; give one of {found[1].strip('{}').replace(',', ', ')}"
            names = found[1].split(", ")
            return f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} missing; {self.how}"
        found = re.fullmatch(r"argument ([^:]*): (.*)", message)
        if found is None:
            return f"{message}; {self.how}" if message.startswith("unrecognized") else message
        name, wrong = found[1].split("/")[-1], found[2]
        if wrong.startswith("expected one argument"):
            metavar = next((action.metavar for action in self._actions if name in action.option_strings), None)
            return f"{name} has no value; write {name} {metavar or 'VALUE'}"
        if kind := re.fullmatch(r"invalid (\w+) value: '(.*)'", wrong):
            return f"{name} is {kind[2]}; it must be {KINDS.get(kind[1], kind[1])}"
        if choice := re.fullmatch(r"invalid choice: '?(.*?)'? \(choose from (.*)\)", wrong):
            return f"{name} is {choice[1]}; it must be one of: {choice[2].replace(chr(39), '')}"
        return f"{name}: {wrong}"

    @property
    def how(self) -> str:
        """How the command is written, without the arguments that may be left out."""
        words = [self.prog]
        for action in self._actions:
            name = action.metavar or action.dest
            if action.option_strings and action.required:
                words.append(f"{action.option_strings[0]} {name}")
            elif not action.option_strings:
                words.append(str(name) if action.nargs != "?" else f"[{name}]")
        return f"it is written: {' '.join(words)} (--help lists all)"

    def refuse(self, unknown: Sequence[str], hint: str = "") -> NoReturn:
        """Say of each word that no argument takes what was probably meant.

        Raises:
            UserError: always.
        """
        names = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
        problems = []
        for place, word in enumerate(unknown):
            name, _, value = word.partition("=")
            if name.startswith("-"):
                called = [own for own, others in CALLED_ELSEWHERE.items() if own in names and name in others.split()]
                near = called or get_close_matches(name, [own for own in names if own != "--help"], 1, 0.6)
                meant = f"did you mean {near[0]}?" if near else f"it takes {', '.join(names)}"
                part = name.rpartition(".")[2].lstrip("-").removesuffix("_column")
                if near == ["--column"] and part != "columns":
                    after = value or next(iter(unknown[place + 1 :]), "COLUMN")
                    meant = f"did you mean --column {part}={after}?"
                problems.append(f"{name} is no argument of {self.prog}; {meant}")
            elif place == 0 or not unknown[place - 1].startswith("-"):
                problems.append(f"{word} is one word too many; {self.how}")
        raise UserError(*([f"{problems[0]}{hint}"] if hint else problems))


def refuse_command(word: str, commands: Sequence[str]) -> NoReturn:
    """Say which command was probably meant.

    Raises:
        UserError: always.
    """
    given = word.lower()
    if word == "help":
        hint = "did you mean toolkit --help?"
    elif given in DONE_BY_RECIPES:  # before what is spelt alike: `train` means no `track`
        hint = "a recipe trains: python recipes/classify.py --help, or another one in recipes/"
    elif given in EVALUATING:
        hint = (
            "a recipe evaluates its run with --evaluate.only: python recipes/classify.py --output RUN --evaluate.only"
        )
    elif given in PREDICTING:
        hint = "did you mean predict?"
    elif near := get_close_matches(given, commands, 1):
        hint = f"did you mean {near[0]}?"
    else:
        hint = f"give one of {', '.join(commands)}"
    raise UserError(f"{word} is no command; {hint}")
