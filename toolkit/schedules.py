"""Learning-rate curves: pure functions of the optimizer step, so that nothing has to be saved or replayed."""

from math import cos, pi
from typing import assert_never

from toolkit.config.optim import OptimConfig
from toolkit.config.schema import Config


def warmup_steps(config: OptimConfig, total_steps: int) -> int:
    """Return the number of warm-up steps: `optim.warmup` itself, or, below 1, that part of all steps."""
    return steps_of(config.warmup, total_steps)


def steps_of(amount: float, total_steps: int) -> int:
    """Return an amount in steps: itself, or, below 1, that part of all steps."""
    return round(amount * total_steps) if amount < 1 else int(amount)


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

    It rises in equal parts during the warm-up, from lr / warm-up at step 0, and then stays or falls to reach the floor
    one step after the last (with restarts, one step after the last of each cycle). A layer's rate is this one times
    its own factor (`optim.layer_decay`).
    """
    warmup = warmup_steps(config, total_steps)
    if step < warmup:
        return config.rate * (step + 1) / warmup
    done, span = step - warmup, max(1, total_steps - warmup)
    match config.schedule:
        case "linear":
            return above_floor(config, 1 - done / span)
        case "cosine":
            # In whole numbers, so that no rounding moves a restart.
            cycles = (config.restarts or 0) + 1
            return above_floor(config, (1 + cos(pi * (done * cycles % span / span))) / 2)
        case "constant":
            return config.rate
        case "wsd":
            return above_floor(config, min(1.0, (total_steps - step) / max(1, falling_steps(config, total_steps))))
        case _:
            assert_never(config.schedule)


def falling_steps(config: OptimConfig, total_steps: int) -> int:
    """Return in how many steps at the end the rate of wsd falls: not those of the warm-up."""
    return min(steps_of(config.falling, total_steps), max(1, total_steps - warmup_steps(config, total_steps)))


def above_floor(config: OptimConfig, height: float) -> float:
    """Return the rate at a height between 0, the floor, and 1, the peak."""
    floor = config.floor or 0.0
    return config.rate * (floor + (1 - floor) * height)


def in_words(config: OptimConfig, total_steps: int) -> str:
    """Return how the rate goes on after the warm-up, for the plan."""
    text: str = config.schedule
    if config.schedule == "wsd":
        text = f"constant, and falling in the last {falling_steps(config, total_steps):,} (wsd)"
    if config.restarts:
        text += f" with {config.restarts} restart(s)"
    return text + (f" to {config.floor:g} of the peak" if config.floor else "")
