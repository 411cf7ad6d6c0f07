"""What scripts about DeepSpeed's ZeRO share: a stage 3 that gathers every weight, and how far float32 may be off."""

from pathlib import Path

NOTHING_KEPT = ["--deepspeed_config_file", str(Path(__file__).with_name("zero_nothing_kept.json"))]
"""Words for the launcher. By itself stage 3 keeps small weights whole, and those of small models are all small."""
# DeepSpeed keeps its master weights in float32, whatever the model computes in. Against a run in float64 each step then
# rounds a weight and its gradient once each (2^-24 of them), the sum over the processes twice, and the averages and the
# update of AdamW four times: eight roundings a step, which at worst all go the same way.
ROUNDINGS, ROUNDING = 8, 2.0**-24


def bound_of_zero(steps: int) -> float:
    """Return how far a float64 training may be from one process after so many steps under ZeRO."""
    return ROUNDINGS * steps * ROUNDING
