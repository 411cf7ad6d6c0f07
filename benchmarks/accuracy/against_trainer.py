"""Recipes on real data beside Transformers' Trainer: the same weights, data, hyperparameters and epochs, three seeds.

    python benchmarks/accuracy/against_trainer.py --data path/to/data --model path/to/all-MiniLM-L6-v2
        every task that the data folder has files for; hours on two cores
    python benchmarks/accuracy/against_trainer.py --data ... --model ... --tasks tag classify --seeds 0
        a part of it

Trainings that a former call has finished are not run again (--output says where they are). Both sides train what the
recipe builds (model with the weights of the seed, samples, collation), the Trainer with its own loop, loss and sampler,
batches grouped by length; both are evaluated by the toolkit. The two run at the same time with a thread each; the
seconds are those of the training steps, without evaluation. The data folder holds, by task: banking77/, wnut17/,
squad/, gsm8k/, tinyshakespeare/ and sign_digits/Dataset (unpacked).
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from machine import machine, table

HERE = Path(__file__).parent
METHODS = ("toolkit", "Trainer")
ARTICLES = {"train": 5, "eval": 3}
"""Articles of SQuAD's development set: all 48 would take hours on two cores."""


@dataclass(frozen=True)
class Job:
    """A task on real data."""

    recipe: str
    metric: str
    direction: int
    """1 where more is better, -1 where less is."""
    flags: Callable[[Path, Path, Path], list[str]]
    """Returns the recipe's flags, given the data folder, the model and a folder to write into."""


def squad(data: Path, model: Path, scratch: Path) -> list[str]:
    """Split the development set by article, and return the flags."""
    articles = json.loads((data / "squad" / "dev-v1.1.json").read_text(encoding="utf-8"))["data"]
    start = 0
    for name, count in ARTICLES.items():
        part = {"data": articles[start : start + count]}
        (scratch / f"squad-{name}.json").write_text(json.dumps(part), encoding="utf-8")
        start += count
    files = ["--data.train", str(scratch / "squad-train.json"), "--data.eval", str(scratch / "squad-eval.json")]
    return [
        *files,
        "--model.name",
        str(model),
        *fine_tuning(lr="2e-4", epochs="1", warmup="0.1"),
        "--data.max_length",
        "256",
        "--data.stride",
        "64",
    ]


def sign_digits(data: Path, model: Path, scratch: Path) -> list[str]:
    """Return the flags for a small network from scratch."""
    return ["--data.name", str(data / "sign_digits" / "Dataset"), "--epochs", "6"]


def gsm8k(data: Path, model: Path, scratch: Path) -> list[str]:
    """Return the flags for a small language model from scratch; the metric is the loss on the test set."""
    folder = data / "gsm8k"
    files = ["--data.train", str(folder / "train.jsonl"), "--data.eval", str(folder / "test.jsonl")]
    return [*files, "--epochs", "0.3", "--optim.lr", "1e-3", "--generate.tokens", "0"]


def shakespeare(data: Path, model: Path, scratch: Path) -> list[str]:
    """Return the flags for a small language model from scratch; the last part of the file is held out."""
    return ["--data.train", str(data / "tinyshakespeare" / "input.txt"), "--epochs", "1"]


def wnut17(data: Path, model: Path, scratch: Path) -> list[str]:
    """Return the flags for named entities."""
    folder = data / "wnut17"
    files = ["--data.train", str(folder / "wnut17train.conll"), "--data.eval", str(folder / "emerging.test.annotated")]
    return [*files, "--model.name", str(model), *fine_tuning(lr="2e-4", epochs="3", warmup="0.1")]


def banking77(data: Path, model: Path, scratch: Path) -> list[str]:
    """Return the flags for intents."""
    return [*data_of_banking77(data), "--model.name", str(model), *fine_tuning(lr="2e-4", epochs="0.5", warmup="0.1")]


def data_of_banking77(data: Path) -> list[str]:
    """Return the flags that name the data."""
    return ["--data.name", str(data / "banking77"), "--data.train", "train.csv", "--data.eval", "test.csv"]


def fine_tuning(lr: str, epochs: str, warmup: str) -> list[str]:
    """Return the flags of an encoder's fine-tuning; dropout is off, so that only the loops differ."""
    words = ["--optim.lr", lr, "--epochs", epochs, "--optim.warmup", warmup, "--model.dropout", "0"]
    return [*words, "--batch.size", "32"]


JOBS = {
    "classify": Job("classify", "accuracy", 1, banking77),
    "tag": Job("tag", "entity_f1", 1, wnut17),
    "answer": Job("answer", "f1", 1, squad),
    "classify_images": Job("classify_images", "accuracy", 1, sign_digits),
    "chat": Job("chat", "loss", -1, gsm8k),
    "language": Job("language", "loss", -1, shakespeare),
}


def main() -> None:
    """Train everything that is not there yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--output", type=Path, default=Path("runs/against_trainer"))
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    rows, behind = [], []
    for name in arguments.tasks:
        job, figures = JOBS[name], {method: [] for method in METHODS}
        flags = job.flags(arguments.data.resolve(), arguments.model.resolve(), arguments.output.resolve())
        for seed in arguments.seeds:
            # Both at once, with a thread each: whatever else the machine does meets both.
            words = [*flags, "--seed", str(seed), "--threads", "1"]
            places = {method: arguments.output / f"{name}-{method}-{seed}.json" for method in METHODS}
            running = [begun(place, job.recipe, method, words) for method, place in places.items()]
            if any(process is not None and process.wait() != 0 for process in running):
                sys.exit(f"{name}, seed {seed}: a training failed")
            for method, place in places.items():
                figures[method].append(json.loads(place.read_text(encoding="utf-8")))
        rows.append(row_of(name, job, figures))
        ours, theirs = ([run["metrics"][job.metric] for run in figures[method]] for method in METHODS)
        spread = max(max(values) - min(values) for values in (ours, theirs))
        if job.direction * (statistics.mean(ours) - statistics.mean(theirs)) < -spread:
            behind.append(name)
        print(f"{name}: done", file=sys.stderr)
    print("# Real data beside Transformers' Trainer\n")
    print(f"{machine()}; seeds {arguments.seeds}\n")
    columns = ["task", "metric", "toolkit", "Trainer", "toolkit: seconds", "Trainer: seconds", "ratio"]
    print(table(columns, rows))
    if behind:
        sys.exit(f"below the Trainer by more than the spread of the seeds: {', '.join(behind)}")


def begun(place: Path, recipe: str, method: str, flags: list[str]) -> "subprocess.Popen[bytes] | None":
    """Start a training in a process of its own; None if its figures are there already."""
    if place.is_file():
        return None
    words = [sys.executable, str(HERE / "against_trainer_worker.py"), str(place), recipe, method, *flags]
    return subprocess.Popen(words, stdout=sys.stderr)


def row_of(name: str, job: Job, figures: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return a row of the table: metrics as mean and range, seconds as medians."""
    cells = []
    for method in METHODS:
        values = [run["metrics"][job.metric] for run in figures[method]]
        cells.append(f"{statistics.mean(values):.4f} ({min(values):.4f} to {max(values):.4f})")
    seconds = [statistics.median(run["seconds"] for run in figures[method]) for method in METHODS]
    return [name, job.metric, *cells, *(f"{value:.0f}" for value in seconds), f"{seconds[0] / seconds[1]:.2f}"]


if __name__ == "__main__":
    main()
