"""The command `toolkit`."""

import argparse
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn

from toolkit.command_parser import CommandParser, refuse_command
from toolkit.errors import DEFECT, DONE, STOPPED, USER_CAN_FIX, UserError
from toolkit.output import pipes
from toolkit.output.console import Console, figures
from toolkit.output.nearby_runs import no_run_folder
from toolkit.output.run_folder import is_locked, read_record

# 0: done or under way; 2: the user can fix it; 75: stopped on request, to be started again; 1: failed or died.
CODES = {"finished": DONE, "running": DONE, "preempted": STOPPED, "refused": USER_CAN_FIX, "failed": DEFECT}
RIGHT, WRONG = 0, 1


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


def add_status(commands: Any) -> None:
    status = commands.add_parser(
        "status",
        help="tell how a run stands; the exit code is the run's own",
        description="Tell how a run stands. Exit code: 0 finished or running, 2 ended by something that the user can "
        "fix, 75 stopped on request, 1 failed or died. A launcher turns every code but 0 into 1: ask here instead.",
    )
    status.set_defaults(command=show_status)
    status.add_argument("run", type=Path, metavar="RUN", help="the run folder, such as runs/classify")


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


def add_predict(commands: Any) -> None:
    predict = commands.add_parser(
        "predict",
        help="predict the rows of a file with a trained model",
        description="Write the rows of a file with what a model predicts of each, in their order: classes, numbers, "
        "tags, answers, texts, replies, vectors. Read are csv, tsv, json, json lines, parquet, CoNLL, text (a row a "
        "line) and folders of images. After a kill the same command goes on. In several processes: accelerate launch "
        "--config_file FILE --num_processes N -m toolkit predict ...; the output is the same.",
    )
    predict.set_defaults(command=predict_rows)
    predict.add_argument("model", metavar="MODEL", help="a run folder, a model folder or a hub id")
    predict.add_argument("file", type=Path, metavar="FILE", help="the rows")
    predict.add_argument(
        "--output", type=Path, required=True, metavar="OUT", help="a file that ends with .csv, .tsv, .jsonl or .parquet"
    )
    predict.add_argument(
        "--column",
        action="append",
        default=[],
        metavar="PART=COLUMN",
        help="which column is what, such as text=review, where FILE names it in another way than the training data",
    )
    predict.add_argument("--scores", action="store_true", help="the scores of all classes, not of the predicted alone")
    predict.add_argument("--tokens", type=int, metavar="N", help="the longest text that is written, in tokens")
    predict.add_argument(
        "--threshold",
        type=float,
        metavar="P",
        help="of several labels predict those with a probability above it (default: the thresholds that the model was "
        "saved with)",
    )
    predict.add_argument("--batch", type=int, default=32, metavar="N", help="samples at once (default: 32)")
    predict.add_argument(
        "--dtype", choices=["float32", "bfloat16", "float64"], default="float32", help="of the weights"
    )
    predict.add_argument("--header", metavar="NAMES", help="of csv and tsv: true, false, or the names of the columns")
    predict.add_argument("--threads", type=int, metavar="N", help="threads of torch in each process")
    predict.add_argument("--overwrite", action="store_true", help="replace OUT, and throw away what was begun for it")


def add_chat(commands: Any) -> None:
    chat = commands.add_parser(
        "chat",
        help="talk to a trained model in the terminal",
        description="Talk to a model that was trained to reply. Replies appear word by word; an empty line ends.",
    )
    chat.set_defaults(command=talk)
    chat.add_argument("model", metavar="MODEL", help="a run folder, a model folder or a hub id")
    chat.add_argument("--system", metavar="TEXT", help="the system message")
    chat.add_argument("--tokens", type=int, metavar="N", help="the longest reply, in tokens (default: 512)")
    chat.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="chance in replies (default: 0, none)"
    )
    chat.add_argument("--seed", type=int, default=0, metavar="N", help="of that chance")
    chat.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="of the weights")


def show_status(given: argparse.Namespace) -> int:
    """Print how the run in a folder stands and return the exit code it stands for."""
    folder: Path = given.run
    record = read_record(folder)
    if not record:
        raise UserError(no_run_folder(folder, "it has no run.json that can be read"))
    state = str(record.get("status"))
    if state not in CODES:
        raise UserError(
            f"{folder / 'run.json'} is damaged, or was written by something else: its status is "
            f"{record.get('status')!r}, and not one of {', '.join(CODES)}; toolkit verify {folder} says what is left"
        )
    died = state == "running" and not is_locked(folder)
    summary = {"status": f"{state}, but no process works on it: it has died" if died else state}
    if record.get("reason"):
        summary["reason"] = record["reason"]
    if is_number(record.get("step")) and is_number(record.get("epoch", 0.0)):
        summary["step"] = steps_done(folder, record)
    if isinstance(exported := record.get("exported"), dict) and is_number(exported.get("step")):
        summary["model"] = saved_model(folder, exported)
    if is_number(record.get("repeated")) and record["repeated"]:
        summary["repeated"] = f"{record['repeated']:,} step(s) were done again after a crash"
    for name in ("metrics", "baseline"):
        if isinstance(record.get(name), dict) and record[name]:
            summary[name] = figures({key: value for key, value in record[name].items() if is_number(value)})
    if isinstance(record.get("problems"), list) and record["problems"]:
        summary["problem"] = "; ".join(map(str, record["problems"]))
    Console(is_main=True).summary(str(folder), summary)
    return DEFECT if died else code_of(state, record)


def is_number(value: object) -> bool:
    """Return whether this is a number, in a file that may be damaged."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def saved_model(folder: Path, exported: dict[str, Any]) -> str:
    """Return which step's weights are in model/, and why these."""
    rule = f", the evaluation with the {exported['rule']}" if exported.get("rule") else ""
    gone = "" if (folder / "model").is_dir() else "; model/ is not there any more"
    return f"the weights after step {exported['step']:,}{rule}{gone}"


def code_of(state: str, record: dict[str, Any]) -> int:
    """Return the exit code that the run ended with; a run that failed says whether the user can fix it."""
    code = record.get("code") if state == "failed" else None
    return code if code in (DEFECT, USER_CAN_FIX) else CODES.get(state, DEFECT)


def steps_done(folder: Path, record: dict[str, Any]) -> str:
    """Return the steps that a run has done; run.json knows only those up to its newest checkpoint."""
    from toolkit.verify.evidence import is_count, last_row

    step, epoch, total = record["step"], record.get("epoch", 0.0), record.get("total_steps")
    row = last_row(folder / "ledger.jsonl") if record.get("status") == "running" else {}
    ahead = is_count(row.get("step")) and row["step"] > step
    if ahead:
        step, epoch = row["step"], row.get("epoch", epoch)
    text = f"{step:,} (epoch {epoch:.2f})" + (f" of {total:,}" if is_count(total) else "")
    return f"{text}; the newest checkpoint is of step {record['step']:,}" if ahead and record["step"] else text


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
        return RIGHT if report.sound else WRONG
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
    return RIGHT if resume_check.holds else WRONG


def end(number: int, frame: object) -> NoReturn:
    """End this process the way that lets it clean up."""
    sys.exit(128 + number)


def compare_runs(given: argparse.Namespace) -> int:
    """Compare two runs, print where they part, and return the exit code."""
    from toolkit.verify.compare import compare

    comparison = compare(given.first, given.second)
    Console(is_main=True).print(str(comparison))
    return RIGHT if comparison.same else WRONG


def make_report(given: argparse.Namespace) -> int:
    """Make the page of some runs and return the exit code."""
    from toolkit.report.command import report

    if given.follow is not None and not given.follow >= 1:
        raise UserError(f"--follow is {given.follow:g}; give 1 second or more")
    report(given.runs, given.output, given.follow, Console(is_main=True))
    return RIGHT


def export_model(given: argparse.Namespace) -> int:
    """Save the model of a checkpoint and return the exit code."""
    from toolkit.export_command import export

    export(given.run, given.step, given.recipe, Console(is_main=True))
    return RIGHT


def push_model(given: argparse.Namespace) -> int:
    """Send a model to a hub and return the exit code."""
    from toolkit.push.command import Wish, push

    names = ("model", "repo", "public", "revision", "message")
    wish = Wish(**{name: getattr(given, name) for name in names}, also=tuple(given.also))
    return push(wish, Console(is_main=True))


def send_to_trackers(given: argparse.Namespace) -> int:
    """Send a run to trackers and return the exit code."""
    from toolkit.tracking.command import track

    return track(given.run, given.to, given.project, given.run_name, given.parent)


def predict_rows(given: argparse.Namespace) -> int:
    """Predict the rows of a file and return the exit code."""
    from toolkit.recipe_command import report

    # On CPUs oneDNN keeps the code that it makes for each shape of a batch, and 1,024 of them take 40 MB.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16")
    try:
        columns = dict(entry.split("=", 1) for entry in given.column if "=" in entry)
        if wrong := [entry for entry in given.column if not all(entry.partition("=")[::2])]:
            raise UserError(f"--column is {wrong[0]!r}; give PART=COLUMN, such as text=review")
        from toolkit.predict.command import Wish, predict

        names = {"true": True, "false": False, None: None}
        header = names[given.header] if given.header in names else [name.strip() for name in given.header.split(",")]
        wish = {name: getattr(given, name) for name in ("model", "file", "output", "scores", "tokens", "batch")}
        wish |= {name: getattr(given, name) for name in ("dtype", "threads", "overwrite", "threshold")}
        predict(Wish(**wish, columns=columns, header=header))
    except UserError as error:
        report("toolkit predict", None, error)
        return USER_CAN_FIX
    return RIGHT


def talk(given: argparse.Namespace) -> int:
    """Talk to a model and return the exit code."""
    from toolkit.predict.chat import Talk, chat

    problems = []
    if given.tokens is not None and given.tokens < 1:
        problems.append(f"--tokens is {given.tokens}; it must be 1 or greater")
    if not given.temperature >= 0:
        problems.append(f"--temperature is {given.temperature}; it must be 0 or greater")
    if problems:
        raise UserError(*problems)
    names = ("model", "system", "tokens", "temperature", "seed", "dtype")
    chat(Talk(**{name: getattr(given, name) for name in names}))
    return RIGHT
