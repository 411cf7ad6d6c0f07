"""Two runs side by side: what was different about them, and at which step their numbers part."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from math import inf, sqrt
from pathlib import Path
from typing import Any

import torch

from toolkit.checkpoint.format import DamagedError, inspect
from toolkit.checkpoint.reader import WEIGHTS, CheckpointReader, same_weights
from toolkit.config.schema import Config, changes_numbers
from toolkit.config.suggestions import show
from toolkit.config.yaml import differing, read_yaml
from toolkit.errors import UserError
from toolkit.output.console import figures
from toolkit.output.run_folder import RunFolder, step_of
from toolkit.verify.check import check_is_run
from toolkit.verify.evidence import LOST, candidates, is_count, record_of, row_in

NOTABLE = 1e-6
"""A relative difference beyond which a step is named."""
TOLERANCES = {"float64": 1e-7, "float32": 1e-3}
"""How far two runs may be apart by rounding alone, relatively, for the weights' type."""
COARSE = 5e-2
"""The same for types of 16 bits, and where those are computed with."""
EXACT = {"samples": ("fingerprint", "samples"), "units": ("units",), "skipped steps": ("skipped",)}
ROUNDED = {"losses": "loss", "gradient norms": "gradient_norm", "learning rates": "learning_rate"}


@dataclass
class Parting:
    """Where one kind of number parts, over the steps that both runs have."""

    first: int | None = None
    """The first step at which it differs at all."""
    notable: int | None = None
    """The first step at which it differs by more than `NOTABLE`, relatively."""
    largest: float = 0.0
    """The largest relative difference."""
    at: int | None = None
    """Where that is."""
    beyond: int | None = None
    """The first step at which it differs by more than rounding."""

    def add(self, step: int, difference: float, tolerance: float) -> None:
        """Take note of the difference at one step."""
        if not difference:
            return
        self.first = self.first or step
        if difference > NOTABLE:
            self.notable = self.notable or step
        if difference > tolerance:
            self.beyond = self.beyond or step
        if difference > self.largest:
            self.largest, self.at = difference, step

    def __str__(self) -> str:
        if self.first is None:
            return "the same at every step"
        if self.largest == inf:
            return f"differ first at step {self.first:,}"
        notable = "at no step" if self.notable is None else f"first at step {self.notable:,}"
        return f"differ first at step {self.first:,}, by more than {NOTABLE:g} {notable}; the most at step {self.at:,}, by {self.largest:.2g}"


@dataclass(frozen=True)
class WeightsApart:
    """How far the weights of two checkpoints are apart."""

    step: int | None = None
    difference: float = inf
    """||a - b|| / ||b|| over all weights together."""
    identical: bool = False
    """Bit for bit."""
    problem: str | None = None

    def __str__(self) -> str:
        if self.problem or self.step is None:
            return self.problem or "there is no step of which both have a valid checkpoint"
        if self.identical:
            return f"after step {self.step:,}: the same bit for bit"
        return f"after step {self.step:,}: relative difference {self.difference:.2g}"


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side."""

    first: Path
    second: Path
    settings: tuple[tuple[str, Any, Any], ...]
    """Key and both values, of settings that decide numbers or may do so."""
    execution: tuple[tuple[str, Any, Any], ...]
    """The same of settings that change speed or cadence alone."""
    data: tuple[tuple[str, Any, Any], ...]
    """Digests and counts of the data that differ."""
    versions: tuple[tuple[str, Any, Any], ...]
    topologies: tuple[str, str]
    ends: tuple[int, int]
    """The last step in the ledger of each."""
    common: int
    """Steps that both have."""
    last_common: int
    partings: Mapping[str, Parting]
    """For each kind of number that a ledger holds, where it parts."""
    metrics: tuple[tuple[int, Mapping[str, float]], tuple[int, Mapping[str, float]]]
    """Step and metrics of the last evaluation of each."""
    weights: WeightsApart
    dtype: str
    """The coarsest type that either run computes with, as far as known; it decides how much is rounding."""
    tolerance: float
    """What counts as rounding."""
    topology_matters: tuple[str, ...]
    """What in the models makes numbers depend on the number of processes."""

    @property
    def parted(self) -> int | None:
        """The first step at which the runs are apart by more than rounding, by ledger or weights."""
        steps = [parting.beyond for parting in self.partings.values() if parting.beyond is not None]
        if self.weights.problem or (self.weights.step is not None and self.weights.difference > self.tolerance):
            steps.append(self.weights.step or self.last_common)
        return min(steps, default=None)

    @property
    def same(self) -> bool:
        """Whether the runs are the same up to rounding, over the steps that both have."""
        return self.common > 0 and self.parted is None

    @property
    def identical(self) -> bool:
        """Whether they are the same bit for bit."""
        equal = all(parting.first is None for parting in self.partings.values())
        return self.same and equal and (self.weights.step is None or self.weights.identical)

    def verdict(self) -> str:
        """Return what it comes to, in a sentence."""
        if not self.common:
            return "nothing can be said: there is no step that both ledgers have"
        upto = f"up to step {self.last_common:,}, the last that both have"
        if self.parted is not None:
            apart = [name for name, parting in self.partings.items() if parting.beyond == self.parted]
            said = f"they part at step {self.parted:,}: {', '.join(apart) or 'weights'}"
            hints = self.topology_matters if self.topologies[0] != self.topologies[1] else ()
            return "; ".join([said, *hints])
        if self.identical:
            return f"they are the same, bit for bit, {upto}"
        return f"they are the same up to rounding, which is taken to be {self.tolerance:g} for {self.dtype}, {upto}"

    def __str__(self) -> str:
        summary = {
            "settings": pairs(self.settings) or "the same, as far as they change numbers",
            "other settings": pairs(self.execution),
            "data": pairs(self.data) or "the same",
            "versions": pairs(self.versions) or "the same",
            "ran on": "; against ".join(dict.fromkeys(self.topologies)),
            "steps": f"{self.ends[0]:,} and {self.ends[1]:,}; both have {self.common:,} of them",
            **{name: str(parting) for name, parting in self.partings.items() if self.common},
            "metrics": "; against ".join(evaluated(step, metrics) for step, metrics in self.metrics),
            "weights": str(self.weights),
        }
        width = max(map(len, summary))
        lines = [f"  {name:<{width}}  {text}" for name, text in summary.items() if text]
        return "\n".join([f"{self.first} against {self.second}", *lines, self.verdict()])


def compare(first: Path, second: Path, last: int | None = None) -> Comparison:
    """Hold two runs against each other, as far as both have come.

    Args:
        first: a run folder.
        second: another one.
        last: look at the ledgers up to this step only.

    Raises:
        UserError: one of them is no run folder.
    """
    problems: list[str] = []
    for path in (first, second):
        try:
            check_is_run(RunFolder(path))
        except UserError as error:
            problems += error.problems
    if problems:
        raise UserError(*problems)
    records = record_of(first), record_of(second)
    weights, dtypes = weights_apart(first, second)
    dtype, tolerance = coarsest([*dtypes, *map(precision_of, records)])
    settings = differing(settings_in(first), settings_in(second))
    rows = Rows(tolerance, last)
    rows.compare(first / "ledger.jsonl", second / "ledger.jsonl")
    return Comparison(
        first,
        second,
        settings=tuple(entry for entry in settings if changes_numbers(Config(), entry[0])),
        execution=tuple(entry for entry in settings if not changes_numbers(Config(), entry[0])),
        data=entries(records, "data", "digest of") + entries(records, "samples", "samples of"),
        versions=entries(records, "versions", ""),
        topologies=(topology(records[0]), topology(records[1])),
        ends=(rows.ends[0], rows.ends[1]),
        common=rows.common,
        last_common=rows.last_common,
        partings=rows.partings,
        metrics=(rows.evaluations[0], rows.evaluations[1]),
        weights=weights,
        dtype=dtype,
        tolerance=tolerance,
        topology_matters=tuple(dict.fromkeys(reason for record in records for reason in reasons(record))),
    )


class Rows:
    """Goes through two ledgers together."""

    def __init__(self, tolerance: float, last: int | None) -> None:
        self.tolerance = tolerance
        self.last = inf if last is None else last
        self.ends = [0, 0]
        self.common = 0
        self.last_common = 0
        self.partings = {name: Parting() for name in (*EXACT, *ROUNDED)}
        self.evaluations: list[tuple[int, Mapping[str, float]]] = [(0, {}), (0, {})]

    def compare(self, first: Path, second: Path) -> None:
        """Hold the rows of every step that both have against each other."""
        left, right = self.followed(0, first), self.followed(1, second)
        a, b = next(left, None), next(right, None)
        while a is not None and b is not None:
            if a[0] == b[0] <= self.last:
                self.add(a[0], a[1], b[1])
            ahead_a, ahead_b = a[0] > b[0], b[0] > a[0]
            a = a if ahead_a else next(left, None)
            b = b if ahead_b else next(right, None)
        # What one has alone still tells where it ends.
        for _ in chain(left, right):
            pass

    def followed(self, number: int, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the rows of one ledger with ascending steps; others are for `toolkit verify` to tell."""
        for row in readable_rows(path):
            step = row.get("step")
            if not is_count(step) or step <= self.ends[number]:
                continue
            self.ends[number] = step
            if isinstance(row.get("evaluation"), Mapping):
                self.evaluations[number] = (step, row["evaluation"])
            yield step, row

    def add(self, step: int, a: Mapping[str, Any], b: Mapping[str, Any]) -> None:
        """Hold two rows of one step against each other."""
        self.common += 1
        self.last_common = step
        for name, fields in EXACT.items():
            equal = all(a.get(field) == b.get(field) for field in fields)
            self.partings[name].add(step, 0.0 if equal else inf, self.tolerance)
        for name, field in ROUNDED.items():
            self.partings[name].add(step, relative_difference(a.get(field), b.get(field)), self.tolerance)


def readable_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a ledger that can be read; none where there is no ledger."""
    try:
        with path.open("rb") as lines:
            for line in lines:
                values = row_in(line)[0] if line.endswith(b"\n") else None
                if values is not None:
                    yield values
    except OSError:
        return


def relative_difference(a: Any, b: Any) -> float:
    """Return |a - b| / max(|a|, |b|); 0 for what is equal, infinity where one is no number."""
    if a == b:
        return 0.0
    if not isinstance(a, int | float) or not isinstance(b, int | float):
        return inf
    return float(abs(a - b) / max(abs(a), abs(b)))


def settings_in(run: Path) -> dict[str, Any]:
    """Return the configuration of a run, empty where it can't be read."""
    try:
        return read_yaml(RunFolder(run).config_file)
    except UserError:
        return {}


def entries(records: tuple[dict[str, Any], dict[str, Any]], name: str, label: str) -> tuple[tuple[str, Any, Any], ...]:
    """Return what differs in one mapping of run.json."""
    a, b = (value if isinstance(value := record.get(name), Mapping) else {} for record in records)
    return tuple((f"{label} {key}".strip(), before, after) for key, before, after in differing(a, b))


def topology(record: Mapping[str, Any]) -> str:
    """Return on what a run was carried out, start by start."""
    starts = record.get("topology")
    told: dict[str, Any] = {}
    for start in starts if isinstance(starts, list) else []:
        if isinstance(start, Mapping):
            text = (
                f"{start.get('processes')} process(es), {start.get('device')}, mixed precision {start.get('precision')}, "
                f"{start.get('threads')} thread(s)"
            )
            told.setdefault(text, start.get("first_step"))
    return (
        ", then ".join(f"{text}" + (f" from step {step}" if step != 1 else "") for text, step in told.items())
        or "unknown"
    )


def reasons(record: Mapping[str, Any]) -> list[str]:
    """Return what the plan said of numbers that depend on the topology: dropout, batch norm."""
    plan = record.get("plan")
    return [f"{plan[name]}" for name in ("note", "batch norm") if name in plan] if isinstance(plan, Mapping) else []


def precision_of(record: Mapping[str, Any]) -> str | None:
    """Return the type that mixed precision computes in, None without it."""
    starts = record.get("topology")
    last = starts[-1] if isinstance(starts, list) and starts else None
    precision = last.get("precision") if isinstance(last, Mapping) else None
    return {"bf16": "bfloat16", "fp16": "float16"}.get(str(precision))


def coarsest(dtypes: list[str | None]) -> tuple[str, float]:
    """Return the type that rounds the most, and what counts as rounding for it."""
    known = [dtype for dtype in dtypes if dtype is not None] or ["float32"]
    chosen = max(known, key=lambda dtype: TOLERANCES.get(dtype, COARSE))
    return chosen, TOLERANCES.get(chosen, COARSE)


def weights_apart(first: Path, second: Path) -> tuple[WeightsApart, list[str | None]]:
    """Compare the weights of the newest step of which both runs have a valid checkpoint, and return their types."""
    folders = [{step_of(path): path for path in candidates(RunFolder(run).checkpoints)} for run in (first, second)]
    for step in sorted(set(folders[0]) & set(folders[1]), reverse=True):
        a, b = folders[0][step], folders[1][step]
        try:
            sealed = [inspect(folder).files.get(WEIGHTS) for folder in (a, b)]
            difference, dtypes = weights_difference(a, b)
            # Equal weights are equal files only where none is cut in pieces.
            identical = sealed[0] == sealed[1] if all(sealed) else same_weights(a, b)
            difference = 0.0 if identical else difference
        except UserError as error:
            return WeightsApart(step, problem=f"after step {step:,}: {error}"), []
        except (DamagedError, *LOST):
            continue
        return WeightsApart(step, difference, identical), list(dtypes)
    return WeightsApart(), []


def weights_difference(first: Path, second: Path) -> tuple[float, set[str]]:
    """Return ||a - b|| / ||b|| over all weights of two checkpoints together, and their types.

    What is no floating-point number, such as a count, takes no part in the norm and has to be equal: infinity if it is not.

    Raises:
        UserError: they hold other tensors.
    """
    apart = norm = 0.0
    dtypes = set()
    equal = True
    with CheckpointReader(first) as a, CheckpointReader(second) as b:
        others = sorted(set(a.index(WEIGHTS)) ^ set(b.index(WEIGHTS)))
        if others:
            raise UserError(f"they have other tensors: {', '.join(others[:5])} ({len(others):,}) in one alone")
        for name in a.index(WEIGHTS):
            x, y = a.whole(WEIGHTS, name), b.whole(WEIGHTS, name)
            if x.shape != y.shape:
                raise UserError(f"{name} has the shapes {list(x.shape)} and {list(y.shape)}")
            if not (x.is_floating_point() and y.is_floating_point()):
                equal &= torch.equal(x, y)
                continue
            dtypes |= {str(tensor.dtype).removeprefix("torch.") for tensor in (x, y)}
            x, y = x.double(), y.double()
            apart += float((x - y).square().sum())
            norm += float(y.square().sum())
    if not equal or apart != apart:
        return inf, dtypes
    return (sqrt(apart / norm) if norm else inf) if apart else 0.0, dtypes


def pairs(differences: tuple[tuple[str, Any, Any], ...]) -> str:
    """Return differing entries with both values."""
    return "; ".join(f"{key}: {show(a)} against {show(b)}" for key, a, b in differences)


def evaluated(step: int, metrics: Mapping[str, float]) -> str:
    """Return the metrics of an evaluation."""
    known = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
    return f"{figures(known)} after step {step:,}" if known else "none yet"
