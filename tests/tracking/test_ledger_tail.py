"""Rows as they come: half lines, ledgers that are cut back, and lines that are no rows."""

import json
from pathlib import Path

import pytest

from toolkit.errors import UserError
from toolkit.tracking.ledger_tail import LedgerTail


def row(step: int, loss: float = 0.5) -> str:
    return json.dumps({"step": step, "loss": loss}) + "\n"


def steps(tail: LedgerTail) -> list[int]:
    return [found["step"] for found in tail.new_rows()]


def test_rows_come_once_and_half_lines_later(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    tail = LedgerTail(ledger)
    assert steps(tail) == []
    ledger.write_text(row(1) + row(2) + row(3)[:7])
    assert steps(tail) == [1, 2]
    assert steps(tail) == []
    ledger.write_text(row(1) + row(2) + row(3) + row(4))
    assert steps(tail) == [3, 4]


@pytest.mark.parametrize("kept", [0, 1, 2, 4])
def test_a_ledger_that_was_cut_back_is_read_again(tmp_path: Path, kept: int) -> None:
    ledger = tmp_path / "ledger.jsonl"
    tail = LedgerTail(ledger)
    ledger.write_text("".join(row(step) for step in range(1, 5)))
    assert steps(tail) == [1, 2, 3, 4]
    # Rows of the same length with other clocks; it is longer again before it is looked at.
    ledger.write_text("".join(row(step, 0.5 if step <= kept else 0.7) for step in range(1, 7)))
    assert steps(tail) == ([1, 2, 3, 4, 5, 6] if kept < 4 else [5, 6])
    ledger.unlink()
    assert steps(tail) == []
    ledger.write_text(row(1))
    assert steps(tail) == [1]


@pytest.mark.parametrize("line", ["{\n", "[]\n", '{"loss": 1}\n', '{"step": "2"}\n', "\n", "\udcff\n"])
def test_a_line_that_is_no_row_is_named(tmp_path: Path, line: str) -> None:
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_text(row(1) + row(2) + line + row(4), encoding="utf-8", errors="surrogateescape")
    with pytest.raises(UserError, match="has a line after that of step 2 that is no row"):
        steps(LedgerTail(ledger))
