"""The previous run in a run folder, when a run begins elsewhere: it is moved aside, never deleted.

A process can be killed between any two of these moves. The same command then finds what it needs and moves the rest.
"""

import os
import shutil
from pathlib import Path

from toolkit.checkpoint.resume import Start
from toolkit.output.run_folder import RunFolder, now, step_of

RESULTS = ("model", "predictions.jsonl", "evaluation.json", "evaluation_predictions.jsonl")
"""In the run folder: the results of a finished run and of its evaluations."""
OF_TRACKERS = ("tracking", "tensorboard", "dvclive")
"""In the run folder: how far the trackers are, and the files of two of them; another run begins new ones."""
FOLDER = "former"
"""In the run folder: what was moved aside."""


def make_way(folder: RunFolder, start: Start) -> str | None:
    """Move aside what the run does not go on from, and return a message; run.json is still that of the previous run."""
    for path in start.damaged:
        # The run will write one of this name again.
        path.rename(free_name(path.with_name(f"{path.name}.damaged")))
    if not start.sets_aside:
        return None
    if start.named is None and folder.record().get("resumed_from") is not None:
        # If this process dies in the middle of the moves, the run begins at its first step all the same.
        folder.update(resumed_from=None)
    own = start.checkpoint is not None and start.checkpoint.resolve().parent == folder.checkpoints.resolve()
    return set_aside(folder, start.checkpoint if own else None)


def set_aside(folder: RunFolder, keep: Path | None) -> str | None:
    """Move what the folder holds of a run into a folder in it, and return a message.

    With a checkpoint to `keep`, from which the run goes on, only what came after it is moved.
    """
    if not folder.ledger_file.exists() and not folder.checkpoints.exists():
        return None
    place = free_name(folder.path / FOLDER / now().replace(":", ""))
    place.mkdir(parents=True)
    if keep is None:
        # Copies: until both are replaced, a moment later, they show whose folder this is.
        for path in (folder.path / "run.json", folder.config_file):
            if path.exists():
                shutil.copy2(path, place)
        # What trackers know first: a new run must never go on in the old one there. Then checkpoints: a ledger without
        # them is begun from scratch, they without a ledger would be refused.
        trackers = [folder.path / name for name in OF_TRACKERS]
        results = [folder.path / name for name in RESULTS]
        for path in (*trackers, folder.checkpoints, folder.ledger_file, *results):
            if path.exists():
                path.rename(place / path.name)
    else:
        # The checkpoint that the run goes on from stays where it is, and so do the rows before it.
        if folder.ledger_file.exists():
            shutil.copy2(folder.ledger_file, place)
        (place / folder.checkpoints.name).mkdir()
        for path in folder.checkpoints.iterdir():
            # Older ones belong to this run too, and one of them may be the best.
            if step_of(path) > step_of(keep):
                path.rename(place / folder.checkpoints.name / path.name)
    return f"what this folder held of the run so far was moved to {place}"


def bring_ledger(folder: RunFolder, start: Start) -> None:
    """Put the rows that the run goes on after in place; run.json already says where they come from."""
    if start.ledger is None:
        return
    if start.rows_from is None:
        folder.ledger_file.touch()
        return
    partial = folder.ledger_file.with_name(f"{folder.ledger_file.name}.partial")
    with start.rows_from.open("rb") as source, partial.open("wb") as rows:
        left = start.ledger.bytes
        while left and (part := source.read(min(left, 1 << 20))):
            left -= rows.write(part)
        rows.flush()
        os.fsync(rows.fileno())
    partial.replace(folder.ledger_file)


def free_name(path: Path) -> Path:
    """Return a path, with a number behind it if there is something already."""
    place, number = path, 1
    while place.exists():
        number += 1
        place = path.with_name(f"{path.name}-{number}")
    return place
