"""When memory runs out, one message names the phase, the samples, what to lower and how to go on; exit code 2."""

import errno
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import greedy_recipe
import numpy as np
import pytest
import torch
from greedy_recipe import Greedy, task
from launching import ROOT, begin, clean_environment
from stopped_runs import BY_HAND
from trial import Outcome, run_here, run_outside

from toolkit.checkpoint.staging import StagingBuffer
from toolkit.config.batch import BatchConfig
from toolkit.distributed.memory import lack_of, lacks_memory, out_of_memory_message
from toolkit.distributed.phase import FORWARD_PASS, OPTIMIZER_STEP, PREDICTING, Phase
from toolkit.output.ledger import read_ledger

RECIPE = ROOT / "tests" / "helpers" / "greedy_recipe.py"


@pytest.fixture(autouse=True)
def hooks() -> Iterator[None]:
    """Leave no hook of an optimizer behind."""
    yield
    while greedy_recipe.HANDLES:
        greedy_recipe.HANDLES.pop().remove()


def error_of(work: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as found:  # noqa: PT011 - which it is differs
        work()
    return found.value


@pytest.mark.parametrize(
    ("error", "lack"),
    [
        (error_of(lambda: torch.empty(1 << 46)), "the host's memory ran out when 281,475.0 GB more were asked for"),
        (error_of(lambda: np.empty(1 << 50)), "the host's memory ran out when 8.00 PiB more were asked for"),
        (error_of(lambda: bytearray(1 << 60)), "the host's memory ran out"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "the host's memory ran out"),
        (
            torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB."
            ),
            "the GPU's memory ran out when 2.00 GiB more were asked for",
        ),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported"), "the GPU's memory ran out"),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
            "the GPU's memory ran out",
        ),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (3x16 and 15x15)"), None),
        (OSError(errno.ENOSPC, "No space left on device"), None),
        (ValueError("out of memory"), None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_what_is_a_lack_of_memory(error: Exception, lack: str | None) -> None:
    assert lacks_memory(error) == (lack is not None)
    assert lack_of(error) == lack or lack is None


def start(folder: Path, *flags: str) -> Outcome:
    return run_here(Greedy, task, ["--threads", "1", "--batch.balance", "false", *flags], folder)


@pytest.mark.parametrize(
    ("place", "parts"),
    [
        ("reading", ["reading data. Give the machine more memory"]),
        ("model", ["preparing the model. Give a launch file that spreads the model"]),
        (
            "forward",
            [
                "in the forward pass of step 3, with 1 sample at once (values: 1 x 5 x 4)",
                "Give a launch file that spreads",
            ],
        ),
        ("backward", ["in the backward pass of step 3, with 1 sample at once"]),
        ("optimizer", ["in the optimizer step of step 3. Give a launch file that spreads the model"]),
        ("evaluation", ["evaluating batch 1 after step 6, with 5 samples at once", "--batch.eval 2 or less"]),
        (
            "prediction",
            ["making the predictions of an evaluation after step 6, with 5 samples", "--batch.eval 2 or less"],
        ),
    ],
)
def test_one_message_says_where_and_what_to_change(place: str, parts: list[str], tmp_path: Path) -> None:
    outcome = start(tmp_path / "run", "--greed.place", place)
    outcome.told("the host's memory ran out when 70,368.7 GB more were asked for; the process was ", *parts)
    assert outcome.errors.count("ran out") == 1
    begun = place not in ("reading", "model")
    goes_on = f"goes on from step-{6 if place in ('evaluation', 'prediction') else 2:06d}"
    outcome.told(f": the same command with that {goes_on if begun else 'begins again from the start'}")
    assert (outcome.record["status"], outcome.record.get("code")) == (("failed", 2) if begun else ("refused", None))


def test_settings_that_make_another_run_are_named_apart() -> None:
    """Of a recipe that generates and whose model checkpoints activations, with a single sample at once and several."""
    section = SimpleNamespace
    config: Any = section(
        model=section(name="a model", lora=None, checkpoint_activations=False),
        generate=section(tokens=64),
        data=section(max_length=512),
    )
    micro = section(ids=(7,), batch={"input_ids": torch.empty(1, 512)})
    told_of = [
        out_of_memory_message("memory ran out", Phase(what, step, False, 0.0, (3, 1), batch), config, is_sharded, None)
        for what, step, batch, is_sharded in (
            (FORWARD_PASS, 4, micro, False),
            (PREDICTING, None, micro, True),
            (OPTIMIZER_STEP, 4, None, False),
            (FORWARD_PASS, 4, section(ids=tuple(range(9)), batch={"input_ids": torch.empty(9, 512)}), False),
        )
    ]
    assert "Give --model.checkpoint_activations true, or a launch file" in told_of[0]
    assert told_of[0].endswith(". Or, in a new --output, give a smaller data.max_length")
    assert "after step 3, with 1 sample at once (input_ids: 1 x 512). Give a launch with more processes" in told_of[1]
    assert told_of[1].endswith("give a smaller generate.tokens, or a smaller data.max_length")
    assert told_of[2].endswith("give --model.lora.rank 16, which trains adapters alone")
    half = "Give --batch.micro 4 or less, or --batch.micro auto (it changes no number), or --model"
    assert f"with 9 samples at once (input_ids: 9 x 512). {half}" in told_of[3]


@pytest.mark.parametrize("place", ["forward", "backward", "prediction"])
def test_a_smaller_number_at_once_goes_on_to_the_same_numbers(place: str, tmp_path: Path) -> None:
    """A step finds it by itself; an evaluation, and what is tried before the first step, have to be told."""
    greed = ["--greed.place", place, "--greed.above", "3"]
    if place == "prediction":
        start(tmp_path / "run", *greed).told("--batch.eval ")
        start(tmp_path / "run", *greed, "--batch.eval", "3").done().says("going on after step")
    else:
        start(tmp_path / "run", *greed).done().says("step 3 is done again", "at most 2 samples at once")
    start(tmp_path / "whole").done()
    losses = [[row["loss"] for row in read_ledger(tmp_path / name / "ledger.jsonl")] for name in ("run", "whole")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-13)
    assert len(losses[0]) == 12


def test_memory_for_the_copy_of_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StagingBuffer, "lay_out", lambda *_: torch.empty(1 << 46))
    start(tmp_path / "run").told("was copying the state for a checkpoint of step 2. Give the machine more memory")


def test_a_real_limit_of_the_system_is_told_alike(tmp_path: Path) -> None:
    """The process may have no more address space than it has, and 200 MB."""
    words = ["--greed.place", "evaluation", "--greed.limit", "400", "--threads", "1"]
    run_outside(["python", RECIPE, *words], tmp_path / "run").told(
        "the host's memory ran out when 419.4 MB more were asked for; the process was evaluating batch 1 after step 6"
    )


@pytest.mark.parametrize(
    ("place", "rank", "problem"),
    [
        ("forward", "null", "in the forward pass of step 3, with 1 sample at once"),
        ("backward", "1", "process 1: the host's memory ran out"),
        ("prediction", "null", "making the predictions of an evaluation after step 6, with 5 samples at once"),
    ],
)
def test_all_processes_end_together_with_one_message(place: str, rank: str, problem: str, tmp_path: Path) -> None:
    """In all of them at once or in one alone, which the others wait for in a collective."""
    output = tmp_path / "run"
    words = [
        "--output",
        output,
        "--threads",
        "1",
        "--batch.balance",
        "false",
        "--greed.place",
        place,
        "--greed.rank",
        rank,
    ]
    started = [
        begin([*command, RECIPE, *words], clean_environment(**environment))
        for command, environment in BY_HAND.commands()
    ]
    errors = "".join(process.communicate(timeout=90)[1] for process in started)
    assert [process.returncode for process in started] == [2, 2]
    assert errors.count("ran out when") == errors.count("can't go on") == 1
    assert problem in errors
    assert "Traceback" not in errors
    record = json.loads((output / "run.json").read_text(encoding="utf-8"))
    assert (record["status"], record["code"]) == ("failed", 2)
    assert "ran out when" in record["problems"][0]


def test_the_evaluation_of_a_saved_model(tmp_path: Path) -> None:
    start(tmp_path / "run").done()
    greed = ["--greed.place", "prediction", "--greed.after", "0", "--evaluate.only", "true"]
    start(tmp_path / "run", *greed).told(
        "--batch.eval 2 or less", "the same command with that begins again from the start"
    )


def test_an_evaluation_runs_what_a_micro_batch_does() -> None:
    sizes = [BatchConfig(), BatchConfig(micro=4), BatchConfig(micro=4, eval=9), BatchConfig(eval=9)]
    assert [batch.evaluated for batch in sizes] == [64, 4, 9, 9]
