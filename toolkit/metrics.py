"""Metrics for a task to name. Each makes its `evaluate.Metric` when it is called: importing `evaluate` takes seconds."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import evaluate


def accuracy(**options: Any) -> "evaluate.Metric":
    """Share of samples whose class is right."""
    from toolkit import metric_classes

    return metric_classes.Accuracy(**options)


def macro_f1(**options: Any) -> "evaluate.Metric":
    """F1 of each class, averaged over the classes that occur."""
    from toolkit import metric_classes

    return metric_classes.MacroF1(**options)


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
