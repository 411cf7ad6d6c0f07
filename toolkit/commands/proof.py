"""`toolkit verify` and `toolkit compare`: what a run promised, and where two runs part."""

import argparse
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from toolkit.errors import DEFECT, DONE
from toolkit.output.console import Console


def add_verify(commands: Any) -> None:
    verify = commands.add_parser(
        "verify",
        help="prove a run's promises, or that a recipe can be killed and resumed",
        usage="toolkit verify [-h] RUN [--recipe FILE]\n"
        "       toolkit verify [-h] --resume RECIPE [--processes N] [--then N] [--steps N] [--output DIR] "
        "[-- ARGUMENT ...]",
        description="With RUN: check that nothing in a run folder was changed since (ledger, checkpoints, data files), "
        "and compute again which samples every step should have seen. With --resume: run a recipe undisturbed, run it "
        "again, kill it in the middle, resume it, and compare samples, losses and weights step by step. Exit code: 0 "
        "all right, 1 something is wrong, 2 no run folder, or something else that the user can fix.",
    )
    verify.set_defaults(command=partial(verify_run_or_recipe, verify))
    verify.add_argument("run", type=Path, nargs="?", metavar="RUN", help="the run folder, such as runs/classify")
    verify.add_argument(
        "--recipe",
        type=Path,
        metavar="FILE",
        help="run this recipe's code to read the data again, and hold it against what RUN was trained on",
    )
    verify.add_argument(
        "--resume",
        type=Path,
        metavar="RECIPE",
        help="kill and resume this recipe; its own arguments come last, after --",
    )
    verify.add_argument("--processes", type=int, metavar="N", help="processes until the kill (default: 1)")
    verify.add_argument("--then", type=int, metavar="N", help="processes after it (default: the same number)")
    verify.add_argument("--steps", type=int, metavar="N", help="optimizer steps of each run (default: 30)")
    verify.add_argument(
        "--output", type=Path, metavar="DIR", help="keep both runs in this new folder (default: a temporary one)"
    )


def verify_run_or_recipe(parser: argparse.ArgumentParser, given: argparse.Namespace) -> int:
    """Check a run or a recipe, print the results, and return the exit code."""
    own = {name: getattr(given, name) for name in ("processes", "then", "steps", "output")}
    chosen = {name: value for name, value in own.items() if value is not None}
    if (given.run is None) == (given.resume is None):
        parser.error("give either a run folder (toolkit verify RUN) or a recipe (toolkit verify --resume RECIPE)")
    if given.resume is None:
        if chosen or given.for_recipe:
            parser.error(f"{' '.join([*('--' + name for name in chosen), *given.for_recipe])} goes with --resume only")
        from toolkit.verify.check import verify

        report = verify(given.run, given.recipe)
        Console(is_main=True).print(str(report))
        return DONE if report.sound else DEFECT
    if given.recipe is not None:
        parser.error("--recipe goes with a run folder only; --resume names the recipe already")
    return kill_and_resume(given.resume, given.for_recipe, chosen)


def kill_and_resume(recipe: Path, arguments: list[str], chosen: dict[str, Any]) -> int:
    """Kill and resume a recipe, print the results, and return the exit code."""
    from toolkit.verify.resume_check import verify_resume

    console = Console(is_main=True)
    # The processes that were started end with this command.
    previous = signal.signal(signal.SIGTERM, end)
    try:
        resume_check = verify_resume(recipe, arguments, on_progress=console.print, **chosen)
    finally:
        signal.signal(signal.SIGTERM, previous)
    console.table("against the undisturbed run", resume_check.columns, [check.row() for check in resume_check.checks])
    for remark in resume_check.remarks:
        console.print(remark)
    console.print(resume_check.verdict())
    return DONE if resume_check.holds else DEFECT


def end(number: int, frame: object) -> NoReturn:
    """End this process the way that lets it clean up."""
    sys.exit(128 + number)


def add_compare(commands: Any) -> None:
    compare = commands.add_parser(
        "compare",
        help="show where two runs part",
        description="Show what was different about two runs, and at which step their numbers part; runs that are still "
        "under way are compared as far as both have come. Exit code: 0 the same up to rounding, 1 they part, 2 no run "
        "folder.",
    )
    compare.set_defaults(command=compare_runs)
    compare.add_argument("first", type=Path, metavar="A", help="a run folder")
    compare.add_argument("second", type=Path, metavar="B", help="another one")


def compare_runs(given: argparse.Namespace) -> int:
    """Compare two runs, print where they part, and return the exit code."""
    from toolkit.verify.compare import compare

    comparison = compare(given.first, given.second)
    Console(is_main=True).print(str(comparison))
    return DONE if comparison.same else DEFECT
