"""`evaluate.metrics`: which metrics are computed, by name."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches

from toolkit.config.schema import Config
from toolkit.errors import UserError
from toolkit.metrics import TUNED, Selected, from_evaluate, name_of
from toolkit.task import Metric, Task

LISTED = 40
"""Names that a message lists."""
CALLED_ELSEWHERE = {
    "matthews_correlation": "mcc matthews_corrcoef phi",
    "cohen_kappa": "kappa",
    "balanced_accuracy": "bacc uar",
    "auroc": "auc roc_auc roc",
    "macro_auroc": "auc roc_auc roc auroc",
    "average_precision": "ap auprc aucpr pr_auc",
    "macro_average_precision": "map ap auprc aucpr pr_auc average_precision",
    "ranking_average_precision": "lrap",
    "calibration_error": "ece",
    "log_loss": "nll cross_entropy",
    "recall": "sensitivity tpr",
    "precision": "ppv",
    "exact_match": "em subset_accuracy",
    "rouge1": "rouge",
}
"""Other names of metrics, by the name here."""


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


def check_best(task: Task, config: Config, scores: Sequence[str]) -> None:
    """Check that `checkpoint.best` names one of the scores of an evaluation, which may have been of a few samples and
    then lacks groups.

    Raises:
        UserError: it does not.
    """
    rule, groups = config.checkpoint.best, list(task.data.groups)
    direction, _, asked = rule.partition(" ")
    of_group = tuple(f"{group}/" for group in groups)
    given = [name for name in scores if not name.startswith(of_group)]
    asked = asked.strip()
    group, _, name = asked.rpartition("/") if asked not in given else ("", "", asked)
    problems = []
    if group and group not in groups:
        near = get_close_matches(group, groups, 1)
        there_are = f"the groups are {', '.join(groups)}" if groups else "the evaluation data has no groups"
        other = f"{near[0]}/{name}" if near else name
        problems.append(
            f"checkpoint.best is {rule!r}, and there is no group {group!r}: {there_are}"
            + (f"; did you mean {direction} {other}?" if name in given else "")
        )
    if name not in given:
        known = dict.fromkeys([*given, *task.named_metrics])
        meant = name if name in task.named_metrics else nearest_metric(name, known)
        text = f"checkpoint.best is {rule!r}, but the evaluation gives {', '.join(given)}; name one of these"
        if meant is not None and meant != name:
            text += f" (did you mean {meant}?)"
        if meant is not None and meant not in given:
            own = config.evaluate.metric_names or [name for name in task.named_metrics if name in given]
            text += f", or have {'it' if meant == name else meant} computed: --evaluate.metrics "
            text += f'"{", ".join([*own, meant])}"'
        problems.append(text)
    if problems:
        raise UserError(*problems)


def is_path(name: str) -> bool:
    """Return whether a name can only be the path of a script, or a hub id."""
    return name.endswith(".py") or "/" in name


def unknown(strange: Iterable[str], known: Iterable[str]) -> str:
    """Return the message on names that a task does not know."""
    names = list(known)
    told = []
    for name in strange:
        near = nearest_metric(name, names)
        told.append(repr(name) + (f" (did you mean {near}?)" if near else ""))
    if not names:
        return (
            f"evaluate.metrics names {' and '.join(told)}, and this recipe has no metrics to choose from; leave it out"
        )
    listed = ", ".join(names[:LISTED]) + (f", ... ({len(names)} in all)" if len(names) > LISTED else "")
    return f"evaluate.metrics names {' and '.join(told)}, which this task does not have; name some of {listed}"


def nearest_metric(name: str, known: Iterable[str]) -> str | None:
    """Return the metric that a mistyped name, or another program's, may have meant."""
    plain = {plain_name(other): other for other in known}
    called = [other for other, names in CALLED_ELSEWHERE.items() if plain_name(name) in names.split()]
    near = get_close_matches(plain_name(name), plain, 1, cutoff=0.5)
    return next((plain[other] for other in [*called, *near] if other in plain), None)


def plain_name(name: str) -> str:
    """Return a name as it is compared with others."""
    return name.lower().replace("-", "_").replace(" ", "_")
