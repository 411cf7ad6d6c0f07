"""What processes agree on survives the way through a sum of float64."""

from hypothesis import given
from hypothesis import strategies as st

from toolkit.distributed.counts import Tally

COUNTS = st.integers(0, 2**40)
TALLIES = st.builds(
    Tally, units=COUNTS, samples=COUNTS, padded=COUNTS, used=COUNTS, fingerprint=st.integers(0, 2**64 - 1)
)


@given(st.lists(TALLIES, min_size=1, max_size=40))
def test_a_sum_of_vectors_is_the_vector_of_the_sum(tallies: list[Tally]) -> None:
    vectors = [tally.vector() for tally in tallies]
    summed = Tally.of_sum([sum(column) for column in zip(*vectors, strict=True)])
    assert summed.units == sum(tally.units for tally in tallies)
    assert summed.samples == sum(tally.samples for tally in tallies)
    assert summed.padded == sum(tally.padded for tally in tallies)
    assert summed.used == sum(tally.used for tally in tallies)
    assert summed.fingerprint == sum(tally.fingerprint for tally in tallies) % 2**64
