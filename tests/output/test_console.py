"""What a run prints: a bar on a terminal, plain lines in a file, and nothing in the processes but the main one."""

import io
import json
import math
import os
import pty
import select
import subprocess
import sys
from pathlib import Path

import pytest
from launching import ROOT, TINY, clean_environment, server

from toolkit.output import pipes
from toolkit.output.console import Console, Display, amount, clock, figures
from toolkit.output.ledger import LedgerRow, read_ledger


def row(
    step: int,
    evaluation: dict[str, float] | None = None,
    loss: float | None = 1.5,
    units: int = 8,
    skipped: bool = False,
) -> LedgerRow:
    fingerprint = "0" * 16
    return LedgerRow(
        step, step / 10, loss, 1.0, 1e-3, units, 8, fingerprint, None, 1.0, 0.0, skipped=skipped, evaluation=evaluation
    )


class Clock:
    """Stands for the clock of the display; each step takes a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("toolkit.output.console.monotonic", lambda: self.now)

    def shows(self, display: Display, *rows: LedgerRow) -> None:
        for each in rows:
            self.now += 1.0
            display.step(each)


def test_a_file_gets_a_line_every_few_seconds_and_one_for_each_evaluation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    with Display(Console(is_main=True), 20) as display:
        clock.shows(display, *(row(step, {"accuracy": 0.25} if step == 7 else None) for step in range(1, 21)))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["step 5/20", "step 7/20", "step 12/20", "step 17/20"]
    assert lines[1].endswith("| evaluation: accuracy 0.2500")
    assert "8 samples/s" in lines[0]
    assert "0:15 left" in lines[0]
    assert not any("\x1b" in line or "\r" in line for line in lines)


def test_a_line_after_every_so_many_steps_where_that_is_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    with Display(Console(is_main=True), 20, every=8) as display:
        clock.shows(display, *(row(step) for step in range(1, 21)))
    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()] == ["step 8/20", "step 16/20"]


def test_the_loss_on_a_line_is_the_mean_over_the_units_of_the_last_steps(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row(1, loss=100.0, units=9), *(row(step, loss=1.0, units=3) for step in range(2, 51))]
    # The weights were left alone: it counts for nothing. And the last batch of an epoch is small.
    rows += [row(51, loss=math.nan, skipped=True), row(52, loss=5.0, units=1)]
    with Display(Console(is_main=True), 52, every=26) as display:
        for each in rows:
            display.step(each)
    first, skipped, last = capsys.readouterr().out.splitlines()
    assert f"loss {(9 * 100 + 25 * 3) / (9 + 25 * 3):.4f} over 26 steps" in first
    assert skipped == "step 51: the weights were left alone, its gradient is not finite"
    assert f"loss {(49 * 3 + 5) / (49 * 3 + 1):.4f} over 50 steps" in last


def test_a_line_has_few_metrics_and_the_one_that_decides_the_best(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = {"loss": 1.0} | {f"f1_{number}": number / 10 for number in range(9)}
    with Display(Console(is_main=True), 1, best="f1_7") as display:
        display.step(row(1, metrics))
    shown = "loss 1.0000  f1_0 0.0000  f1_1 0.1000  f1_2 0.2000  f1_7 0.7000  and 5 more"
    assert capsys.readouterr().out.endswith(f"| evaluation: {shown}\n")


def test_a_long_evaluation_shows_its_progress(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    with Display(Console(is_main=True)) as display:
        for batch in range(1, 16):
            clock.now += 1.0
            display.evaluated(batch, 15)
    assert capsys.readouterr().out.splitlines() == [f"evaluating: batch {batch} of 15" for batch in (5, 10)]


def test_only_the_main_process_speaks(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(is_main=False)
    console.print("a")
    console.summary("b", {"c": "d"})
    console.table("e", ["f"], [["g"]])
    assert not console.is_terminal
    assert capsys.readouterr().out == ""


def test_a_terminal_gets_a_bar_that_moves(tmp_path: object) -> None:
    """The tiny recipe on a pseudo-terminal: the bar is drawn and redrawn, and the last metrics stand in it."""
    leader, follower = pty.openpty()
    line = f"python {TINY} --threads 1 --output {tmp_path}/run --epochs 20 > {os.ttyname(follower)} 2>&1"
    environment = clean_environment(TERM="xterm-256color", COLUMNS="140", LINES="40")
    process = server().begin(line, tmp_path, environment)
    seen = io.BytesIO()
    # Its other end stays open here: what is read would be at its end before the run has opened it.
    while process.poll() is None or select.select([leader], [], [], 0)[0]:
        if select.select([leader], [], [], 0.05)[0]:
            seen.write(os.read(leader, 4096))
    os.close(follower)
    os.close(leader)
    text = seen.getvalue().decode()
    assert process.wait() == 0, text
    assert "\x1b[" in text
    assert "training" in text
    assert "evaluating" in text
    assert "over 50 steps" in text
    assert "120/120" in text
    assert "samples/s" in text
    assert text.count("accuracy") > 3
    assert "baseline" in text


def test_figures_and_durations() -> None:
    assert figures({"loss": 1.23456, "accuracy": 0.5}) == "loss 1.2346  accuracy 0.5000"
    assert [amount(value) for value in (0.00123, 2, 2.504, 366, 1666.67)] == ["0.00123", "2", "2.5", "366", "1,667"]
    assert [clock(seconds) for seconds in (5, 65, 3725)] == ["0:05", "1:05", "1:02:05"]


def test_a_run_goes_on_where_nobody_reads_what_it_prints(tmp_path: Path) -> None:
    """What `| tee log` comes to when tee dies of the Ctrl-C that was meant for the run."""
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, str(TINY), "--threads", "1", "--output", str(tmp_path / "run")]
    done = subprocess.run(words, stdout=writing, stderr=writing, env=clean_environment(), timeout=120, check=False)
    os.close(writing)
    assert done.returncode == 0
    assert json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))["status"] == "finished"


def test_a_run_whose_streams_are_closed_keeps_its_files_whole(tmp_path: Path) -> None:
    """`>&- 2>&-`: the descriptors are free, and the next files that are opened would get them."""
    line = f"python {TINY} --threads 1 --output {tmp_path / 'run'} <&- >&- 2>&-"
    assert server().run(line, tmp_path, clean_environment()).code == 0
    assert json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))["status"] == "finished"
    assert len(list(read_ledger(tmp_path / "run" / "ledger.jsonl"))) == 12


def test_letters_that_a_stream_does_not_know_are_printed_as_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    pipes.prepare()
    console = Console(is_main=True)
    console.summary("größer", {"Spalte": "Öl"})
    console.table("", ["Maß"], [["größer"]])
    pipes.print_line("label é", sys.stdout)
    assert b"gr\\xf6\\xdfer\n" in written.getvalue()
    assert b"Spalte  \\xd6l\n" in written.getvalue()
    assert written.getvalue().endswith(b"label \\xe9\n")


def test_status_of_a_folder_with_other_letters(tmp_path: Path) -> None:
    folder = tmp_path / "größer"
    folder.mkdir()
    (folder / "run.json").write_text('{"status": "finished"}', encoding="utf-8")
    command = [
        sys.executable,
        "-c",
        "from toolkit.cli import main; raise SystemExit(main())",
        "status",
        str(folder),
    ]
    latin = clean_environment(PYTHONIOENCODING="ascii")
    done = subprocess.run(command, env=latin, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "gr\\xf6\\xdfer" in done.stdout
