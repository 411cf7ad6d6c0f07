"""Learning-rate curves against their closed forms, and against those of Transformers."""

import pytest
import torch
from transformers import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup

from toolkit.config.schema import OptimConfig
from toolkit.schedules import learning_rate, warmup_steps


@pytest.mark.parametrize(
    ("schedule", "theirs"), [("linear", get_linear_schedule_with_warmup), ("cosine", get_cosine_schedule_with_warmup)]
)
def test_the_curve_after_the_warmup_is_that_of_transformers(schedule: str, theirs: object) -> None:
    config = OptimConfig(lr=0.5, schedule=schedule, warmup=10)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    scheduler = theirs(optimizer, 10, 100)  # type: ignore[operator]
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
