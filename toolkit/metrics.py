"""Metrics for a task to name. Each makes its `evaluate.Metric` when it is called: importing `evaluate` takes seconds."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import evaluate

TWO = 2


def accuracy(**options: Any) -> "evaluate.Metric":
    """Share of samples whose class is right."""
    from toolkit import metric_classes

    return metric_classes.Accuracy(**options)


def macro_f1(**options: Any) -> "evaluate.Metric":
    """F1 of each class, averaged over the classes that occur."""
    from toolkit import metric_classes

    return metric_classes.MacroF1(**options)


def two_classes(**options: Any) -> "evaluate.Metric":
    """F1 of the second of two classes, and Matthews' correlation."""
    from toolkit import metric_classes

    return metric_classes.TwoClasses(**options)


def class_metrics(labels: Sequence[str]) -> "list[Callable[..., evaluate.Metric]]":
    """Return the metrics of a classifier with these labels, one for each sample."""
    return [accuracy, macro_f1, *([two_classes] if len(labels) == TWO else [])]


def positive_class(labels: Sequence[str]) -> dict[str, str]:
    """Return a line for the plan on the class whose F1 is taken, where there are two."""
    return {"f1": f"of {labels[1]!r}, the second of the two labels"} if len(labels) == TWO else {}


def multilabel_f1(**options: Any) -> "evaluate.Metric":
    """F1 over all (sample, label) pairs, F1 averaged over labels, and the share of samples with every label right."""
    from toolkit import metric_classes

    return metric_classes.MultilabelF1(**options)


def regression_errors(**options: Any) -> "evaluate.Metric":
    """Root of the mean squared error, mean absolute error and R2."""
    from toolkit import metric_classes

    return metric_classes.RegressionErrors(**options)


def correlation(**options: Any) -> "evaluate.Metric":
    """Pearson's and Spearman's correlation; zero where one side is constant."""
    from toolkit import metric_classes

    return metric_classes.Correlation(**options)
