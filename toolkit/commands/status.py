"""`toolkit status`: how a run stands."""

import argparse
from pathlib import Path
from typing import Any

from toolkit.errors import DEFECT, DONE, STOPPED, USER_CAN_FIX, UserError
from toolkit.output.console import Console, figures
from toolkit.output.nearby_runs import no_run_folder
from toolkit.output.result import early_end
from toolkit.output.run_folder import is_locked, read_record

# 0: done or under way; 2: the user can fix it; 75: stopped on request, to be started again; 1: failed or died.
CODES = {"finished": DONE, "running": DONE, "preempted": STOPPED, "refused": USER_CAN_FIX, "failed": DEFECT}


def add_status(commands: Any) -> None:
    status = commands.add_parser(
        "status",
        help="tell how a run stands; the exit code is the run's own",
        description="Tell how a run stands. Exit code: 0 finished or running, 2 ended by something that the user can "
        "fix, 75 stopped on request, 1 failed or died. A launcher turns every code but 0 into 1: ask here instead.",
    )
    status.set_defaults(command=show_status)
    status.add_argument("run", type=Path, metavar="RUN", help="the run folder, such as runs/classify")


def show_status(given: argparse.Namespace) -> int:
    """Print how the run in a folder stands and return the exit code it stands for."""
    folder: Path = given.run
    record = read_record(folder)
    if not record:
        raise UserError(no_run_folder(folder, "it has no run.json that can be read"))
    state = str(record.get("status"))
    if state not in CODES:
        raise UserError(
            f"{folder / 'run.json'} is damaged, or was written by something else: its status is "
            f"{record.get('status')!r}, and not one of {', '.join(CODES)}; toolkit verify {folder} says what is left"
        )
    died = state == "running" and not is_locked(folder)
    summary = {"status": f"{state}, but no process works on it: it has died" if died else state}
    if record.get("reason"):
        summary["reason"] = record["reason"]
    if is_number(record.get("step")) and is_number(record.get("epoch", 0.0)):
        summary["step"] = steps_done(folder, record)
    waited = record.get("since_best")
    if state == "finished" and is_number(waited) and waited and ended_early(record):
        best = exported_by_rule(record)
        summary["ended"] = early_end(record["step"], record["total_steps"], int(waited), best)
    if isinstance(exported := record.get("exported"), dict) and is_number(exported.get("step")):
        summary["model"] = saved_model(folder, exported)
    if is_number(record.get("repeated")) and record["repeated"]:
        summary["repeated"] = f"{record['repeated']:,} step(s) were done again after a crash"
    for name in ("metrics", "baseline"):
        if isinstance(record.get(name), dict) and record[name]:
            summary[name] = figures({key: value for key, value in record[name].items() if is_number(value)})
    if isinstance(record.get("problems"), list) and record["problems"]:
        summary["problem"] = "; ".join(map(str, record["problems"]))
    Console(is_main=True).summary(str(folder), summary)
    return DEFECT if died else code_of(state, record)


def is_number(value: object) -> bool:
    """Return whether this is a number, in a file that may be damaged."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def ended_early(record: dict[str, Any]) -> bool:
    """Return whether a finished run did fewer steps than were planned."""
    step, total = record.get("step"), record.get("total_steps")
    return isinstance(step, int) and isinstance(total, int) and step < total


def exported_by_rule(record: dict[str, Any]) -> int | None:
    """Return the step of the best evaluation, where the saved weights are its."""
    exported = record.get("exported")
    if not isinstance(exported, dict) or not exported.get("rule"):
        return None
    return exported["step"] if isinstance(exported.get("step"), int) else None


def saved_model(folder: Path, exported: dict[str, Any]) -> str:
    """Return which step's weights are in model/, and why these."""
    rule = f", the evaluation with the {exported['rule']}" if exported.get("rule") else ""
    gone = "" if (folder / "model").is_dir() else "; model/ is not there any more"
    return f"the weights after step {exported['step']:,}{rule}{gone}"


def code_of(state: str, record: dict[str, Any]) -> int:
    """Return the exit code that the run ended with; a run that failed says whether the user can fix it."""
    code = record.get("code") if state == "failed" else None
    return code if code in (DEFECT, USER_CAN_FIX) else CODES.get(state, DEFECT)


def steps_done(folder: Path, record: dict[str, Any]) -> str:
    """Return the steps that a run has done; run.json knows only those up to its newest checkpoint."""
    from toolkit.verify.evidence import is_count, last_row

    step, epoch, total = record["step"], record.get("epoch", 0.0), record.get("total_steps")
    row = last_row(folder / "ledger.jsonl") if record.get("status") == "running" else {}
    ahead = is_count(row.get("step")) and row["step"] > step
    if ahead:
        step, epoch = row["step"], row.get("epoch", epoch)
    text = f"{step:,} (epoch {epoch:.2f})" + (f" of {total:,}" if is_count(total) else "")
    return f"{text}; the newest checkpoint is of step {record['step']:,}" if ahead and record["step"] else text
