"""Data that can't be trained on: the file, the line, the column and the rows are named, and what to do."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Classify

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a file into the working directory of the run."""
    monkeypatch.chdir(tmp_path)

    def to_file(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return to_file


def rows(*labels: object) -> str:
    return "".join(json.dumps({"text": f"one two {i}", "label": label}) + "\n" for i, label in enumerate(labels))


def test_missing_file_with_the_nearest_name(classify: Classify, write: Write) -> None:
    write("reviews.csv", "text,label\n")
    classify(train="reviws.csv").refused(
        "data.train is 'reviws.csv', but there is no such file or folder; did you mean reviews.csv"
    )
    classify("--data.name", "./nothing", train=None).refused("data.name is './nothing'", "there are: reviews.csv")
    classify("--data.eval", "evl.csv").refused("data.eval is 'evl.csv', but there is no such file or folder")


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("a.csv", "", ["a.csv is empty (0 bytes); give a file with rows"]),
        ("a.csv", "\n \n", ["a.csv holds nothing but blank lines"]),
        ("a.csv", "text,label\n", ["a.csv has no rows, only a header; give one with rows"]),
        ("a.jsonl", "", ["a.jsonl is empty (0 bytes)"]),
        ("a.json", "[]", ["a.json has no rows, or only empty ones; give one with rows"]),
        ("a.csv", b"text,label\nplain,a\ncaf\xe9,b\n", ["a.csv, line 3: not UTF-8 (byte 0xe9", "iconv -f"]),
        ("a.jsonl", b'{"text": "caf\xe9", "label": 1}\n', ["a.jsonl, line 1: not UTF-8 (byte 0xe9"]),
        ("a.csv", "text,label\none,a\n".encode("utf-16"), ["a.csv is UTF-16, not UTF-8; convert it: iconv"]),
        ("a.csv", "text,label\none,a\ntwo,b,c\n", ["a.csv, line 3: 3 fields, but the header has 2", "double quotes"]),
        ("a.csv", 'text,label\none,a\n"two,b\n', ["a.csv, line 3: malformed (a quote that opens there is never clos"]),
        ("a.tsv", "text\tlabel\none\n", ["a.tsv, line 2: 1 field, but the header has 2 ('text', 'label')"]),
        (
            "a.json",
            '[{"text": "one", "label": 1},\n{"text" "two"}]',
            ["a.json, line 2: malformed json (Expecting ':' delimiter at column 9); give a list of objects"],
        ),
        (
            "a.jsonl",
            '{"text": "one", "label": 1}\n{"text": \n',
            ["a.jsonl, line 2: malformed json (Expecting value at column 9); give one object a line"],
        ),
        ("a.jsonl", '{"text": "one", "label": 1}\n["two", 2]\n', ["a.jsonl, line 2: a json list, not an object"]),
        ("a.parquet", "PAR1 and no more", ["a.parquet is no readable parquet file"]),
        ("a.log", "one\n", ["a.log has the ending .log; read are .csv, .tsv, .json, .jsonl"]),
    ],
)
def test_file_that_cannot_be_read(
    classify: Classify, write: Write, name: str, content: str | bytes, parts: list[str]
) -> None:
    write(name, content)
    classify(train=name).refused(*parts)


def test_folder_without_data(classify: Classify, write: Write) -> None:
    write("folder/notes.log", "nothing here")
    classify("--data.name", "folder", train=None).refused("the folder folder has no data files; read are .csv")


def test_hub_data_without_network(classify: Classify) -> None:
    classify("--data.name", "acme/reviews", train=None).refused("acme/reviews", "HF_HUB_OFFLINE")


def test_missing_column_with_those_that_exist(classify: Classify, write: Write) -> None:
    write("a.csv", "text,label\n" + "one,a\ntwo,b\n" * 10)
    classify("--data.text", "txt", "--data.label", "stars", train="a.csv").refused(
        "data.text is 'txt', but the data has the columns 'text', 'label'; did you mean 'text'",
        "data.label is 'stars', but the data has the columns 'text', 'label'",
    )
    write("b.csv", "foo,bar,baz\n1,2,3\n")
    classify(train="b.csv").refused(
        "cannot tell which column holds the text and which the label; the data has the columns 'foo', 'bar', 'baz'",
        "--data.text COLUMN and --data.label COLUMN",
    )
    write("c.csv", "text,class\none,a\n")
    classify("--data.eval", "c.csv", train="a.csv").refused("evaluation data: no column 'label'", "'text', 'class'")


def test_empty_texts_and_labels_are_numbered_and_can_be_dropped(classify: Classify, write: Write) -> None:
    table = "".join(
        f"{word},{label}\n" for word, label in zip(["one", "two", "three", "four"] * 10, "abab" * 10, strict=True)
    )
    write("a.csv", "text,label\n,a\none,b\n  ,b\ntwo,\nthree,  \n" + table)
    classify(train="a.csv").refused(
        "training data: empty text in column 'text' in 2 rows (numbers 1, 3, counted from 1 after any head line)",
        "training data: no label in column 'label' in 2 rows (numbers 4, 5, counted from 1 after any head line)",
        "correct them, or leave them out with --data.drop_invalid true",
    )
    outcome = classify("--data.drop_invalid", "true", "--steps", "2", train="a.csv").done()
    outcome.says("rows without a valid text or label: 4 of the training data")
    assert outcome.record["status"] == "finished"
    assert outcome.record["step"] == 2


def test_null_texts_and_labels(classify: Classify, write: Write) -> None:
    lines = [{"text": None, "label": "a"}, {"text": "two", "label": None}, {"text": "three"}]
    write("a.jsonl", "".join(json.dumps(line) + "\n" for line in lines) + rows(*"abab"))
    classify(train="a.jsonl").refused(
        "training data: empty text in column 'text' in 1 row (number 1,",
        "training data: no label in column 'label' in 2 rows (numbers 2, 3,",
    )


def test_one_class_only(classify: Classify, write: Write) -> None:
    write("a.jsonl", rows(*"aaaaaaaa"))
    classify(train="a.jsonl").refused(
        "training data: every row has the label 'a', so there is nothing to learn; give at least two labels"
    )


def test_labels_that_only_the_evaluation_data_has(classify: Classify, write: Write) -> None:
    write("train.jsonl", rows(*"abab"))
    write("eval.jsonl", rows(*"axyx"))
    classify("--data.eval", "eval.jsonl", train="train.jsonl").refused(
        "evaluation data: labels that the training data does not know: 'x' (2 rows), 'y' (1 row); correct or remove "
        "these rows, or add such rows to the training data"
    )


def test_lengths_that_leave_nothing_or_that_the_model_cannot_take(classify: Classify) -> None:
    classify("--data.max_length", "2").refused(
        "data.max_length is 2, and the tokenizer adds 2 tokens of its own", "give at least 3"
    )
    classify("--data.max_length", "129").refused(
        "data.max_length is 129, but the model takes at most 128 tokens; give 128 or less"
    )
