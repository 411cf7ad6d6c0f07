"""Where texts that are to become vectors come from: pairs with scores, positives, or texts with labels."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from toolkit.config.schema import at_least, locates
from toolkit.data.columns import Columns
from toolkit.data.config import DataConfig, embedded_splits, split_rows
from toolkit.data.label_reading import comma_number, is_list
from toolkit.data.labels import Array, Labels
from toolkit.data.order import permute
from toolkit.data.texts import Split, Texts
from toolkit.errors import UserError
from toolkit.sample_data.docstrings import docstrings
from toolkit.tasks.labelled_texts import LabelledTexts
from toolkit.tasks.sentence_embedding.rows import Kind, PairRows, Roles, check_pairs, check_text_columns, find_roles
from toolkit.tasks.sentence_embedding.texts import EmbeddingTexts

if TYPE_CHECKING:
    from toolkit.data.sources import Splits

CORPUS_LENGTH = 64
"""Tokens that texts of the embedded corpus are cut to: a quarter of them are longer, and would take half of the time."""
KEY = 0x454D42
"""Of the order of the evaluation samples: fixed, so that runs of different seeds are compared on the same blocks."""


@dataclass(frozen=True)
class EmbeddingData(DataConfig):
    """The `data` section of a recipe that makes texts into vectors."""

    kind: Literal["auto", "scores", "positives", "labels"] = "auto"
    """Pairs with a score of how alike they are; pairs that belong together; or texts with labels; auto decides by the columns."""
    text: str | None = locates(None)
    """The column with the text, or with the first one of a pair (the anchor); null finds it by its name."""
    text_pair: str | None = locates(None)
    """The column with the second text of a pair (the positive); null finds it by its name."""
    negative: str | None = locates(None)
    """The column with a text that does not belong to the anchor; null finds it by its name, or there is none."""
    score: str | None = locates(None)
    """The column with the score of a pair; null finds it by its name."""
    label: str | None = locates(None)
    """The column with the label of a text; null finds it by its name."""
    score_range: tuple[float, float] | None = None
    """The lowest and the highest score that can be given, such as [0,5]; null takes [0,1], or what the training data has beyond."""
    max_length: int | None = None
    """Cut longer texts to so many tokens; null takes them whole and refuses those that the model cannot take (the embedded
    corpus is cut to 64)."""
    drop_invalid: bool = False
    """Leave out rows that can't be used instead of refusing them; the plan counts them."""

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the values, a sentence each."""
        yield from super().problems()
        if self.max_length is not None:
            yield from at_least(1, "data.max_length", self.max_length)
        if self.score_range is not None and not self.score_range[0] < self.score_range[1]:
            yield f"data.score_range is {list(self.score_range)}; the first number must be below the second"
        for flag, kind in (
            ("negative", "positives"),
            ("score", "scores"),
            ("score_range", "scores"),
            ("label", "labels"),
        ):
            if getattr(self, flag) is not None and self.kind not in ("auto", kind):
                yield f"data.{flag} is given and data.kind is {self.kind}; it belongs to data.kind {kind}: leave one of them out"

    @property
    def longest(self) -> int | None:
        """What longer texts are cut to, in tokens; None where nothing is cut."""
        return CORPUS_LENGTH if self.max_length is None and self.embedded else self.max_length

    def read(self) -> EmbeddingTexts:
        """Read the data and check it.

        Raises:
            UserError: with everything that is wrong.
        """
        read = self.tables(
            lambda: embedded_splits(
                "docstrings of this Python's standard library; those of one package belong together", docstrings()
            )
        )
        roles = find_roles(read.train, self.kind, self.text, self.text_pair, self.negative, self.score, self.label)
        texts = self._labelled(read, roles) if roles.kind == "labels" else self._pairs(read, roles)
        if problems := list(texts.too_few()):
            raise UserError(*problems)
        return texts

    def _labelled(self, read: "Splits", roles: Roles) -> EmbeddingTexts:
        if is_list(read.train.data.schema.field(roles.value).type):
            raise UserError(
                f"the label column {roles.value!r} holds several labels for a text, but each text has one here; give another "
                "column with --data.label"
            )
        labelled = LabelledTexts(
            kind="single",
            text=roles.texts[0],
            label=roles.value,
            held_out=self.held_out,
            drop_invalid=self.drop_invalid,
        )
        texts = labelled.checked(read, self.longest)
        summary = {"learned from": "texts with labels: each text and another one of its label", **texts.summary}
        train, evaluate = texts.train, texts.evaluate
        alone = train.labels.counts() < 2
        if (train_alone := alone[train.labels.values]).any():
            evaluate_alone = alone[evaluate.labels.values]
            summary["left out"] = (
                f"{train_alone.sum():,} texts to train on and {evaluate_alone.sum():,} to evaluate on, of "
                f"{alone.sum():,} labels that have no second text to train on"
            )
            train = train.take(np.flatnonzero(~train_alone))
            evaluate = evaluate.take(np.flatnonzero(~evaluate_alone))
            if len(np.unique(train.labels.values)) < 2 or not len(evaluate):
                raise UserError(
                    "fewer than two labels have two texts to train on, and one to evaluate on: each text needs another one of "
                    "its label, and one of another label; give more rows"
                )
        chance = np.bincount(evaluate.labels.values) / len(evaluate)
        summary["chance"] = f"two texts to evaluate on have the same label with probability {(chance**2).sum():.2f}"
        side = replace(texts, train=train, evaluate=_shuffled(evaluate), summary={})
        return EmbeddingTexts("labels", (side,), None, summary, texts.files)

    def _pairs(self, read: "Splits", roles: Roles) -> EmbeddingTexts:
        check_text_columns(read.tables, roles)
        checked = [check_pairs(name, table, roles, self.score_range) for name, table in read.tables.items()]
        problems = [problem for part in checked for problem in part.problems]
        if problems and not self.drop_invalid:
            raise UserError(*problems)
        if nothing := [part.split.name for part in checked if not len(part.split)]:
            raise UserError(*(f"{name}: there is no row with a valid pair" for name in nothing))
        summary = {
            "learned from": LEARNED_FROM[roles.kind] + (" and a negative" if len(roles.texts) > 2 else ""),
            "data": read.origin,
            "columns": " and ".join(map(repr, roles.texts)) + (f", score {roles.value!r}" if roles.value else ""),
        }
        if problems:
            counts = " and ".join(f"{part.dropped:,} of the {part.split.name}" for part in checked)
            summary["dropped"] = f"rows without a valid pair: {counts}"
        if len(checked) == 1:
            checked = self._hold_out(checked[0])
            share = len(checked[1].split) / (len(checked[0].split) + len(checked[1].split))
            summary["held out"] = (
                f"{share:.1%} of the training rows, the same for every seed; rows with one first text together"
            )
        train, evaluate = checked
        order = permute(np.arange(len(evaluate.split), dtype=np.int64), len(evaluate.split), KEY)
        evaluate = _taken(evaluate, order)
        summary["pairs"] = f"{len(train.split):,} to train on, {len(evaluate.split):,} to evaluate on"
        scores = None
        if roles.kind == "scores":
            lowest, highest = self._score_range(train, evaluate)
            first, second = ((part.split.labels.values - lowest) / (highest - lowest) for part in (train, evaluate))
            scores = (first, second)
            summary["scores"] = f"{lowest:g} is learned as cosine 0, {highest:g} as cosine 1 (data.score_range)"
            if any(comma_number(table, str(roles.value)) for table in read.tables.values()):
                summary["scores"] += "; read with decimal commas"
        sides = tuple(
            Texts(
                "single",
                [],
                Columns(column, None, ""),
                _side(train, number),
                _side(evaluate, number),
                self.longest,
                summary={},
            )
            for number, column in enumerate(roles.texts)
        )
        return EmbeddingTexts(roles.kind, sides, scores, summary, read.files)

    def _score_range(self, train: PairRows, evaluate: PairRows) -> tuple[float, float]:
        values = train.split.labels.values
        if values.min() == values.max():
            raise UserError(
                f"training data: every score is {values[0]:g}, so there is nothing to learn; give another column with "
                "--data.score, or --data.kind positives if all of these pairs belong together"
            )
        if self.score_range is not None:
            return self.score_range
        lowest, highest = min(0.0, float(values.min())), max(1.0, float(values.max()))
        others = evaluate.split.labels.values
        if (outside := (others < lowest) | (others > highest)).any():
            raise UserError(
                f"{evaluate.split.name}: {outside.sum():,} scores from {others[outside].min():g} to {others[outside].max():g} are "
                f"outside {lowest:g} to {highest:g}, which the training data has; say what is possible with --data.score_range"
            )
        return lowest, highest

    def _hold_out(self, whole: PairRows) -> list[PairRows]:
        # All rows of one anchor go to one side, or a held-out pair would be known by half.
        _, anchors = np.unique(whole.identities[:, 0], return_inverse=True)
        if len(anchors) > 1 and not anchors.any():
            raise UserError(
                f"there is no evaluation data, and none of the {len(anchors)} training rows can be held out, since all "
                "have one first text, which must be on one side; give data.eval, or rows of other first texts"
            )
        _, held = split_rows(int(anchors.max()) + 1, self.held_out)
        chosen = np.isin(anchors, held)
        return [
            _taken(whole, np.flatnonzero(~chosen)),
            _taken(whole, np.flatnonzero(chosen), "held-out rows of the training data"),
        ]


LEARNED_FROM: dict[Kind, str] = {
    "scores": "pairs of texts with a score of how alike they are",
    "positives": "pairs of texts that belong together",
}


def _taken(rows: PairRows, numbers: Array, name: str | None = None) -> PairRows:
    return rows._replace(split=rows.split.take(numbers, name), identities=rows.identities[numbers])


def _shuffled(split: Split) -> Split:
    # A global-batch loss is evaluated on blocks of neighbours: in data that is sorted by label these would be all alike.
    return split.take(permute(np.arange(len(split), dtype=np.int64), len(split), KEY))


def _side(rows: PairRows, number: int) -> Split:
    """Return the texts of one column, with their identities as labels."""
    split, count = rows.split, len(rows.split)
    nothing, one_each = np.zeros(count, dtype=bool), np.arange(count + 1, dtype=np.int64)
    labels = Labels("single", [], rows.identities[:, number], one_each, nothing, nothing)
    column = split.texts.column_names[number]
    return Split(f"{split.name}, column {column!r}", split.texts.select_columns([column]), labels, split.rows)
