"""What became of each entity: cases that were worked out by hand, and sums that hold for all tags."""

import warnings
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities

from toolkit.tasks.token_classification.details import entity_errors, tag_details
from toolkit.tasks.token_classification.entities import OUTCOMES, PAIRED, Entity, entities_of, in_words, outcomes
from toolkit.tasks.token_classification.metrics import entity_f1

TAGS = ["O", "B-a", "I-a", "B-b", "I-b"]
SENTENCES = st.lists(st.lists(st.tuples(st.sampled_from(TAGS), st.sampled_from(TAGS)), max_size=12), max_size=6)


def became(wanted: str, predicted: str) -> dict[str, int]:
    """Return how often each type had which outcome in one sentence, but for zeros."""
    rows = entity_errors([predicted.split()], [wanted.split()])
    return {f"{row['type']} {how}": row[how] for row in rows for how in OUTCOMES if row[how]}


@pytest.mark.parametrize(
    ("wanted", "predicted", "counts"),
    [
        ("B-a I-a O", "B-a I-a O", {"a exact": 1}),
        ("B-a I-a O", "B-b I-b O", {"a wrong_type": 1}),
        ("B-a I-a O", "O B-a I-a", {"a wrong_boundary": 1}),
        ("B-a I-a O", "O B-b I-b", {"a both_wrong": 1}),
        ("B-a I-a O", "O O B-a", {"a missed": 1, "a spurious": 1}),
        ("O O O", "B-b O B-a", {"b spurious": 1, "a spurious": 1}),
        # One answers one: of two halves the first, as both share one word with it.
        ("B-a I-a", "B-a B-a", {"a wrong_boundary": 1, "a spurious": 1}),
        # The half of the right type goes before the longer one of another type.
        ("B-a I-a I-a", "B-b I-b B-a", {"a wrong_boundary": 1, "b spurious": 1}),
        # Of two of one type the one with more words in common.
        ("B-a I-a I-a", "B-a B-a I-a", {"a wrong_boundary": 1, "a spurious": 1}),
        ("B-a B-a I-a O", "B-a I-a I-a I-a", {"a missed": 1, "a wrong_boundary": 1}),
        # What is exact is taken by nobody else.
        ("B-a B-b I-b", "B-b B-b I-b", {"a wrong_type": 1, "b exact": 1}),
        ("B-a I-b O", "I-a I-a O", {"a wrong_boundary": 1, "b missed": 1}),
    ],
)
def test_what_becomes_of_entities(wanted: str, predicted: str, counts: dict[str, int]) -> None:
    assert became(wanted, predicted) == counts


def test_which_of_two_is_the_answer() -> None:
    longer, shorter = Entity(1, 3, "a"), Entity(0, 1, "b")
    assert list(outcomes([shorter, longer], [Entity(0, 3, "b")])) == [("b", "wrong_boundary"), ("a", "spurious")]
    assert list(outcomes([Entity(0, 4, "c")], [shorter, longer])) == [("a", "both_wrong"), ("b", "missed")]


def test_entities_in_tags_of_all_schemes() -> None:
    assert entities_of(["I-a", "I-a", "I-b", "O", "I-b"]) == [Entity(0, 2, "a"), Entity(2, 3, "b"), Entity(4, 5, "b")]
    assert entities_of(["B-a", "L-a", "I-a", "U-a", "S-a", "E-a"]) == [
        *(Entity(0, 2, "a"), Entity(2, 3, "a"), Entity(3, 4, "a")),
        *(Entity(4, 5, "a"), Entity(5, 6, "a")),
    ]
    assert entities_of(["B", "I", "O", "I"]) == [Entity(0, 2, ""), Entity(3, 4, "")]


def test_entities_in_words() -> None:
    words = ["Ada", "Lovelace", "Carl", "in", "Turin"]
    assert in_words(words, ["B-p", "I-p", "B-p", "O", "I-l"]) == ["Ada Lovelace (p)", "Carl (p)", "Turin (l)"]


@given(SENTENCES)
def test_every_entity_has_one_outcome(sentences: list[list[tuple[str, str]]]) -> None:
    predicted, wanted = ([[pair[side] for pair in pairs] for pairs in sentences] for side in (0, 1))
    rows = entity_errors(predicted, wanted)
    of_seqeval = [Counter(kind for tags in side for kind, *_ in get_entities(tags)) for side in (predicted, wanted)]
    for row in rows:
        assert sum(row[how] for how in (*PAIRED, "missed")) == of_seqeval[1][row["type"]]
    # A wrong type is counted at the wanted one, so that only all types together are what was predicted.
    answered = sum(row[how] for row in rows for how in (*PAIRED, "spurious"))
    assert answered == of_seqeval[0].total()
    exact = {
        (number, *one)
        for number, pair in enumerate(zip(predicted, wanted, strict=True))
        for one in set(get_entities(pair[0])) & set(get_entities(pair[1]))
    }
    assert sum(row["exact"] for row in rows) == len(exact)
    # Sums over sentences: it does not matter in which order they come.
    assert entity_errors(predicted[::-1], wanted[::-1]) == rows


@settings(deadline=None)  # the first one loads seqeval's metrics
@given(SENTENCES)
def test_the_exact_ones_are_those_of_recall_and_precision(sentences: list[list[tuple[str, str]]]) -> None:
    predicted, wanted = ([[pair[side] for pair in pairs] for pairs in sentences] for side in (0, 1))
    rows = entity_errors(predicted, wanted)
    if not rows:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scores = entity_f1(predicted, wanted)
    exact, whole = sum(row["exact"] for row in rows), sum(row[how] for row in rows for how in (*PAIRED, "missed"))
    assert scores["entity_recall"] == pytest.approx(exact / whole if whole else 0)


def test_details_of_tags() -> None:
    found = tag_details("bio")([["B-x", "I-x", "O"]], [["B-x", "B-y", "O"]])
    tags = found["confusion"]
    named = [(tags["labels"][a], tags["labels"][b], n) for a, b, n in tags["counts"]]
    assert sorted(named) == [("O", "O", 1), ("x", "x", 1), ("y", "x", 1)]
    assert [(row["type"], row["wrong_boundary"], row["missed"]) for row in found["entities"]] == [
        ("x", 1, 0),
        ("y", 0, 1),
    ]
    assert set(tag_details("plain")([["N"]], [["V"]])) == {"confusion"}
