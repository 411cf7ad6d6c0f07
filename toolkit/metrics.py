"""Metrics for a task to name: functions of all predictions and what they are held against (`toolkit.task.Metric`).

scikit-learn and scipy are imported when a metric is computed: that takes a second.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from toolkit.errors import UserError
from toolkit.task import Metric

Scores = dict[str, float]
TWO = 2
TUNED = "tuned_"
"""The beginning of the name of a score of `Task.tuned`."""
TINY = float(np.finfo(np.float32).tiny)


class Undefined(float):
    """A score that has no value, such as a correlation with a constant: it is not a number, and says why."""

    why: str

    def __new__(cls, why: str) -> Self:
        """Return not-a-number with the reason, a clause such as "all predictions are alike"."""
        made = super().__new__(cls, math.nan)
        made.why = why
        return made


@dataclass(frozen=True)
class Selected:
    """Some of the scores that a metric returns; one that it does not return is undefined."""

    metric: Metric
    names: tuple[str, ...]

    @property
    def __name__(self) -> str:
        return name_of(self.metric)

    @property
    def of_probabilities(self) -> bool:
        """Whether the metric takes `Task.probabilities`."""
        return takes_probabilities(self.metric)

    def __call__(self, predictions: Any, references: Any) -> Mapping[str, float]:
        found = self.metric(predictions, references)
        return {name: found[name] if name in found else Undefined(NOTHING) for name in self.names}


NOTHING = "nothing in the evaluation data has it"


def name_of(metric: Metric) -> str:
    """Return what a metric is called, also if it is a partial function or an object."""
    return str(getattr(getattr(metric, "func", metric), "__name__", type(metric).__name__))


def takes_probabilities(metric: Metric) -> bool:
    """Return whether a metric takes `Task.probabilities` in place of the predictions."""
    return bool(getattr(metric, "of_probabilities", False))


def of_probabilities(metric: Metric) -> Metric:
    """Mark a metric as one that takes `Task.probabilities` in place of the predictions."""
    metric.of_probabilities = True  # type: ignore[attr-defined]
    return metric


def log_odds(shares: np.ndarray[Any, Any], rest: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the logarithm of the odds of some probabilities, given what is left to 1, for whoever ranks them.

    It has four digits: equal samples have equal ones then, whatever they share a batch with. More would make ties, and
    with them areas under curves, depend on the number of processes.
    """
    odds: np.ndarray[Any, Any] = np.log(np.maximum(shares, TINY)) - np.log(np.maximum(rest, TINY))
    return odds.round(4)


def accuracy(predictions: Any, references: Any) -> Scores:
    """Return the share of samples whose class is right."""
    return {"accuracy": float(np.mean(np.asarray(predictions) == np.asarray(references)))}


def macro_f1(predictions: Any, references: Any) -> Scores:
    """Return the F1 of each class, averaged over the classes that occur in references or predictions."""
    from sklearn.metrics import f1_score

    return {"macro_f1": float(f1_score(references, predictions, average="macro", zero_division=0))}


def two_classes(predictions: Any, references: Any) -> Scores:
    """Return F1 of the second of two classes and Matthews' correlation, as GLUE does."""
    from sklearn.metrics import f1_score, matthews_corrcoef

    return {
        "f1": float(f1_score(references, predictions, zero_division=0)),
        "matthews_correlation": float(matthews_corrcoef(references, predictions)),
    }


def class_metrics(labels: Sequence[str]) -> list[Metric]:
    """Return the metrics of a classifier with these labels, one for each sample."""
    return [accuracy, macro_f1, *([two_classes] if len(labels) == TWO else [])]


def positive_class(labels: Sequence[str]) -> dict[str, str]:
    """Return a line for the plan on the class whose F1 is taken, where there are two."""
    return {"f1": f"of {labels[1]!r}, the second of the two labels"} if len(labels) == TWO else {}


def multilabel_f1(predictions: Any, references: Any) -> Scores:
    """Return F1 over all (sample, label) pairs, F1 averaged over labels, and the share of samples with every label
    right.

    Both sides are 0 or 1 in the shape (samples, labels).
    """
    from sklearn.metrics import f1_score

    predicted, wanted = np.asarray(predictions, dtype=np.int64), np.asarray(references, dtype=np.int64)
    return {
        "micro_f1": float(f1_score(wanted, predicted, average="micro", zero_division=0)),
        "macro_f1": float(f1_score(wanted, predicted, average="macro", zero_division=0)),
        "exact_match": float(np.mean((predicted == wanted).all(axis=1))),
    }


def regression_errors(predictions: Any, references: Any) -> Scores:
    """Return the root of the mean squared error, the mean absolute error and R2."""
    from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score

    predicted, wanted = in_float64(predictions), in_float64(references)
    return {
        "rmse": float(mean_squared_error(wanted, predicted) ** 0.5),
        "mae": float(mean_absolute_error(wanted, predicted)),
        "r2": float(r2_score(wanted, predicted)),
    }


def correlation(predictions: Any, references: Any) -> Scores:
    """Return Pearson's and Spearman's correlation; zero where one side is constant."""
    from scipy.stats import pearsonr, spearmanr

    predicted, wanted = in_float64(predictions), in_float64(references)
    if np.ptp(predicted) == 0 or np.ptp(wanted) == 0:
        return {"pearson": 0.0, "spearman": 0.0}
    return {
        "pearson": float(pearsonr(predicted, wanted).statistic),
        "spearman": float(spearmanr(predicted, wanted).statistic),
    }


def number_errors(predictions: Any, references: Any) -> Scores:
    """Return further errors of numbers: mean squared, median absolute, largest, and the share of variance explained."""
    from sklearn.metrics import explained_variance_score, max_error, mean_squared_error, median_absolute_error

    predicted, wanted = in_float64(predictions), in_float64(references)
    return {
        "mse": float(mean_squared_error(wanted, predicted)),
        "median_absolute_error": float(median_absolute_error(wanted, predicted)),
        "max_error": float(max_error(wanted, predicted)),
        "explained_variance": float(explained_variance_score(wanted, predicted)),
    }


def correlations(predictions: Any, references: Any) -> Scores:
    """Return Pearson's and Spearman's correlation and Kendall's tau, undefined where one side is constant."""
    from scipy.stats import kendalltau, pearsonr, spearmanr

    predicted, wanted = in_float64(predictions), in_float64(references)
    constant = [side for side, values in (("predictions", predicted), ("references", wanted)) if np.ptp(values) == 0]
    if constant:
        alike = Undefined(f"all {constant[0]} are alike")
        return {"pearson": alike, "spearman": alike, "kendall": alike}
    return {
        "pearson": float(pearsonr(predicted, wanted).statistic),
        "spearman": float(spearmanr(predicted, wanted).statistic),
        "kendall": float(kendalltau(predicted, wanted).statistic),
    }


def r2(predictions: Any, references: Any) -> Scores:
    """Return R2, undefined for fewer than two samples."""
    if len(references) < TWO:
        return {"r2": Undefined("there is a single sample")}
    return {"r2": regression_errors(predictions, references)["r2"]}


def named_number_metrics() -> dict[str, Metric]:
    """Return the metrics of numbers that `evaluate.metrics` can name."""
    return {
        "rmse": regression_errors,
        "mse": number_errors,
        "mae": regression_errors,
        "r2": r2,
        **dict.fromkeys(("pearson", "spearman", "kendall"), correlations),
        **dict.fromkeys(("median_absolute_error", "max_error", "explained_variance"), number_errors),
    }


def in_float64(values: Any) -> np.ndarray[Any, Any]:
    """Return numbers in the precision that sums of many of them need."""
    return np.asarray(values, dtype=np.float64)


def from_evaluate(script: str, **options: Any) -> Metric:
    """Return a metric of the library `evaluate`, from a script that lies on the disk.

    Args:
        script: the path of the script, or of a folder with a script of the same name, as the hub has them; it is run,
            which is why nothing is fetched from the hub.
        options: for `compute`, such as `average="macro"`.

    Raises:
        UserError: there is no such file.
    """
    path = Path(script)
    file = path / f"{path.resolve().name}.py" if path.is_dir() else path
    if not file.is_file():
        raise UserError(
            f"there is no metric script {script!r}; give the path of one, or of a folder with a script of its name "
            "(none is fetched from the hub, since it would be run: download it, read it, and name its folder)"
        )

    def metric(predictions: Any, references: Any) -> Scores:
        import evaluate

        return dict(evaluate.load(str(file)).compute(predictions=predictions, references=references, **options))

    metric.__name__ = file.stem
    return metric
