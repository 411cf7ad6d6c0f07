"""What the processes have to agree on in every step, as one vector of float64 that can be summed."""

from collections.abc import Callable, Iterable
from math import nan
from typing import NamedTuple

from toolkit.data.loader import LoadedMicroBatch

# Sums of 16-bit parts stay exact in float64 up to 2^37 of them; a sum of 64-bit hashes would not.
LIMB_BITS = 16
LIMBS = 64 // LIMB_BITS


class Counts(NamedTuple):
    """Counts of one step: those of one process, or the sum over all processes."""

    units: float = 0
    """What the loss is averaged over: a whole number, or the sum of their weights."""
    samples: int = 0
    """Samples, dummy copies not counted."""
    padded: int = 0
    """Elements that run through the model, padding included; 0 where lengths do not decide how a batch is split."""
    used: int = 0
    """Elements without padding."""
    fingerprint: int = 0
    """Sum of the hashes of the sample ids, modulo 2^64."""
    earlier_loss: float = 0.0
    """Summed loss of an earlier step, whose value has reached the host by now."""
    stop: int = 0
    """Processes that were asked to stop."""
    trouble: int = 0
    """Processes that can't go on: the main one, if ledger or checkpoint can't be written."""
    flops: float = 0.0
    """Floating-point operations of forward and backward passes; not a number where they are unknown."""
    lacking: int = 0
    """Processes whose memory ran out in the step before."""

    def vector(self) -> list[float]:
        """Return the counts as numbers that may be added to those of other processes."""
        limbs = [(self.fingerprint >> (LIMB_BITS * i)) & (2**LIMB_BITS - 1) for i in range(LIMBS)]
        counted = [self.units, self.samples, self.padded, self.used, *limbs]
        return [*counted, self.earlier_loss, self.stop, self.trouble, self.flops, self.lacking]

    @staticmethod
    def of_sum(vector: list[float]) -> "Counts":
        """Return the counts that a sum of vectors stands for."""
        units, samples, padded, used, *limbs, loss, stop, trouble, flops, lacking = vector
        whole = sum(int(limb) << (LIMB_BITS * i) for i, limb in enumerate(limbs)) % 2**64
        flags = int(stop), int(trouble), flops, int(lacking)
        return Counts(without_fraction(units), int(samples), int(padded), int(used), whole, loss, *flags)


def without_fraction(units: float) -> float:
    """Return a number as an integer if it is whole, for the ledger and for whoever compares two of them."""
    return int(units) if float(units).is_integer() else units


def count_micro_batches(
    micro_batches: Iterable[LoadedMicroBatch],
    earlier_loss: float = 0.0,
    stop: bool = False,
    trouble: bool = False,
    flops_of: Callable[[LoadedMicroBatch], float] = lambda _: nan,
    lacking: bool = False,
) -> Counts:
    """Count the micro-batches of one process in one step; `flops_of` tells what each takes."""
    loaded = list(micro_batches)
    real = [micro for micro in loaded if not micro.plan.dummy]
    return Counts(
        units=without_fraction(sum([micro.units for micro in real])),
        samples=sum([len(micro.ids) for micro in real]),
        padded=sum([micro.plan.padded for micro in loaded]),
        used=sum([micro.plan.used for micro in real]),
        fingerprint=sum([micro.plan.fingerprint for micro in real]) % 2**64,
        earlier_loss=earlier_loss,
        stop=int(stop),
        trouble=int(trouble),
        flops=sum(map(flops_of, real)),
        lacking=int(lacking),
    )
