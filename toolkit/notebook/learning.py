"""Does it learn, at which rate, and where do the gradients go: a few of the loop's own steps, whose traces are removed."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isfinite, sqrt
from typing import Any

import torch

from toolkit.config.schema import OptimConfig
from toolkit.data.loader import LoadedMicroBatch
from toolkit.errors import UserError
from toolkit.loop import train_step
from toolkit.notebook.batches import micro_batches_of
from toolkit.notebook.keeping import as_it_was
from toolkit.notebook.plots import BLUE, GREY, ORANGE, Drawn, axes_of, figure
from toolkit.train_state import TrainState

# The weight of the past in the smoothed loss of a range test: about the last seven steps.
SMOOTHING = 0.85
# Further on the loss only explodes.
TOO_HIGH = 3.0


@dataclass(frozen=True, repr=False)
class Overfitted(Drawn):
    """One batch learned by heart."""

    losses: list[float]
    """Mean loss per unit before each step."""
    norms: list[float]

    def __repr__(self) -> str:
        return (
            f"loss {self.losses[0]:.4f} at first, {self.losses[-1]:.2g} after {len(self.losses) - 1} steps on one batch"
        )

    def draw(self) -> Any:
        """Return the figure."""
        drawn = figure()
        place = axes_of(drawn.subplots(), "one batch, again and again", "step", "loss per unit")
        place.plot(self.losses, color=BLUE)
        place.set_yscale("log")
        return drawn


def overfit(training: TrainState, steps: int = 50, rate: float | None = None) -> Overfitted:
    """Take so many steps on the first global batch alone, at a constant rate, and put everything back.

    The loss has to come close to zero: a model that can't learn one batch by heart has its inputs, labels or loss wired wrong, or
    the rate does not fit. (Texts that are alike and have different labels, and dropout, keep it above.)

    Args:
        training: what `prepared` returned.
        steps: how many.
        rate: the learning rate; that of the configuration by default.
    """
    micro_batches = micro_batches_of(training, 0)
    taken = []
    with as_it_was(training):
        constant = at_rate(training, rate or training.config.optim.rate)
        for step in range(steps + 1):
            taken.append(values_of(constant, step, micro_batches))
    losses, norms = zip(*taken, strict=True)
    return Overfitted(list(losses), list(norms))


@dataclass(frozen=True, repr=False)
class RateRange(Drawn):
    """The loss at rising learning rates."""

    rates: list[float]
    losses: list[float]
    """Of the batch of each step, before the weights are changed at that rate."""
    smoothed: list[float]

    @property
    def lowest(self) -> float:
        """The rate at which the smoothed loss was lowest: beyond it training breaks down."""
        return self.rates[min(range(len(self.smoothed)), key=self.smoothed.__getitem__)]

    @property
    def suggested(self) -> float:
        """A tenth of that: a rule of thumb for the peak rate, and no more than that."""
        return self.lowest / 10

    def __repr__(self) -> str:
        return f"the loss is lowest at a rate of {self.lowest:.1e}; a tenth of that is {self.suggested:.1e}"

    def draw(self) -> Any:
        """Return the figure."""
        drawn = figure()
        place = axes_of(drawn.subplots(), "the loss while the learning rate rises", "learning rate", "loss per unit")
        place.plot(self.rates, self.losses, color=GREY, alpha=0.5, linewidth=1, label="each step")
        place.plot(self.rates, self.smoothed, color=BLUE, label="smoothed")
        place.axvline(
            self.suggested, color=ORANGE, linestyle="--", label=f"a tenth of the lowest: {self.suggested:.1e}"
        )
        place.set_xscale("log")
        # Where it explodes it would hide everything before.
        place.set_ylim(0, 1.6 * max(self.smoothed[: max(1, len(self.smoothed) // 2)]))
        place.legend(frameon=False)
        return drawn


def learning_rate_range(training: TrainState, lowest: float = 1e-5, highest: float = 1.0, steps: int = 60) -> RateRange:
    """Take a step at each of so many rates, rising evenly on a logarithmic scale, on the run's own batches; put everything back.

    It ends early where the loss has risen to three times its lowest. (Smith 2015, arXiv 1506.01186.)
    """
    if not 0 < lowest < highest or steps < 2:
        raise UserError(
            f"the range test goes from {lowest:g} to {highest:g} in {steps} steps; give two rates above 0, the lower one first, and "
            "2 steps or more"
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
            # The average starts at 0, which is taken out again.
            smoothed.append(average / (1 - SMOOTHING ** (step + 1)))
            if smoothed[-1] > TOO_HIGH * min(smoothed):
                break
    if not losses:
        raise UserError("the loss of the first batch is not finite; look at it with first_batch and gradient_norms")
    return RateRange(rates, losses, smoothed)


@dataclass(frozen=True, repr=False)
class GradientNorms(Drawn):
    """The norm of the gradient of each layer, before clipping."""

    layers: list[str]
    """In the order of the model."""
    norms: list[list[float]]
    """For each step, one for each layer."""
    totals: list[float]
    """The norm of the whole gradient of each step, as the ledger has it: the root of the sum of their squares."""

    def __repr__(self) -> str:
        return (
            f"{len(self.layers)} layers, whole gradient {self.totals[0]:.3g} in the first of {len(self.totals)} step(s)"
        )

    def draw(self) -> Any:
        """Return the figure."""
        drawn = figure(height=1.2 + 0.28 * len(self.layers))
        place = axes_of(drawn.subplots(), "gradient norm by layer", "norm", "")
        heights = list(range(len(self.layers)))
        place.plot(self.norms[0], heights, "o", color=BLUE, label="first step")
        if len(self.norms) > 1:
            place.hlines(heights, self.norms[0], self.norms[-1], color=GREY, linewidth=1)
            place.plot(self.norms[-1], heights, "o", color=ORANGE, label=f"step {len(self.norms)}")
            place.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
        place.set_yticks(heights, self.layers)
        place.invert_yaxis()
        if all(norm > 0 for norms in self.norms for norm in norms):
            place.set_xscale("log")
        return drawn


def gradient_norms(training: TrainState, steps: int = 1) -> GradientNorms:
    """Return the gradient norm of each layer over the first steps, taken as the run would take them; put everything back.

    A layer whose norm is far below the others learns next to nothing; one far above decides what is clipped.
    """
    module = training.runtime.accelerator.unwrap_model(training.model)
    places = {parameter: layer_of(name) for name, parameter in module.named_parameters() if parameter.requires_grad}
    layers = list(dict.fromkeys(places.values()))
    rows, totals = [], []
    with as_it_was(training), watched(list(places)) as squares:
        for step in range(steps):
            squares.clear()
            scaler = training.runtime.accelerator.scaler
            scale = scaler.get_scale() if scaler is not None else 1.0
            _, norm = values_of(training, step, micro_batches_of(training, step))
            summed = dict.fromkeys(layers, 0.0)
            for parameter, square in squares.items():
                summed[places[parameter]] += float(square)
            rows.append([sqrt(square) / scale for square in summed.values()])
            totals.append(norm)
    return GradientNorms(layers, rows, totals)


@contextmanager
def watched(parameters: list[torch.nn.Parameter]) -> Iterator[dict[torch.nn.Parameter, torch.Tensor]]:
    """Yield the squared norms of the gradients that backward passes leave; of several passes the last one has the sum of all."""
    squares: dict[torch.nn.Parameter, torch.Tensor] = {}

    def note(parameter: torch.Tensor) -> None:
        assert isinstance(parameter, torch.nn.Parameter)
        assert parameter.grad is not None
        squares[parameter] = parameter.grad.double().square().sum()

    hooks = [parameter.register_post_accumulate_grad_hook(note) for parameter in parameters]  # type: ignore[no-untyped-call]
    try:
        yield squares
    finally:
        for hook in hooks:
            hook.remove()


def layer_of(name: str) -> str:
    """Return the layer of a parameter: its name up to its first number, or its module where there is none."""
    parts = name.split(".")
    numbers = [place for place, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: numbers[0] + 1] if numbers else parts[:-1]) or name


def at_rate(training: TrainState, rate: float) -> TrainState:
    """Return the same training with a constant learning rate."""
    optim: OptimConfig = replace(training.config.optim, lr=rate, schedule="constant", warmup=0.0)
    return replace(training, config=replace(training.config, optim=optim))


def values_of(training: TrainState, step: int, micro_batches: list[LoadedMicroBatch]) -> tuple[float, float]:
    """Take a step with the loop's own function; return the mean loss before it and the gradient's norm."""
    units = sum(micro.units for micro in micro_batches)
    loss, norm = train_step(training, step, micro_batches, units).read()
    return loss / max(1, units), norm
