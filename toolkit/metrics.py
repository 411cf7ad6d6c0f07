"""Metrics for a task to name: functions of all predictions and what they are held against (`toolkit.task.Metric`).

scikit-learn and scipy are imported when a metric is computed: that takes a second.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.errors import UserError
from toolkit.task import Metric

Scores = dict[str, float]
TWO = 2


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


def in_float64(values: Any) -> np.ndarray[Any, Any]:
    """Return numbers in the precision that sums of many of them need."""
    return np.asarray(values, dtype=np.float64)


def from_evaluate(script: str, **options: Any) -> Metric:
    """Return a metric of the library `evaluate`, from a script that lies on the disk.

    Args:
        script: the path of the script; it is run, which is why nothing is fetched from the hub.
        options: for `compute`, such as `average="macro"`.

    Raises:
        UserError: there is no such file.
    """
    if not Path(script).is_file():
        raise UserError(f"there is no metric script {script!r}; give the path of one (none is fetched from the hub)")

    def metric(predictions: Any, references: Any) -> Scores:
        import evaluate

        return dict(evaluate.load(script).compute(predictions=predictions, references=references, **options))

    return metric
