"""Texts with labels: what is read, how it is numbered and truncated, and what is said about bad input."""

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from toolkit.data import tokenized as tokenized_texts
from toolkit.data.columns import find_columns
from toolkit.errors import UserError
from toolkit.tasks.text_classification import data as text_data
from toolkit.tasks.text_classification.data import LabelledTexts
from toolkit.tasks.text_classification.texts import pad_texts

Rows = list[dict[str, Any]]
WORDS = ["red", "green", "blue", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINETUNE_TOOLKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Rows, str], str]:
    def to_file(rows: Rows, name: str = "train.jsonl") -> str:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return str(path)

    return to_file


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., str]:
    """Write a saved data set with the types of `datasets`."""

    def to_folder(features: dict[str, Any], **splits: dict[str, list[Any]]) -> str:
        from datasets import Dataset, DatasetDict, Features

        tables = {name: Dataset.from_dict(rows, features=Features(features)) for name, rows in splits.items()}
        DatasetDict(tables).save_to_disk(tmp_path / "saved")
        return str(tmp_path / "saved")

    return to_folder


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    backend.train_from_iterator(WORDS, trainers.WordLevelTrainer(special_tokens=special))
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def rows_of(labels: list[Any], column: str = "label") -> Rows:
    return [{"text": " ".join(WORDS[: 1 + i % 7]), column: label} for i, label in enumerate(labels)]


def message_of(data: LabelledTexts, known: list[str] | None = None) -> str:
    with pytest.raises(UserError) as caught:
        data.read(known)
    return str(caught.value)


# What labels may be


def test_strings_are_sorted_and_numbered(write: Any) -> None:
    texts = LabelledTexts(train=write(rows_of(["b", "a ", "c", "a"] * 10)), held_out=0.25).read()
    assert (texts.kind, texts.labels, texts.train.table.column_names) == ("single", ["a", "b", "c"], ["text"])
    assert (len(texts.train), len(texts.evaluate)) == (30, 10)
    together = {**dict(zip(texts.train.rows.tolist(), texts.train.labels.values.tolist(), strict=True))}
    together |= dict(zip(texts.evaluate.rows.tolist(), texts.evaluate.labels.values.tolist(), strict=True))
    assert [together[row] for row in range(40)] == [1, 0, 2, 0] * 10
    assert texts.baseline == 0
    assert texts.summary["texts"] == "30 to train on, 10 to evaluate on"
    assert texts.summary["held out"].startswith("25.0% of the training rows")


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ([10, 9, 2] * 4, ["2", "9", "10"]),
        ([-1, 1, 0] * 4, ["-1", "0", "1"]),
        ([5.0, 1.0] * 6, ["1", "5"]),
        ([True, False] * 6, ["false", "true"]),
        (["10", "9"] * 6, ["9", "10"]),
    ],
)
def test_numbers_as_classes_are_ordered_by_value(write: Any, values: list[Any], names: list[str]) -> None:
    texts = LabelledTexts(train=write(rows_of(values))).read()
    assert (texts.kind, texts.labels) == ("single", names)


def test_class_labels_keep_their_names_and_order(saved: Any) -> None:
    from datasets import ClassLabel, Value

    folder = saved(
        {"sentence": Value("string"), "label": ClassLabel(names=["no", "maybe", "yes"])},
        train={"sentence": ["one", "two", "three", "four"], "label": [2, 0, 1, 2]},
        test={"sentence": ["five"], "label": [0]},
    )
    texts = LabelledTexts(name=folder).read()
    assert texts.labels == ["no", "maybe", "yes"]
    assert texts.train.labels.values.tolist() == [2, 0, 1, 2]
    assert texts.evaluate.labels.values.tolist() == [0]
    assert "held out" not in texts.summary


def test_a_class_label_of_minus_one_is_no_label(saved: Any) -> None:
    from datasets import ClassLabel, Value

    features = {"sentence": Value("string"), "label": ClassLabel(names=["no", "yes"])}
    rows = {"sentence": ["one", "two", "three"], "label": [0, -1, 1]}
    message = message_of(LabelledTexts(name=saved(features, train=rows, test=rows)))
    assert "training data: no label in column 'label' in 1 row (number 2," in message
    assert "evaluation data: no label" in message


def test_lists_are_several_labels(write: Any) -> None:
    texts = LabelledTexts(train=write(rows_of([["b", "a"], ["a", "a"], [], ["c", "b"]] * 5, "tags"))).read()
    assert (texts.kind, texts.labels) == ("multi", ["a", "b", "c"])
    targets = {row: texts.train.labels.target(i) for i, row in enumerate(texts.train.rows.tolist())}
    expected = [[1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 1.0, 1.0]]
    assert len(targets) == 18
    assert all(target == expected[row % 4] for row, target in targets.items())
    assert texts.baseline == [0.0, 1.0, 0.0] or sum(texts.baseline) == 1  # none has more than half


def test_zero_one_vectors_and_lists_of_class_labels(write: Any, saved: Any) -> None:
    from datasets import ClassLabel, List, Value

    vectors = LabelledTexts(train=write(rows_of([[0, 1, 1], [1, 0, 0], [0, 0, 0]] * 4, "labels"))).read()
    assert vectors.labels == ["0", "1", "2"]
    assert [0.0, 1.0, 1.0] in [vectors.train.labels.target(i) for i in range(len(vectors.train))]
    numbers = LabelledTexts(train=write(rows_of([[4, 11], [11], [4]] * 4, "labels"))).read()
    assert numbers.labels == ["4", "11"]
    named = {"text": Value("string"), "labels": List(ClassLabel(names=["z", "a", "unused"]))}
    folder = saved(
        named, train={"text": ["one", "two"], "labels": [[0, 1], [1]]}, test={"text": ["x"], "labels": [[0]]}
    )
    texts = LabelledTexts(name=folder).read()
    assert texts.labels == ["z", "a", "unused"]
    assert [texts.train.labels.target(i) for i in range(2)] == [[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]]


def test_the_training_data_decides_what_lists_of_zero_and_one_mean(write: Any) -> None:
    evaluate = write(rows_of([[0, 1]]), "eval.jsonl")
    vectors = LabelledTexts(train=write(rows_of([[0, 1], [1, 0], [1, 1]])), eval=evaluate).read()
    assert vectors.evaluate.labels.target(0) == [0.0, 1.0]
    ids = LabelledTexts(train=write(rows_of([[0, 1], [1], [2]])), eval=evaluate).read()
    assert ids.evaluate.labels.target(0) == [1.0, 1.0, 0.0]
    other = write(rows_of([[1], [0, 1]]), "eval.jsonl")
    data = LabelledTexts(train=write(rows_of([[0, 1], [1, 0]])), eval=other)
    assert "lists that are not 0/1 vectors of one length" in message_of(data)


def test_a_separator_makes_several_labels(write: Any, tmp_path: Path) -> None:
    train = tmp_path / "train.csv"
    train.write_text("text,topics\n" + "one two,1; 2\nthree,2\nfour,1;;3\n" * 5, encoding="utf-8")
    evaluate = tmp_path / "eval.csv"  # here a reader makes integers of the column
    evaluate.write_text("text,topics\nfive,3\nsix,2\n", encoding="utf-8")
    texts = LabelledTexts(train=str(train), eval=str(evaluate), label="topics", separator=";").read()
    assert (texts.kind, texts.labels) == ("multi", ["1", "2", "3"])
    assert [texts.train.labels.target(i) for i in range(3)] == [[1.0, 1.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 1.0]]
    assert [texts.evaluate.labels.target(i) for i in range(2)] == [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
    assert texts.baseline == [1.0, 1.0, 0.0]  # both stand on two rows of three


def test_numbers_that_are_not_whole_are_regression(write: Any) -> None:
    texts = LabelledTexts(train=write(rows_of([0.5, 1, 2, 4.5] * 5, "score"))).read()
    assert (texts.kind, texts.labels) == ("regression", [])
    assert len(texts.evaluate) == 2
    assert texts.baseline == pytest.approx(texts.train.labels.values.mean())
    assert isinstance(texts.train.labels.target(0), float)
    assert texts.summary["labels"].startswith("numbers from 0.5 to 4.5")
    stars = LabelledTexts(train=write(rows_of(["1", "2", "5"] * 5, "stars")), kind="regression").read()
    assert sorted(set(stars.train.labels.values.tolist())) == [1.0, 2.0, 5.0]


def test_known_labels_fix_the_ids(write: Any) -> None:
    data = LabelledTexts(train=write(rows_of(["b", "a"] * 10)))
    texts = data.read(["c", "b", "a"])
    assert texts.labels == ["c", "b", "a"]
    assert set(texts.train.labels.values.tolist()) == {1, 2}
    message = message_of(data, ["a", "c"])
    assert "labels that the model, whose labels are 'a', 'c', does not know: 'b' (10 rows)" in message


# Columns


def test_columns_are_found_by_name() -> None:
    def found(*columns: str, **given: str) -> tuple[str, str | None, str]:
        result = find_columns(columns, [name for name in columns if name not in ("id", "n")], **given)
        return result.text, result.text_pair, result.label

    assert found("id", "Text", "Label") == ("Text", None, "Label")
    assert found("text", "category") == ("text", None, "category")
    assert found("idx", "premise", "hypothesis", "label") == ("premise", "hypothesis", "label")
    assert found("question1", "question2", "is_duplicate") == ("question1", "question2", "is_duplicate")
    assert found("label", "label_text", "Review Text") == ("Review Text", None, "label")
    assert found("question", "sentence", "label") == ("question", "sentence", "label")
    assert found("question", "intent") == ("question", None, "intent")
    assert found("premise", "hypothesis", "label", text="premise") == ("premise", None, "label")
    assert found("utterance", "what") == ("utterance", None, "what")
    assert found("anything", "label") == ("anything", None, "label")
    assert found("a", "b", "c", text="b", text_pair="a", label="c") == ("b", "a", "c")


@pytest.mark.parametrize(
    "columns", [("a", "b"), ("review", "comment", "label"), ("text", "class", "target"), ("n", "label")]
)
def test_columns_that_cannot_be_decided_are_listed(columns: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match="cannot tell which column holds") as caught:
        find_columns(columns, [name for name in columns if name != "n"])
    assert all(repr(column) in str(caught.value) for column in columns)
    assert "--data." in str(caught.value)


def test_columns_that_do_not_exist_are_named_together_with_those_that_do(write: Any) -> None:
    path = write(rows_of(["a", "b"] * 5))
    message = message_of(LabelledTexts(train=path, text="txt", label="stars"))
    assert "data.text is 'txt', but the data has the columns 'text', 'label'; did you mean 'text'?" in message
    assert "data.label is 'stars', but the data has" in message
    assert "more than once" in message_of(LabelledTexts(train=path, text="text", label="text"))


# Bad input


def test_empty_texts_and_labels_are_counted_and_can_be_dropped(write: Any) -> None:
    rows = rows_of(["a", "b"] * 20)
    for row in range(0, 24, 2):
        rows[row]["text"] = " \t" if row else None
    rows[5]["label"] = None
    rows[7]["label"] = "  "
    data = LabelledTexts(train=write(rows))
    message = message_of(data)
    assert "empty text in column 'text' in 12 rows (numbers 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, ..., counted" in message
    assert "no label in column 'label' in 2 rows (numbers 6, 8, counted from 1" in message
    assert "--data.drop_invalid true" in message
    texts = LabelledTexts(train=data.train, drop_invalid=True).read()
    assert len(texts.train) + len(texts.evaluate) == 26
    assert texts.summary["dropped"] == "rows without a valid text or label: 14 of the training data"
    assert 1 in texts.train.rows.tolist() + texts.evaluate.rows.tolist()
    nothing = write([{"text": "", "label": "a"}] * 3)
    assert "there is no row with a text and a label" in message_of(LabelledTexts(train=nothing, drop_invalid=True))


def test_labels_that_are_all_alike_are_refused(write: Any) -> None:
    assert "every row has the label 'a'" in message_of(LabelledTexts(train=write(rows_of(["a"] * 5))))
    assert "every label is 1, so" in message_of(LabelledTexts(train=write(rows_of([1] * 5)), kind="regression"))
    assert "no row has any label" in message_of(LabelledTexts(train=write(rows_of([[], []]))))
    assert "every row has the label 'a'" in message_of(LabelledTexts(train=write(rows_of([["a"], ["a"]]))))


def test_labels_that_training_never_saw_are_named_with_counts(write: Any) -> None:
    train, evaluate = write(rows_of(["a", "b"])), write(rows_of(["a", "x", "y", "x"]), "eval.jsonl")
    message = message_of(LabelledTexts(train=train, eval=evaluate))
    assert "evaluation data: labels that the training data does not know: 'x' (2 rows), 'y' (1 row)" in message


def test_a_class_name_without_training_rows_counts_as_unseen(saved: Any) -> None:
    from datasets import ClassLabel, Value

    folder = saved(
        {"text": Value("string"), "label": ClassLabel(names=["a", "b", "c"])},
        train={"text": ["one", "two"], "label": [0, 1]},
        test={"text": ["one"], "label": [2]},
    )
    assert "does not know: 'c' (1 row)" in message_of(LabelledTexts(name=folder))


def test_a_text_column_without_text_is_refused(write: Any) -> None:
    rows = [{"text": i, "label": "ab"[i % 2]} for i in range(6)]
    assert "training data: the text column 'text' holds int64, not text" in message_of(LabelledTexts(train=write(rows)))


def test_evaluation_data_with_other_columns_is_refused(write: Any) -> None:
    train, evaluate = write(rows_of(["a", "b"])), write(rows_of(["a"], "class"), "eval.jsonl")
    message = message_of(LabelledTexts(train=train, eval=evaluate))
    assert (
        "evaluation data: no column 'label', which the training data has; the columns here are 'text', 'class'"
        in message
    )


def test_regression_needs_finite_numbers(write: Any) -> None:
    path = write(rows_of(["1.5", "many", "inf", "2", None] * 2))
    message = message_of(LabelledTexts(train=path, kind="regression"))
    assert "is not a finite number, which data.kind regression needs, in 4 rows (numbers 2, 3, 7, 8, counted" in message
    assert "no label in column 'label' in 2 rows (numbers 5, 10," in message
    assert len(LabelledTexts(train=path, kind="regression", drop_invalid=True).read().train) == 3


@pytest.mark.parametrize(
    ("labels", "kind", "said"),
    [
        ([["a"], ["b"]], "single", "data.kind is single, but the label column 'label' holds list<"),
        ([["a"], ["b"]], "regression", "data.kind is regression, but the label column"),
        (["a", "b"], "multi", "data.separator"),
        ([1, 2], "multi", "data.separator"),
        ([True, False], "regression", "which are no numbers"),
        ([{"a": 1}, {"a": 2}], "auto", "which is no label"),
        ([[["a"]], [["b"]]], "auto", "which is no label"),
    ],
)
def test_a_kind_that_does_not_fit_is_explained(write: Any, labels: list[Any], kind: Any, said: str) -> None:
    assert said in message_of(LabelledTexts(train=write(rows_of(labels * 5)), kind=kind))


def test_regression_does_not_fit_a_model_with_classes(write: Any) -> None:
    assert "the model puts texts into 2 classes ('a', 'b')" in message_of(
        LabelledTexts(train=write(rows_of([0.5, 1.5] * 4))), ["a", "b"]
    )


def test_rows_that_cannot_be_held_out(write: Any) -> None:
    assert "none of the 2 training rows can be held out" in message_of(LabelledTexts(train=write(rows_of(["a", "b"]))))
    said = message_of(LabelledTexts(train=write(rows_of(["a", "b", "c"]))))
    assert "each of the 3 training rows has a label of its own" in said


def test_problems_of_the_configuration() -> None:
    data = LabelledTexts(eval="x.csv", config="c", max_length=0, held_out=1.0, workers=-1, separator=";", kind="single")
    problems = list(data.problems())
    assert len(problems) == 6
    for field in ("data.max_length is 0", "data.workers is -1", "data.held_out is 1.0", "data.eval is 'x.csv'"):
        assert any(field in problem for problem in problems)
    assert list(LabelledTexts(separator="").problems()) == [
        "data.separator is an empty text; give the sign between two labels, or leave it out"
    ]
    assert not list(LabelledTexts().problems())


def test_labels_that_are_equally_frequent_have_no_rarest(write: Any) -> None:
    even = LabelledTexts(train=write(rows_of(["a", "b"] * 5)), held_out=0.2).read()
    assert even.summary["labels"] == "2; each with 4 training rows"
    assert even.summary["held out"].startswith("20.0% of the training rows")
    odd = LabelledTexts(train=write(rows_of(["a", "b", "b"] * 4)), held_out=0.25).read()
    assert "the rarest is 'a' with" in odd.summary["labels"]


def test_only_the_embedded_corpus_is_truncated_without_being_asked() -> None:
    assert LabelledTexts().resolved_max_length == 128
    assert LabelledTexts(max_length=64).resolved_max_length == 64
    assert LabelledTexts(train="a.csv").resolved_max_length is None
    assert LabelledTexts(name="a", max_length=256).resolved_max_length == 256


# Tokens


def test_tokens_are_made_once_and_fetched_by_number(
    write: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = LabelledTexts(train=write(rows_of(["a", "b"] * 10)))
    texts = data.read()
    train, evaluate = texts.tokenize(tokenizer)
    assert (len(train), len(evaluate)) == (18, 2)
    assert train.digest() != evaluate.digest()
    rows = texts.train.rows.tolist()
    samples = train.fetch([5, 0, 5])
    for sample, number in zip(samples, (5, 0, 5), strict=True):
        words = rows_of(["a", "b"] * 10)[rows[number]]["text"]
        assert sample["text"]["input_ids"] == tokenizer(words)["input_ids"]
        assert sample["label"] == rows[number] % 2
        assert set(sample) == {"text", "label"}
        assert set(sample["text"]) == {"input_ids", "token_type_ids"}
    lengths = train.lengths(np.array([5, 0]))
    assert lengths.dtype == np.int64
    assert lengths.tolist() == [len(sample["text"]["input_ids"]) for sample in samples[:2]]
    assert train.fetch([]) == []

    monkeypatch.setattr(tokenized_texts, "encode_texts", lambda *_: pytest.fail("the texts were tokenized again"))
    again, _ = data.read().tokenize(tokenizer)
    assert pickle.loads(pickle.dumps(train)).fetch([3]) == train.fetch(
        [3]
    )  # as a worker process that is spawned gets it
    assert again.digest() == train.digest()
    assert again.fetch(range(18)) == train.fetch(range(18))


def test_other_labels_use_the_same_tokens_but_are_another_source(write: Any, tokenizer: Any) -> None:
    evaluate = write(rows_of(["a", "b"]), "eval.jsonl")
    first, _ = LabelledTexts(train=write(rows_of(["a", "b"] * 4)), eval=evaluate).read().tokenize(tokenizer)
    second, _ = LabelledTexts(train=write(rows_of(["b", "a"] * 4)), eval=evaluate).read().tokenize(tokenizer)
    assert first.digest() != second.digest()
    assert [s["text"] for s in first.fetch(range(8))] == [s["text"] for s in second.fetch(range(8))]


def test_long_texts_are_refused_or_truncated_and_counted(write: Any, tokenizer: Any) -> None:
    path = write(rows_of(["a", "b"] * 7))  # 1 to 7 words, and two special tokens
    with pytest.raises(UserError) as caught:
        LabelledTexts(train=path).read().tokenize(tokenizer, limit=8)
    assert "longer than the 8 tokens that the model takes (the longest has 9)" in str(caught.value)
    assert "--data.max_length 8" in str(caught.value)
    numbers = [number for number in (7, 14) if str(number) in str(caught.value)]
    assert numbers == [7, 14]
    texts = LabelledTexts(train=path, max_length=5).read()
    before = tokenizer.backend_tokenizer.truncation
    train, _ = texts.tokenize(tokenizer, limit=8)
    assert tokenizer.backend_tokenizer.truncation == before
    assert max(train.lengths(np.arange(len(train)))) == 5
    assert all(sample["text"]["input_ids"][-1] == 3 for sample in train.fetch(range(len(train))))
    assert texts.summary["lengths"].endswith("8 of 14 texts truncated to 5")
    with pytest.raises(UserError, match=r"data.max_length is 9, but the model takes at most 8 tokens"):
        LabelledTexts(train=path, max_length=9).read().tokenize(tokenizer, limit=8)
    with pytest.raises(UserError, match=r"data.max_length is 2, and the tokenizer adds 2 tokens .* at least 3"):
        LabelledTexts(train=path, max_length=2).read().tokenize(tokenizer)


def test_texts_without_a_token_are_refused(write: Any, tokenizer: Any) -> None:
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A", pair="$A $B", special_tokens=[]
    )
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.CharDelimiterSplit("+")
    rows = rows_of(["a", "b"] * 4)
    rows[3]["text"] = "+"
    with pytest.raises(UserError, match=r"1 row \(number 4, .* without a single token"):
        LabelledTexts(train=write(rows)).read().tokenize(tokenizer)


def test_another_tokenizer_is_another_entry_but_not_its_last_call(tokenizer: Any) -> None:
    first = tokenized_texts.tokenizer_digest(tokenizer)
    tokenizer("one two three", truncation=True, max_length=3, padding="max_length")
    assert tokenized_texts.tokenizer_digest(tokenizer) == first
    tokenizer.add_tokens(["eleven"])
    assert tokenized_texts.tokenizer_digest(tokenizer) != first


def test_pairs_are_tokenized_together_and_trained_on_both(write: Any, tokenizer: Any) -> None:
    rows = [{"premise": "one two", "hypothesis": "three", "label": "ab"[i % 2]} for i in range(10)]
    texts = LabelledTexts(train=write(rows)).read()
    assert texts.train.table.column_names == ["premise", "hypothesis"]
    assert sorted(texts.training_texts()) == ["one two"] * 9 + ["three"] * 9
    train, _ = texts.tokenize(tokenizer)
    expected = tokenizer("one two", "three")
    assert train.fetch([0])[0]["text"]["input_ids"] == expected["input_ids"]
    assert train.fetch([0])[0]["text"]["token_type_ids"] == expected["token_type_ids"] == [0, 0, 0, 0, 1, 1]
    rows[2]["hypothesis"] = ""
    assert "empty text in column 'hypothesis' in 1 row (number 3," in message_of(LabelledTexts(train=write(rows)))


def test_digests_of_texts_see_where_a_text_ends() -> None:
    from datasets import Dataset

    digests = {
        tokenized_texts.text_digest(Dataset.from_dict(columns))
        for columns in ({"a": ["ab", "c"]}, {"a": ["a", "bc"]}, {"a": ["abc"]}, {"a": ["ab"], "b": ["c"]})
    }
    assert len(digests) == 4
    rows = Dataset.from_dict({"a": ["one", "two", "three"]})
    assert tokenized_texts.text_digest(rows.select([2, 0])) == tokenized_texts.text_digest(
        Dataset.from_dict({"b": ["three", "one"]})
    )


# Batches


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_is_that_of_the_tokenizer(tokenizer: Any, side: str) -> None:
    tokenizer.padding_side = side
    encoded = [tokenizer(" ".join(WORDS[:n])) for n in (3, 1, 5)]
    columns = ("input_ids", "token_type_ids")
    samples = [{"text": {name: e[name] for name in columns}, "label": 1} for e in encoded]
    batch = pad_texts(tokenizer, "single")(samples)
    expected = tokenizer.pad(encoded, return_tensors="pt")
    for name in ("input_ids", "token_type_ids", "attention_mask"):
        assert torch.equal(batch[name], expected[name])
    assert batch["labels"].tolist() == [1, 1, 1]
    assert batch["labels"].dtype == torch.int64


def test_labels_of_each_kind_in_a_batch(tokenizer: Any) -> None:
    several = pad_texts(tokenizer, "multi")([{"text": {"input_ids": [2, 3]}, "label": [0.0, 1.0]}] * 3)
    assert several["labels"].shape == (3, 2)
    assert several["labels"].dtype == torch.float32
    numbers = pad_texts(tokenizer, "regression")(
        [{"text": {"input_ids": [2]}, "label": 0.5}, {"text": {"input_ids": [2, 3]}, "label": 2.0}]
    )
    assert numbers["labels"].tolist() == [0.5, 2.0]
    assert "token_type_ids" not in numbers
    tokenizer.pad_token = None
    with pytest.raises(UserError, match="has no padding token"):
        pad_texts(tokenizer, "single")


def test_the_embedded_corpus_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"text": f"{word} {i}", "label": word} for i in range(20) for word in WORDS[:3]]
    monkeypatch.setattr(text_data, "docstrings", lambda: rows)
    texts = LabelledTexts(held_out=0.15).read()
    assert (len(texts.train), len(texts.evaluate)) == (51, 9)
    assert "standard library" in texts.summary["data"]


def test_importing_costs_no_heavy_package() -> None:
    heavy = "{'torch', 'datasets', 'transformers', 'pyarrow'}"
    code = f"import sys, toolkit.tasks.text_classification.data; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_few_rows_are_spread_over_the_file(tmp_path: Path) -> None:
    """The first ones of a file that is sorted by label would all have one label."""
    rows = [{"text": f"text {number}", "label": "ab"[number >= 50]} for number in range(100)]
    file = tmp_path / "sorted.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    read = LabelledTexts(train=str(file), eval=str(file), max_rows=10).read()
    assert list(read.train.table["text"]) == [f"text {number}" for number in range(0, 100, 11)]
    assert read.train.labels.counts().tolist() == [5, 5]
    assert "10 of 100 and 10 of 100 rows (data.max_rows)" in read.summary["data"]
    assert len(LabelledTexts(train=str(file), max_rows=101).read().train) == 90
