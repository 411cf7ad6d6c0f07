"""The rows that are held out: a property of the labels alone."""

import time

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.data.held_out import held_out_rows
from toolkit.data.labels import starts_of

rows_of_labels = st.lists(st.sets(st.integers(0, 5), max_size=3).map(sorted), min_size=1, max_size=120)


@settings(max_examples=150, deadline=None)
@given(rows_of_labels, st.floats(0.01, 0.99))
def test_no_unseen_label_and_the_share_as_far_as_labels_allow(rows: list[list[int]], share: float) -> None:
    starts = starts_of(np.array([len(row) for row in rows]))
    labels = np.array([label for row in rows for label in row], dtype=np.int64)
    held = held_out_rows(starts, labels, share).tolist()
    assert held == held_out_rows(starts, labels, share).tolist()
    assert held == sorted(set(held))
    assert set(held) <= set(range(len(rows)))
    stay = sorted(set(range(len(rows))) - set(held))
    assert stay
    seen = {label for row in stay for label in rows[row]}
    assert {label for row in held for label in rows[row]} <= seen
    wanted = min(max(1, round(len(rows) * share)), len(rows) - 1)
    assert len(held) <= wanted
    if len(held) < wanted:  # then no other row could go: each carries a label that would be lost to training
        counts = np.bincount([label for row in stay for label in rows[row]], minlength=6)
        assert all(any(counts[label] == 1 for label in rows[row]) for row in stay)


def test_names_of_labels_change_nothing() -> None:
    labels = np.array([0, 1, 2] * 50, dtype=np.int64)
    starts = np.arange(151, dtype=np.int64)
    held = held_out_rows(starts, labels, 0.1)
    assert len(held) == 15
    assert held.tolist() == held_out_rows(starts, (labels + 1) % 3, 0.1).tolist()
    assert set(np.diff(held).tolist()) != {10}  # not every tenth row: data is often sorted


def test_a_million_rows_take_a_second() -> None:
    labels = np.arange(1_000_000, dtype=np.int64) % 1000
    began = time.perf_counter()
    held = held_out_rows(np.arange(1_000_001, dtype=np.int64), labels, 0.1)
    assert len(held) == 100_000
    assert time.perf_counter() - began < 5  # 0.2 s on a quiet machine
