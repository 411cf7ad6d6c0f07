"""Learning-rate curves against their closed forms, and against those of Transformers."""

from collections.abc import Callable
from math import cos, pi
from typing import Any

import pytest
import torch
from transformers import (
    get_cosine_schedule_with_warmup,
    get_cosine_with_hard_restarts_schedule_with_warmup,
    get_cosine_with_min_lr_schedule_with_warmup,
    get_linear_schedule_with_warmup,
    get_wsd_schedule,
)

from toolkit.config.optim import OptimConfig
from toolkit.schedules import learning_rate, same_rates, warmup_steps

CURVES: dict[str, tuple[dict[str, Any], Callable[[torch.optim.Optimizer], Any]]] = {
    "linear": ({}, lambda optimizer: get_linear_schedule_with_warmup(optimizer, 10, 100)),
    "cosine": ({}, lambda optimizer: get_cosine_schedule_with_warmup(optimizer, 10, 100)),
    "cosine to a floor": (
        {"floor": 0.1},
        lambda optimizer: get_cosine_with_min_lr_schedule_with_warmup(optimizer, 10, 100, min_lr_rate=0.1),
    ),
    # 3 cycles of 30 steps, and 7 that no number of steps divides.
    "cosine, restarted twice": (
        {"restarts": 2},
        lambda optimizer: get_cosine_with_hard_restarts_schedule_with_warmup(optimizer, 10, 100, num_cycles=3),
    ),
    "cosine, restarted six times": (
        {"restarts": 6},
        lambda optimizer: get_cosine_with_hard_restarts_schedule_with_warmup(optimizer, 10, 100, num_cycles=7),
    ),
    "wsd": (
        {"decay": 25, "floor": 0.2},
        lambda optimizer: get_wsd_schedule(optimizer, 10, 25, 100, decay_type="linear", min_lr_ratio=0.2),
    ),
}


@pytest.mark.parametrize("name", CURVES)
def test_the_curve_after_the_warmup_is_that_of_transformers(name: str) -> None:
    settings, theirs = CURVES[name]
    schedule: Any = name.partition(" ")[0].strip(",")
    config = OptimConfig(lr=0.5, schedule=schedule, warmup=10, **settings)
    assert [*config.problems()] == []
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    scheduler = theirs(optimizer)
    for step in range(100):
        if step >= 10:
            assert learning_rate(config, step, 100) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-12)
        optimizer.step()
        scheduler.step()


def test_the_warmup_has_no_wasted_step_and_reaches_the_peak() -> None:
    config = OptimConfig(lr=1.0, schedule="constant", warmup=4)
    assert [learning_rate(config, step, 10) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_warmup_is_steps_or_a_part() -> None:
    assert warmup_steps(OptimConfig(warmup=0.1), 250) == 25
    assert warmup_steps(OptimConfig(warmup=100), 250) == 100
    assert warmup_steps(OptimConfig(warmup=0), 250) == 0
    assert learning_rate(OptimConfig(lr=1.0, warmup=0), 0, 10) == 1.0


def curve(total: int = 10, **settings: Any) -> list[float]:
    config = OptimConfig(lr=2.0, **settings)
    return [learning_rate(config, step, total) for step in range(total)]


def test_curves_by_hand() -> None:
    stable = curve(schedule="wsd", warmup=2, decay=4, floor=0.5)
    assert stable == pytest.approx([1, 2, 2, 2, 2, 2, 2, 1.75, 1.5, 1.25])
    assert curve(schedule="wsd", warmup=0.2, decay=0.4, floor=0.5) == stable
    assert curve(schedule="wsd", warmup=2)[-3:] == [2, 2, 1]  # a fifth of all steps
    # What is left after the warm-up is all that can fall.
    assert curve(schedule="wsd", warmup=8, decay=6)[-3:] == [2, 2, 1]
    assert curve(schedule="wsd", warmup=0, decay=0) == [2] * 10
    assert curve(schedule="linear", warmup=0, floor=0.5) == pytest.approx([2 - step / 10 for step in range(10)])
    cycle = [(1 + cos(pi * step / 5)) for step in range(5)]
    assert curve(schedule="cosine", warmup=0, restarts=1) == pytest.approx(cycle * 2)
    floored = [0.4 + 0.8 * value for value in cycle]
    assert curve(schedule="cosine", warmup=0, restarts=1, floor=0.2) == pytest.approx(floored * 2)


def test_a_run_with_wsd_can_be_made_longer_until_its_rate_falls() -> None:
    config = OptimConfig(lr=1.0, schedule="wsd", warmup=2, decay=4)
    assert same_rates(config, 17, 20, 30)  # step 17 of 20, counted from 1, is the first that falls, and by nothing
    assert not same_rates(config, 18, 20, 30)
    assert not same_rates(OptimConfig(lr=1.0, schedule="wsd", warmup=0.1, decay=4), 17, 20, 30)
