"""Evaluation samples that are training samples too are counted, as far as the time allows, and give a warning."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Classify
from hypothesis import given
from hypothesis import strategies as st
from line import Line, Points
from line import task as line
from trial import run_here

from toolkit.data import overlap
from toolkit.data.overlap import Overlap, fingerprint_of, overlap_of
from toolkit.task import Task


def points(count: int, first: int = 0) -> Points:
    class Some(Points):
        def __len__(self) -> int:
            return count

        def fetch(self, ids: Any) -> list[float]:
            return super().fetch([number + first for number in ids])

    return Some()


def overlapping(shared: int) -> Callable[[Line], Task]:
    """A task of ten evaluation samples, of which so many are training samples."""
    return lambda config: line(evaluate=points(10, first=16 - shared), units=lambda batch: len(batch["y"]))


@pytest.mark.parametrize("shared", [0, 3, 10])
def test_evaluation_samples_that_were_trained_on_are_counted(shared: int, tmp_path: Path) -> None:
    outcome = run_here(Line, overlapping(shared), ["--threads", "1", "--epochs", "1"], tmp_path / "run").done()
    warning = f"warning: {shared} of 10 evaluation samples ({shared / 10:.1%}) are in the training data too"
    assert (warning in outcome.output) == (shared > 0)


def test_the_same_file_for_training_and_evaluation_gives_a_warning(classify: Classify, table: Path) -> None:
    outcome = classify("--steps", "2", "--data.eval", table).done()
    outcome.says("warning: 40 of 40 evaluation samples (100.0%) are in the training data too")


@pytest.mark.parametrize("columns", ["sentence1,sentence2,score", "text,label", "anchor,positive,negative"])
def test_texts_for_embeddings_are_compared_without_their_rows_and_scores(columns: str, tmp_path: Path) -> None:
    from toolkit.models.tokenizer import tokenizer
    from toolkit.tasks.sentence_embedding.data import EmbeddingData
    from toolkit.tasks.sentence_embedding.models import EmbeddingModelConfig

    names = columns.split(",")
    rows = [[f"{name} number {row}" for name in names[:-1]] for row in range(20)]
    last = {"score": lambda row: f"{row / 20:.2f}", "label": lambda row: f"class {row % 4}"}
    ends = [last.get(names[-1], lambda row: f"other {row}")(row) for row in range(20)]
    lines = [",".join([*texts, end]) for texts, end in zip(rows, ends, strict=True)]
    for name, chosen in (("train.csv", lines[:16]), ("eval.csv", lines[8:])):
        (tmp_path / name).write_text("\n".join([columns, *chosen]) + "\n")
    texts = EmbeddingData(train=str(tmp_path / "train.csv"), eval=str(tmp_path / "eval.csv")).read()
    tokens = tokenizer(EmbeddingModelConfig(), texts.training_texts(), texts.training_digest)
    found = overlap_of(*texts.tokenize(tokens))
    assert (found.shared, found.compared) == (8, 12)


values = st.recursive(
    st.one_of(st.integers(-9, 9), st.text(max_size=3), st.booleans(), st.floats(allow_nan=False)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abc"), inner, min_size=1)),
    max_leaves=8,
)


@given(values, values)
def test_fingerprints_are_equal_where_samples_are(one: Any, other: Any) -> None:
    def written(value: Any) -> str:
        return json.dumps(value, sort_keys=True)  # for Python 0 is equal to False, which no reader takes it for

    same = fingerprint_of({"x": one}) == fingerprint_of({"x": other})
    assert same or written(one) != written(other)
    assert not same or one == other


def test_fingerprints_leave_out_labels_and_know_arrays() -> None:
    assert fingerprint_of({"x": [1, 2], "label": 1}) == fingerprint_of({"x": [1, 2], "label": 2})
    long = np.arange(5000)
    changed = long.copy()
    changed[2500] = 0
    assert fingerprint_of({"x": long}) != fingerprint_of({"x": changed})
    assert fingerprint_of({"x": object()}) is None
    assert fingerprint_of({"label": 1}) is None
    assert overlap_of(points(16), points(10, 11)) == Overlap(5, 10, 16, True)


def test_sources_that_are_slow_to_read_are_compared_as_far_as_the_time_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of the test's own; evaluation samples take at most half of the time, and what was read is spread."""
    clock = [0.0]
    monkeypatch.setattr(overlap, "monotonic", lambda: clock[0])

    def slow(source: Any, each: float) -> tuple[Any, list[int]]:
        read: list[int] = []
        fetch = source.fetch

        def fetched(ids: Any) -> list[float]:
            clock[0] += each * len(ids)
            read.extend(ids)
            return fetch(ids)

        source.fetch = fetched
        return source, read

    for each in (0.0001, 0.001, 0.01, 0.3):
        clock[0] = 0.0
        (train, trained), (evaluate, evaluated) = slow(points(50_000), each), slow(points(30_000), each)
        found = overlap_of(train, evaluate)
        assert clock[0] <= overlap.SECONDS + each
        assert (found.training, found.compared) == (len(trained), len(evaluated))
        assert len(evaluated) * each <= overlap.SECONDS / 2 + each
        assert len(set(trained)) == len(trained)
        assert not found.is_all
        for ids, count in ((trained, 50_000), (evaluated, 30_000)):
            parts, _ = np.histogram(ids, max(1, min(100, len(ids) // 4)), (0, count))
            assert max(parts) <= 2 * min(parts) + 1
    assert overlap_of(slow(points(100), 0.001)[0], slow(points(50), 0.001)[0]) == Overlap(50, 50, 100, True)


@given(st.integers(0, 3000), st.integers(1, 2000))
def test_the_spread_order_is_one_of_all_that_are_wanted(count: int, most: int) -> None:
    order = overlap.in_bisecting_order(count, most).tolist()
    assert len(order) == len(set(order)) == min(count, most)
    assert set(order) <= set(range(count))
