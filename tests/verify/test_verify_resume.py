"""`toolkit verify --resume RECIPE`: it a recipe passes if it resumes as if nothing had happened, and only then."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import psutil
import pytest
import torch
from launching import TINY, Process, begin
from tiny_recipe import Tiny, task
from trial import run_here

from toolkit.cli import main
from toolkit.errors import UserError
from toolkit.output.run_folder import RunFolder
from toolkit.verify.recipe_run import RecipeRuns
from toolkit.verify.resume_check import ResumeCheck, check_resume, verify_resume

STEPS = 24
ARGUMENTS = ["--threads", "1", "--epochs", "null", "--steps", str(STEPS)]

# A recipe that does not train, for the messages about one that does not do what it should.
SCRIPT = """
import json, subprocess, sys, time
from pathlib import Path
folder = Path(sys.argv[sys.argv.index("--output") + 1])
folder.mkdir(parents=True)

def checkpoint(step, row):
    (folder / "checkpoints" / f"step-{step:06d}").mkdir(parents=True, exist_ok=True)
    with (folder / "ledger.jsonl").open("a") as file:
        file.write(json.dumps({"step": row}) + "\\n")

def end(status, step):
    (folder / "run.json").write_text(json.dumps({"status": status, "step": step}))

"""


# Real processes


def test_a_recipe_with_dropout_resumes_bit_for_bit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole command: three runs in processes of their own, one of them killed in the midst."""
    place = tmp_path / "kept"
    own = ["--threads", "1", "--model.flaw", "dropout", "--evaluate.every", "70"]
    assert main(["verify", "--resume", str(TINY), "--steps", "240", "--output", str(place), "--", *own]) == 0
    printed = capsys.readouterr().out
    assert printed.count("bit for bit  ok") == 5
    assert "as if nothing had happened\n" in printed
    # It was killed indeed, and went on from a checkpoint.
    record = RunFolder(place / "resumed").record()
    assert [start["first_step"] for start in record["topology"]] == [1, record["topology"][1]["first_step"]]
    assert 40 < record["topology"][1]["first_step"] < 240
    assert RunFolder(place / "undisturbed").record()["repeated"] == 0
    # The undisturbed run wrote fewer checkpoints: how often it is written down changes no number.
    assert "every 40 steps" in (place / "resumed.log").read_text()
    assert "every 40 steps" not in (place / "undisturbed.log").read_text()


def test_a_recipe_resumes_on_another_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def start_copy(command: list[str], env: dict[str, str], stdout: BinaryIO, **settings: object) -> Process:
        return begin(command, env, output=Path(stdout.name))

    monkeypatch.setattr("toolkit.verify.recipe_run.subprocess", SimpleNamespace(Popen=start_copy, DEVNULL=0, STDOUT=0))
    messages: list[str] = []
    arguments = ["--threads", "1", "--evaluate.every", "70"]
    resume_check = verify_resume(TINY, arguments, steps=240, then=2, on_progress=messages.append)
    assert resume_check.holds
    assert resume_check.processes == (1, 2)
    # Steps were done that no checkpoint knew of, and they were done again.
    assert resume_check.repeated >= resume_check.killed_at - resume_check.resumed_after > 0
    assert [check.name for check in resume_check.checks if check.allowed == "0, bit for bit"] == [
        "fingerprints",
        "learning rates",
    ]
    assert all(check.holds for check in resume_check.checks)
    assert {check.allowed for check in resume_check.checks[-3:]} == {"1e-07"}
    # Nothing is kept of what holds.
    assert resume_check.folder is None
    assert "the same command on 2 process(es)" in messages[-1]


# What is checked, of runs in this process that fail in between and go on


class Failing:
    """The recipe, failing once at a step, with a loss of your own."""

    def __init__(self, at: int, altered: Callable[[int, torch.Tensor], torch.Tensor] | None = None) -> None:
        self.at = at
        self.altered = altered
        self.calls = 0

    def task(self, config: Tiny) -> Any:
        from dataclasses import replace

        built = task(config)
        # The first batch is tried once before the first step.
        self.calls = -1

        def loss(model: Any, batch: Any) -> torch.Tensor:
            value = built.loss(model, batch)
            if torch.is_grad_enabled():
                self.calls += 1
                if self.calls == self.at:
                    self.at = -1
                    raise RuntimeError("killed")
                if self.altered is not None:
                    return self.altered(self.calls, value)
            return value

        return replace(built, loss=loss)


def resumed_in_process(
    place: Path,
    *arguments: str,
    altered: Callable[[int, torch.Tensor], torch.Tensor] | None = None,
    processes: tuple[int, int] = (1, 1),
    settings: tuple[str, ...] = (),
) -> ResumeCheck:
    """Run undisturbed, fail in the midst, go on, and compare."""
    flags = [*ARGUMENTS, "--batch.balance", "false", *arguments]
    run_here(Tiny, Failing(-1, altered).task, flags, place / "undisturbed").done()
    failing = Failing(15, altered)
    again = [*flags, "--checkpoint.every", "6"]
    assert run_here(Tiny, failing.task, again, place / "resumed").code == 1
    run_here(Tiny, failing.task, [*again, *settings], place / "resumed").done()
    runs = RecipeRuns(TINY, arguments, STEPS, place)
    return check_resume(runs, 14, processes)


def holds(resume_check: ResumeCheck) -> dict[str, list[bool | None]]:
    found: dict[str, list[bool | None]] = {}
    for check in resume_check.checks:
        found.setdefault(check.name, []).append(check.holds)
    return found


NUMBERS = ("losses", "gradient norms", "weights")


def test_what_goes_on_as_if_nothing_had_happened_holds(tmp_path: Path) -> None:
    resume_check = resumed_in_process(tmp_path)
    assert resume_check.holds
    # Of the steps 13 and 14 one had its row already: rows come two steps later.
    assert (resume_check.resumed_after, resume_check.repeated) == (12, 1)
    assert all(check.difference in ("0", "0 problem(s)") for check in resume_check.checks)


def test_a_state_that_no_checkpoint_knows_of_is_found(tmp_path: Path) -> None:
    """A loss that depends on how often it was called: after the kill it counts from the beginning."""
    resume_check = resumed_in_process(tmp_path, altered=lambda calls, loss: loss * (1 + 1e-12 * calls))
    assert not resume_check.holds
    found = holds(resume_check)
    assert [found[name] for name in NUMBERS] == [[False]] * 3
    assert found["fingerprints"] == found["run folder"] == found["learning rates"] == [True]
    assert "NOT the undisturbed run: losses, gradient norms, weights" in resume_check.verdict()
    # Twelve calls fewer at each step from 13 on.
    assert 1e-12 < float(resume_check.checks[-3].difference.split()[0]) < 1e-9


@pytest.mark.parametrize(("share", "expected"), [(1e-11, True), (1e-4, False)])
def test_on_another_number_of_processes_only_rounding_is_allowed(tmp_path: Path, share: float, expected: bool) -> None:
    resume_check = resumed_in_process(
        tmp_path, altered=lambda calls, loss: loss * (1 + share * calls), processes=(1, 2)
    )
    assert resume_check.holds == expected
    assert [holds(resume_check)[name] for name in NUMBERS] == [[expected]] * 3
    assert "rounding is taken to be 1e-07, for float64" in resume_check.remarks


def test_with_noise_and_another_number_of_processes_only_what_came_before_is_claimed(tmp_path: Path) -> None:
    resume_check = resumed_in_process(
        tmp_path,
        *("--model.flaw", "noise"),
        altered=lambda calls, loss: loss * (1 + 0.1 * calls),
        processes=(1, 2),
    )
    assert resume_check.holds
    found = holds(resume_check)
    assert found["losses"] == found["gradient norms"] == [True, None]
    assert found["weights"] == [None]
    assert any("what is random in noise" in remark and "after step 12" in remark for remark in resume_check.remarks)
    assert resume_check.verdict().endswith("as far as that can be claimed")


def test_with_noise_what_came_before_has_to_be_equal(tmp_path: Path) -> None:
    """Here the run that was killed differed from its first step on."""
    resumed_in_process(tmp_path, "--model.flaw", "noise")
    ledger = tmp_path / "undisturbed" / "ledger.jsonl"
    rows = [json.loads(line) for line in ledger.read_text().splitlines()]
    rows[3]["loss"] *= 1 + 1e-15
    ledger.write_text("".join(json.dumps(row) + "\n" for row in rows))
    resume_check = check_resume(RecipeRuns(TINY, [], STEPS, tmp_path), 14, (1, 2))
    assert holds(resume_check)["losses"] == [False, None]
    assert not resume_check.holds


def test_three_processes_may_add_up_in_another_order(tmp_path: Path) -> None:
    resume_check = resumed_in_process(tmp_path, processes=(3, 3))
    assert "compared up to rounding" in resume_check.remarks[0]
    assert {check.allowed for check in resume_check.checks[-3:]} == {"1e-07"}


def test_a_run_that_began_from_scratch_or_lost_a_row_does_not_pass(tmp_path: Path) -> None:
    resumed_in_process(tmp_path)
    runs, run = RecipeRuns(TINY, [], STEPS, tmp_path), RunFolder(tmp_path / "resumed")
    lines = run.ledger_file.read_bytes().splitlines(keepends=True)
    run.ledger_file.write_bytes(b"".join([*lines[:5], *lines[6:]]))
    resume_check = check_resume(runs, 14, (1, 1))
    assert holds(resume_check)["run folder"] == [False]
    assert any("missing: step 6" in remark for remark in resume_check.remarks)
    run.ledger_file.write_bytes(b"".join(lines))
    assert check_resume(runs, 14, (1, 1)).holds
    run.update(topology=[{**run.record()["topology"][0], "first_step": 1}])
    resume_check = check_resume(runs, 14, (1, 1))
    assert any("it began from scratch" in remark for remark in resume_check.remarks)
    assert not resume_check.holds


def test_weights_of_another_step_do_not_pass(tmp_path: Path) -> None:
    resumed_in_process(tmp_path)
    state = tmp_path / "undisturbed" / "checkpoints" / f"step-{STEPS:06d}" / "state.json"
    state.write_bytes(state.read_bytes()[:-1])
    resume_check = check_resume(RecipeRuns(TINY, [], STEPS, tmp_path), 14, (1, 1))
    assert holds(resume_check)["weights"] == [False]


# What goes wrong on the way


def script(place: Path, body: str) -> Path:
    place.write_text(SCRIPT + body)
    return place


def test_the_last_words_of_a_recipe_that_fails_are_passed_on(tmp_path: Path, capsys: Any) -> None:
    lines = "\n".join(f"print('line {number}')" for number in range(30))
    path = script(tmp_path / "failing.py", f"{lines}\nsys.exit('no such table')")
    assert main(["verify", "--resume", str(path)]) == 2
    printed = capsys.readouterr().err
    assert "did not come to its end (exit code 1)" in printed
    assert printed.endswith("line 29\n    no such table\n")
    assert "line 10\n" not in printed


def test_a_recipe_that_trains_fewer_steps_than_it_was_given_is_refused(tmp_path: Path) -> None:
    path = script(tmp_path / "short.py", "end('finished', 29)")
    with pytest.raises(UserError, match="did not come to its end"):
        verify_resume(path)


def test_a_run_that_is_over_before_it_can_be_killed_asks_for_more_steps(tmp_path: Path) -> None:
    path = script(tmp_path / "quick.py", "end('finished', 30)")
    with pytest.raises(UserError, match="ended before it could be killed; give more than --steps 30"):
        verify_resume(path)


def test_a_run_that_fails_before_it_can_be_killed_is_reported(tmp_path: Path) -> None:
    body = "if folder.name == 'resumed': sys.exit('no memory left')\nend('finished', 30)"
    with pytest.raises(UserError, match="no memory left"):
        verify_resume(script(tmp_path / "later.py", body))


SLEEPER = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(300)"


@pytest.mark.parametrize("session", [False, True])
def test_everything_that_a_run_started_is_killed_once_it_is_beyond_a_checkpoint(tmp_path: Path, session: bool) -> None:
    """Also what has a session of its own, as the workers of a launcher may."""
    body = f"""
child = subprocess.Popen([sys.executable, "-c", {SLEEPER!r}, {str(tmp_path / "child")!r}], start_new_session={session})
while not Path({str(tmp_path / "child")!r}).exists(): time.sleep(0.01)
checkpoint(5, 5)
time.sleep(0.5)
end("running", 5)
checkpoint(5, 6)
time.sleep(300)
"""
    place = tmp_path / "place"
    place.mkdir()
    runs = RecipeRuns(script(tmp_path / "patient.py", body), [], 30, place)
    assert runs.run_until_killed("resumed", 1) == 6
    # Not before there was a step after the checkpoint.
    assert RunFolder(place / "resumed").record()["status"] == "running"
    assert not alive(int((tmp_path / "child").read_text()))


def alive(number: int) -> bool:
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def test_nothing_is_left_behind_by_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = script(
        tmp_path / "patient.py",
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(__import__('os').getpid()))\ntime.sleep(300)",
    )
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()

    def wait(process: Any) -> None:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr("subprocess.Popen.wait", wait_once(wait))
    with pytest.raises(KeyboardInterrupt):
        verify_resume(path)
    assert not alive(int((tmp_path / "pid").read_text()))
    assert not any((tmp_path / "temporary").iterdir())


def wait_once(first: Callable[[Any], None]) -> Callable[..., Any]:
    """Return a `wait` that is another one the first time."""
    from subprocess import Popen

    real, waited = Popen.wait, []

    def wait(process: Any, timeout: float | None = None) -> Any:
        if not waited:
            waited.append(True)
            first(process)
        return real(process, timeout)

    return wait


def test_a_launcher_around_this_process_does_not_reach_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.setenv(name, "3")
    body = "import os\nassert not {'RANK', 'WORLD_SIZE', 'TORCHELASTIC_RUN_ID'} & set(os.environ)\nend('finished', 30)"
    with pytest.raises(UserError, match="before it could be killed"):
        verify_resume(script(tmp_path / "clean.py", body))


def test_arguments_that_can_not_be_are_refused_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.txt").write_text("mine")
    words = ["--steps", "3", "--then", "0", "--output", str(full), "--", "--epochs", "5", "--checkpoint.every=2"]
    assert main(["verify", "--resume", str(tmp_path / "nowhere.py"), *words]) == 2
    printed = capsys.readouterr().err
    for part in (
        "there is no recipe",
        "--steps is 3",
        "--then is 0; it must be 1 or greater",
        "is not empty",
        "--epochs is given",
        "--checkpoint.every is",
    ):
        assert part in printed
    assert [path.name for path in full.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("words", [["RUN", "--resume", "x.py"], ["--resume", "x.py", "--recipe", "x.py"], []])
def test_commands_that_contradict_themselves_are_refused(words: list[str]) -> None:
    assert main(["verify", *words]) == 2


def test_the_help_of_every_command_is_there_and_loads_nothing_heavy() -> None:
    program = """
import json, sys
from toolkit.cli import main
for words in (["--help"], ["verify", "--help"], ["compare", "--help"], ["status", "--help"]):
    try:
        main(words)
    except SystemExit as end:
        assert end.code == 0
print(json.dumps(sorted({"torch", "transformers", "accelerate", "numpy"} & set(sys.modules))), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stderr) == []
    for part in ("where two runs part", "--resume RECIPE", "Exit code: 0 the same up to rounding"):
        assert part in " ".join(done.stdout.split())
