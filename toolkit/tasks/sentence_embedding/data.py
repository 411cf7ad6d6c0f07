"""Where texts that are to become vectors come from: pairs with scores, positives, or texts with labels."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from toolkit.config.fields import at_least, locates
from toolkit.data.columns import Columns
from toolkit.data.config import DataConfig, embedded_splits, split_rows
from toolkit.data.label_reading import comma_number, is_list, kind_of
from toolkit.data.labelled_rows import LabelledRows, check_columns, check_rows, labels_line, number_rows
from toolkit.data.labels import Array
from toolkit.data.order import permute
from toolkit.data.reading import counts_line, hold_out, usable_rows
from toolkit.errors import UserError
from toolkit.sample_data.docstrings import docstrings
from toolkit.tasks.sentence_embedding.rows import Roles, check_pairs, check_text_columns, find_roles
from toolkit.tasks.sentence_embedding.texts import EmbeddingRows, EmbeddingTexts, Kind

if TYPE_CHECKING:
    from toolkit.data.sources import Splits

CORPUS_LENGTH = 64
"""Tokens that texts of the embedded corpus are truncated to: a quarter of them are longer, and would take half of the
time."""
KEY = 0x454D42
"""Of the order of the evaluation samples: fixed, so that runs of different seeds are compared on the same blocks."""


@dataclass(frozen=True)
class EmbeddingData(DataConfig):
    """The `data` section of a recipe that makes texts into vectors."""

    kind: Literal["auto", "scores", "positives", "labels"] = "auto"
    """Pairs with a score of how alike they are; pairs that belong together; or texts with labels; auto decides by the
    columns."""
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
    """The lowest and the highest score that can be given, such as [0,5]; null takes [0,1], or what the training data
    has beyond."""
    max_length: int | None = None
    """Truncate longer texts to so many tokens; null takes them whole and refuses those that the model cannot take (the
    embedded corpus is truncated to 64)."""
    drop_invalid: bool = False
    """Leave out rows that can't be used instead of refusing them; the plan counts them."""

    has_groups: ClassVar[bool] = False

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
                yield (
                    f"data.{flag} is given and data.kind is {self.kind}; it belongs to data.kind {kind}: leave one of "
                    "them out"
                )

    @property
    def resolved_max_length(self) -> int | None:
        """What longer texts are truncated to, in tokens; None where nothing is."""
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
        summary: dict[str, str] = {}
        if roles.kind == "labels":
            train, evaluate, labels = self._labelled(read, roles, summary)
        else:
            (train, evaluate), labels = self._pairs(read, roles, summary), []
        # A global-batch loss is evaluated on blocks of neighbours: in data sorted by label these would be all alike.
        evaluate = evaluate.take(permute(np.arange(len(evaluate), dtype=np.int64), len(evaluate), KEY))
        texts = EmbeddingTexts(
            roles.kind,
            train,
            evaluate,
            self.resolved_max_length,
            labels,
            summary=summary,
            files=read.files,
            workers=self.workers,
            inputs={"text": roles.texts[0]},
        )
        if problems := list(texts.too_few()):
            raise UserError(*problems)
        return texts

    def _labelled(
        self, read: "Splits", roles: Roles, summary: dict[str, str]
    ) -> tuple[EmbeddingRows, EmbeddingRows, list[str]]:
        """Return training and evaluation texts, and the name of each label id."""
        columns = Columns(roles.texts[0], None, str(roles.value))
        if is_list(read.train.data.schema.field(columns.label).type):
            raise UserError(
                f"the label column {columns.label!r} holds several labels for a text, but each text has one here; give "
                "another column with --data.label"
            )
        check_columns(read.tables, columns.texts, [columns.label])
        for name, table in read.tables.items():
            if problem := kind_of(table, columns.label, "single", None)[1]:
                raise UserError(f"{name}: {problem}")
        names, train, evaluate, lines = number_rows(
            [check_rows(name, table, columns, "single", None) for name, table in read.tables.items()],
            "single",
            self.held_out,
            what="rows",
            drop_invalid=self.drop_invalid,
            a_row="row with a text and a label",
            invalid="rows without a valid text or label",
        )
        summary |= {
            "learned from": "texts with labels: each text and another one of its label",
            "data": read.origin,
            "columns": f"text {columns.text!r}, label {columns.label!r}",
            **lines,
            "texts": counts_line(train, evaluate),
            "labels": labels_line(train.labels, "rows"),
        }
        train, evaluate = _with_partners(train, evaluate, summary)
        chance = np.bincount(evaluate.labels.values) / len(evaluate)
        summary["chance"] = f"two texts to evaluate on have the same label with probability {(chance**2).sum():.2f}"
        first, second = (
            EmbeddingRows(rows.name, rows.table, rows.rows, rows.labels.values[:, None]) for rows in (train, evaluate)
        )
        return first, second, names

    def _pairs(self, read: "Splits", roles: Roles, summary: dict[str, str]) -> list[EmbeddingRows]:
        """Return training and evaluation pairs."""
        check_text_columns(read.tables, roles)
        splits, dropped = usable_rows(
            [check_pairs(name, table, roles, self.score_range) for name, table in read.tables.items()],
            drop_invalid=self.drop_invalid,
            a_row="row with a valid pair",
            invalid="rows without a valid pair",
        )
        summary |= {
            "learned from": LEARNED_FROM[roles.kind] + (" and a negative" if len(roles.texts) > 2 else ""),
            "data": read.origin,
            "columns": " and ".join(map(repr, roles.texts)) + (f", score {roles.value!r}" if roles.value else ""),
            **dropped,
        }
        if len(splits) == 1:
            splits = hold_out(splits[0], self._held_out(splits[0]))
            share = len(splits[1]) / (len(splits[0]) + len(splits[1]))
            summary["held out"] = (
                f"{share:.1%} of the training rows, the same for every seed; rows with one first text together"
            )
        summary["pairs"] = counts_line(*splits)
        if roles.kind == "scores":
            train, evaluate = splits
            splits = self._scaled(train, evaluate, summary)
            if any(comma_number(table, str(roles.value)) for table in read.tables.values()):
                summary["scores"] += "; read with decimal commas"
        return splits

    def _scaled(self, train: EmbeddingRows, evaluate: EmbeddingRows, summary: dict[str, str]) -> list[EmbeddingRows]:
        """Return the rows with scores from 0 to 1; the plan says what these were."""
        assert train.scores is not None
        assert evaluate.scores is not None
        values, others = train.scores, evaluate.scores
        if values.min() == values.max():
            raise UserError(
                f"training data: every score is {values[0]:g}, so there is nothing to learn; give another column with "
                "--data.score, or --data.kind positives if all of these pairs belong together"
            )
        lowest, highest = self.score_range or (min(0.0, float(values.min())), max(1.0, float(values.max())))
        if (outside := (others < lowest) | (others > highest)).any():
            raise UserError(
                f"{evaluate.name}: {outside.sum():,} scores from {others[outside].min():g} to "
                f"{others[outside].max():g} are outside {lowest:g} to {highest:g}, which the training data has; say "
                "what is possible with --data.score_range"
            )
        summary["scores"] = f"{lowest:g} is learned as cosine 0, {highest:g} as cosine 1 (data.score_range)"
        return [
            replace(rows, scores=(scores - lowest) / (highest - lowest))
            for rows, scores in ((train, values), (evaluate, others))
        ]

    def _held_out(self, whole: EmbeddingRows) -> Array:
        """Return the numbers of the rows that are held out."""
        # All rows of one anchor go to one side, or a held-out pair would be known by half.
        _, anchors = np.unique(whole.identities[:, 0], return_inverse=True)
        if len(anchors) > 1 and not anchors.any():
            raise UserError(
                f"there is no evaluation data, and none of the {len(anchors)} training rows can be held out, since all "
                "have one first text, which must be on one side; give data.eval, or rows of other first texts"
            )
        _, held = split_rows(int(anchors.max()) + 1, self.held_out)
        return np.flatnonzero(np.isin(anchors, held))


LEARNED_FROM: dict[Kind, str] = {
    "scores": "pairs of texts with a score of how alike they are",
    "positives": "pairs of texts that belong together",
}


def _with_partners(
    train: LabelledRows, evaluate: LabelledRows, summary: dict[str, str]
) -> tuple[LabelledRows, LabelledRows]:
    """Return the texts that have another one of their label to train on; the plan says how many have none."""
    alone = train.labels.counts() < 2
    train_alone, evaluate_alone = alone[train.labels.values], alone[evaluate.labels.values]
    if not train_alone.any():
        return train, evaluate
    summary["left out"] = (
        f"{train_alone.sum():,} texts to train on and {evaluate_alone.sum():,} to evaluate on, of "
        f"{alone.sum():,} labels that have no second text to train on"
    )
    train, evaluate = train.take(np.flatnonzero(~train_alone)), evaluate.take(np.flatnonzero(~evaluate_alone))
    if len(np.unique(train.labels.values)) < 2 or not len(evaluate):
        raise UserError(
            "fewer than two labels have two texts to train on, and one to evaluate on: each text needs another one of "
            "its label, and one of another label; give more rows"
        )
    return train, evaluate
