"""The ledger: rows that hang together, cut off where a checkpoint says, and never gone on with where one is missing."""

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.errors import UserError
from toolkit.output.ledger import Ledger, LedgerEnd, LedgerRow, chained, check_end, read_ledger

MOST = 6


def row(step: int, loss: float = 0.5) -> LedgerRow:
    """Return a row; the longer the later, so that their sizes tell them apart."""
    names = {f"metric {number}": number / 7 for number in range(step)}
    return LedgerRow(step, step / 3, loss, 1.0, 0.1, 8, 8, f"{step:016x}", None, 0.01, 0.0, evaluation=names or None)


def written(path: Path, count: int) -> list[LedgerEnd]:
    """Write a ledger of so many rows, and return where it ended before and after each."""
    ledger = Ledger(path)
    ends = [ledger.end]
    for step in range(1, count + 1):
        ledger.write(row(step))
        ends.append(ledger.end)
    ledger.close()
    return ends


def test_every_row_is_linked_to_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ends = written(path, MOST)
    lines = path.read_bytes().splitlines(keepends=True)
    rows = [json.loads(line) for line in lines]
    assert [r["step"] for r in rows] == [end.rows for end in ends[1:]] == list(range(1, MOST + 1))
    assert [sum(map(len, lines[: number + 1])) for number in range(MOST)] == [end.bytes for end in ends[1:]]
    assert [r["chain"] for r in rows] == [end.chain for end in ends[1:]]
    for before, after in pairwise([{"chain": ""}, *rows]):
        values = {key: value for key, value in after.items() if key != "chain"}
        assert after["chain"] == chained(before["chain"], values)
        # Another value, another row before, or another order of the rows gives another link.
        assert after["chain"] != chained(before["chain"], {**values, "loss": 0.25})
        assert after["chain"] != chained("0" * 16, values)


def test_what_is_no_number_is_written_as_null(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.write(row(1, loss=float("nan")))
    ledger.write(LedgerRow(2, 1.0, None, float("inf"), 0.1, 0, 8, "", None, 0.0, 0.0, evaluation={"a": float("nan")}))
    ledger.close()
    first, second = read_ledger(ledger.path)
    assert (first["loss"], second["gradient_norm"], second["evaluation"]) == (None, None, {"a": None})


@settings(max_examples=150, deadline=None)
@given(st.integers(0, MOST), st.integers(0, MOST), st.data())
def test_a_run_goes_on_after_the_rows_that_its_checkpoint_needs_and_not_without_them(
    tmp_path_factory: pytest.TempPathFactory, count: int, kept: int, data: st.DataObject
) -> None:
    """Whatever a process that died left: whole rows, a part of one, or too little."""
    path = tmp_path_factory.getbasetemp() / "ledger.jsonl"
    end = written(path, max(count, kept))[kept]
    whole = path.read_bytes()
    length = data.draw(st.one_of(st.integers(0, len(whole)), st.integers(end.bytes - 2, end.bytes + 2)), label="length")
    length = min(max(length, 0), len(whole))
    path.write_bytes(whole[:length])
    if length < end.bytes:
        with pytest.raises(UserError, match=r"put the ledger back as it was, or go on in a new folder: --output <new>"):
            check_end(path, end)
        return
    assert check_end(path, end) == len(whole[end.bytes : length].splitlines())
    ledger = Ledger(path, end)
    assert path.read_bytes() == whole[: end.bytes]
    for step in range(kept + 1, max(count, kept) + 1):
        ledger.write(row(step))
    ledger.close()
    assert path.read_bytes() == whole


@settings(max_examples=150, deadline=None)
@given(st.integers(1, MOST), st.data())
def test_a_ledger_in_which_something_was_put_in_or_left_out_is_refused(
    tmp_path_factory: pytest.TempPathFactory, kept: int, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "ledger.jsonl"
    end = written(path, MOST)[kept]
    whole = path.read_bytes()
    place = data.draw(st.integers(0, end.bytes - 1), label="place")
    removed = data.draw(st.integers(0, 3), label="removed")
    added = data.draw(st.binary(max_size=3).filter(lambda part: len(part) != removed), label="added")
    path.write_bytes(whole[:place] + added + whole[place + removed :])
    with pytest.raises(UserError, match=f"was changed|is shorter than the checkpoint of step {kept} needs"):
        check_end(path, end)


def test_a_ledger_of_another_run_or_none_is_refused_with_advice(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    end = written(path, 3)[2]
    advice = f"--output <new> --resume {tmp_path}/checkpoints/<checkpoint>"
    with pytest.raises(UserError, match="was changed: it does not have row 2 where the checkpoint says") as refusal:
        check_end(path, LedgerEnd(end.rows, end.bytes, "0" * 16))
    assert advice in str(refusal.value)
    path.unlink()
    with pytest.raises(UserError, match="can't be read \\(No such file or directory\\)") as refusal:
        check_end(path, end)
    assert advice in str(refusal.value)


def test_a_line_that_is_still_being_written_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ends = written(path, 3)
    path.write_bytes(path.read_bytes()[: ends[2].bytes + 20])
    assert [r["step"] for r in read_ledger(path)] == [1, 2]


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """Have the system refuse to write beyond a size, as a full disk does in the middle of a row."""
    previous = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, previous[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, previous)


def test_a_row_that_could_be_written_in_part_only_costs_no_other(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    whole = tmp_path / "whole.jsonl"
    ends = written(whole, 3)
    ledger = Ledger(path)
    ledger.write(row(1))
    with no_file_larger_than(ends[2].bytes - 20):
        with pytest.raises(OSError, match="File too large"):
            ledger.write(row(2))
        # Who closes it has an error to tell already.
        ledger.close()
    assert ledger.end == ends[1]
    assert len(path.read_bytes()) == ends[2].bytes - 20
    again = Ledger(path, ledger.end)
    again.write(row(2))
    again.write(row(3))
    again.close()
    assert path.read_bytes() == whole.read_bytes()
