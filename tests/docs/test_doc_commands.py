"""Every command of the documentation is read by the parser of the program that it starts.

They are not run here, which would take hours: those of the tour are (test_tour.py), and what a recipe does with its own
data is what its tests are about.
"""

import argparse
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from doc_pages import PAGES, SHELL, blocks, code_in_lines, commands, named
from launching import ROOT

from toolkit.cli import command_line
from toolkit.config.fields import leaves
from toolkit.config.parser import read
from toolkit.config.suggestions import CALLED_ELSEWHERE
from toolkit.recipe_file import load_recipe

RECIPES = sorted(path.stem for path in (ROOT / "recipes").glob("*.py"))
STARTERS = (
    "accelerate",
    "torchrun",
    "python",
    "python3",
    "toolkit",
    "pip",
    "sbatch",
    "sphinx-build",
    "tensorboard",
    "cluster/ssh.sh",
)
OTHERS = ("ruff", "mypy", "pre-commit", "pytest", "jupyter", "hf")
"""Programs of others, of which nothing is asked but that they are named in pyproject.toml or stand for themselves."""
MISTAKE = "python recipes/classify.py --learning_rate 1e-4 --data.trian reviews.csv"
"""The tour shows what is answered (test_tour.py)."""


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_the_commands_of_a_page_are_read_by_their_programs(page: Path) -> None:
    wrong = []
    for block in blocks(page):
        if block.language not in SHELL:
            continue
        lines = list(commands(block.text))
        if block.language == "bash":
            checked = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, check=False)
            wrong += [] if checked.returncode == 0 else [f"{block.text}: {checked.stderr}"]
        elif not any(words_of(line)[:1] and words_of(line)[0] in STARTERS for line in lines):
            continue  # a layout of files, a message
        for line in lines:
            wrong += [f"{line}: {problem}" for problem in problems_of(line)]
    assert not wrong


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "models.md"], ids=named)
def test_the_flags_and_settings_that_a_page_names_exist(page: Path) -> None:
    wrong = []
    for code in code_in_lines(page):
        if "=" in code and "(" in code:
            continue  # a line of Python
        wrong += [f"{code}: {flag}" for flag in re.findall(r"(?<![\w-])--([\w][\w.-]*)", code) if flag not in flags()]
        key = re.fullmatch(r"--?([a-z_]+\.[a-z_.]+)|([a-z_]+\.[a-z_]+(?:\.[a-z_]+)?)(?: \S+)?", code)
        name = (key[1] or key[2]) if key and not code.endswith(".md") else ""
        if name.partition(".")[0] in sections() and not is_setting(name) and name not in OF_OTHERS:
            wrong.append(f"{code}: there is no setting {name}")
    assert not wrong


OF_OTHERS = {
    # Attributes and modules that begin like a section, and what torchtune calls its own.
    "model.lora_rank",
    "model.lora_alpha",
    "model.lora_attn_modules",
    "model.apply_lora_to_mlp",
    "model._component_",
    "model.generate",
    "dataset._component_",
    "model.safetensors",
    "data.seq_len",
}


def test_what_is_wrong_with_a_command_is_found() -> None:
    assert not problems_of("accelerate launch recipes/classify.py --epochs 2  # a remark")
    assert problems_of("accelerate launch recipes/classify.py --epoch 2")
    assert problems_of("accelerate launch recipes/classify.py --data.question x")
    assert problems_of("accelerate launch --num_processors 2 recipes/classify.py")
    assert problems_of("accelerate launch --config_file accelerate_configs/none.yaml recipes/classify.py")
    assert problems_of("toolkit predict runs/mine later.csv")
    assert problems_of("toolkit verify --resumed recipes/classify.py")
    assert problems_of("python benchmarks/numerics/topology.py --layout")
    assert problems_of("pip install -e '.[tags]'")
    assert problems_of("acclerate launch recipes/classify.py")
    assert problems_of("accelerate launch recipes/classify.py --optim.lr -1")


@cache
def settings(recipe: str) -> type[Any]:
    """Return the configuration of a recipe."""
    return load_recipe(ROOT / "recipes" / f"{recipe}.py")[0]


@cache
def keys() -> frozenset[str]:
    """Return the settings of all recipes."""
    return frozenset(key for recipe in RECIPES for key, _, _ in leaves(settings(recipe)()))


@cache
def sections() -> frozenset[str]:
    """Return the first parts of dotted settings."""
    return frozenset(key.partition(".")[0] for key in keys() if "." in key)


def is_setting(name: str) -> bool:
    """Return whether this is a setting, or a section of some."""
    return any(key == name or key.startswith(f"{name}.") for key in keys())


@cache
def flags() -> frozenset[str]:
    """Return every flag that a page may name: of recipes, of `toolkit`, of launchers, of benchmarks, of others."""
    sources = [*(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "tests" / "helpers").glob("*.py")]
    own = {flag for path in sources for flag in re.findall(r"add_argument\(\s*\"--([\w-]+)", path.read_text("utf-8"))}
    toolkit = {flag[2:] for parser in command_line()[1].choices.values() for flag in options(parser)}
    launchers = {flag[2:] for parser in (accelerate_launch(), torchrun()) for flag in options(parser)}
    elsewhere = {name for names in CALLED_ELSEWHERE.values() for name in names.split()}
    others = {"help", "config", "print_config", "key", "optim"}
    others |= {"weight_decay", "max_length", "nproc_per_node"}
    return frozenset(keys() | own | toolkit | launchers | elsewhere | others)


def options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the long flags of a parser."""
    for action in parser._actions:
        yield from (flag for flag in action.option_strings if flag.startswith("--"))


@cache
def accelerate_launch() -> argparse.ArgumentParser:
    from accelerate.commands.launch import launch_command_parser

    return launch_command_parser()


@cache
def torchrun() -> argparse.ArgumentParser:
    from torch.distributed.run import get_args_parser

    return get_args_parser()


def words_of(command: str) -> list[str]:
    """Return the words of a command, without remarks, variables before it and the folder of its program."""
    try:
        words = shlex.split(command, comments=True)
    except ValueError:
        return []
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words.pop(0)
    return [words[0].removeprefix(".venv/bin/"), *words[1:]] if words else []


def problems_of(command: str) -> list[str]:
    """Return what is wrong with a command of the documentation."""
    if command == MISTAKE:
        return []
    command = re.sub(r"\s+# .*$", "", command)
    parts = re.split(r" && |; |\s\|\|\s", command)
    if len(parts) > 1:
        return [problem for part in parts for problem in problems_of(part)]
    words = words_of(re.sub(r" > \S+$", "", command))
    match words:
        case [] | ["export" | "do" | "done" | "for" | "[" | "break", *_]:
            return []
        case ["accelerate", "launch", *rest]:
            return launched(accelerate_launch(), [word for word in rest if word != "-q"])
        case ["torchrun", *rest]:
            return launched(torchrun(), rest)
        case ["python" | "python3", "-m", "venv" | "pytest" | "toolkit", *rest]:
            return of_toolkit(rest) if words[2] == "toolkit" else []
        case ["python" | "python3", "-c", _]:
            return []
        case ["python" | "python3", script, *rest]:
            return started(script, rest)
        case ["toolkit", *rest]:
            return of_toolkit(rest)
        case ["pip", "install", *rest]:
            return installed(rest)
        case ["sbatch", *rest]:
            recipe = next(place for place, word in enumerate(rest) if word.endswith(".py"))
            return missing([word for word in rest if word.endswith(".sbatch")]) + started(
                rest[recipe], rest[recipe + 1 :]
            )
        case ["cluster/ssh.sh", *rest]:
            recipe = rest.index("--") + 1
            return started(rest[recipe], rest[recipe + 1 :])
        case [flag, *_] if flag.startswith("--"):  # a page on flags alone leaves out what they are given to
            return [f"there is no --{word[2:]}" for word in words if word.startswith("--") and word[2:] not in flags()]
        case ["sphinx-build", *_]:
            return []  # test_site.py runs it
        case ["tensorboard", "--logdir", folder]:
            return [] if folder.endswith("/tensorboard") else ["a run's event files lie in tensorboard/ of its folder"]
        case [program, *_] if program in OTHERS:
            return []
    return [f"no program that the documentation may start is called {words[0]}"]


def launched(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """Return what is wrong with a launcher's arguments, and with those of what it launches."""
    given, problem = parsed(parser, words)
    if given is None:
        return [problem]
    config = getattr(given, "config_file", None)
    inside = list(given.training_script_args)
    if getattr(given, "module", False) and given.training_script == "toolkit":
        return missing([config] if config else []) + of_toolkit(inside)
    return missing([config] if config else []) + started(given.training_script, inside)


def started(script: str, words: Sequence[str]) -> list[str]:
    """Return what is wrong with the arguments of a script."""
    if script == "waves.py":  # the recipe of write-a-recipe.md, which test_docs.py runs
        return []
    if problems := missing([script]):
        return problems
    if Path(script).parent.name != "recipes":
        source = (ROOT / script).read_text("utf-8")
        named_flags = [word.partition("=")[0] for word in words if word.startswith("--")]
        return [f"{script} knows no {flag}" for flag in named_flags if f'"{flag}"' not in source]
    if list(words) in (["--help"], ["--print_config"]):
        return []
    config = settings(Path(script).stem)
    given = read(config, words)
    # What an evaluation leaves out it takes from the run folder.
    others = [] if given.values.get("evaluate.only") else given.problems_of(given.applied_to(config()))
    return [*given.problems, *others]


def of_toolkit(words: Sequence[str]) -> list[str]:
    """Return what is wrong with the arguments of `toolkit`."""
    own = words[: words.index("--")] if "--" in words else words
    given, problem = parsed(command_line()[0], own)
    return [] if given is not None else [problem]


def parsed(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[Any, str]:
    """Return what a parser makes of arguments, or None and what it said."""

    def refuse(message: str) -> None:
        raise ValueError(message)

    parsers = [parser, *(inner for action in parser._actions for inner in parsers_in(action))]
    before = [each.error for each in parsers]
    for each in parsers:
        each.error = refuse  # type: ignore[method-assign, assignment]
    try:
        return parser.parse_args(list(words)), ""
    except ValueError as error:
        return None, str(error)
    finally:
        for each, error_of in zip(parsers, before, strict=True):
            each.error = error_of  # type: ignore[method-assign]


def parsers_in(action: argparse.Action) -> list[argparse.ArgumentParser]:
    """Return the parsers of commands."""
    return list(action.choices.values()) if isinstance(action, argparse._SubParsersAction) else []


def installed(words: Sequence[str]) -> list[str]:
    """Return the extras that an installation names and that do not exist."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    asked = [name for word in words for found in re.findall(r"^\.\[(.+)\]$", word) for name in found.split(",")]
    return [f"there is no extra {name}" for name in asked if name not in project["optional-dependencies"]]


def missing(paths: Sequence[str]) -> list[str]:
    """Return the files that a command names and that do not exist."""
    return [f"there is no {path}" for path in paths if not (ROOT / path).is_file()]
