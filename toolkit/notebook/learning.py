"""Whether a model learns, at which rate, and the gradients of its layers: by steps of the loop, which are undone."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isfinite, sqrt
from typing import Any

import torch

from toolkit.config.optim import OptimConfig
from toolkit.data.loader import LoadedMicroBatch
from toolkit.errors import UserError
from toolkit.loop import train_step
from toolkit.notebook.batches import micro_batches_of
from toolkit.notebook.plots import BLUE, GREY, ORANGE, Plotted, axes_of, figure
from toolkit.notebook.session import as_it_was
from toolkit.train_state import TrainState

# The weight of the previous steps in the smoothed loss of a range test: about the last seven.
SMOOTHING = 0.85
# A range test ends where the smoothed loss has risen to so many times its lowest.
TOO_HIGH = 3.0


@dataclass(frozen=True, repr=False)
class Overfitted(Plotted):
    """The result of overfitting one batch."""

    losses: list[float]
    """Mean loss per unit before each step."""
    norms: list[float]

    def __repr__(self) -> str:
        steps = len(self.losses) - 1
        return f"loss {self.losses[0]:.4f} at first, {self.losses[-1]:.2g} after {steps} steps on one batch"

    def draw(self) -> Any:
        drawn = figure()
        axes = axes_of(drawn.subplots(), "one batch, again and again", "step", "loss per unit")
        axes.plot(self.losses, color=BLUE)
        axes.set_yscale("log")
        return drawn


def overfit(training: TrainState, steps: int = 50, rate: float | None = None) -> Overfitted:
    """Take some steps on the first global batch alone, at a constant rate, and restore everything.

    The loss has to come close to zero. If it does not, the inputs, the labels or the loss are wrong, or the rate does
    not fit. (Equal texts with different labels, and dropout, keep the loss above zero.)

    Args:
        training: what `prepared` returned.
        steps: how many.
        rate: the learning rate; by default that of the settings.
    """
    micro_batches = micro_batches_of(training, 0)
    values = []
    with as_it_was(training):
        constant = at_rate(training, rate or training.config.optim.rate)
        for step in range(steps + 1):
            values.append(values_of(constant, step, micro_batches))
    losses, norms = zip(*values, strict=True)
    return Overfitted(list(losses), list(norms))


@dataclass(frozen=True, repr=False)
class RateRange(Plotted):
    """The loss at rising learning rates."""

    rates: list[float]
    losses: list[float]
    """The loss of each step's batch, before the weights are updated at that rate."""
    smoothed: list[float]

    @property
    def lowest(self) -> float:
        """The rate at which the smoothed loss was lowest; training breaks down above it."""
        return self.rates[min(range(len(self.smoothed)), key=self.smoothed.__getitem__)]

    @property
    def suggested(self) -> float:
        """A tenth of the lowest: a rule of thumb for the peak rate, and no more than that."""
        return self.lowest / 10

    def __repr__(self) -> str:
        return f"the loss is lowest at a rate of {self.lowest:.1e}; a tenth of that is {self.suggested:.1e}"

    def draw(self) -> Any:
        drawn = figure()
        axes = axes_of(drawn.subplots(), "the loss while the learning rate rises", "learning rate", "loss per unit")
        axes.plot(self.rates, self.losses, color=GREY, alpha=0.5, linewidth=1, label="each step")
        axes.plot(self.rates, self.smoothed, color=BLUE, label="smoothed")
        axes.axvline(self.suggested, color=ORANGE, linestyle="--", label=f"a tenth of the lowest: {self.suggested:.1e}")
        axes.set_xscale("log")
        # The values where it explodes would hide all others.
        axes.set_ylim(0, 1.6 * max(self.smoothed[: max(1, len(self.smoothed) // 2)]))
        axes.legend(frameon=False)
        return drawn


def learning_rate_range(training: TrainState, lowest: float = 1e-5, highest: float = 1.0, steps: int = 60) -> RateRange:
    """Take one step at each rate, on the run's own batches, and restore everything. (Smith 2015, arXiv 1506.01186.)

    The rates rise evenly on a logarithmic scale. The test ends early where the loss has risen to three times its
    lowest.

    Raises:
        UserError: the rates are not ascending, or the loss of the first batch is not finite.
    """
    if not 0 < lowest < highest or steps < 2:
        raise UserError(
            f"the range test goes from {lowest:g} to {highest:g} in {steps} steps; give two rates above 0, the lower "
            "one first, and 2 steps or more"
        )
    rates: list[float] = []
    losses: list[float] = []
    smoothed: list[float] = []
    average = 0.0
    with as_it_was(training):
        for step in range(steps):
            rate = lowest * (highest / lowest) ** (step / (steps - 1))
            loss, _ = values_of(at_rate(training, rate), step, micro_batches_of(training, step))
            if not isfinite(loss):
                break
            average = SMOOTHING * average + (1 - SMOOTHING) * loss
            rates.append(rate)
            losses.append(loss)
            # The average starts at 0; the division corrects for that.
            smoothed.append(average / (1 - SMOOTHING ** (step + 1)))
            if smoothed[-1] > TOO_HIGH * min(smoothed):
                break
    if not losses:
        raise UserError("the loss of the first batch is not finite; look at it with first_batch and gradient_norms")
    return RateRange(rates, losses, smoothed)


@dataclass(frozen=True, repr=False)
class GradientNorms(Plotted):
    """The gradient norm of each layer, before clipping."""

    layers: list[str]
    """In the order of the model."""
    norms: list[list[float]]
    """For each step, one for each layer."""
    totals: list[float]
    """The norm of the whole gradient of each step, as in the ledger: the root of the sum of the layers' squares."""

    def __repr__(self) -> str:
        first, steps = self.totals[0], len(self.totals)
        return f"{len(self.layers)} layers, whole gradient {first:.3g} in the first of {steps} step(s)"

    def draw(self) -> Any:
        drawn = figure(height=1.2 + 0.28 * len(self.layers))
        axes = axes_of(drawn.subplots(), "gradient norm by layer", "norm", "")
        heights = list(range(len(self.layers)))
        axes.plot(self.norms[0], heights, "o", color=BLUE, label="first step")
        if len(self.norms) > 1:
            axes.hlines(heights, self.norms[0], self.norms[-1], color=GREY, linewidth=1)
            axes.plot(self.norms[-1], heights, "o", color=ORANGE, label=f"step {len(self.norms)}")
            axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
        axes.set_yticks(heights, self.layers)
        axes.invert_yaxis()
        if all(norm > 0 for norms in self.norms for norm in norms):
            axes.set_xscale("log")
        return drawn


def gradient_norms(training: TrainState, steps: int = 1) -> GradientNorms:
    """Take the first steps as the run would, return the gradient norm of each layer, and restore everything.

    A layer whose norm is far below the others learns next to nothing; one whose norm is far above decides the clipping.
    """
    module = training.runtime.accelerator.unwrap_model(training.model)
    layer_of = {parameter: layer_name(name) for name, parameter in module.named_parameters() if parameter.requires_grad}
    layers = list(dict.fromkeys(layer_of.values()))
    rows, totals = [], []
    with as_it_was(training), gradient_squares(list(layer_of)) as squares:
        for step in range(steps):
            squares.clear()
            scaler = training.runtime.accelerator.scaler
            scale = scaler.get_scale() if scaler is not None else 1.0
            _, norm = values_of(training, step, micro_batches_of(training, step))
            summed = dict.fromkeys(layers, 0.0)
            for parameter, square in squares.items():
                summed[layer_of[parameter]] += float(square)
            rows.append([sqrt(square) / scale for square in summed.values()])
            totals.append(norm)
    return GradientNorms(layers, rows, totals)


@contextmanager
def gradient_squares(parameters: list[torch.nn.Parameter]) -> Iterator[dict[torch.nn.Parameter, torch.Tensor]]:
    """Yield the squared norms of the gradients that the latest backward passes have accumulated."""
    squares: dict[torch.nn.Parameter, torch.Tensor] = {}

    def note(parameter: torch.Tensor) -> None:
        assert isinstance(parameter, torch.nn.Parameter)
        assert parameter.grad is not None
        squares[parameter] = parameter.grad.double().square().sum()

    hooks = [
        parameter.register_post_accumulate_grad_hook(note)  # type: ignore[no-untyped-call]
        for parameter in parameters
    ]
    try:
        yield squares
    finally:
        for hook in hooks:
            hook.remove()


def layer_name(name: str) -> str:
    """Return the layer of a parameter: its name up to its first number, or its module where there is none."""
    parts = name.split(".")
    numbers = [index for index, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: numbers[0] + 1] if numbers else parts[:-1]) or name


def at_rate(training: TrainState, rate: float) -> TrainState:
    """Return the training with a constant learning rate."""
    optim: OptimConfig = replace(training.config.optim, lr=rate, schedule="constant", warmup=0.0)
    return replace(training, config=replace(training.config, optim=optim))


def values_of(training: TrainState, step: int, micro_batches: list[LoadedMicroBatch]) -> tuple[float, float]:
    """Take a step with the loop's own function, and return the mean loss before it and the gradient norm."""
    units = sum(micro.units for micro in micro_batches)
    loss, norm = train_step(training, step, micro_batches, units).read()
    return loss / (units or 1), norm
