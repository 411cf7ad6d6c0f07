"""What a run says: a bar on a terminal, plain lines in a file, and nothing from the processes beside the main one."""

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from launching import ROOT, TINY, clean_environment

from toolkit import pipes
from toolkit.console import Display, Voice, clock, figures
from toolkit.ledger import LedgerRow, read_ledger


def row(step: int, seconds: float, evaluation: dict[str, float] | None = None) -> LedgerRow:
    return LedgerRow(step, step / 10, 1.5, 1.0, 1e-3, 8, 8, "0" * 16, None, seconds, 0.0, evaluation=evaluation)


def test_a_file_gets_a_line_every_few_seconds_and_one_for_each_evaluation(capsys: pytest.CaptureFixture[str]) -> None:
    with Display(Voice(is_main=True), 20) as display:
        for step in range(1, 21):
            display.step(row(step, 1.0, {"accuracy": 0.25} if step == 7 else None))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["step 5/20", "step 7/20", "step 12/20", "step 17/20"]
    assert "accuracy 0.2500" in lines[1]
    assert "8 samples/s" in lines[0]
    assert "0:15 left" in lines[0]
    assert not any("\x1b" in line or "\r" in line for line in lines)


def test_only_the_main_process_speaks(capsys: pytest.CaptureFixture[str]) -> None:
    voice = Voice(is_main=False)
    voice.say("a")
    voice.facts("b", {"c": "d"})
    voice.table("e", ["f"], [["g"]])
    assert not voice.is_terminal
    assert capsys.readouterr().out == ""


def test_a_terminal_gets_a_bar_that_moves(tmp_path: object) -> None:
    """The tiny recipe on a pseudo-terminal: the bar is drawn and redrawn, and the last metrics stand in it."""
    leader, follower = pty.openpty()
    command = [sys.executable, str(TINY), "--output", f"{tmp_path}/run", "--epochs", "20"]
    environment = clean_environment(TERM="xterm-256color", COLUMNS="140", LINES="40")
    with subprocess.Popen(command, stdout=follower, stderr=subprocess.STDOUT, env=environment) as process:
        os.close(follower)
        seen = io.BytesIO()
        while True:
            try:
                seen.write(os.read(leader, 4096))
            except OSError:
                break
    os.close(leader)
    text = seen.getvalue().decode()
    assert process.returncode == 0, text
    assert "\x1b[" in text
    assert "training" in text
    assert "120/120" in text
    assert "samples/s" in text
    assert text.count("accuracy") > 3
    assert "baseline" in text


def test_figures_and_durations() -> None:
    assert figures({"loss": 1.23456, "accuracy": 0.5}) == "loss 1.2346  accuracy 0.5000"
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
    words = [sys.executable, str(TINY), "--threads", "1", "--output", str(tmp_path / "run")]
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    assert subprocess.run([*closed, *words], env=clean_environment(), timeout=120, check=False).returncode == 0
    assert json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))["status"] == "finished"
    assert len(list(read_ledger(tmp_path / "run" / "ledger.jsonl"))) == 12


def test_letters_that_a_stream_does_not_know_are_printed_as_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    pipes.prepare()
    voice = Voice(is_main=True)
    voice.facts("größer", {"Spalte": "Öl"})
    voice.table("", ["Maß"], [["größer"]])
    pipes.tell("label é", sys.stdout)
    assert b"gr\\xf6\\xdfer\n" in written.getvalue()
    assert b"Spalte  \\xd6l\n" in written.getvalue()
    assert written.getvalue().endswith(b"label \\xe9\n")


def test_status_of_a_folder_with_other_letters(tmp_path: Path) -> None:
    folder = tmp_path / "größer"
    folder.mkdir()
    (folder / "run.json").write_text('{"status": "finished"}', encoding="utf-8")
    command = [sys.executable, "-c", "from toolkit.commands import main; raise SystemExit(main())", "status", str(folder)]
    latin = clean_environment(PYTHONIOENCODING="ascii")
    done = subprocess.run(command, env=latin, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "gr\\xf6\\xdfer" in done.stdout
