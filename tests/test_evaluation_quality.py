"""How good single predictions are: the worst, the best, and quality by length, against what is worked out by hand."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from resuming import run
from tiny_recipe import Tiny
from tiny_recipe import task as tiny_task

from toolkit.details import class_details, label_details, number_details, words_in_common
from toolkit.evaluation_quality import by_length
from toolkit.task import Quality, Task


def measured(config: Tiny) -> Task:
    """Return the tiny task with a quality that is known of each sample."""
    return replace(
        tiny_task(config),
        quality=Quality("right", lambda prediction, reference, scores: float(prediction == reference)),
        show=lambda number, prediction, reference: {"number": number, "right": bool(prediction == reference)},
        details=class_details([str(number) for number in range(9)]),
    )


def test_the_worst_and_the_best_of_an_evaluation(tmp_path: Path) -> None:
    outcome = run(tmp_path / "run", build=measured).done()
    found = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    quality, samples = found["quality"], outcome.record["samples"]["evaluate"]
    accuracy = outcome.record["metrics"]["accuracy"]
    assert quality["mean"] == accuracy
    assert sum(quality["histogram"]["counts"]) == samples
    assert [row["number"] for row in quality["worst"]] == sorted(row["number"] for row in quality["worst"])
    wrong = round((1 - accuracy) * samples)
    assert sum(not row["right"] for row in quality["worst"]) == min(wrong, len(quality["worst"]))
    assert all(row["right"] == bool(row["quality"]) for row in (*quality["worst"], *quality["best"]))
    counts = found["details"]["confusion"]["counts"]
    assert sum(count for *_, count in counts) == samples
    assert sum(count for label, taken, count in counts if label == taken) == round(accuracy * samples)


@given(st.lists(st.tuples(st.integers(1, 40), st.floats(-1, 1)), min_size=1, max_size=300))
def test_quality_by_length(samples: list[tuple[int, float]]) -> None:
    lengths, qualities = np.array([length for length, _ in samples]), np.array([quality for _, quality in samples])
    groups = by_length(lengths, qualities)
    if len(set(lengths.tolist())) == 1:
        assert groups == []
        return
    assert sum(group["samples"] for group in groups) == len(samples)
    for group, following in pairwise(groups):
        assert group["to"] < following["from"]
    for group in groups:
        inside = (lengths >= group["from"]) & (lengths <= group["to"])
        assert inside.sum() == group["samples"]
        assert np.isclose(qualities[inside].mean(), group["mean"])


def test_details_of_other_tasks() -> None:
    found = label_details(["a", "b"])([[1, 0], [1, 1]], [[1, 1], [0, 1]])
    assert found["labels"] == [
        {"label": "a", "found": 1, "missed": 0, "wrong": 1},
        {"label": "b", "found": 1, "missed": 1, "wrong": 0},
    ]
    assert number_details([1.5, float("nan")], [1.0, 2.0])["points"] == [[1.0, 1.5], [2.0, None]]
    assert words_in_common("A cat sat", ["the cat sat", "no"], None) == 2 / 3
