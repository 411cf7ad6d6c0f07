"""What a reader wants to know of predicted tags beside their metrics: see `Task.details`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from toolkit.details import Details, confusion
from toolkit.tasks.token_classification.entities import OUTCOMES, entities_of, outcomes
from toolkit.tasks.token_classification.tags import Kind

Tags = Sequence[Sequence[str]]
PREFIXES = ("B-", "I-")


def tag_details(kind: Kind) -> Details:
    """Return a task's `details` for tags: which one is taken for which, and of entities what became of each."""

    def details(predictions: Tags, references: Tags) -> Mapping[str, Any]:
        entities = {"entities": entity_errors(predictions, references)} if kind == "bio" else {}
        return {**entities, **word_by_word(predictions, references)}

    return details


def word_by_word(predictions: Tags, references: Tags) -> dict[str, Any]:
    """Return which tag is taken for which, word by word; of entities (B-x, I-x) which type x."""
    given, wanted = (
        [tag[2:] if tag[:2] in PREFIXES else tag for tags in side for tag in tags] for side in (predictions, references)
    )
    labels = sorted({*given, *wanted})
    number = {label: place for place, label in enumerate(labels)}
    sides = (np.array([number[tag] for tag in side], dtype=np.int64) for side in (given, wanted))
    return {"confusion": confusion(labels, *sides)}


def entity_errors(predictions: Tags, references: Tags) -> list[dict[str, Any]]:
    """Return for each type of entity, sorted, how many had which outcome: sums over the sentences.

    All but the spurious ones together are the entities of that type in the references.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for predicted, wanted in zip(predictions, references, strict=True):
        counts.update(outcomes(entities_of(predicted), entities_of(wanted)))
    types = sorted({type_ for type_, _ in counts})
    return [{"type": type_, **{how: counts[type_, how] for how in OUTCOMES}} for type_ in types]
