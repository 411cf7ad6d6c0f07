"""Compare two runs: how their settings, data and machines differ, and at which step their numbers diverge."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.config.fields import changes_numbers
from toolkit.config.schema import Config
from toolkit.config.suggestions import show
from toolkit.config.yaml import differing
from toolkit.errors import UserError
from toolkit.output.console import figures
from toolkit.output.run_folder import RunFolder
from toolkit.verify.check import check_is_run, read_settings
from toolkit.verify.compare_ledgers import LedgerComparison
from toolkit.verify.compare_weights import WeightsDifference, compare_weights
from toolkit.verify.evidence import is_count, record_of, starts_of

TOLERANCES = {"float64": 1e-7, "float32": 1e-3}
"""The relative difference that counts as rounding, for the type of the weights."""
COARSE = 5e-2
"""The same for types of 16 bits, and for mixed precision."""
Differences = tuple[tuple[str, Any, Any], ...]
"""Key and both values of each entry that differs."""


@dataclass(frozen=True)
class Comparison:
    """Two runs compared."""

    first: Path
    second: Path
    settings: Differences
    """Settings that change numbers or may do so."""
    execution: Differences
    """Settings that change speed or cadence alone."""
    data: Differences
    """Digests and counts of the data."""
    versions: Differences
    topologies: tuple[str, str]
    ledgers: LedgerComparison
    weights: WeightsDifference
    dtype: str
    """The coarsest type that either run computes with, as far as known; it decides how much is rounding."""
    tolerance: float
    """The relative difference that counts as rounding."""
    saved: tuple[str, ...]
    """The metrics of the weights that each run saved, where both have saved some."""
    topology_matters: tuple[str, ...]
    """What in the models makes numbers depend on the number of processes."""

    @property
    def diverged(self) -> int | None:
        """The first step at which the ledgers or the weights differ by more than rounding."""
        divergences = self.ledgers.divergences.values()
        steps = [divergence.beyond for divergence in divergences if divergence.beyond is not None]
        if self.weights.problem or (self.weights.step is not None and self.weights.difference > self.tolerance):
            steps.append(self.weights.step or self.ledgers.last_common)
        return min(steps, default=None)

    @property
    def same(self) -> bool:
        """Whether the runs are the same up to rounding, over the steps that both have."""
        return self.ledgers.common > 0 and self.diverged is None

    @property
    def identical(self) -> bool:
        """Whether they are the same bit for bit."""
        equal = all(divergence.first is None for divergence in self.ledgers.divergences.values())
        return self.same and equal and (self.weights.step is None or self.weights.identical)

    def verdict(self) -> str:
        """Return the result in a sentence."""
        if not self.ledgers.common:
            return "nothing can be said: there is no step that both ledgers have"
        upto = f"up to step {self.ledgers.last_common:,}, the last that both have"
        if self.diverged is not None:
            divergences = self.ledgers.divergences
            names = [name for name, divergence in divergences.items() if divergence.beyond == self.diverged]
            reasons = self.topology_matters if self.topologies[0] != self.topologies[1] else ()
            return "; ".join([f"they part at step {self.diverged:,}: {', '.join(names) or 'weights'}", *reasons])
        if self.identical:
            return f"they are the same, bit for bit, {upto}"
        return f"they are the same up to rounding, which is taken to be {self.tolerance:g} for {self.dtype}, {upto}"

    def __str__(self) -> str:
        ledgers = self.ledgers
        last = "; against ".join(metrics_text(step, metrics) for step, metrics in ledgers.evaluations)
        summary = {
            "settings": differences_text(self.settings) or "the same, as far as they change numbers",
            "other settings": differences_text(self.execution),
            "data": differences_text(self.data) or "the same",
            "versions": differences_text(self.versions) or "the same",
            "ran on": "; against ".join(dict.fromkeys(self.topologies)),
            "steps": f"{ledgers.ends[0]:,} and {ledgers.ends[1]:,}; both have {ledgers.common:,} of them",
            **{name: str(divergence) for name, divergence in ledgers.divergences.items() if ledgers.common},
            "metrics": last,
            "saved models": "" if (saved := "; against ".join(self.saved)) == last else saved,
            "weights": str(self.weights),
        }
        width = max(map(len, summary))
        lines = [f"  {name:<{width}}  {text}" for name, text in summary.items() if text]
        return "\n".join([f"{self.first} against {self.second}", *lines, self.verdict()])


def compare(first: Path, second: Path, last: int | None = None) -> Comparison:
    """Compare two runs over the steps that both have.

    Args:
        first: a run folder.
        second: another one.
        last: compare the ledgers up to this step only.

    Raises:
        UserError: one of them is no run folder.
    """
    folders = RunFolder(first), RunFolder(second)
    problems: list[str] = []
    for folder in folders:
        try:
            check_is_run(folder)
        except UserError as error:
            problems += error.problems
    if problems:
        raise UserError(*problems)
    records = record_of(first), record_of(second)
    weights = compare_weights(first, second)
    dtype, tolerance = coarsest([*weights.dtypes, *map(precision_of, records)])
    settings = differing(*(read_settings(folder)[0] for folder in folders))
    return Comparison(
        first,
        second,
        settings=tuple(entry for entry in settings if changes_numbers(Config(), entry[0])),
        execution=tuple(entry for entry in settings if not changes_numbers(Config(), entry[0])),
        data=differing_entries(records, "data", "digest of ") + differing_entries(records, "samples", "samples of "),
        versions=differing_entries(records, "versions"),
        topologies=(topology_text(records[0]), topology_text(records[1])),
        ledgers=LedgerComparison(folders[0].ledger_file, folders[1].ledger_file, tolerance, last),
        weights=weights,
        dtype=dtype,
        tolerance=tolerance,
        saved=saved_texts(records),
        topology_matters=tuple(dict.fromkeys(note for record in records for note in topology_notes(record))),
    )


def differing_entries(records: tuple[dict[str, Any], dict[str, Any]], name: str, label: str = "") -> Differences:
    """Return what differs in one mapping of run.json."""
    a, b = (value if isinstance(value := record.get(name), Mapping) else {} for record in records)
    return tuple((f"{label}{key}", before, after) for key, before, after in differing(a, b))


def topology_text(record: Mapping[str, Any]) -> str:
    """Return the processes and devices that a run used, with the step from which it used others."""
    first_steps: dict[str, Any] = {}
    for start in starts_of(record):
        text = (
            f"{start.get('processes')} process(es), {start.get('device')}, mixed precision {start.get('precision')}, "
            f"{start.get('threads')} thread(s)"
        )
        first_steps.setdefault(text, start.get("first_step"))
    texts = [text + (f" from step {step}" if step != 1 else "") for text, step in first_steps.items()]
    return ", then ".join(texts) or "unknown"


def topology_notes(record: Mapping[str, Any]) -> list[str]:
    """Return the plan's notes on numbers that depend on the topology: dropout, batch norm."""
    plan = record.get("plan")
    return [f"{plan[name]}" for name in ("note", "batch norm") if name in plan] if isinstance(plan, Mapping) else []


def precision_of(record: Mapping[str, Any]) -> str | None:
    """Return the type that mixed precision computes in, None without it."""
    precision = starts[-1].get("precision") if (starts := starts_of(record)) else None
    return {"bf16": "bfloat16", "fp16": "float16"}.get(str(precision))


def coarsest(dtypes: list[str | None]) -> tuple[str, float]:
    """Return the type that rounds the most, and the relative difference that counts as rounding for it."""
    known = [dtype for dtype in dtypes if dtype is not None] or ["float32"]
    chosen = max(known, key=lambda dtype: TOLERANCES.get(dtype, COARSE))
    return chosen, TOLERANCES.get(chosen, COARSE)


def differences_text(differences: Differences) -> str:
    return "; ".join(f"{key}: {show(a)} against {show(b)}" for key, a, b in differences)


def saved_texts(records: tuple[dict[str, Any], dict[str, Any]]) -> tuple[str, ...]:
    """Return the metrics of the weights that each run saved; nothing unless both have."""
    found = []
    for record in records:
        exported, metrics = record.get("exported"), record.get("metrics")
        step = exported.get("step") if isinstance(exported, Mapping) else None
        if not is_count(step) or not isinstance(metrics, Mapping):
            return ()
        found.append(metrics_text(step, {key: value for key, value in metrics.items() if isinstance(value, float)}))
    return tuple(found)


def metrics_text(step: int, metrics: Mapping[str, float]) -> str:
    known = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
    return f"{figures(known)} after step {step:,}" if known else "none yet"
