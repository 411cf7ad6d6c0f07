"""The order is a pure function: a permutation in each epoch, even over seeds, and the same from wherever it is
entered."""

from collections import Counter
from itertools import permutations
from math import factorial, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.data.order import POSITIONS_AT_ONCE, Ids, ShuffledOrder, fingerprint, mix64, permute
from toolkit.randomness import seed_for


@given(st.integers(1, 3000), st.integers(0, 2**63))
@settings(max_examples=60, deadline=None)
def test_permute_is_a_permutation(size: int, key: int) -> None:
    assert sorted(permute(np.arange(size), size, key).tolist()) == list(range(size))


@given(st.integers(1, 10**12), st.integers(0, 2**63), st.data())
@settings(deadline=None)
def test_any_position_can_be_asked_alone(size: int, key: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, size - 1))
    positions = np.arange(start, min(size, start + 50))
    together = permute(positions, size, key)
    assert ((together >= 0) & (together < size)).all()
    assert len(set(together.tolist())) == len(positions)
    assert permute(positions[-1:], size, key)[0] == together[-1]


@pytest.mark.parametrize("size", [3, 4, 5])
def test_all_permutations_of_a_few_come_out_equally_often(size: int) -> None:
    """Chi-squared over seeds; a permutation with too few rounds fails this by tens of standard deviations."""
    runs, kinds = 6_000, factorial(size)
    seen = Counter(tuple(permute(np.arange(size), size, seed_for(seed, "order", 0)).tolist()) for seed in range(runs))
    expected = runs / kinds
    chi_squared = sum((seen[p] - expected) ** 2 / expected for p in permutations(range(size)))
    assert abs(chi_squared - (kinds - 1)) < 5 * sqrt(2 * (kinds - 1))


def test_neighbours_are_spread() -> None:
    """Samples that are neighbours in the data do not stay neighbours in a large permutation."""
    result = permute(np.arange(100_000), 100_000, 7)
    assert abs(np.corrcoef(np.arange(100_000), result)[0, 1]) < 0.02
    assert np.mean(np.abs(np.diff(result)) == 1) < 1e-3


@given(st.integers(1, 500), st.integers(1, 64), st.integers(0, 100), st.integers(0, 3))
@settings(deadline=None)
def test_every_sample_once_per_epoch(samples: int, size: int, seed: int, epoch: int) -> None:
    order = ShuffledOrder(samples, size, seed)
    first = epoch * order.steps_per_epoch
    batches = [order.global_batch(step) for step in range(first, first + order.steps_per_epoch)]
    assert sorted(np.concatenate(batches).tolist()) == list(range(samples))
    assert all(len(batch) == size for batch in batches[:-1])


@given(st.data(), st.integers(1, 20_000), st.integers(0, 100))
@settings(deadline=None)
def test_the_steps_of_a_block_are_those_that_are_asked_for_one_by_one(
    data: st.DataObject, samples: int, seed: int
) -> None:
    """From any step on, across blocks and epochs, also where a batch is larger than a block or than the data."""
    size = data.draw(st.integers(max(1, samples // 200), 2 * samples), label="size")
    order = ShuffledOrder(samples, size, seed)
    first = data.draw(st.integers(0, 3 * order.steps_per_epoch), label="first")
    end = data.draw(st.integers(first, first + 2 * order.steps_per_epoch + 3), label="end")
    batches = [batch.tolist() for batch in order.global_batches(first, end)]
    assert batches == [order.global_batch(step).tolist() for step in range(first, end)]


def test_a_block_of_steps_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the data nor the steps that are left decide how much memory the next step takes."""
    asked: list[int] = []

    def noted(positions: Ids, size: int, key: int) -> Ids:
        asked.append(len(positions))
        return permute(positions, size, key)

    monkeypatch.setattr("toolkit.data.order.permute", noted)
    for size in (1, 16, 1000, 3 * POSITIONS_AT_ONCE):
        next(ShuffledOrder(10**9, size, 0).global_batches(5, 10**6))
        assert asked.pop() <= max(POSITIONS_AT_ONCE, size)
    # The last step of a run computes no further one.
    next(ShuffledOrder(10**9, 16, 0).global_batches(5, 6))
    assert asked.pop() == 16


def test_epochs_and_seeds_differ_and_repeat() -> None:
    order = ShuffledOrder(1000, 100, seed=3)
    assert order.global_batch(4).tolist() == ShuffledOrder(1000, 100, seed=3).global_batch(4).tolist()
    assert order.global_batch(4).tolist() != order.global_batch(14).tolist()
    assert order.global_batch(4).tolist() != ShuffledOrder(1000, 100, seed=4).global_batch(4).tolist()


@given(st.lists(st.integers(0, 2**40), unique=True, max_size=50), st.data())
def test_fingerprint_ignores_order_and_cut_and_notices_a_change(ids: list[int], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(ids))
    middle = data.draw(st.integers(0, len(ids)))
    parts = fingerprint(np.array(shuffled[:middle], dtype=np.int64)) + fingerprint(
        np.array(shuffled[middle:], dtype=np.int64)
    )
    assert parts % 2**64 == fingerprint(np.array(ids, dtype=np.int64))
    if ids:
        assert fingerprint(np.array(ids[1:], dtype=np.int64)) != fingerprint(np.array(ids, dtype=np.int64))


def test_mix64_is_the_published_function() -> None:
    """The first outputs of SplitMix64 with seed 0 (its state advances by the golden gamma before each)."""
    gamma = 0x9E3779B97F4A7C15
    states = np.array([0, gamma], dtype=np.uint64)
    assert [int(value) for value in mix64(states)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]
