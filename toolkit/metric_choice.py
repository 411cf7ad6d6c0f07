"""`evaluate.metrics`: which metrics are computed, by name."""

from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches

from toolkit.config.schema import Config
from toolkit.errors import UserError
from toolkit.metrics import TUNED, Selected, from_evaluate, name_of
from toolkit.task import Metric, Task

LISTED = 40
"""Names that a message lists."""


def with_metrics(task: Task, config: Config) -> Task:
    """Return the task with the metrics that evaluate.metrics names alone; null leaves it as it is.

    A name that is a path is that of a script of the library `evaluate`, all of whose scores are taken.

    Raises:
        UserError: the task has no evaluation, or no metrics of some of the names, or checkpoint.best needs another one.
    """
    asked = config.evaluate.metric_names
    if asked is None:
        return task
    if task.data.evaluate is None:
        raise UserError("evaluate.metrics is given, and there is no evaluation data; leave it out, or give some")
    if task.predict is None:
        raise UserError(
            "evaluate.metrics is given, and this evaluation makes no predictions, only a loss; leave it out"
        )
    known = dict(task.named_metrics) or {name_of(metric): metric for metric in task.metrics}
    problems: list[str] = []
    strange = []
    of_metric: dict[int, tuple[Metric, list[str]]] = {}
    chosen: list[Metric] = []
    for name in asked:
        if name in known:
            metric = known[name]
            of_metric.setdefault(id(metric), (metric, []))[1].append(name)
        elif is_path(name):
            try:
                chosen.append(from_evaluate(name))
            except UserError as error:
                problems += error.problems
        else:
            strange.append(name)
    if strange:
        problems.append(unknown(strange, known))
    best = config.checkpoint.best.partition(" ")[2].strip().rpartition("/")[2].removeprefix(TUNED)
    if best in known and best not in asked and not problems:
        problems.append(
            f"checkpoint.best is {config.checkpoint.best!r}, and evaluate.metrics leaves {best} out; add it: "
            f'--evaluate.metrics "{", ".join([*asked, best])}"'
        )
    if problems:
        raise UserError(*problems)
    named = task.named_metrics
    selected = [Selected(metric, tuple(names)) if named else metric for metric, names in of_metric.values()]
    return replace(task, metrics=[*selected, *chosen])


def is_path(name: str) -> bool:
    """Return whether a name can only be the path of a script, or a hub id."""
    return name.endswith(".py") or "/" in name


def unknown(strange: Iterable[str], known: Iterable[str]) -> str:
    """Return the message on names that a task does not know."""
    names = list(known)
    plain = {plain_name(other): other for other in names}
    told = []
    for name in strange:
        near = get_close_matches(plain_name(name), plain, 1, cutoff=0.5)
        told.append(repr(name) + (f" (did you mean {plain[near[0]]}?)" if near else ""))
    if not names:
        return (
            f"evaluate.metrics names {' and '.join(told)}, and this recipe has no metrics to choose from; leave it out"
        )
    listed = ", ".join(names[:LISTED]) + (f", ... ({len(names)} in all)" if len(names) > LISTED else "")
    return f"evaluate.metrics names {' and '.join(told)}, which this task does not have; name some of {listed}"


def plain_name(name: str) -> str:
    """Return a name as it is compared with others."""
    return name.lower().replace("-", "_").replace(" ", "_")
