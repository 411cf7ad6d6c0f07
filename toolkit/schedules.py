"""Learning-rate curves: pure functions of the optimizer step, so that nothing has to be saved or replayed."""

from math import cos, pi
from typing import assert_never

from toolkit.config.schema import Config, OptimConfig


def warmup_steps(config: OptimConfig, total_steps: int) -> int:
    """Return the number of warm-up steps: `optim.warmup` itself, or, below 1, that part of all steps."""
    return round(config.warmup * total_steps) if config.warmup < 1 else int(config.warmup)


def total_steps(config: Config, samples: int) -> int:
    """Return the optimizer steps of a run over so many training samples: `steps`, or `epochs` passes, at least one
    step."""
    if config.steps is not None:
        return config.steps
    return max(1, round((config.epochs or 0) * -(-samples // config.batch.size)))


def same_rates(config: OptimConfig, steps: int, one_total: int, other_total: int) -> bool:
    """Return whether the first so many steps of a run have the same learning rates for one length of the run and
    another."""
    if one_total == other_total:
        return True
    if config.schedule == "constant":
        # After both warm-ups nothing changes any more.
        steps = min(steps, max(warmup_steps(config, one_total), warmup_steps(config, other_total)))
    return all(
        learning_rate(config, step, one_total) == learning_rate(config, step, other_total) for step in range(steps)
    )


def learning_rate(config: OptimConfig, step: int, total_steps: int) -> float:
    """Return the learning rate of one optimizer step, counted from 0.

    It rises in equal parts during the warm-up, from lr / warm-up at step 0, and then stays or falls to reach zero one
    step after the last.
    """
    warmup = warmup_steps(config, total_steps)
    if step < warmup:
        return config.rate * (step + 1) / warmup
    progress = (step - warmup) / max(1, total_steps - warmup)
    match config.schedule:
        case "linear":
            return config.rate * (1 - progress)
        case "cosine":
            return config.rate * (1 + cos(pi * progress)) / 2
        case "constant":
            return config.rate
        case _:
            assert_never(config.schedule)
