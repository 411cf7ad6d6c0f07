"""Learning-rate curves: pure functions of the optimizer step, so that nothing has to be saved or replayed."""

from math import cos, pi

from toolkit.config import OptimConfig


def warmup_steps(config: OptimConfig, total_steps: int) -> int:
    """Return the number of warm-up steps: `optim.warmup` itself, or, below 1, that part of all steps."""
    return round(config.warmup * total_steps) if config.warmup < 1 else int(config.warmup)


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
