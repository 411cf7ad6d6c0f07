"""`evaluate.Metric` subclasses that need no network: `evaluate.load` would fetch a script from the hub and run it."""

from typing import Any, ClassVar

import datasets
import evaluate
import numpy as np

Scores = dict[str, float]


class OfflineMetric(evaluate.Metric):  # type: ignore[misc]  # evaluate ships no types
    """What the metrics here have in common: a description, and one value or one vector per sample."""

    feature: ClassVar[Any]

    def _info(self) -> evaluate.MetricInfo:
        features = datasets.Features({"predictions": self.feature, "references": self.feature})
        # Not the format "numpy", which turns float64 into float32.
        return evaluate.MetricInfo(
            description=self.__doc__ or "", citation="", inputs_description="", features=features
        )


class Accuracy(OfflineMetric):
    """Share of samples whose class is right."""

    feature = datasets.Value("int64")

    def _compute(self, predictions: Any, references: Any) -> Scores:
        return {"accuracy": float(np.mean(np.asarray(predictions) == np.asarray(references)))}


class MacroF1(OfflineMetric):
    """F1 of each class, averaged over the classes that occur in references or predictions."""

    feature = datasets.Value("int64")

    def _compute(self, predictions: Any, references: Any) -> Scores:
        from sklearn.metrics import f1_score

        return {"macro_f1": float(f1_score(references, predictions, average="macro", zero_division=0))}


class TwoClasses(OfflineMetric):
    """F1 of the second of two classes, and Matthews' correlation, as GLUE takes them of paraphrases and grammar."""

    feature = datasets.Value("int64")

    def _compute(self, predictions: Any, references: Any) -> Scores:
        from sklearn.metrics import f1_score, matthews_corrcoef

        return {
            "f1": float(f1_score(references, predictions, zero_division=0)),
            "matthews_correlation": float(matthews_corrcoef(references, predictions)),
        }


class MultilabelF1(OfflineMetric):
    """F1 over all (sample, label) pairs, F1 averaged over labels, and the share of samples with every label right."""

    feature = datasets.Sequence(datasets.Value("int64"))

    def _compute(self, predictions: Any, references: Any) -> Scores:
        from sklearn.metrics import f1_score

        predicted, wanted = np.asarray(predictions), np.asarray(references)
        return {
            "micro_f1": float(f1_score(wanted, predicted, average="micro", zero_division=0)),
            "macro_f1": float(f1_score(wanted, predicted, average="macro", zero_division=0)),
            "exact_match": float(np.mean((predicted == wanted).all(axis=1))),
        }


class RegressionErrors(OfflineMetric):
    """Root of the mean squared error, mean absolute error and R2."""

    feature = datasets.Value("float64")

    def _compute(self, predictions: Any, references: Any) -> Scores:
        from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score

        return {
            "rmse": float(mean_squared_error(references, predictions) ** 0.5),
            "mae": float(mean_absolute_error(references, predictions)),
            "r2": float(r2_score(references, predictions)),
        }


class Correlation(OfflineMetric):
    """Pearson's and Spearman's correlation; zero where one side is constant."""

    feature = datasets.Value("float64")

    def _compute(self, predictions: Any, references: Any) -> Scores:
        from scipy.stats import pearsonr, spearmanr

        if np.ptp(predictions) == 0 or np.ptp(references) == 0:
            return {"pearson": 0.0, "spearman": 0.0}
        return {
            "pearson": float(pearsonr(predictions, references).statistic),
            "spearman": float(spearmanr(predictions, references).statistic),
        }
