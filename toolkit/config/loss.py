"""What counts how much in a loss: the `loss` section of recipes that put something into classes, or write texts."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Literal


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
    class_weights: Literal["balanced"] | dict[str, float] | None = None
    """By how much each label counts, such as {spam: 5, ham: 1}; balanced makes rare labels count as much as frequent
    ones, null every sample alike."""
    focal: float | None = None
    """The focal loss with this exponent, such as 2, in which counts less what the model is already sure of; null is
    the cross-entropy."""

    @property
    def given_weights(self) -> dict[str, float]:
        """The weights that were given, by the name of the label; none where there are none or they are balanced."""
        return self.class_weights if isinstance(self.class_weights, dict) else {}

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
