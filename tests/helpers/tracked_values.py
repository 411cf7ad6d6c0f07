"""What trackers have of a run, read back with their own means, held against the ledger."""

from collections import Counter
from pathlib import Path

import numpy as np

from toolkit.output.ledger import read_ledger
from toolkit.output.run_folder import read_record
from toolkit.tracking.position import read_position
from toolkit.tracking.scalars import final_values, values_of

CLOCKS = ("time/", "speed/", "memory/")
"""How names begin whose values are others when a step is done again."""

Found = list[tuple[int, str, float]]
"""The values that a tracker has: step, name, value."""


def problems_of(run: Path, found: Found) -> list[str]:
    """Return what is wrong: a value that is there twice, one that is missing, is another one or does not belong."""
    rows = [(row["step"], values_of(row)) for row in read_ledger(run / "ledger.jsonl")]
    record = read_record(run)
    if record["status"] == "finished":
        rows.append((record["step"], final_values(record)))
    wanted = {(step, name): kept(name, value) for step, values in rows for name, value in values.items()}
    there = {(step, name): kept(name, value) for step, name, value in found}
    times = Counter((step, name) for step, name, _ in found)
    steps = {step for step, _ in rows}
    return [
        *(f"{times[key]} times: {key}" for key in times if times[key] > 1),
        *(f"missing: {key}" for key in wanted.keys() - there.keys() if not key[1].startswith(CLOCKS)),
        *(f"not of this run: {key}" for key in there.keys() - wanted.keys() if not key[1].startswith(CLOCKS)),
        *(f"no such step: {key}" for key in there if key[0] not in steps),
        *(f"{there[key]} at {key}, not {wanted[key]}" for key in wanted.keys() & there if there[key] != wanted[key]),
    ]


def kept(name: str, value: float) -> float:
    """Return a value as float32, in which TensorBoard writes, and 0 for a clock."""
    return 0.0 if name.startswith(CLOCKS) else float(np.float32(value))


def in_tensorboard(run: Path) -> Found:
    """Return what TensorBoard itself shows of the event files, and check that it dropped none of them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    shown = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    found = [(event.step, name, event.value) for name in shown.Tags()["scalars"] for event in shown.Scalars(name)]
    files = (run / "tensorboard").glob("events.out.tfevents.*")
    events = [event for file in files for event in LegacyEventFileLoader(str(file)).Load()]
    assert len(found) == sum(len(event.summary.value) for event in events)
    return found


def in_trackio(run: Path) -> Found:
    """Return what lies in Trackio's database."""
    from trackio.sqlite_storage import SQLiteStorage

    position = read_position(run, "trackio")
    assert position is not None
    rows = SQLiteStorage.get_logs(position.project, position.name, run_id=position.run)
    own = ("step", "timestamp")
    return [(row["step"], name, value) for row in rows for name, value in row.items() if name not in own]


def in_mlflow(run: Path) -> Found:
    """Return what MLflow has, where MLFLOW_TRACKING_URI says."""
    import mlflow

    position, client = read_position(run, "mlflow"), mlflow.MlflowClient()
    assert position is not None
    assert position.run is not None
    names = client.get_run(position.run).data.metrics
    metrics = [metric for name in names for metric in client.get_metric_history(position.run, name)]
    return [(metric.step, metric.key, metric.value) for metric in metrics]


READERS = {"tensorboard": in_tensorboard, "trackio": in_trackio, "mlflow": in_mlflow}


def runs_there(tracker: str, run: Path) -> int:
    """Return how many runs a tracker has in the project of this one."""
    position = read_position(run, tracker)
    assert position is not None
    if tracker == "trackio":
        from trackio.sqlite_storage import SQLiteStorage

        return len(SQLiteStorage.get_runs(position.project))
    if tracker == "mlflow":
        import mlflow

        experiment = mlflow.get_experiment_by_name(position.project)
        return len(mlflow.MlflowClient().search_runs([experiment.experiment_id]))
    return 1
