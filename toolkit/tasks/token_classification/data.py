"""Sentences with a tag on each word: where they come from, what a recipe asks of them, and their windows of tokens."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from toolkit.config.fields import at_least, locates
from toolkit.config.loss import LossConfig
from toolkit.data.columns import find_column
from toolkit.data.config import DataConfig, embedded_splits
from toolkit.data.formats.header import NoHeaderError
from toolkit.data.label_loss import label_loss
from toolkit.data.reading import DataRead, missing_columns, row_numbers, usable_rows
from toolkit.errors import UserError
from toolkit.sample_data.code_tokens import code_tokens
from toolkit.task import Postprocessed, TaskData
from toolkit.tasks.token_classification.entities import in_words
from toolkit.tasks.token_classification.files import read_tag_files
from toolkit.tasks.token_classification.rows import TaggedRows, read_rows, refuse_numbers
from toolkit.tasks.token_classification.tags import (
    OUTSIDE,
    Kind,
    hold_out_by_tag,
    in_scheme,
    names_for_head,
    numbered,
    tag_names,
    tags_line,
)
from toolkit.tasks.token_classification.window_sizes import window_sizes
from toolkit.tasks.token_classification.windows import TaggedWindows, added_tokens, tokenize_words
from toolkit.tasks.token_classification.word_rows import sentences_of

if TYPE_CHECKING:
    from toolkit.data.sources import Splits
    from toolkit.losses import LabelLoss

WORD_NAMES = (("tokens",), ("words",), ("token", "word"), ("sentence", "text"))
TAG_NAMES = (
    ("tags",),
    ("ner_tags",),
    ("labels", "label", "ner", "entities", "tag"),
    ("pos_tags", "upos", "pos"),
    ("chunk_tags", "xpos"),
)

CONLL_HINT = "; a CoNLL file, with a word and its tag on each line, has the ending .conll"


@dataclass(frozen=True)
class TaggedTexts(DataConfig):
    """The `data` section of a recipe that tags words."""

    tokens: str | None = locates(None)
    """The column with the words; null finds it by its name."""
    tags: str | None = locates(None)
    """The column with a tag for each word; null finds it by its name."""
    sentence: str | None = locates(None)
    """The column that tells which sentence a word is of, in a table with one word in each row; it may be filled in the
    first row of each sentence alone. Null finds it by its name, such as "Sentence #" or sentence_id."""
    kind: Literal["auto", "bio", "plain"] = "auto"
    """Tags that mark entities (bio: B-person, I-person, O), or a class for each word (plain); auto decides by the
    tags."""
    repair: bool = False
    """Read I-x where no x has begun as its beginning (the older scheme IOB1) instead of refusing such rows; the plan
    counts them."""
    max_length: int | None = None
    """Tokens of a window, special ones included; null is what the model takes. Longer sentences are covered by several
    windows."""
    overlap: int | None = None
    """Tokens that two neighbouring windows share at most; null is a quarter of a window."""
    drop_invalid: bool = False
    """Leave out rows with words or tags missing instead of refusing them; the plan counts them."""

    text_is_document: ClassVar[bool] = True  # of which `read_tag_files` makes sentences

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the values, a sentence each."""
        yield from super().problems()
        if self.max_length is not None:
            yield from at_least(1, "data.max_length", self.max_length)
        if self.overlap is not None:
            yield from at_least(0, "data.overlap", self.overlap)
        if self.sentence is not None and self.embedded:
            yield f"data.sentence is {self.sentence!r}, but no file is given; give data.train or data.name too"
        if self.repair and self.kind == "plain":
            yield (
                "data.repair is true and data.kind is plain; plain tags have no beginnings to repair: leave one of the "
                "two out"
            )

    def read(self, saved: Sequence[str] | None = None, trained: bool = False) -> "TaggedSentences":
        """Read the data, check it, and number its tags.

        Args:
            saved: the tags of the model's own head, in the order of their ids, or None.
            trained: the head is used as it is, because nothing is trained: then every tag has to be one of `saved`.

        Raises:
            UserError: with everything that is wrong.
        """
        read = self._tables()
        words, tags = self._columns(read)
        if self.tokens is None and words == "tokens" and "column_2" in read.train.column_names:
            refuse_numbers(read.train)
        if problems := missing_columns(read.tables, (words, tags)):
            raise UserError(*problems)
        splits, dropped = usable_rows(
            [read_rows(name, table, words, tags) for name, table in read.tables.items()],
            drop_invalid=self.drop_invalid,
            a_row="row with words and tags",
            invalid="rows with words or tags missing",
        )
        kind, splits, scheme = in_scheme(splits, self.kind, self.repair)
        summary = {"data": read.origin, "columns": f"words {words!r}, tags {tags!r}", **dropped, **scheme}
        known = list(saved) if trained and saved is not None else None
        names = known or tag_names(kind, splits[0])
        if not trained:
            names, summary["head"] = names_for_head(names, saved)
        if len(splits) == 1:
            splits, summary["held out"] = hold_out_by_tag(splits[0], self.held_out)
        train, evaluate = numbered(kind, splits, names, known is not None)
        counts = [f"{len(rows):,} with {len(rows.tags):,} words" for rows in (train, evaluate)]
        summary["sentences"] = f"{counts[0]} to train on, {counts[1]} to evaluate on"
        summary["tags"] = tags_line(kind, train)
        return TaggedSentences(
            kind,
            names,
            train,
            evaluate,
            self.max_length,
            self.overlap,
            summary=summary,
            files=read.files,
            workers=self.workers,
            inputs={"tokens": words},
            groups=self.groups_of(read, evaluate.rows),
        )

    def _tables(self) -> "Splits":
        if self.embedded:
            return self.limited(
                embedded_splits("lines of this Python's standard library, held out by file", *code_tokens())
            )
        try:
            return self.each_set(lambda own: own.in_sentences(read_tag_files(own)))
        except NoHeaderError as error:
            raise UserError(*(problem + CONLL_HINT for problem in error.problems)) from None

    def in_sentences(self, read: "Splits") -> "Splits":
        """Return rows that are single words as sentences, and any others as they are."""
        words, tags = self._columns(read)
        return sentences_of(read, words, tags, self.sentence, self.group)

    def _columns(self, read: "Splits") -> tuple[str, str]:
        """Return the columns of the words and of the tags."""
        names = read.train.column_names
        try:
            given = [] if self.tags is None else [self.tags]
            words = find_column(names, "tokens", self.tokens, WORD_NAMES, "the words", taken=given)
            return words, find_column(names, "tags", self.tags, TAG_NAMES, "the tags", taken=[words])
        except UserError as error:
            hint = ""
            tables = read.files and all({".tsv", ".csv"} & set(path.suffixes) for path in read.files)
            if tables and self.tokens is None and self.tags is None:
                hint = CONLL_HINT
            raise UserError(*(problem + hint for problem in error.problems)) from None


@dataclass(frozen=True)
class TaggedData(TaskData):
    """The data of a task that tags words."""

    train: TaggedWindows
    evaluate: TaggedWindows


@dataclass(frozen=True)
class TaggedSentences(DataRead):
    """Training and evaluation sentences with numbered tags."""

    kind: Kind
    labels: list[str]
    """The name of each tag id."""
    train: TaggedRows
    evaluate: TaggedRows
    max_length: int | None
    overlap: int | None

    def training_texts(self) -> Iterator[str]:
        """Yield every training sentence, to train a tokenizer on; few are in memory at once."""
        return self.train.texts()

    @property
    def training_digest(self) -> str:
        """A hash of the training words: the key under which a tokenizer that was trained on them can be kept."""
        return self.train.digest

    @cached_property
    def commonest(self) -> str:
        """The tag that stands for not knowing: O, or of plain tags the one that most training words have."""
        if self.kind == "bio":
            return OUTSIDE
        return self.labels[int(np.bincount(self.train.tags, minlength=len(self.labels)).argmax())]

    def loss(self, config: LossConfig) -> "LabelLoss":
        """Return the loss that a configuration asks for, of words, and describe its weights in the plan."""
        counts = np.bincount(self.train.tags, minlength=len(self.labels))
        if self.kind == "bio":
            # The inside of an entity that is always one word in training counts as its beginning does.
            for number, name in enumerate(self.labels):
                if not counts[number] and name != OUTSIDE and f"B{name[1:]}" in self.labels:
                    counts[number] = counts[self.labels.index(f"B{name[1:]}")]
        return label_loss(config, "single", self.labels, counts, len(self.train.tags), self.summary)

    def tokenize(self, tokenizer: Any) -> TaggedData:
        """Return the sentences as windows of tokens.

        Raises:
            UserError: a window would hold nothing or more than the model takes, or words are longer than a window and
                data.max_length does not ask to truncate them.
        """
        max_length, overlap = window_sizes(tokenizer, self.max_length, self.overlap)
        room = max_length - added_tokens(tokenizer)
        parts, problems, truncated = [], [], 0
        for rows in (self.train, self.evaluate):
            parts.append(windows := tokenize_words(rows, tokenizer, max_length, overlap))
            long = np.flatnonzero(windows.longest > room)
            truncated += len(long)
            if len(long) and self.max_length is None:
                problems.append(
                    f"{rows.name}: a word of more tokens than the model takes at once ({room}; the longest has "
                    f"{windows.longest.max():,}) in {row_numbers(rows.rows[long])}; correct these words, or keep the "
                    f"first tokens of each with --data.max_length {max_length}"
                )
        if problems:
            raise UserError(*problems)
        several = sum(int((np.bincount(windows.sentence) > 1).sum()) for windows in parts)
        summary = {
            "windows": f"{sum(map(len, parts)):,} of at most {max_length} tokens; {several:,} sentences need several, "
            f"which share {overlap} tokens"
        }
        if truncated:
            summary["windows"] += f"; {truncated:,} sentences have a word that is cut to a window"
        if lost := sum(int(windows.lost.sum()) for windows in parts):
            summary["unreadable"] = (
                f"{lost:,} words that the tokenizer makes nothing of: no loss, and always predicted as "
                f"{self.commonest!r}"
            )
        train, evaluate = parts
        texts = self.summary | summary
        return TaggedData(
            train, evaluate, self.files, self.workers, texts, self.inputs, self.groups, item_of=evaluate.sentence
        )

    def postprocess(self, windows: TaggedWindows, predictions: Mapping[int, Any]) -> Postprocessed:
        """Return tags by sentence, and how sure the model is of them.

        `predictions` are of each window (2, its words): the tag ids, and their probabilities.
        """
        rows = windows.rows
        names = np.array(self.labels, dtype=object)
        tags = np.full(len(rows.tags), self.labels.index(self.commonest), dtype=np.int64)
        sure = np.full(len(tags), np.nan)  # stays so for words that the tokenizer makes nothing of
        for window, (predicted, probable) in predictions.items():
            words = windows.words(window)
            tags[words], sure[words] = np.asarray(predicted, dtype=np.int64), probable
        inside = [slice(first, last) for first, last in zip(rows.starts[:-1], rows.starts[1:], strict=True)]
        references = [names[rows.tags[one]].tolist() for one in inside]
        known = [one[~np.isnan(one)] for one in (sure[words] for words in inside)]
        scores = [{"lowest": float(one.min()), "mean": float(one.mean())} if len(one) else {} for one in known]
        baseline = [[self.commonest] * len(one) for one in references]
        return Postprocessed([names[tags[one]].tolist() for one in inside], references, baseline, scores)

    def show(self, sentence: int, predicted: Sequence[str], expected: Sequence[str]) -> dict[str, Any]:
        """Return what a reader sees of an evaluated sentence: its entities, or its words with their tags."""
        words = self.evaluate.table[sentence]["tokens"]
        shown = {"row": int(self.evaluate.rows[sentence]) + 1, "text": " ".join(words)}
        if self.kind == "bio":
            return {**shown, "predicted": in_words(words, predicted), "expected": in_words(words, expected)}
        tagged = list(zip(words, predicted, expected, strict=True))
        return {
            **shown,
            "predicted": " ".join(f"{word}/{tag}" for word, tag, _ in tagged),
            "wrong": [f"{word} is {right}, not {tag}" for word, tag, right in tagged if tag != right],
        }
