"""What counts how much in a loss: the `loss` section of recipes that put something into classes, or write texts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Literal

from toolkit.config.suggestions import show

Label = str | int | float | bool
"""What YAML makes of the name of a label."""


@dataclass(frozen=True)
class SmoothingConfig:
    label_smoothing: float | None = None
    """Give this share of the target's probability to all classes alike, such as 0.1; null leaves it all to the
    target."""

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the values, a sentence each."""
        if self.label_smoothing is not None and not 0 <= self.label_smoothing < 1:
            yield f"loss.label_smoothing is {self.label_smoothing}; it must be at least 0 and below 1"


@dataclass(frozen=True)
class LossConfig(SmoothingConfig):
    class_weights: Literal["balanced"] | dict[Label, float] | None = None
    """By how much each label counts, such as {spam: 5, ham: 1}; balanced makes rare labels count as much as frequent
    ones, null every sample alike."""
    focal: float | None = None
    """The focal loss with this exponent, such as 2, in which counts less what the model is already sure of; null is
    the cross-entropy."""

    @property
    def given_weights(self) -> dict[str, float]:
        """The weights that were given, by the name of the label; none where there are none or they are balanced."""
        return {name_of(label): weight for label, weight in self.given_labels.items()}

    @property
    def given_labels(self) -> Mapping[Label, float]:
        """The weights that were given, as they were."""
        return self.class_weights if isinstance(self.class_weights, Mapping) else {}

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the values, a sentence each."""
        yield from super().problems()
        if self.focal is not None and not (isfinite(self.focal) and self.focal >= 0):
            yield f"loss.focal is {self.focal}; it must be a number of at least 0, such as 2"
        weights = self.given_weights
        if wrong := {name: weight for name, weight in weights.items() if not (isfinite(weight) and weight >= 0)}:
            listed = ", ".join(f"{weight} to {name!r}" for name, weight in wrong.items())
            yield f"loss.class_weights gives {listed}; a weight must be a number of at least 0"
        elif self.class_weights not in (None, "balanced") and not any(weights.values()):
            yield "loss.class_weights gives no label a weight above 0, so that nothing would be learned"
        if len(weights) < len(self.given_labels):
            yield f"loss.class_weights is {show(self.class_weights)}, which names a label twice; name each one once"


def name_of(label: Label) -> str:
    """Return a label that was given in YAML as the readers of data name it."""
    return str(label).lower() if isinstance(label, bool) else str(label)
