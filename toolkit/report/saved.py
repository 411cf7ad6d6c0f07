"""What a report takes from a run folder: whatever can be read of it, whether the run is finished, under way or dead."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.config.yaml import flatten, read_yaml
from toolkit.errors import UserError
from toolkit.output.evaluation_file import NAME as EVALUATION
from toolkit.output.nearby_runs import no_run_folder
from toolkit.output.run_folder import is_locked, read_record
from toolkit.verify.evidence import LARGEST_COUNT, is_count, starts_of

Array = np.ndarray[Any, Any]
COLUMNS = ("loss", "gradient_norm", "learning_rate", "samples", "tokens", "padding", "seconds", "waiting", "saving")
MEMORY = ("host_memory", "device_memory")
GIGABYTE = 1e9


@dataclass(frozen=True)
class SavedRun:
    """A run folder as it was found."""

    folder: Path
    record: Mapping[str, Any]
    """run.json."""
    settings: Mapping[str, Any]
    """config.yaml, by dotted key."""
    steps: Array
    """The step of each row of the ledger, ascending: shape (rows,), int64."""
    columns: Mapping[str, Array]
    """The numbers of these rows, not-a-number where one is unknown: shape (rows,), float64."""
    evaluations: Mapping[int, Mapping[str, float | None]]
    """The metrics of each evaluation, by the step that it came after."""
    evaluation: Mapping[str, Any]
    """evaluation.json, empty where there is none."""
    examples: list[Mapping[str, Any]]
    """predictions.jsonl."""
    remarks: list[str] = field(default_factory=list)
    """What could not be read."""

    @property
    def name(self) -> str:
        """What the run is called on a page: the last part of its folder."""
        return self.folder.resolve().name

    @property
    def status(self) -> str:
        """How the run stands, in a word or two."""
        status = str(self.record.get("status", "unknown"))
        return "died" if status == "running" and not is_locked(self.folder) else status

    @property
    def last_step(self) -> int:
        """The last step that the ledger has, 0 without one."""
        return int(self.steps[-1]) if len(self.steps) else 0

    @property
    def resumes(self) -> list[tuple[int, Mapping[str, Any]]]:
        """The first step of each start but the first, with what run.json has of that start."""
        starts = starts_of(self.record)
        return [(start["first_step"], start) for start in starts[1:] if is_count(start.get("first_step"))]

    @cached_property
    def metric_names(self) -> list[str]:
        """The names of all metrics that evaluations had, in their order."""
        return list(dict.fromkeys(name for metrics in self.evaluations.values() for name in metrics))


def read_run(folder: Path) -> SavedRun:
    """Return what can be read of a run folder.

    Raises:
        UserError: it is none.
    """
    record = read_record(folder)
    if not record:
        raise UserError(no_run_folder(folder, "it has no run.json that can be read"))
    remarks: list[str] = []
    settings, problem = read_settings_of(folder)
    remarks += [problem] if problem else []
    steps, columns, evaluations, unreadable = read_rows(folder / "ledger.jsonl")
    if unreadable:
        remarks.append(f"{unreadable:,} line(s) of the ledger can't be read; `toolkit verify` says more")
    if not len(steps) and record.get("step", 0):
        remarks.append(f"the ledger has no row, but the run has done {record['step']:,} steps")
    return SavedRun(
        folder,
        record,
        settings,
        steps,
        columns,
        evaluations,
        read_json(folder / EVALUATION),
        read_examples(folder),
        remarks,
    )


def read_settings_of(folder: Path) -> tuple[Mapping[str, Any], str | None]:
    """Return the settings of a run by dotted key, and why there are none."""
    try:
        return flatten(read_yaml(folder / "config.yaml")), None
    except UserError as error:
        return {}, "; ".join(error.problems)


def read_rows(path: Path) -> tuple[Array, dict[str, Array], dict[int, Mapping[str, float | None]], int]:
    """Return steps, columns and evaluations of a ledger, and how many lines can't be read.

    A last line without an end is still being written, and is left out. A row whose step does not come after the one
    before it is unreadable.
    """
    steps: list[int] = []
    rows: list[tuple[float | None, ...]] = []
    evaluations: dict[int, Mapping[str, float | None]] = {}
    unreadable = 0
    try:
        with path.open("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                row = parsed(line)
                step = row.get("step")
                if not is_count(step) or (steps and step <= steps[-1]):
                    unreadable += 1
                    continue
                steps.append(step)
                rows.append(tuple(row.get(name) for name in (*COLUMNS, *MEMORY)))
                if isinstance(found := row.get("evaluation"), Mapping):
                    evaluations[step] = {str(name): value for name, value in found.items() if is_number(value)}
    except OSError:
        pass
    table = np.array(
        [[value if is_number(value) else np.nan for value in row] for row in rows], dtype=np.float64
    ).reshape(len(rows), len(COLUMNS) + len(MEMORY))
    columns = dict(zip((*COLUMNS, *MEMORY), table.T, strict=True))
    columns |= {name: columns[name] / GIGABYTE for name in MEMORY}
    return np.array(steps, dtype=np.int64), columns, evaluations, unreadable


def parsed(line: bytes) -> Mapping[str, Any]:
    """Return a JSON object from a line, empty where it is none."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def is_number(value: Any) -> bool:
    """Return whether a value of a ledger is a number, or null for one that is not finite."""
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < LARGEST_COUNT
    return value is None or isinstance(value, float)


def read_json(path: Path) -> Mapping[str, Any]:
    """Return a JSON object from a file, empty where it can't be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def read_examples(folder: Path) -> list[Mapping[str, Any]]:
    """Return the samples of predictions.jsonl that can be read."""
    try:
        text = (folder / "predictions.jsonl").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return []
    # Other line breaks than this one may stand in a text.
    return [row for line in text.split("\n") if (row := parsed(line.encode()))]
