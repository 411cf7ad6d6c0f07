"""What processes agree on survives the way through a sum of float64."""

from hypothesis import given
from hypothesis import strategies as st

from toolkit.distributed.counts import Counts

COUNTS = st.integers(0, 2**40)
TALLIES = st.builds(
    Counts, units=COUNTS, samples=COUNTS, padded=COUNTS, used=COUNTS, fingerprint=st.integers(0, 2**64 - 1)
)


@given(st.lists(TALLIES, min_size=1, max_size=40))
def test_a_sum_of_vectors_is_the_vector_of_the_sum(tallies: list[Counts]) -> None:
    vectors = [count_micro_batches.vector() for count_micro_batches in tallies]
    summed = Counts.of_sum([sum(column) for column in zip(*vectors, strict=True)])
    assert summed.units == sum(count_micro_batches.units for count_micro_batches in tallies)
    assert summed.samples == sum(count_micro_batches.samples for count_micro_batches in tallies)
    assert summed.padded == sum(count_micro_batches.padded for count_micro_batches in tallies)
    assert summed.used == sum(count_micro_batches.used for count_micro_batches in tallies)
    assert summed.fingerprint == sum(count_micro_batches.fingerprint for count_micro_batches in tallies) % 2**64
