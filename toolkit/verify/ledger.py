"""Holding the rows of a ledger against each other, and against the configuration that they follow from."""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from toolkit.config.suggestions import show
from toolkit.schedules import learning_rate
from toolkit.verify.evidence import (
    Expected,
    LedgerFound,
    Row,
    is_count,
    recomputed,
    samples_in,
)
from toolkit.verify.results import NAMED, CheckResult, and_more, named, several

# The learning rate is computed anew, maybe by another machine's cosine.
SAME_RATE = 1e-12


def check_steps(ledger: LedgerFound, record: Mapping[str, Any]) -> CheckResult:
    """Check that every step stands in the ledger once, one after the other."""
    finished = record.get("status") == "finished"
    if ledger.missing:
        if not finished and not record.get("step"):
            return CheckResult("ledger", "there is none yet", checked=False)
        return CheckResult("ledger", problems=(f"ledger.jsonl can't be read ({ledger.missing})",))
    problems = []
    if ledger.unreadable:
        problems.append(f"{several('line', ledger.unreadable)}: no row of a ledger")
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
        problems.append(f"missing: step {', '.join(shown[:NAMED])}{and_more(shown)}")
    if len(there) < len(steps):
        seen: set[int] = set()
        twice = [step for step in steps if step in seen or seen.add(step)]  # type: ignore[func-returns-value]
        problems.append(f"{several('step', twice)}: there more than once")
    if moved := [b for a, b in pairwise(steps) if b < a]:
        problems.append(f"{several('step', moved)}: after a later one")
    if not steps:
        return CheckResult("ledger", "it has no row yet", tuple(problems), checked=bool(problems))
    told = f"{len(steps):,} rows, steps {there[0]:,} to {there[-1]:,}, each once"
    if later:
        told += (
            f"; it begins there because the run goes on from {record['resumed_from']}, whose ledger it does not have"
        )
    if ledger.half:
        told += "; one more is half written, as a run that is killed leaves it"
    return CheckResult("ledger", told, tuple(problems))


def begins_later(first: int, record: Mapping[str, Any]) -> bool:
    """Return whether run.json says that the run began at this step, at a checkpoint whose ledger is elsewhere."""
    starts = record.get("topology")
    begun = (
        [start.get("first_step") for start in starts if isinstance(start, Mapping)] if isinstance(starts, list) else []
    )
    # A checkpoint that is followed by an evaluation is written before the row of its own step.
    return bool(record.get("resumed_from")) and (first in begun or first + 1 in begun)


def check_links(ledger: LedgerFound) -> CheckResult:
    """Check that no row was changed, dropped or moved after it was written."""
    if not ledger.rows:
        return CheckResult("links of the ledger", "there is no row", checked=False)
    problems = []
    if ledger.broken:
        problems.append(
            f"the first link that does not fit is that of {named(ledger.broken[0])}: this row was changed or moved, or the one before "
            f"it taken away ({len(ledger.broken):,} in all)"
        )
    if ledger.rewritten:
        problems.append(f"{several('step', ledger.rewritten)}: written in another way than a ledger is")
    told = "each row has the link that follows from it and the row before"
    if ledger.unlinked:
        told += "; but for the first: the checkpoint that it goes on from is not there any more"
    return CheckResult("links of the ledger", told, tuple(problems))


def check_end(ledger: LedgerFound, record: Mapping[str, Any]) -> CheckResult:
    """Check that a finished run's ledger ends where run.json says."""
    what, end = "end of the ledger", record.get("ledger")
    if record.get("status") != "finished":
        return CheckResult(what, "run.json tells it when the run is finished", checked=False)
    if not isinstance(end, Mapping) or set(end) != {"rows", "bytes", "chain"}:
        return CheckResult(what, problems=("run.json does not tell it, though the run is finished",))
    last = ledger.rows[-1] if ledger.rows else Row(0, 0, "", None, None, None, None)
    problems = [
        f"{name} {show(value)}, by run.json {show(end[key])}"
        for name, key, value in (
            ("its last step is", "rows", last.step),
            ("its size in bytes is", "bytes", ledger.size),
            ("its last link is", "chain", last.link),
        )
        if value != end[key]
    ]
    return CheckResult(what, f"{ledger.size:,} bytes, as when the run was finished", tuple(problems))


def check_samples(ledger: LedgerFound, expected: Expected | None, missing: str) -> CheckResult:
    """Compute anew which samples every step should have seen, and hold it against its row."""
    if expected is None or not ledger.rows:
        return CheckResult("samples", missing or "there is no row", checked=False)
    order = expected.order
    # Counts come first: with a batch size that was altered, a single batch might not fit in memory.
    counted_right = {
        row.step
        for row in ledger.rows
        if is_count(row.step) and 1 <= row.step <= expected.total_steps and row.samples == samples_in(order, row.step)
    }
    fingerprints = dict(recomputed(order, sorted(counted_right)))
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
        text = f"{several('step', wrong)}: other samples than config.yaml and run.json lead to"
        return CheckResult("samples", problems=(text,))
    return CheckResult(
        "samples",
        f"the fingerprints of {len(ledger.rows):,} steps, computed anew for batches of {order.batch_size:,} of {order.samples:,} samples",
    )


def check_rates(ledger: LedgerFound, expected: Expected | None, missing: str) -> CheckResult:
    """Hold the learning rate of every row against the schedule."""
    if expected is None or not ledger.rows:
        return CheckResult("learning rates", missing or "there is no row", checked=False)
    optim, total, wrong = expected.optim, expected.total_steps, []
    for row in ledger.rows:
        rate = learning_rate(optim, row.step - 1, total) if is_count(row.step) else math.nan
        found = row.learning_rate
        if not isinstance(found, int | float) or not abs(found - rate) <= SAME_RATE * optim.rate:
            wrong.append(row.step)
    if wrong:
        return CheckResult(
            "learning rates", problems=(f"{several('step', wrong)}: another one than config.yaml leads to",)
        )
    return CheckResult("learning rates", f"{optim.schedule}, as config.yaml says")
