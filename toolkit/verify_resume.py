"""Certifying, for a recipe of the user's own, that a run which is killed goes on as if nothing had happened.

The recipe runs three times in processes of its own: undisturbed; until it is killed in the midst; and on to its end.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from toolkit.checkpoint import sealed_folders, step_of
from toolkit.compare import Comparison, Parting, compare
from toolkit.errors import UserError
from toolkit.evidence import is_count, last_row, record_of
from toolkit.run_folder import RunFolder
from toolkit.verify import verify

SAVES = 6
"""Checkpoints that a run writes."""
FEWEST = 6
OWN = ("output", "steps", "epochs", "resume", "checkpoint.every")
"""Settings that are this command's to give."""
LAUNCHER = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)
SECONDS_BETWEEN_LOOKS = 0.002
SECONDS_TO_DIE = 10.0
LINES_OF_AN_ERROR = 15


@dataclass(frozen=True)
class Check:
    """One kind of number, held against that of the undisturbed run."""

    what: str
    where: str
    """The steps that were compared."""
    difference: str
    allowed: str
    holds: bool | None
    """None where it can't be expected to."""

    def row(self) -> tuple[str, ...]:
        """Return the check as a row of a table."""
        return (
            self.what,
            self.where,
            self.difference,
            self.allowed,
            {True: "ok", False: "WRONG", None: "no claim"}[self.holds],
        )


@dataclass(frozen=True)
class Certificate:
    """What came of killing and resuming a recipe."""

    recipe: Path
    steps: int
    processes: tuple[int, int]
    """Before and after the kill."""
    killed_at: int
    """Rows in the ledger of the run that was killed."""
    resumed_after: int
    """The step of the checkpoint that it went on from."""
    repeated: int
    """Steps that were done twice."""
    checks: tuple[Check, ...]
    remarks: tuple[str, ...]
    folder: Path | None
    """Where both runs are, if they were kept."""

    @property
    def holds(self) -> bool:
        """Whether everything is as it was in the undisturbed run, as far as it can be."""
        return all(check.holds is not False for check in self.checks)

    columns = ("numbers", "steps", "largest difference", "allowed", "")

    def verdict(self) -> str:
        """Return what it comes to, in a sentence."""
        before, after = self.processes
        changed = f"on {before} process(es)" if before == after else f"on {before} process(es) and then on {after}"
        done = (
            f"{self.recipe}, killed {changed} with {self.killed_at:,} of {self.steps:,} steps in its ledger and resumed after step "
            f"{self.resumed_after:,} ({self.repeated:,} done again)"
        )
        if all(check.holds for check in self.checks):
            return f"{done}: as if nothing had happened"
        if self.holds:
            return f"{done}: as if nothing had happened, as far as that can be claimed"
        wrong = ", ".join(check.what for check in self.checks if check.holds is False)
        return f"{done}: NOT the undisturbed run: {wrong}; the runs are kept in {self.folder}"


def verify_resume(
    recipe: Path,
    arguments: Sequence[str] = (),
    *,
    steps: int = 30,
    processes: int = 1,
    then: int | None = None,
    output: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Certificate:
    """Run a recipe undisturbed, and again with a kill in the midst, and compare them step by step.

    Args:
        recipe: the recipe's file.
        arguments: for the recipe, as on its command line.
        steps: optimizer steps of each run.
        processes: on so many it runs undisturbed, and until it is killed.
        then: on so many it is resumed; the same number if None.
        output: an empty or new folder for both runs, which are kept then; a temporary one if None.
        say: is told what is being done.

    Raises:
        UserError: the recipe itself fails, or ended before it could be killed.
    """
    after = processes if then is None else then
    check_arguments(recipe, arguments, steps, (processes, after), output)
    place = Path(tempfile.mkdtemp(prefix="toolkit-verify-")) if output is None else output
    place.mkdir(parents=True, exist_ok=True)
    kept = output is not None
    try:
        trial = Trial(recipe, arguments, steps, place)
        say(f"undisturbed, {steps:,} steps on {processes} process(es)")
        trial.to_the_end("undisturbed", processes)
        say(f"again, with a checkpoint every {trial.every:,} steps, until it is killed")
        killed_at = trial.until_killed("resumed", processes)
        say(f"killed with {killed_at:,} steps in its ledger; the same command on {after} process(es)")
        trial.to_the_end("resumed", after)
        certificate = certify(trial, killed_at, (processes, after), place)
        kept = kept or not certificate.holds
        return replace(certificate, folder=place if kept else None)
    finally:
        if not kept:
            shutil.rmtree(place, ignore_errors=True)


def check_arguments(
    recipe: Path, arguments: Sequence[str], steps: int, processes: tuple[int, int], output: Path | None
) -> None:
    """Refuse what can't be carried out.

    Raises:
        UserError: all of it together.
    """
    problems = []
    if not recipe.is_file():
        problems.append(f"there is no recipe {recipe}; name its file, such as recipes/classify.py")
    given = {word[2:].partition("=")[0] for word in arguments if word.startswith("--")}
    for name in sorted(given & set(OWN)):
        problems.append(
            f"--{name} is given to the recipe, but this command sets it itself; leave it out (--steps and --output go before the --)"
        )
    if steps < FEWEST:
        problems.append(f"--steps is {steps}; it must be {FEWEST} or greater, to be killed in the midst")
    problems += [f"{count} process(es) can't run anything; give 1 or more" for count in processes if count < 1]
    if output is not None and output.exists() and (not output.is_dir() or any(output.iterdir())):
        problems.append(f"--output {output} is not empty; give a new folder")
    if problems:
        raise UserError(*problems)


class Trial:
    """A recipe with its arguments, in a folder for its runs."""

    def __init__(self, recipe: Path, arguments: Sequence[str], steps: int, place: Path) -> None:
        self.recipe = recipe
        self.arguments = list(arguments)
        self.steps = steps
        self.place = place
        self.every = max(1, steps // SAVES)

    def to_the_end(self, name: str, processes: int) -> None:
        """Run it until it is finished.

        Raises:
            UserError: it failed.
        """
        with self.started(name, processes) as process:
            process.wait()
        self.check_finished(name, process.returncode)

    def until_killed(self, name: str, processes: int) -> int:
        """Run it until it has done more than it has written down, kill it there, and return the steps in its ledger.

        Raises:
            UserError: it failed, or was faster.
        """
        folder = RunFolder(self.place / name)
        with self.started(name, processes) as process:
            while process.poll() is None:
                if is_beyond_a_checkpoint(folder):
                    family = hold(process)
                    # It went on while this looked, and may have sealed another one.
                    if is_beyond_a_checkpoint(folder):
                        kill_all(process)
                        break
                    let_go(family)
                time.sleep(SECONDS_BETWEEN_LOOKS)
        if record_of(folder.path).get("status") == "finished":
            raise UserError(f"the run ended before it could be killed; give more than --steps {self.steps}")
        if process.returncode != -signal.SIGKILL or not is_beyond_a_checkpoint(folder):
            self.check_finished(name, process.returncode)
        return step_in(folder)

    @contextmanager
    def started(self, name: str, processes: int) -> Iterator["subprocess.Popen[bytes]"]:
        """Start the recipe; nothing of it is left when this ends."""
        saves = [] if name == "undisturbed" else ["--checkpoint.every", str(self.every)]
        own = ["--steps", str(self.steps), "--epochs", "null", "--resume", "auto", "--output", str(self.place / name)]
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
        command = [
            sys.executable,
            *(launcher if processes > 1 else []),
            str(self.recipe),
            *self.arguments,
            *own,
            *saves,
        ]
        environment = {
            key: value
            for key, value in os.environ.items()
            if key not in LAUNCHER and not key.startswith("TORCHELASTIC")
        }
        with self.log(name).open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
            try:
                yield process
            finally:
                # One that has ended has no number any more: that may be another process by now.
                if process.poll() is None:
                    kill_all(process)

    def log(self, name: str) -> Path:
        """Return the file of what the last run of a name printed."""
        return self.place / f"{name}.log"

    def check_finished(self, name: str, code: int) -> None:
        """Pass on why a run did not come to its end.

        Raises:
            UserError: it did not.
        """
        record = record_of(self.place / name)
        if code == 0 and record.get("status") == "finished" and record.get("step") == self.steps:
            return
        lines = self.log(name).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise UserError(
            "\n    ".join(
                [
                    f"the recipe did not come to its end (exit code {code}); it said:",
                    *lines[-LINES_OF_AN_ERROR:],
                ]
            )
        )


def is_beyond_a_checkpoint(folder: RunFolder) -> bool:
    """Return whether a run has a sealed checkpoint, and steps in its ledger that came after it."""
    with suppress(OSError):
        newest = next(iter(sealed_folders(folder.checkpoints)), None)
        return newest is not None and step_in(folder) > step_of(newest)
    return False


def step_in(folder: RunFolder) -> int:
    """Return the last step in the ledger of a run."""
    step = last_row(folder.ledger_file).get("step")
    return step if is_count(step) else 0


def hold(process: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    """Make a process and all that it started stand still, and return them."""
    family: list[psutil.Process] = []
    with suppress(psutil.Error):
        root = psutil.Process(process.pid)
        # What stands still starts no others.
        for _ in range(2):
            family = [root, *root.children(recursive=True)]
            for member in family:
                with suppress(psutil.Error):
                    member.suspend()
    return family


def let_go(family: list[psutil.Process]) -> None:
    """Let them go on."""
    for member in family:
        with suppress(psutil.Error):
            member.resume()


def kill_all(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process that has not ended, and all that it started: its group, and a launcher's workers in groups of their own."""
    family = hold(process)
    for member in family:
        with suppress(psutil.Error):
            member.kill()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    patience = time.monotonic() + SECONDS_TO_DIE
    while any(map(lives, family)) and time.monotonic() < patience:
        time.sleep(SECONDS_BETWEEN_LOOKS)


def lives(process: psutil.Process) -> bool:
    """Return whether a process is more than an entry that nobody has collected."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def certify(trial: Trial, killed_at: int, processes: tuple[int, int], place: Path) -> Certificate:
    """Compare both runs."""
    undisturbed, resumed = place / "undisturbed", place / "resumed"
    record = record_of(resumed)
    starts: list[dict[str, Any]] = record["topology"]
    resumed_after = starts[-1]["first_step"] - 1
    whole = compare(undisturbed, resumed)
    remarks = []
    before, after = processes
    # How gradients are put into buckets, and so the order of a sum over three or more, settles after a start.
    exact = before == after <= 2 and starts[-1]["device"] == "cpu"
    if before == after and not exact:
        remarks.append(
            "more than two processes, or an accelerator, may add up in another order after a start: compared up to rounding"
        )
    moved = whole.topology_matters if before != after else ()
    if moved:
        remarks.append(
            f"{'; '.join(moved)}: after step {resumed_after:,}, on another number of processes, losses and weights can't be equal. "
            "What can be is compared; switch it off, or resume on the same number, to compare all"
        )
    elif not exact:
        remarks.append(f"rounding is taken to be {whole.tolerance:g}, for {whole.dtype}")
    upto = f"1 to {trial.steps:,}"
    unsound = [*verify(resumed).problems]
    if len(starts) != 2 or resumed_after < 1:
        unsound.append("it began anew instead of going on from its checkpoint")
    remarks += [f"run folder: {problem}" for problem in unsound]
    checks = [
        # Among other things: each step stands in the ledger once.
        Check("run folder", upto, f"{len(unsound)} problem(s)", "0", not unsound),
        check_exact("fingerprints", whole, "samples", upto),
        check_exact("learning rates", whole, "learning rates", upto),
    ]
    if moved and resumed_after:
        # The steps before were done on the same number of processes.
        early = compare(undisturbed, resumed, last=resumed_after)
        checks += [check_exact(name, early, name, f"1 to {resumed_after:,}") for name in ("losses", "gradient norms")]
    for name in ("losses", "gradient norms"):
        checks.append(
            check_exact(name, whole, name, upto) if exact else check_rounded(name, whole, upto, expected=not moved)
        )
    checks.append(check_weights(whole, trial.steps, exact, expected=not moved))
    return Certificate(
        trial.recipe,
        trial.steps,
        processes,
        killed_at,
        resumed_after,
        repeated=record.get("repeated", 0),
        checks=tuple(checks),
        remarks=tuple(remarks),
        folder=place,
    )


def check_exact(what: str, comparison: Comparison, name: str, where: str) -> Check:
    """Check that one kind of number is the same at every step."""
    parting = comparison.partings[name]
    return Check(what, where, shown(parting), "0, bit for bit", parting.first is None and comparison.common > 0)


def check_rounded(name: str, comparison: Comparison, where: str, expected: bool) -> Check:
    """Check that one kind of number differs by rounding at most."""
    parting = comparison.partings[name]
    holds = parting.beyond is None if expected else None
    return Check(name, where, shown(parting), f"{comparison.tolerance:g}" if expected else "any", holds)


def check_weights(comparison: Comparison, steps: int, exact: bool, expected: bool) -> Check:
    """Check the weights after the last step."""
    weights = comparison.weights
    there = weights.step == steps and weights.problem is None
    difference = "0" if weights.identical else f"{weights.difference:.2g}"
    holds: bool | None = there and (weights.identical if exact else weights.difference <= comparison.tolerance)
    allowed = "0, bit for bit" if exact else f"{comparison.tolerance:g}"
    if there and not expected:
        allowed, holds = "any", None
    return Check("weights", f"after {steps:,}", difference if there else str(weights), allowed, holds)


def shown(parting: Parting) -> str:
    """Return the largest difference, and where it is."""
    return "0" if parting.first is None else f"{parting.largest:.2g} at step {parting.at:,}"
