"""What becomes of a run: `toolkit report`, `toolkit export`, `toolkit push` and `toolkit track`."""

import argparse
from pathlib import Path
from typing import Any

from toolkit.errors import DONE, UserError
from toolkit.output.console import Console


def add_report(commands: Any) -> None:
    report = commands.add_parser(
        "report",
        help="make a page of a run to look at, or of several side by side",
        description="Write report.html into a run folder: what was run, curves, metrics, predictions, where the time "
        "went. It is one file that needs no network. Several runs stand side by side, what differs first. A run may be "
        "under way, stopped or dead.",
    )
    report.set_defaults(command=make_report)
    report.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a run folder, such as runs/classify")
    report.add_argument("--output", type=Path, metavar="FILE", help="the page (default: report.html in the run folder)")
    report.add_argument(
        "--follow",
        type=float,
        metavar="SECONDS",
        help="write it again after so many seconds, until no process works on the run any more",
    )


def make_report(given: argparse.Namespace) -> int:
    """Make the page of some runs and return the exit code."""
    from toolkit.report.command import report

    if given.follow is not None and not given.follow >= 1:
        raise UserError(f"--follow is {given.follow:g}; give 1 second or more")
    report(given.runs, given.output, given.follow, Console(is_main=True))
    return DONE


def add_export(commands: Any) -> None:
    export = commands.add_parser(
        "export",
        help="save the model of a checkpoint into the run folder",
        description="Save the model of a sealed checkpoint into model/ of its run folder, with its metrics, whether "
        "the run is finished or not; run.json says which step it is. An evaluation that is missing is made up for.",
    )
    export.set_defaults(command=export_model)
    export.add_argument("run", type=Path, metavar="RUN", help="the run folder, such as runs/classify")
    export.add_argument(
        "--step", type=int, metavar="N", help="of the checkpoint (default: the one that the run itself would save)"
    )
    export.add_argument(
        "--recipe", type=Path, metavar="FILE", help="the recipe's file, if it is not where it was when the run began"
    )


def export_model(given: argparse.Namespace) -> int:
    """Save the model of a checkpoint and return the exit code."""
    from toolkit.export_command import export

    export(given.run, given.step, given.recipe, Console(is_main=True))
    return DONE


def add_push(commands: Any) -> None:
    push = commands.add_parser(
        "push",
        help="send a trained model to a hub, private unless told otherwise",
        description="Send the model of a run, or a model folder, to the Hugging Face Hub, or to the hub that "
        "HF_ENDPOINT names: weights in safetensors, configuration, tokenizer and card, and nothing else of the run. It "
        "says before what will be sent. The same command again goes on after a kill, and makes no commit where nothing "
        "has changed. The token is that of hf auth login, or HF_TOKEN.",
    )
    push.set_defaults(command=push_model)
    push.add_argument("model", type=Path, metavar="RUN_OR_MODEL", help="a run folder or a model folder")
    push.add_argument("repo", metavar="REPO", help="owner/name, or a name of your own")
    push.add_argument("--public", action="store_true", help="for everybody to read (default: private)")
    push.add_argument("--revision", metavar="BRANCH", help="a branch, which is made if it is not there (default: main)")
    push.add_argument("--message", metavar="TEXT", help="of the commit (default: which step of which run)")
    push.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="FILE",
        help="send this file of the model's folder too, which is no part of a model",
    )


def push_model(given: argparse.Namespace) -> int:
    """Send a model to a hub and return the exit code."""
    from toolkit.push.command import Wish, push

    names = ("model", "repo", "public", "revision", "message")
    wish = Wish(**{name: getattr(given, name) for name in names}, also=tuple(given.also))
    return push(wish, Console(is_main=True))


def add_track(commands: Any) -> None:
    track = commands.add_parser(
        "track",
        help="send the curves of a run to trackers",
        description="Send the curves, the settings and the metrics of a run to trackers, each step once, whatever was "
        "sent before. A run that is under way is followed until it ends. Exit code: 0 all is there, 1 something is "
        "missing, 2 something that the user can fix.",
    )
    track.set_defaults(command=send_to_trackers)
    track.add_argument("run", type=Path, metavar="RUN", help="the run folder, such as runs/classify")
    track.add_argument(
        "--to", metavar="NAMES", help="the trackers, separated by commas (default: those of the run's own track.to)"
    )
    track.add_argument("--project", metavar="NAME", help="the project there, for a run that was never sent there")
    track.add_argument("--run_name", metavar="NAME", help="what the run is called there, if it was never sent there")
    # The process that trains, where that has started this one.
    track.add_argument("--parent", type=int, help=argparse.SUPPRESS)


def send_to_trackers(given: argparse.Namespace) -> int:
    """Send a run to trackers and return the exit code."""
    from toolkit.tracking.command import track

    return track(given.run, given.to, given.project, given.run_name, given.parent)
