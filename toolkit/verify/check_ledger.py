"""Checks of a ledger: every step once, every link right, and the samples and rates that follow from the settings."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, get_args, get_type_hints

import numpy as np

from toolkit.config.batch import BatchConfig
from toolkit.config.optim import OptimConfig
from toolkit.config.schema import Config
from toolkit.config.suggestions import show
from toolkit.config.yaml import flatten
from toolkit.data.order import ShuffledOrder, mix64
from toolkit.schedules import learning_rate, total_steps
from toolkit.verify.evidence import LARGEST_COUNT, LedgerEvidence, Row, is_count, starts_of
from toolkit.verify.results import NAMED_AT_MOST, CheckResult, and_more, first_few, row_name

# The cosine of the machine that checks may differ from that of the machine that trained.
SAME_RATE = 1e-12
# Samples whose hashes are computed together: enough that numpy's cost per call does not count.
HASHED_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class Expected:
    """What determines the rows of a run."""

    order: ShuffledOrder
    optim: OptimConfig
    total_steps: int


def expected_of(config: Mapping[str, Any], record: Mapping[str, Any]) -> tuple[Expected | None, str]:
    """Return what determines the rows, or None and what is missing for it."""

    def is_amount(value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < LARGEST_COUNT

    flat, counts = flatten(config), record.get("samples")
    samples: Any = counts.get("train") if isinstance(counts, Mapping) else None
    names = ("batch.size", "seed", "optim.lr", "optim.warmup", "optim.schedule", "steps", "epochs")
    given: list[Any] = [flat.get(name) for name in names]
    size, seed, rate, warmup, schedule, steps, epochs = given
    readable = {
        "samples of run.json": is_count(samples) and samples > 0,
        "batch.size of config.yaml": is_count(size) and size > 0,
        "seed of config.yaml": is_count(seed),
        "steps or epochs of config.yaml": is_amount(epochs) if steps is None else is_count(steps),
        "optim.lr of config.yaml": is_amount(rate),
        "optim.warmup of config.yaml": is_amount(warmup),
        "optim.schedule of config.yaml": schedule in get_args(get_type_hints(OptimConfig)["schedule"]),
    }
    # A configuration of before they existed has none.
    shape: dict[str, Any] = {name: flat.get(f"optim.{name}") for name in ("decay", "floor", "restarts")}
    readable |= {f"optim.{name} of config.yaml": value is None or is_amount(value) for name, value in shape.items()}
    missing = [name for name, there in readable.items() if not there]
    if missing:
        return None, f"it takes {', '.join(missing)}"
    optim = OptimConfig(lr=rate, warmup=warmup, schedule=schedule, **shape)
    run = Config(batch=BatchConfig(size=size), optim=optim, steps=steps, epochs=epochs)
    return Expected(ShuffledOrder(samples, size, seed), optim, total_steps(run, samples)), ""


def check_steps(ledger: LedgerEvidence, record: Mapping[str, Any]) -> CheckResult:
    """Check that the ledger has every step once, in order."""
    finished = record.get("status") == "finished"
    if ledger.missing:
        if not finished and not record.get("step"):
            return CheckResult("ledger", "there is none yet", checked=False)
        return CheckResult("ledger", problems=(f"ledger.jsonl can't be read ({ledger.missing})",))
    problems = []
    if ledger.unreadable:
        problems.append(f"{first_few('line', ledger.unreadable)}: no row of a ledger")
    if ledger.half and finished:
        problems.append("its last line is half written, though the run is finished")
    steps = ledger.steps()
    if len(steps) < len(ledger.rows):
        problems.append(f"{len(ledger.rows) - len(steps):,} row(s) name no step")
    there = sorted(set(steps))
    later = bool(there) and there[0] > 1 and begins_later(there[0], record)
    begin = there[:1] if later else [0]
    gaps = [(a + 1, b - 1) for a, b in pairwise([*begin, *there]) if b > a + 1]
    if gaps:
        shown = [f"{a:,}" if a == b else f"{a:,} to {b:,}" for a, b in gaps]
        problems.append(f"missing: step {', '.join(shown[:NAMED_AT_MOST])}{and_more(shown)}")
    if len(there) < len(steps):
        seen: set[int] = set()
        twice = [step for step in steps if step in seen or seen.add(step)]  # type: ignore[func-returns-value]
        problems.append(f"{first_few('step', twice)}: there more than once")
    if moved := [b for a, b in pairwise(steps) if b < a]:
        problems.append(f"{first_few('step', moved)}: after a later one")
    if not steps:
        return CheckResult("ledger", "it has no row yet", tuple(problems), checked=bool(problems))
    message = f"{len(steps):,} rows, steps {there[0]:,} to {there[-1]:,}, each once"
    if later:
        message += (
            f"; it begins there because the run goes on from {record['resumed_from']}, whose ledger it does not have"
        )
    if ledger.half:
        message += "; one more is half written, as a run that is killed leaves it"
    return CheckResult("ledger", message, tuple(problems))


def begins_later(first: int, record: Mapping[str, Any]) -> bool:
    """Return whether run.json says that the run began at this step, at a checkpoint whose ledger is elsewhere."""
    begun = [start.get("first_step") for start in starts_of(record)]
    # A checkpoint that is followed by an evaluation is written before the row of its own step.
    return bool(record.get("resumed_from")) and (first in begun or first + 1 in begun)


def check_links(ledger: LedgerEvidence) -> CheckResult:
    """Check that no row was changed, removed or moved after it was written."""
    name = "links of the ledger"
    if not ledger.rows:
        return CheckResult(name, "there is no row", checked=False)
    problems = []
    if ledger.broken:
        problems.append(
            f"the first link that does not fit is that of {row_name(ledger.broken[0])}: this row was changed or moved, "
            f"or the one before it taken away ({len(ledger.broken):,} in all)"
        )
    if ledger.rewritten:
        problems.append(f"{first_few('step', ledger.rewritten)}: written in another way than a ledger is")
    message = "each row has the link that follows from it and the row before"
    if ledger.unlinked:
        message += "; but for the first: the checkpoint that it goes on from is not there any more"
    return CheckResult(name, message, tuple(problems))


def check_end(ledger: LedgerEvidence, record: Mapping[str, Any]) -> CheckResult:
    """Check that a finished run's ledger ends where run.json says."""
    name, end = "end of the ledger", record.get("ledger")
    if record.get("status") != "finished":
        return CheckResult(name, "run.json tells it when the run is finished", checked=False)
    if not isinstance(end, Mapping) or set(end) != {"rows", "bytes", "chain"}:
        return CheckResult(name, problems=("run.json does not tell it, though the run is finished",))
    last = ledger.rows[-1] if ledger.rows else Row(0, 0, "", None, None, None, None)
    problems = [
        f"{label} {show(value)}, by run.json {show(end[key])}"
        for label, key, value in (
            ("its last step is", "rows", last.step),
            ("its size in bytes is", "bytes", ledger.size),
            ("its last link is", "chain", last.link),
        )
        if value != end[key]
    ]
    return CheckResult(name, f"{ledger.size:,} bytes, as when the run was finished", tuple(problems))


def check_samples(ledger: LedgerEvidence, expected: Expected | None, missing: str) -> CheckResult:
    """Recompute the samples that every step should have seen, and compare them with its row."""
    if expected is None or not ledger.rows:
        return CheckResult("samples", missing or "there is no row", checked=False)
    order = expected.order
    # The counts are compared first: if the batch size was altered, one batch might not fit in memory.
    count_is_right = {
        row.step
        for row in ledger.rows
        if is_count(row.step) and 1 <= row.step <= expected.total_steps and row.samples == samples_in(order, row.step)
    }
    fingerprints = dict(recompute_fingerprints(order, sorted(count_is_right)))
    wrong = [
        row.step
        for row in ledger.rows
        if not is_count(row.step)
        or row.step not in fingerprints
        or row.samples != samples_in(order, row.step)
        or row.fingerprint != fingerprints[row.step]
        or row.epoch != row.step / order.steps_per_epoch
    ]
    if wrong:
        problem = f"{first_few('step', wrong)}: other samples than config.yaml and run.json lead to"
        return CheckResult("samples", problems=(problem,))
    return CheckResult(
        "samples",
        f"the fingerprints of {len(ledger.rows):,} steps, recomputed for batches of {order.batch_size:,} of "
        f"{order.samples:,} samples",
    )


def samples_in(order: ShuffledOrder, step: int) -> int:
    """Return the number of samples of a step, counted from 1."""
    index = (step - 1) % order.steps_per_epoch
    return min(order.batch_size, order.samples - index * order.batch_size)


def recompute_fingerprints(order: ShuffledOrder, steps: Sequence[int]) -> Iterator[tuple[int, str]]:
    """Yield (step, fingerprint) for ascending steps, counted from 1.

    The order of an epoch does not depend on the batch size: one large batch is split into many global batches.
    """
    size = order.batch_size
    batches = max(1, HASHED_AT_ONCE // size)
    wide = ShuffledOrder(order.samples, size * batches, order.seed)

    def place(step: int) -> tuple[int, int]:
        epoch, index = divmod(step - 1, order.steps_per_epoch)
        return epoch, index // batches

    for (epoch, number), group in groupby(steps, key=place):
        hashes = mix64(wide.global_batch(epoch * wide.steps_per_epoch + number).astype(np.uint64))
        sums = np.add.reduceat(hashes, np.arange(0, len(hashes), size))
        for step in group:
            yield step, f"{int(sums[(step - 1) % order.steps_per_epoch - number * batches]):016x}"


def check_rates(ledger: LedgerEvidence, expected: Expected | None, missing: str) -> CheckResult:
    """Compare the learning rate of every row with the schedule."""
    name = "learning rates"
    if expected is None or not ledger.rows:
        return CheckResult(name, missing or "there is no row", checked=False)
    optim, total, wrong = expected.optim, expected.total_steps, []
    for row in ledger.rows:
        rate = learning_rate(optim, row.step - 1, total) if is_count(row.step) else math.nan
        found = row.learning_rate
        if not isinstance(found, int | float) or not abs(found - rate) <= SAME_RATE * optim.rate:
            wrong.append(row.step)
    if wrong:
        return CheckResult(name, problems=(f"{first_few('step', wrong)}: another one than config.yaml leads to",))
    return CheckResult(name, f"{optim.schedule}, as config.yaml says")
