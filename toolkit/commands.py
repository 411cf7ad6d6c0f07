"""The command `toolkit`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from toolkit.console import Voice, figures
from toolkit.run_folder import is_locked, read_record

# 0: done or under way; 2: the user can fix it; 75: stopped on request, to be started again; 1: failed or died.
CODES = {"finished": 0, "running": 0, "preempted": 75, "refused": 2, "failed": 1}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    parser = argparse.ArgumentParser(prog="toolkit", description="Look after runs of finetune-toolkit.")
    commands = parser.add_subparsers(dest="command", required=True)
    status = commands.add_parser(
        "status",
        help="tell how a run stands; the exit code is the run's own",
        description="Tell how a run stands. Exit code: 0 finished or running, 2 refused (the user can fix it), "
        "75 stopped on request, 1 failed or died. A launcher turns every code but 0 into 1: ask here instead.",
    )
    status.add_argument("run", type=Path, help="the run folder, such as runs/classify")
    return tell_status(parser.parse_args(arguments).run)


def tell_status(folder: Path) -> int:
    """Print how the run in a folder stands and return the exit code it stands for."""
    record = read_record(folder)
    if not record:
        print(f"{folder} is no run folder: it has no run.json that can be read", file=sys.stderr)
        return 2
    state = str(record.get("status"))
    died = state == "running" and not is_locked(folder)
    voice = Voice(is_main=True)
    facts = {"status": f"{state}, but no process works on it: it has died" if died else state}
    if "step" in record:
        facts["step"] = f"{record['step']:,} (epoch {record['epoch']:.2f})"
    for name in ("metrics", "baseline"):
        if record.get(name):
            facts[name] = figures({key: value for key, value in record[name].items() if value is not None})
    for problem in record.get("problems") or []:
        facts["problem"] = f"{facts['problem']}; {problem}" if "problem" in facts else problem
    voice.facts(str(folder), facts)
    return 1 if died else CODES.get(state, 1)
