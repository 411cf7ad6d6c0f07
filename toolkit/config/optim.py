"""The `optim` section: how the weights are changed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from toolkit.config.fields import at_least, execution


@dataclass(frozen=True)
class OptimConfig:
    name: Literal["adamw", "sgd", "adafactor", "muon"] = "adamw"
    """The optimizer: adamw; sgd with momentum betas[0]; adafactor, whose rate is relative to the size of each weight;
    or muon with momentum betas[0] for the matrices of the layers (0.2 * sqrt(longer side) times the rate, so that one
    for adamw fits) and adamw for all else."""
    lr: float | None = None
    """Peak learning rate; null takes the recipe's: one for new weights, one for pre-trained ones, one for adapters."""
    layer_decay: float | None = None
    """The rate of each layer as a part of that of the layer above it: highest for the head, lowest for embeddings; null
    gives all layers the same."""
    weight_decay: float = 0.01
    """Weight decay; biases, norms and other parameters of fewer than two dimensions take none."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of the running averages of AdamW; sgd and muon take the first as their momentum."""
    eps: float = 1e-8
    """Added to the denominator of AdamW."""
    average: float | None = None
    """Keep an average of the weights after each step (EMA), in which a step counts so many times what the next one
    counts, such as 0.999; it is kept in checkpoints, and null keeps none."""
    clip: float | None = 1.0
    """Largest norm of the gradient of one step; null does not clip."""
    schedule: Literal["linear", "cosine", "constant", "wsd"] = "linear"
    """How the learning rate goes on after the warm-up: linear or cosine to the floor, constant, or wsd, which is
    constant until it falls in a line to the floor in the last steps (optim.decay)."""
    warmup: float = 0.1
    """Warm-up in optimizer steps, or, below 1, as a part of all steps."""
    decay: float | None = None
    """The fall at the end of wsd in optimizer steps, or, below 1, as a part of all steps; null means 0.2."""
    floor: float | None = None
    """The rate that linear, cosine and wsd fall to, as a part of the peak; null means zero."""
    restarts: int | None = None
    """Return to the peak so many times, at equal distances, and fall again as a cosine; null means never."""
    nonfinite: Literal["stop", "skip"] = execution("stop")
    """A gradient that is not finite never reaches the weights: stop the run there, or skip that step and count it."""

    def problems(self) -> Iterator[str]:
        if self.lr is not None and not self.lr > 0:
            yield f"optim.lr is {self.lr}; it must be greater than 0"
        if self.weight_decay < 0:
            yield f"optim.weight_decay is {self.weight_decay}; it must be 0 or greater"
        if not all(0 <= beta < 1 for beta in self.betas):
            yield f"optim.betas is {list(self.betas)}; both must be at least 0 and below 1"
        if not self.eps > 0:
            yield f"optim.eps is {self.eps}; it must be greater than 0"
        if self.clip is not None and not self.clip > 0:
            yield f"optim.clip is {self.clip}; it must be greater than 0, or null for no clipping"
        for name, steps in (("warmup", self.warmup), ("decay", self.decay)):
            if steps is not None and (steps < 0 or (steps > 1 and steps != int(steps))):
                yield f"optim.{name} is {steps}; give a whole number of steps, or a part of all steps below 1"
        if self.layer_decay is not None and not 0 < self.layer_decay <= 1:
            yield f"optim.layer_decay is {self.layer_decay}; it must be above 0 and at most 1, or null"
        if self.average is not None and not 0 < self.average < 1:
            yield f"optim.average is {self.average}; it must be above 0 and below 1, such as 0.999, or null for none"
        yield from self.schedule_problems()

    def schedule_problems(self) -> Iterator[str]:
        """Yield what is wrong with the schedule: a value, or a setting that this schedule would not look at."""
        if self.floor is not None and not 0 <= self.floor < 1:
            yield f"optim.floor is {self.floor}; it must be at least 0 and below 1, a part of optim.lr"
        yield from at_least(1, "optim.restarts", self.restarts)
        for name, value, takers in (
            ("decay", self.decay, ("wsd",)),
            ("floor", self.floor, ("linear", "cosine", "wsd")),
            ("restarts", self.restarts, ("cosine",)),
        ):
            if value is not None and self.schedule not in takers:
                yield (
                    f"optim.{name} is {value}, and optim.schedule is {self.schedule}, which has none; leave it out, or "
                    f"take the schedule {' or '.join(takers)}"
                )
        if self.schedule == "wsd" and self.warmup < 1 and self.falling < 1 < self.warmup + self.falling:
            yield (
                f"optim.warmup is {self.warmup} and optim.decay {self.falling}, together more than all steps; give "
                "smaller parts"
            )

    @property
    def falling(self) -> float:
        """The fall at the end of wsd, in steps or as a part."""
        return 0.2 if self.decay is None else self.decay

    @property
    def rate(self) -> float:
        """The peak learning rate, which is a number once a run begins (`toolkit.config.learning_rates`)."""
        assert self.lr is not None
        return self.lr


@dataclass(frozen=True)
class Rates:
    """The learning rates of a recipe where none is given, for AdamW."""

    new: float = 1e-3
    """For new weights."""
    pretrained: float = 5e-5
    """For all weights of a model that was trained before."""
    adapters: float = 2e-4
    """For adapters beside such weights."""
