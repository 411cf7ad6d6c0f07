"""Which metrics can be named of classes, several labels, and numbers."""

from collections.abc import Sequence

from toolkit.class_metrics import named_class_metrics
from toolkit.data.labels import Kind
from toolkit.label_metrics import named_label_metrics
from toolkit.metrics import named_number_metrics
from toolkit.task import Metric


def named_metrics(kind: Kind, labels: Sequence[str]) -> dict[str, Metric]:
    """Return the metrics that `evaluate.metrics` can name, of data of this kind with these labels."""
    match kind:
        case "single":
            return named_class_metrics(labels)
        case "multi":
            return named_label_metrics(labels)
    return named_number_metrics()
