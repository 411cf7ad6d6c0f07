"""However a global batch is cut, each of its samples is in it once, and every process gets as many micro-batches."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.data.loader import MicroBatchSampler, longest_samples
from toolkit.data.micro_batches import MicroBatch, balanced_sizes, cut, halved
from toolkit.data.order import ShuffledOrder


class Lengths:
    """A source that only knows lengths."""

    def __init__(self, lengths: list[int]) -> None:
        self.values = np.array(lengths, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.values)

    def lengths(self, ids: np.ndarray) -> np.ndarray:
        return self.values[ids]


@given(
    lengths=st.lists(st.integers(1, 200), min_size=1, max_size=120),
    size=st.integers(1, 40),
    processes=st.integers(1, 9),
    micro=st.none() | st.integers(1, 20),
    balance=st.booleans(),
    call_cost=st.none() | st.integers(0, 300),
    tokens=st.none() | st.integers(1, 600),
    packed=st.booleans(),
    epochs=st.integers(1, 3),
    seed=st.integers(0, 5),
)
@settings(max_examples=150, deadline=None)
def test_every_sample_once_per_epoch_on_any_layout(
    lengths: list[int],
    size: int,
    processes: int,
    micro: int | None,
    balance: bool,
    call_cost: int | None,
    tokens: int | None,
    packed: bool,
    epochs: int,
    seed: int,
) -> None:
    order = ShuffledOrder(len(lengths), size, seed)
    end = epochs * order.steps_per_epoch
    source = Lengths(lengths)
    sampler = MicroBatchSampler(
        *(order, source, processes, end),
        **{"micro": micro, "tokens": tokens, "balance": balance, "packed": packed, "call_cost": call_cost},
    )
    planned = list(sampler)
    seen: dict[int, list[int]] = {epoch: [] for epoch in range(epochs)}
    for step in range(end):
        batch = [micro_batch for micro_batch in planned if micro_batch.step == step]
        # Accelerate deals them out one by one: as many for each process, and as many as each was told.
        assert len(batch) == batch[0].accumulation * processes
        real = [sample for micro_batch in batch if not micro_batch.dummy for sample in micro_batch.ids]
        assert sorted(real) == sorted(order.global_batch(step).tolist())
        assert all(1 <= len(m.ids) <= (micro or size) for m in batch)
        assert sum(not m.dummy for m in batch) == min(len(batch), len(real))
        for part in [part for part in batch if balance and not part.dummy]:
            own = source.lengths(np.array(part.ids)).tolist()
            assert own == sorted(own, reverse=True)
            assert part.used == sum(own)
            assert part.padded == (sum(own) if packed else max(own) * len(own))
            assert tokens is None or len(own) == 1 or part.padded <= tokens
        seen[step // order.steps_per_epoch] += real
    assert all(sorted(samples) == list(range(len(lengths))) for samples in seen.values())


@given(st.lists(st.integers(1, 500), min_size=2, max_size=80), st.integers(1, 8), st.integers(1, 12))
@settings(deadline=None)
def test_lengths_change_the_cut_and_not_the_batch(lengths: list[int], processes: int, micro: int) -> None:
    ids = np.arange(len(lengths))[::-1].copy()
    plain = cut(0, ids, None, processes, micro)
    balanced = cut(0, ids, np.array(lengths)[ids], processes, micro)
    members = [sorted(s for m in batch if not m.dummy for s in m.ids) for batch in (plain, balanced)]
    assert members[0] == members[1] == list(range(len(lengths)))


def test_the_cut_saves_padding_and_shares_the_work() -> None:
    """Lengths as those of short questions: the balanced cut pads a fraction of what the plain one does."""
    lengths = np.minimum(5 + np.random.default_rng(0).exponential(9, 64).astype(int), 80)
    ids = np.arange(64)

    def padded(micro_batches: list[MicroBatch]) -> tuple[int, float]:
        work = [len(m.ids) * int(lengths[list(m.ids)].max()) for m in micro_batches if not m.dummy]
        share = np.array(work).reshape(-1, 4).sum(axis=0)
        return sum(work), share.max() / share.mean()

    plain, _ = padded(cut(0, ids, None, 4, 12))
    balanced, unevenness = padded(cut(0, ids, lengths, 4, 12))
    assert balanced < 0.75 * plain
    assert unevenness < 1.35
    assert sum(m.used for m in cut(0, ids, lengths, 4, 12)) == lengths.sum()


def test_a_finer_cut_is_chosen_only_where_it_pays() -> None:
    lengths = np.array([100] + [10] * 15)
    assert cut(0, np.arange(16), lengths, 1, None, call_cost=None)[0].accumulation == 1
    assert cut(0, np.arange(16), lengths, 1, None, call_cost=50)[0].accumulation > 1
    assert cut(0, np.arange(16), lengths, 1, None, call_cost=10_000)[0].accumulation == 1


@given(st.lists(st.integers(0, 300), min_size=1, max_size=60), st.data())
@settings(deadline=None)
def test_balanced_sizes_fit(lengths: list[int], data: st.DataObject) -> None:
    longest_first = sorted(lengths, reverse=True)
    parts = data.draw(st.integers(1, len(lengths)))
    most = data.draw(st.integers(-(-len(lengths) // parts), len(lengths)))
    sizes = balanced_sizes(longest_first, parts, most)
    assert sum(sizes) == len(lengths)
    assert len(sizes) == parts
    assert all(1 <= size <= most for size in sizes)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=80), st.integers(1, 6), st.none() | st.integers(1, 20))
@settings(deadline=None)
def test_samples_end_to_end_are_shared_evenly_and_cut_no_finer_than_need_be(
    lengths: list[int], processes: int, micro: int | None
) -> None:
    parts = cut(0, np.arange(len(lengths)), np.array(lengths), processes, micro, 64, packed=True)
    assert parts[0].accumulation == (1 if micro is None else -(-len(lengths) // (processes * micro)))
    costs = [part.padded for part in parts if not part.dummy]
    if micro is None:
        # Graham's bound: nobody gets more than the mean and one sample.
        assert max(costs) <= sum(lengths) / len(parts) + max(lengths)


@given(
    lengths=st.none() | st.lists(st.integers(1, 300), min_size=24, max_size=24),
    processes=st.integers(1, 3),
    packed=st.booleans(),
)
@settings(deadline=None)
def test_micro_batches_are_halved_until_each_is_a_single_sample(
    lengths: list[int] | None, processes: int, packed: bool
) -> None:
    """Each time none of several samples costs more than half of what the costliest did."""

    def cost(micro_batch: MicroBatch) -> int:
        return micro_batch.padded or len(micro_batch.ids)

    source = Lengths(lengths or [1] * 24)
    sampler = MicroBatchSampler(
        ShuffledOrder(24, 24, 0), source, processes, 1, balance=lengths is not None, packed=packed
    )
    while True:
        parts = sampler.of_step(0)
        costliest = max((cost(part) for part in parts if len(part.ids) > 1), default=None)
        assert (halved(parts) is None) == (costliest is None)
        if not sampler.halve(0):
            break
        assert costliest is not None
        assert all(cost(part) <= costliest // 2 for part in sampler.of_step(0) if len(part.ids) > 1)
    assert all(len(part.ids) == 1 for part in parts)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.integers(1, 12))
@settings(deadline=None)
def test_the_longest_samples(lengths: list[int], count: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("toolkit.data.loader.LENGTHS_AT_ONCE", 7)
        ids, found = longest_samples(Lengths(lengths), count)  # type: ignore[arg-type]
    expected = sorted(range(len(lengths)), key=lambda number: (-lengths[number], number))[:count]
    assert ids.tolist() == expected
    assert found is not None
    assert found.tolist() == [lengths[number] for number in expected]
