"""How long it takes to go on from step 100 and from step 1,000,000, beside Transformers' Trainer on the same data.

    python benchmarks/performance/resume_time.py
        5 rounds, 3 minutes on two cores

Both train a linear model on 24 million points that are computed, not stored, in batches of 16: a million steps are two
thirds of an epoch. A real checkpoint is made at step 100; the one at step 1,000,000 is the same with another position
(and, for the toolkit, a ledger of a million rows). Measured is a whole process, from its start to the end of the first
step that it goes on with; the order of the four is turned from round to round. Exits with 1 if the toolkit's two
medians are further apart than the spread of a single one.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import numpy as np
import torch
import torch.nn.functional as F
from machine import machine, table

BATCH, EARLY, LATE = 16, 100, 1_000_000
POINTS, STEPS = 24_000_000, 1_200_000


class Points:
    """Points near a plane; everything about one follows from its number."""

    def __len__(self) -> int:
        return POINTS

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        values = np.random.default_rng(number).normal(size=5).astype(np.float32)
        return {"inputs": torch.from_numpy(values[:4]), "labels": torch.tensor(values.sum())}

    def fetch(self, ids: Sequence[int]) -> list[dict[str, torch.Tensor]]:
        """Return the points with these numbers."""
        return [self[number] for number in ids]

    def lengths(self, ids: np.ndarray) -> None:
        """Points have no length."""

    def digest(self) -> str:
        """Return what the content follows from."""
        return f"points-{POINTS}"


class Plane(torch.nn.Module):
    """A linear model, with the signature that the Trainer wants."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        answer = self.linear(inputs).squeeze(-1)
        return {"logits": answer} if labels is None else {"loss": F.mse_loss(answer, labels), "logits": answer}


def main() -> None:
    """Measure and print; with a folder, be one of the measured processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--process", choices=["toolkit", "trainer"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--stop", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.process:
        {"toolkit": with_toolkit, "trainer": with_trainer}[arguments.process](arguments.folder, arguments.stop)
    else:
        compare(arguments.rounds)


def compare(rounds: int) -> None:
    """Time the four kinds of start in turn."""
    with TemporaryDirectory() as place:
        folders = {}
        for method in ("toolkit", "trainer"):
            early, late = Path(place) / f"{method}-early", Path(place) / f"{method}-late"
            run(method, early, EARLY)
            shutil.copytree(early, late)
            (move_toolkit if method == "toolkit" else move_trainer)(late)
            folders |= {(method, EARLY): early, (method, LATE): late}
        times: dict[tuple[str, int], list[float]] = {case: [] for case in folders}
        for number in range(rounds):
            cases = list(folders)
            for case in cases[number % 4 :] + cases[: number % 4]:
                method, position = case
                trial = Path(place) / "trial"
                shutil.copytree(folders[case], trial)
                # Or else the first flush of the ledger would wait for the copy of a million rows.
                os.sync()
                started = time.monotonic()
                run(method, trial, position + 1)
                times[case].append(time.monotonic() - started)
                check(method, trial, position + 1)
                shutil.rmtree(trial)
    print(f"# Seconds to go on, from the start of the process to the end of its first step\n\n{machine()}\n")
    names = {"toolkit": "toolkit", "trainer": "Transformers' Trainer"}
    print(
        table(
            ["median (smallest to largest)", f"from step {EARLY:,}", f"from step {LATE:,}", "longer by"],
            [
                [
                    name,
                    spread(times[method, EARLY]),
                    spread(times[method, LATE]),
                    f"{median(times[method, LATE]) - median(times[method, EARLY]):+.2f} s",
                ]
                for method, name in names.items()
            ],
        )
    )
    early, late = times["toolkit", EARLY], times["toolkit", LATE]
    noise = max(max(early) - min(early), max(late) - min(late))
    if abs(median(late) - median(early)) > noise:
        sys.exit(1)


def spread(times: list[float]) -> str:
    """Return the median and the range."""
    return f"{median(times):.2f} s ({min(times):.2f} to {max(times):.2f})"


def run(method: str, folder: Path, stop: int) -> None:
    """Run a process of its own that goes on and ends after so many steps."""
    words = [sys.executable, __file__, "--process", method, "--folder", str(folder), "--stop", str(stop)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    if done.returncode not in (0, 75):
        sys.exit(done.stdout + done.stderr)


def check(method: str, folder: Path, step: int) -> None:
    """See that the process did its step."""
    if method == "toolkit":
        done = json.loads((folder / "run.json").read_text(encoding="utf-8"))["step"]
    else:
        done = int((folder / "done").read_text(encoding="utf-8"))
    if done != step:
        sys.exit(f"{method} was to end after step {step} and ended after {done}")


def with_toolkit(folder: Path, stop: int) -> None:
    """Go on in a run folder, and ask for the stop when the step after `stop` begins."""
    from toolkit import BatchConfig, CheckpointConfig, Config, Task, TaskData, fine_tune
    from toolkit.distributed.phase import PhaseTracker

    tell = PhaseTracker.__call__

    def told(phases: PhaseTracker, what: str, step: int | None = None, *rest: Any, **more: Any) -> None:
        tell(phases, what, step, *rest, **more)
        if what == "waiting for data" and step == stop + 1:
            (folder / "STOP").touch()

    PhaseTracker.__call__ = told  # type: ignore[method-assign]

    @dataclass(frozen=True)
    class Settings(Config):
        batch: BatchConfig = BatchConfig(size=BATCH)
        """How many samples a step takes."""
        checkpoint: CheckpointConfig = CheckpointConfig(every=10 * STEPS)
        """When the run is written down."""

    def task(config: Settings) -> Task:
        return Task(
            model=lambda runtime: Plane(),
            data=TaskData(train=Points()),
            collate=lambda points: {name: torch.stack([point[name] for point in points]) for name in points[0]},
            units=lambda batch: len(batch["labels"]),
            loss=lambda model, batch: model(**batch)["loss"] * len(batch["labels"]),
        )

    fine_tune(Settings, task, ["--output", str(folder), "--steps", str(STEPS), "--epochs", "null"])


def move_toolkit(folder: Path) -> None:
    """Give the checkpoint of a run another position, with a ledger that has all rows up to it."""
    from toolkit.checkpoint.format import read_state, write_checkpoint, write_flushed
    from toolkit.checkpoint.writer import OPTIMIZER, WEIGHTS
    from toolkit.output.ledger import Ledger, LedgerRow, read_ledger
    from toolkit.output.run_folder import folder_name

    previous = folder / "checkpoints" / folder_name(EARLY)
    values = {key: value for key, value in next(iter(read_ledger(folder / "ledger.jsonl"))).items() if key != "chain"}
    ledger = Ledger(folder / "ledger.jsonl")
    for step in range(1, LATE + 1):
        ledger.write(LedgerRow(**{**values, "step": step}))
    ledger.close()

    def copied(name: str) -> Any:
        def write(path: Path) -> tuple[int, str]:
            sealed = write_flushed(path, (previous / name).read_bytes())
            return sealed.bytes, sealed.sha256

        return write

    state = {**read_state(previous), "step": LATE}
    files = {name: copied(name) for name in (WEIGHTS, OPTIMIZER)}
    write_checkpoint(folder / "checkpoints", LATE, files, state, ledger.end, None)


def with_trainer(folder: Path, stop: int) -> None:
    """Go on with the Trainer, and stop after step `stop`."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            if state.global_step == stop:
                control.should_training_stop = True
                control.should_save = stop == EARLY

    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=BATCH,
        max_steps=STEPS,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(Plane(), arguments, train_dataset=Points(), callbacks=[Stop()])
    checkpoints = sorted(folder.glob("checkpoint-*"))
    trainer.train(resume_from_checkpoint=str(checkpoints[0]) if checkpoints else None)
    (folder / "done").write_text(str(trainer.state.global_step), encoding="utf-8")


def move_trainer(folder: Path) -> None:
    """Give the Trainer's checkpoint another position."""
    previous = folder / f"checkpoint-{EARLY}"
    file = previous / "trainer_state.json"
    state = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**state, "global_step": LATE, "epoch": LATE * BATCH / POINTS}), encoding="utf-8")
    previous.rename(folder / f"checkpoint-{LATE}")


if __name__ == "__main__":
    main()
