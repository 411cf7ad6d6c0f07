"""A run that is stopped under one way to spread a model, and resumed under the next."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launching import ROOT, TINY, launch, python

CONFIGS = ROOT / "accelerate_configs"
Way = tuple[str, int, int | None, int | None]
"""Launch file, processes, micro-batch, and the steps after which it is asked to stop."""


def whole_nowhere(folder: Path) -> str:
    """Return a launch file for ZeRO 3 on the CPU, in which every weight is gathered for each use of it.

    By itself it keeps those of up to 100,000 numbers whole everywhere, which all weights of a small network are.
    """
    # Weights are still gathered ahead of their use, as by itself.
    zero = {"stage": 3, "stage3_param_persistence_threshold": 0, "stage3_max_live_parameters": 0}
    settings = folder / "deepspeed.json"
    settings.write_text(json.dumps({"zero_optimization": {**zero, "stage3_max_reuse_distance": 0}}))
    before, _, _ = (CONFIGS / "cpu_deepspeed_zero3.yaml").read_text().partition("deepspeed_config:")
    file = folder / "zero3_whole_nowhere.yaml"
    file.write_text(f"{before}deepspeed_config:\n  deepspeed_config_file: {settings}\n  zero3_init_flag: false\n")
    return str(file.with_suffix(""))


def in_bf16(folder: Path, name: str) -> Path:
    """Return a launch file as the one of this name, for bf16."""
    text, file = (CONFIGS / f"{name}.yaml").read_text(), folder / f"{name}_bf16.yaml"
    assert 'mixed_precision: "no"' in text
    file.write_text(text.replace('mixed_precision: "no"', "mixed_precision: bf16"))
    return file


def one_and_passed(folder: Path, settings: Sequence[str], ways: Sequence[Way]) -> tuple[Path, Path]:
    """Return the folders of a run in one process, and of the same run that went through all ways."""
    one, passed = folder / "one", folder / "passed"
    done = python(TINY, *settings, "--output", str(one))
    assert done.returncode == 0, done.stderr
    for file, processes, micro, stop in ways:
        words = ["--output", str(passed), "--batch.micro", str(micro) if micro else "null"]
        # Where there are several micro-batches, gradients are summed after each in some parts, and once per step in
        # others. (Under ZeRO the stage decides it.)
        if "zero" not in file:
            words += ["--batch.reduce_each", str(micro == 3).lower()]
        environment = {"TINY_STOP_AFTER": str(stop)} if stop else {}
        config = CONFIGS / f"{file}.yaml"
        done = launch(TINY, *settings, *words, processes=processes, config=config, **environment)
        record = json.loads((passed / "run.json").read_text())
        assert record["status"] == ("preempted" if stop else "finished"), done.stdout + done.stderr
    return one, passed


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return the ledger of a run."""
    return [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
