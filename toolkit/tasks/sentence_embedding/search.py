"""The evaluation of vectors by searching: every held-out text among all others; word counts are the baseline."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from toolkit.data.labels import Array
from toolkit.task import Postprocessed
from toolkit.tasks.sentence_embedding.texts import EmbeddingTexts

QUERIES_AT_ONCE = 256
"""Rows of the matrix of cosines that are in memory at once."""


@dataclass(frozen=True)
class Search:
    """The evaluation of vectors of texts: cosines for pairs with scores, a search for all else."""

    texts: EmbeddingTexts

    def postprocess(self, predictions: Mapping[int, Any]) -> Postprocessed:
        """Make what the metrics take from the vectors of all samples, each of shape (sides, dimension)."""
        known = np.stack(list(predictions.values())).astype(np.float64)
        # What was not predicted, where only a few samples are tried, is found by nothing.
        vectors = np.zeros((len(self.texts.evaluate), *known.shape[1:]))
        vectors[list(predictions)] = known
        return self.of_vectors([vectors[:, side] for side in range(vectors.shape[1])])

    def of_vectors(self, sides: Sequence[Any]) -> Postprocessed:
        """The same from a matrix for each side, dense or sparse, with rows of length 1 in the order of the samples."""
        if self.texts.evaluate.scores is not None:
            first, second = sides
            products = first.multiply(second) if hasattr(first, "multiply") else first * second
            return Postprocessed(np.asarray(products.sum(axis=1)).ravel().tolist(), self.texts.evaluate.scores.tolist())
        queries, candidates, right, excluded = self.questions
        found = search(sides[0][queries], sides[-1][candidates], right, excluded)
        found = [{**one, "nearest": int(candidates[one["nearest"]])} for one in found]
        # Queries without a right answer, such as the only held-out text of its label, are left out.
        asked = [number for number, one in enumerate(found) if one["rank"] > 0]
        cosines = [{"cosine": one.pop("cosine")} for one in found]
        return Postprocessed(
            [found[number] for number in asked],
            [int(queries[number]) for number in asked],
            scores=[cosines[number] for number in asked],
        )

    @cached_property
    def questions(self) -> tuple[Array, Array, Callable[[Array], Array], Callable[[Array], Array]]:
        """The rows of queries and of candidates, and which candidates are right, or excluded, for some queries."""
        identities = self.texts.evaluate.identities
        if self.texts.kind == "labels":
            labels, rows = identities[:, 0], np.arange(len(identities))
            return rows, rows, lambda at: labels[at, None] == labels, lambda at: at[:, None] == rows
        anchors, positives = identities[:, 0], identities[:, 1]
        _, queries = np.unique(anchors, return_index=True)
        _, candidates = np.unique(positives, return_index=True)
        queries, candidates = np.sort(queries), np.sort(candidates)
        place = {identity: number for number, identity in enumerate(positives[candidates].tolist())}
        answers: dict[int, list[int]] = {}
        for anchor, positive in zip(anchors.tolist(), positives.tolist(), strict=True):
            answers.setdefault(anchor, []).append(place[positive])

        def right(at: Array) -> Array:
            matrix = np.zeros((len(at), len(candidates)), dtype=bool)
            for row, query in zip(matrix, anchors[queries[at]].tolist(), strict=True):
                row[answers[query]] = True
            return matrix

        # A text that is another's positive finds itself; it is no answer.
        return queries, candidates, right, lambda at: anchors[queries[at], None] == positives[candidates]

    def baseline(self) -> dict[str, float]:
        """Return the scores of vectors of word counts (TF-IDF), which have learned nothing but how rare words are."""
        from sklearn.feature_extraction.text import TfidfVectorizer

        from toolkit.metrics import correlation
        from toolkit.tasks.sentence_embedding.metrics import search_quality

        # Letters and digits in a row are words, single signs too: some texts have nothing longer.
        counts = TfidfVectorizer(sublinear_tf=True, token_pattern=r"\w+|[^\w\s]")
        counts.fit(self.texts.training_texts())
        table = self.texts.evaluate.table
        sides = [counts.transform(table[column]).tocsr() for column in self.texts.columns[:2]]
        finished = self.of_vectors(sides)
        metric = correlation if self.texts.kind == "scores" else search_quality
        return metric(finished.predictions, finished.references)

    def show(self, item: int, prediction: Any, reference: Any) -> dict[str, Any]:
        """Return what a reader sees of a pair, or of a search."""
        if self.texts.kind == "scores":
            return {
                "row": self.row(item),
                "text": self.texts.text(item, 0),
                "text_pair": self.texts.text(item, 1),
                "cosine": float(prediction),
                "score": float(reference),
            }
        seen: dict[str, Any] = {"row": self.row(reference), "text": self.texts.text(reference, 0)}
        if self.texts.kind == "labels":
            labels = [self.texts.labels[label] for label in self.texts.evaluate.identities[:, 0]]
            seen |= {"label": labels[reference], "nearest_label": labels[prediction["nearest"]]}
        else:
            seen |= {"wanted": self.texts.text(reference, 1)}
        nearest = self.texts.text(prediction["nearest"], 0 if self.texts.kind == "labels" else 1)
        nearest_row = self.row(prediction["nearest"])
        return {
            **seen,
            "nearest": nearest,
            "nearest_row": nearest_row,
            "rank_of_right": prediction["rank"],
        }

    def row(self, item: int) -> int:
        """Return the row of an evaluation text where it was read, from 1 on."""
        return int(self.texts.evaluate.rows[item]) + 1


def search(
    queries: Any, candidates: Any, right: Callable[[Array], Array], excluded: Callable[[Array], Array]
) -> list[dict[str, Any]]:
    """Search for each query among all candidates by cosine, without approximation.

    Args:
        queries: vectors of length 1, shape (queries, dimension), dense or sparse.
        candidates: vectors of length 1, shape (candidates, dimension).
        right: returns which candidates are right for some queries, bool (those queries, candidates).
        excluded: returns which are not looked at, likewise.

    Returns:
        For each query the rank of the nearest right candidate (0 where none is right), the nearest candidate with its
        cosine, and the share of pairs of a right and a wrong one in which the right one is nearer. A tie counts against
        the rank and half for the share. Costs the product of both numbers.
    """
    from scipy.stats import rankdata

    found: list[dict[str, Any]] = []
    for start in range(0, queries.shape[0], QUERIES_AT_ONCE):
        at = np.arange(start, min(start + QUERIES_AT_ONCE, queries.shape[0]))
        cosines = queries[at] @ candidates.T
        cosines = cosines.toarray() if hasattr(cosines, "toarray") else cosines
        out = excluded(at)
        good = right(at) & ~out
        bad = ~good & ~out
        cosines = np.where(out, -np.inf, cosines)
        best = np.where(good, cosines, -np.inf).max(axis=1)
        ranks = 1 + (bad & (cosines >= best[:, None])).sum(axis=1)
        rights, wrongs = good.sum(axis=1), bad.sum(axis=1)
        # Mann and Whitney: the ranks of the right ones, ties averaged, tell how many pairs are in order.
        places = rankdata(cosines, axis=1) - out.sum(axis=1, keepdims=True)
        ahead = np.where(good, places, 0.0).sum(axis=1) - rights * (rights + 1) / 2
        shares = ahead / np.maximum(1, rights * wrongs)
        for number in range(len(at)):
            answered = rights[number] > 0 and wrongs[number] > 0
            found.append(
                {
                    "rank": int(ranks[number]) if answered else 0,
                    "nearest": int(cosines[number].argmax()),
                    "cosine": float(cosines[number].max()),
                    "ordered": float(shares[number]) if answered else 0.0,
                }
            )
    return found
