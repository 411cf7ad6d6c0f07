"""Check, for a user's own recipe, that a killed run resumes as if nothing had happened.

The recipe runs three times in processes of its own: undisturbed; until it is killed; and from there to its end.
"""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from toolkit.errors import UserError
from toolkit.verify.check import verify
from toolkit.verify.compare import Comparison, compare
from toolkit.verify.evidence import record_of, starts_of
from toolkit.verify.recipe_run import RecipeRuns

FEWEST_STEPS = 6
OWN_SETTINGS = ("output", "steps", "epochs", "resume", "checkpoint.every")
"""Settings that this command gives to the recipe, and the user may not."""
BIT_FOR_BIT = "0, bit for bit"


@dataclass(frozen=True)
class NumberCheck:
    """One kind of number, compared with that of the undisturbed run."""

    name: str
    where: str
    """The steps that were compared."""
    difference: str
    allowed: str
    holds: bool | None
    """None where nothing can be claimed."""

    def row(self) -> tuple[str, ...]:
        """Return the check as a row of a table."""
        result = {True: "ok", False: "WRONG", None: "no claim"}[self.holds]
        return (self.name, self.where, self.difference, self.allowed, result)


@dataclass(frozen=True)
class ResumeCheck:
    """The result of killing and resuming a recipe."""

    recipe: Path
    steps: int
    processes: tuple[int, int]
    """Before and after the kill."""
    killed_at: int
    """Rows in the ledger when the run was killed."""
    resumed_after: int
    """The step of the checkpoint from which it resumed."""
    repeated: int
    """Steps that were done twice."""
    checks: tuple[NumberCheck, ...]
    remarks: tuple[str, ...]
    folder: Path | None
    """Where both runs are, if they were kept."""

    @property
    def holds(self) -> bool:
        """Whether everything that can be claimed is equal to the undisturbed run."""
        return all(check.holds is not False for check in self.checks)

    columns = ("numbers", "steps", "largest difference", "allowed", "")

    def verdict(self) -> str:
        """Return the result in a sentence."""
        before, after = self.processes
        changed = f"on {before} process(es)" if before == after else f"on {before} process(es) and then on {after}"
        done = (
            f"{self.recipe}, killed {changed} with {self.killed_at:,} of {self.steps:,} steps in its ledger and "
            f"resumed after step {self.resumed_after:,} ({self.repeated:,} done again)"
        )
        if all(check.holds for check in self.checks):
            return f"{done}: as if nothing had happened"
        if self.holds:
            return f"{done}: as if nothing had happened, as far as that can be claimed"
        wrong = ", ".join(check.name for check in self.checks if check.holds is False)
        return f"{done}: NOT the undisturbed run: {wrong}; the runs are kept in {self.folder}"


def verify_resume(
    recipe: Path,
    arguments: Sequence[str] = (),
    *,
    steps: int = 30,
    processes: int = 1,
    then: int | None = None,
    output: Path | None = None,
    on_progress: Callable[[str], None] = lambda message: None,
) -> ResumeCheck:
    """Run a recipe undisturbed, run it again with a kill in between, and compare both step by step.

    Args:
        recipe: the recipe's file.
        arguments: for the recipe, as on its command line.
        steps: optimizer steps of each run.
        processes: how many run it undisturbed, and until it is killed.
        then: how many resume it; the same number if None.
        output: an empty or new folder, where both runs are kept; a temporary one if None.
        on_progress: is called with a message before each of the three runs.

    Raises:
        UserError: the recipe itself fails, or ended before it could be killed.
    """
    after = processes if then is None else then
    check_arguments(recipe, arguments, steps, (processes, after), output)
    place = Path(tempfile.mkdtemp(prefix="toolkit-verify-")) if output is None else output
    place.mkdir(parents=True, exist_ok=True)
    keep = output is not None
    try:
        runs = RecipeRuns(recipe, arguments, steps, place)
        on_progress(f"undisturbed, {steps:,} steps on {processes} process(es)")
        runs.run_to_end("undisturbed", processes)
        on_progress(f"again, with a checkpoint every {runs.checkpoint_every:,} steps, until it is killed")
        killed_at = runs.run_until_killed("resumed", processes)
        on_progress(f"killed with {killed_at:,} steps in its ledger; the same command on {after} process(es)")
        runs.run_to_end("resumed", after)
        resume_check = check_resume(runs, killed_at, (processes, after))
        keep = keep or not resume_check.holds
        return replace(resume_check, folder=place if keep else None)
    finally:
        if not keep:
            shutil.rmtree(place, ignore_errors=True)


def check_arguments(
    recipe: Path, arguments: Sequence[str], steps: int, processes: tuple[int, int], output: Path | None
) -> None:
    """Refuse arguments with which nothing can be run.

    Raises:
        UserError: all problems together.
    """
    problems = []
    if not recipe.is_file():
        around = [file.name for file in recipe.parent.glob("*.py")] if recipe.parent.is_dir() else []
        near = get_close_matches(recipe.name, around, 1)
        hint = f"did you mean {recipe.with_name(near[0])}?" if near else "name its file, such as recipes/classify.py"
        problems.append(f"there is no recipe {recipe}; {hint}")
    given = {word[2:].partition("=")[0] for word in arguments if word.startswith("--")}
    for name in sorted(given & set(OWN_SETTINGS)):
        problems.append(
            f"--{name} is given to the recipe, but this command sets it itself; leave it out (--steps and --output go "
            "before the --)"
        )
    if steps < FEWEST_STEPS:
        problems.append(f"--steps is {steps}; it must be {FEWEST_STEPS} or greater, to be killed in the midst")
    # --then is the number of --processes where it is not given.
    named = zip(("--processes", "--then"), dict.fromkeys(processes), strict=False)
    problems += [f"{name} is {count}; it must be 1 or greater" for name, count in named if count < 1]
    if output is not None and output.exists() and (not output.is_dir() or any(output.iterdir())):
        problems.append(f"--output {output} is not empty; give a new folder")
    if problems:
        raise UserError(*problems)


def check_resume(runs: RecipeRuns, killed_at: int, processes: tuple[int, int]) -> ResumeCheck:
    """Compare the run that was killed and resumed with the undisturbed one."""
    undisturbed, resumed = runs.place / "undisturbed", runs.place / "resumed"
    record = record_of(resumed)
    starts = starts_of(record)
    resumed_after: int = starts[-1]["first_step"] - 1
    comparison = compare(undisturbed, resumed)
    remarks = []
    before, after = processes
    # In the first steps after a start DDP still arranges its buckets, and so the order of a sum over three or more.
    exact = before == after <= 2 and starts[-1]["device"] == "cpu"
    if before == after and not exact:
        remarks.append(
            "more than two processes, or an accelerator, may add up in another order after a start: compared up to "
            "rounding"
        )
    # What makes the numbers after the kill depend on the number of processes: nothing is claimed of them then.
    unclaimed = comparison.topology_matters if before != after else ()
    if unclaimed:
        remarks.append(
            f"{'; '.join(unclaimed)}: after step {resumed_after:,}, on another number of processes, losses and weights "
            "can't be equal. What can be is compared; switch it off, or resume on the same number, to compare all"
        )
    elif not exact:
        remarks.append(f"rounding is taken to be {comparison.tolerance:g}, for {comparison.dtype}")
    folder_problems = [*verify(resumed).problems]
    if len(starts) != 2 or resumed_after < 1:
        folder_problems.append("it began from scratch instead of going on from its checkpoint")
    remarks += [f"run folder: {problem}" for problem in folder_problems]
    all_steps = f"1 to {runs.steps:,}"
    checks = [
        # This includes that each step is in the ledger once.
        NumberCheck("run folder", all_steps, f"{len(folder_problems)} problem(s)", "0", not folder_problems),
        check_exact("fingerprints", comparison, "samples", all_steps),
        check_exact("learning rates", comparison, "learning rates", all_steps),
    ]
    summed = ("losses", "gradient norms")
    if unclaimed and resumed_after:
        # The steps before the kill were done on the same number of processes.
        early = compare(undisturbed, resumed, last=resumed_after)
        checks += [check_exact(name, early, name, f"1 to {resumed_after:,}") for name in summed]
    if exact:
        checks += [check_exact(name, comparison, name, all_steps) for name in summed]
    else:
        checks += [check_rounded(name, comparison, all_steps, claimed=not unclaimed) for name in summed]
    checks.append(check_weights(comparison, runs.steps, exact, claimed=not unclaimed))
    return ResumeCheck(
        runs.recipe,
        runs.steps,
        processes,
        killed_at,
        resumed_after,
        repeated=record.get("repeated", 0),
        checks=tuple(checks),
        remarks=tuple(remarks),
        folder=runs.place,
    )


def check_exact(name: str, comparison: Comparison, compared: str, where: str) -> NumberCheck:
    """Check that one kind of number is the same at every step, bit for bit."""
    divergence, common = comparison.ledgers.divergences[compared], comparison.ledgers.common
    return NumberCheck(name, where, divergence.largest_text(), BIT_FOR_BIT, divergence.first is None and common > 0)


def check_rounded(name: str, comparison: Comparison, where: str, claimed: bool) -> NumberCheck:
    """Check that one kind of number differs by rounding at most."""
    divergence = comparison.ledgers.divergences[name]
    allowed, holds = (f"{comparison.tolerance:g}", divergence.beyond is None) if claimed else ("any", None)
    return NumberCheck(name, where, divergence.largest_text(), allowed, holds)


def check_weights(comparison: Comparison, steps: int, exact: bool, claimed: bool) -> NumberCheck:
    """Check the weights after the last step."""
    weights, where = comparison.weights, f"after {steps:,}"
    if weights.step != steps or weights.problem is not None:
        return NumberCheck("weights", where, str(weights), BIT_FOR_BIT if exact else f"{comparison.tolerance:g}", False)
    difference = "0" if weights.identical else f"{weights.difference:.2g}"
    if not claimed:
        return NumberCheck("weights", where, difference, "any", None)
    if exact:
        return NumberCheck("weights", where, difference, BIT_FOR_BIT, weights.identical)
    holds = weights.difference <= comparison.tolerance
    return NumberCheck("weights", where, difference, f"{comparison.tolerance:g}", holds)
