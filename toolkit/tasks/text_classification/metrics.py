"""Which metrics can be named of classes, several labels, and numbers, and the probabilities that some of them take."""

from collections.abc import Callable, Sequence

import torch

from toolkit.class_metrics import named_class_metrics
from toolkit.data.labels import Kind
from toolkit.label_metrics import named_label_metrics
from toolkit.losses import logits_of
from toolkit.metrics import named_number_metrics
from toolkit.task import Batch, Metric


def named_metrics(kind: Kind, labels: Sequence[str]) -> dict[str, Metric]:
    """Return the metrics that `evaluate.metrics` can name, of data of this kind with these labels."""
    match kind:
        case "single":
            return named_class_metrics(labels)
        case "multi":
            return named_label_metrics(labels)
    return named_number_metrics()


def probabilities_of(kind: Kind) -> Callable[[torch.nn.Module, Batch], torch.Tensor] | None:
    """Return a task's `probabilities`, (samples, labels); None for numbers, which have none."""
    match kind:
        case "single":
            return lambda model, batch: logits_of(model, batch).softmax(-1)
        case "multi":
            # Labels that the model is sure of would tie in single precision, of which there is little near 1; and not
            # every device has double.
            return lambda model, batch: logits_of(model, batch).cpu().double().sigmoid()
    return None
