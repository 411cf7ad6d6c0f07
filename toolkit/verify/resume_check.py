"""Certifying, for a recipe of the user's own, that a run which is killed goes on as if nothing had happened.

The recipe runs three times in processes of its own: undisturbed; until it is killed in the midst; and on to its end.
"""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolkit.errors import UserError
from toolkit.verify.check import verify
from toolkit.verify.compare import Comparison, Parting, compare
from toolkit.verify.evidence import record_of
from toolkit.verify.trials import Trial

FEWEST = 6
OWN = ("output", "steps", "epochs", "resume", "checkpoint.every")
"""Settings that are this command's to give."""


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
class ResumeCheck:
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
) -> ResumeCheck:
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
        resume_check = check_resume(trial, killed_at, (processes, after), place)
        kept = kept or not resume_check.holds
        return replace(resume_check, folder=place if kept else None)
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


def check_resume(trial: Trial, killed_at: int, processes: tuple[int, int], place: Path) -> ResumeCheck:
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
    return ResumeCheck(
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
