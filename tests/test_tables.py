"""Rows are read exactly as written, and whatever is wrong with them is said in one sentence."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # read when datasets is first imported
import datasets
import datasets.config
from datasets.exceptions import DatasetNotFoundError

from toolkit.errors import UserError
from toolkit.tables import Splits, read_splits


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(
    name: str | None = None, train: str | None = None, evaluate: str | None = None, config: str | None = None
) -> Splits:
    return read_splits(name=name, config=config, train=train, evaluate=evaluate)


def rows(content: str | bytes, name: str = "rows.csv") -> dict[str, list[Any]]:
    write(name, content)
    result: dict[str, list[Any]] = read(name).train.to_dict()
    return result


def write(name: str, content: str | bytes = "text,label\na,1\n") -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def refused(match: str, **given: str | None) -> None:
    with pytest.raises(UserError, match=match):
        read(**given)


# What is in a file


def test_csv_keeps_words_that_look_like_nulls() -> None:
    words = ["NA", "null", "None", "nan", "NULL", "n/a", "-", "#N/A", " "]
    read = rows("text,label\n" + "".join(f"{word},1\n" for word in words) + ',1\n"",1\n')
    assert read == {"text": [*words, None, None], "label": [1] * 11}


def test_csv_quotes_line_breaks_and_byte_order_mark() -> None:
    content = b'\xef\xbb\xbftext,label\r\n"a ""b"", c\nd",1\r\n\r\n\xc3\xa9\xe2\x80\xa8x,2'
    assert rows(content) == {"text": ['a "b", c\nd', "é\u2028x"], "label": [1, 2]}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (["1", "-2", "0"], [1, -2, 0]),
        (["1", "", "3"], [1, None, 3]),
        (["1", "2.5", "1e-3"], [1.0, 2.5, 0.001]),
        (["007", "1", "2"], ["007", "1", "2"]),
        (["true", "false"], ["true", "false"]),
        (["2020-01-31", "2020-02-01"], ["2020-01-31", "2020-02-01"]),
        (["1", "NA"], ["1", "NA"]),
        (["nan", "1.5"], ["nan", "1.5"]),
        (["12345678901234567890", "1"], ["12345678901234567890", "1"]),
        (["-0", "1"], [-0.0, 1.0]),
        (["1_000", "2"], ["1_000", "2"]),
    ],
)
def test_csv_numbers_only_where_nothing_is_lost(written: list[str], expected: list[Any]) -> None:
    read = rows("label,text\n" + "".join(f"{value},x\n" for value in written))["label"]
    assert read == expected
    assert [type(value) for value in read] == [type(value) for value in expected]


def test_csv_types_agree_between_training_and_evaluation() -> None:
    write("train.csv", "text,label\na,x\nb,1\n")
    write("test.csv", "text,label\na,1\nb,2\n")
    read_ = read(train="train.csv", evaluate="test.csv")
    assert read_.evaluate is not None
    assert read_.evaluate["label"][:] == ["1", "2"]


def test_csv_separated_by_semicolons_is_told() -> None:
    write("rows.csv", 'text;"label,de"\na, b;3,5\n')
    result = read("rows.csv")
    assert result.train.to_dict() == {"text": ["a, b"], "label,de": ["3,5"]}
    assert result.origin == "rows.csv (separated by semicolons)"


def test_csv_long_fields_and_nameless_index() -> None:
    assert rows(",text\n0," + "x" * 300_000 + "\n") == {"column 1": [0], "text": ["x" * 300_000]}


def test_csv_longer_than_one_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.table_csv.ROWS_AT_ONCE", 3)
    monkeypatch.setattr("toolkit.table_json.ROWS_AT_ONCE", 3)
    assert rows("label\n" + "1\n" * 7 + "2.5\n") == {"label": [1.0] * 7 + [2.5]}
    lines = [{"a": 1}, {"a": None}, {"a": None}, {"b": []}, {"b": [1]}, {"a": 2.5}, {"a": 3, "c": {"d": "x"}}]
    read = rows("\n".join(map(json.dumps, lines)), "rows.jsonl")
    assert read["a"] == [1.0, None, None, None, None, 2.5, 3.0]
    assert read["b"] == [None, None, None, [], [1], None, None]
    assert read["c"][-1] == {"d": "x"}
    write("bad.jsonl", '{"a": 1}\n' * 4 + '{"a": "x"}')
    refused(r"bad.jsonl: a column changes its type in the middle .* give it one type", name="bad.jsonl")


def test_tsv_with_and_without_quotes() -> None:
    assert rows('text\tlabel\n"a\tb ""c"""\t1\n', "rows.tsv") == {"text": ['a\tb "c"'], "label": [1]}
    # Quotes that would swallow a line: read as text, since every line then has its two fields.
    assert rows('text\tlabel\n"a\t1\nb"\t2\n', "rows.tsv") == {"text": ['"a', 'b"'], "label": [1, 2]}
    assert rows('text\tlabel\n"A" is\t1\n', "rows.tsv") == {"text": ['"A" is'], "label": [1]}
    assert read("rows.tsv").origin == "rows.tsv (quotes taken as text)"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", '[{"t": "x", "l": [1]}, {"t": "2020-01-01", "l": []}]'),
        ("a.json", '{"version": 1, "data": [{"t": "x", "l": [1]}, {"t": "2020-01-01", "l": []}]}'),
        ("a.json", '{"t": "x", "l": [1]}\n\n{"t": "2020-01-01", "l": []}\n'),
        ("a.jsonl", '{"t": "x", "l": [1]}\r\n{"l": [], "t": "2020-01-01"}'),
        ("a.ndjson", '\ufeff{"t": "x", "l": [1]}\n{"t": "2020-01-01", "l": []}\n'),
        ("a.jsonl.gz", gzip.compress(b'{"t": "x", "l": [1]}\n{"t": "2020-01-01", "l": []}\n')),
    ],
)
def test_json_in_its_forms(name: str, content: str | bytes) -> None:
    assert rows(content, name) == {"t": ["x", "2020-01-01"], "l": [[1], []]}


def test_json_keeps_types_and_fills_missing_keys() -> None:
    assert rows('[{"a": true, "b": 1}, {"a": false, "c": "\\u2028"}]', "a.json") == {
        "a": [True, False],
        "b": [1, None],
        "c": [None, "\u2028"],
    }


def test_csv_gz() -> None:
    assert rows(gzip.compress(b"text\na\n"), "rows.csv.gz") == {"text": ["a"]}


def test_parquet_keeps_features_and_ignores_folder_names() -> None:
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    table = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features=features)
    Path("language=en").mkdir()
    table.to_parquet("language=en/rows.parquet")
    result = read("language=en/rows.parquet").train
    assert result.features == features
    assert result["label"][:] == [1, 0]


def test_parquet_of_pandas_categories_and_index() -> None:
    import pandas as pd

    frame = pd.DataFrame({"text": ["a", "b", "c"], "label": pd.Categorical(["x", "y", "x"])})
    frame[frame["text"] != "b"].to_parquet("rows.parquet")
    assert read("rows.parquet").train.to_dict() == {"text": ["a", "c"], "label": ["x", "x"]}


# What is wrong with a file


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("a.csv", "", r"a.csv is empty \(0 bytes\)"),
        ("a.csv", "\n\n", "nothing but blank lines"),
        ("a.csv", "text,label\n", r"a.csv has no rows, only a header"),
        (
            "a.csv",
            'text,label\na,1\n\n"b\nc",2\nd,3,4\n',
            r"a.csv, line 6: 3 fields, but the header has 2 \(text, label\)",
        ),
        ("a.csv", "text,label\na,1\nb\n", "a.csv, line 3: 1 fields, but the header has 2"),
        (
            "a.csv",
            'text,label\na,1\n"b,2\nc,3\n',
            r"a.csv, line 3: malformed \(a quote that opens there is never closed\)",
        ),
        ("a.csv", 'text,label\n"a"b,1\n', r"a.csv, line 2: malformed .*expected after"),
        ("a.csv", "text,text\na,1\n", r"line 1: the header has 'text' more than once"),
        ("a.csv", b"text,label\nok,1\nna\xefve,2\n", r"a.csv, line 3: not UTF-8 \(byte 0xef at offset 18\)"),
        ("a.csv", b"text\n" + b"x\n" * 50_000 + b"\xff\n", r"line 50002: not UTF-8 \(byte 0xff at offset 100005\)"),
        ("a.csv", "text,label\n".encode("utf-16"), "a.csv is UTF-16, not UTF-8"),
        ("a.csv.gz", gzip.compress(b"text\na\n")[:-9], "a.csv.gz is no whole gzip file"),
        ("a.csv.gz", b"text\na\n", "a.csv.gz is no whole gzip file"),
        ("a.jsonl", '{"a": 1}\n\n{"a": \n', r"a.jsonl, line 3: malformed json"),
        ("a.jsonl", '{"a": 1}\n[1]\n', r"a.jsonl, line 2: a json list, not an object"),
        ("a.jsonl", "\n\n", "a.jsonl has no (columns|rows)"),
        ("a.jsonl", "{}\n{}\n", "a.jsonl has no columns"),
        ("a.jsonl", '{"a": 1}\n{"a": "x"}\n', r"column 'a': mixed types: number in line 1, text in line 2; give all"),
        ("a.jsonl", '{"a": "\\ud800"}\n', r"a.jsonl, column 'a': .*surrogates"),
        ("a.jsonl", '{"a": 123456789012345678901}\n', r"a.jsonl, column 'a'"),
        ("a.jsonl", b'{"a": "\xff"}\n', r"a.jsonl, line 1: not UTF-8"),
        ("a.json", "[]", "a.json has no (columns|rows)"),
        ("a.json", '[{"a": 1},\n 3]', "a.json, row 2: a json number, not an object"),
        ("a.json", '[{"a": 1},\n {"a" 3}]', r"a.json: malformed json \(.*line 2 column 7"),
        ("a.json", '{"a": [1, 2]}', "a.json holds one json object"),
        ("a.json", '"x"', "a.json holds one json text"),
        ("a.parquet", b"PAR1 nothing of the kind", "a.parquet is no readable parquet file"),
        ("a.txt", "x", r"a.txt has the ending .txt; read are .csv, .tsv, .json"),
        ("a", "x", r"a has the ending \(none\)"),
        ("a.zip", "x", r"a.zip is packed \(.zip\); unpack it"),
    ],
)
def test_bad_file(name: str, content: str | bytes, match: str) -> None:
    write(name, content)
    refused(match, name=name)


def test_file_without_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    write("a.csv")

    def denied(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)  # an administrator may read all files
    refused("a.csv may not be read by this user", name="a.csv")


# Which files


def test_folder_by_conventional_names() -> None:
    write("d/train.csv")
    write("d/test.csv", "text,label\nb,2\nc,3\n")
    write("d/categories.json", "[]")
    result = read("d")
    assert result.evaluate is not None
    assert (len(result.train), len(result.evaluate)) == (1, 2)
    assert result.origin == "folder d: train.csv; evaluation: test.csv, named a test set: there is none for validation"
    write("d/dev.csv", "text,label\n" + "b,2\n" * 3)
    result = read("d")
    assert result.evaluate is not None
    assert len(result.evaluate) == 3
    assert result.origin == "folder d: train.csv; evaluation: dev.csv"


def test_folder_laid_out_as_on_the_hub() -> None:
    for split, count in (("train", 2), ("validation", 1), ("test", 1)):
        for part in range(count):
            Path("d/data").mkdir(parents=True, exist_ok=True)
            rows = datasets.Dataset.from_dict({"text": [f"{split} {part}"]})
            rows.to_parquet(f"d/data/{split}-0000{part}-of-0000{count}.parquet")
    write("d/README.md", "---\n---\n")
    result = read("d")
    assert result.train.to_dict() == {"text": ["train 0", "train 1"]}
    assert result.evaluate is not None
    assert result.evaluate.to_dict() == {"text": ["validation 0"]}
    assert result.origin.startswith("folder d: data/train-00000-of-00002.parquet and 1 more; evaluation: data/val")
    assert read("d", evaluate="test").origin.endswith("evaluation: data/test-00000-of-00001.parquet")


def test_folder_with_configurations_in_sub_folders() -> None:
    write("d/en/train.csv", "text\nEnglish\n")
    write("d/de/train.csv", "text\nDeutsch\n")
    refused(r"several sub-folders \(de, en\); name one with data.config", name="d")
    assert read("d", config="de").train["text"][:] == ["Deutsch"]
    assert len(read("d", train="**/train.csv").train) == 2
    refused(r"data.config is 'fr', but the folder d has no such sub-folder; there are: de, en", name="d", config="fr")


def test_folder_without_such_names_is_all_training_data() -> None:
    write("d/a.csv", "text,label\na,1\n")
    assert read("d").origin == "folder d: a.csv"
    write("d/b.csv", "label,text\nx,b\n")
    assert read("d").train.to_dict() == {"text": ["a", "b"], "label": ["1", "x"]}
    write("d/b_test.csv")
    assert "evaluation: b_test.csv" in read("d").origin
    write("d/c.json", '[{"text": "a", "label": 1}]')
    refused(r"several formats would be mixed: d/a.csv \(csv\), d/c.json \(json\)", name="d")


def test_single_file_in_a_folder_is_training_data_whatever_its_name() -> None:
    write("d/test.csv")
    assert read("d").evaluate is None


def test_files_named_in_a_folder() -> None:
    for name in ("a1.csv", "a2.csv", "b.csv"):
        write(f"d/{name}")
    result = read("d", train="a*.csv", evaluate="b.csv")
    assert result.evaluate is not None
    assert (len(result.train), len(result.evaluate)) == (2, 1)
    with pytest.raises(UserError) as caught:
        read("d", train="a3.csv", evaluate="c*.csv")
    assert caught.value.problems == (
        "data.train is 'a3.csv', but the folder d has no such file; did you mean a2.csv or a1.csv or b.csv?",
        "data.eval is 'c*.csv', but the folder d has no such file; did you mean b.csv or a2.csv or a1.csv?",
    )


def test_given_test_file_is_not_taken_for_evaluation_too() -> None:
    write("d/test.csv")
    write("d/other.csv")
    assert read("d", train="test.csv").evaluate is None


def test_paths_without_a_folder() -> None:
    write("x/a.csv")
    write("y/b.csv", "text,label\nb,2\n")
    result = read(train="x/a.csv", evaluate="y/b.csv")
    assert result.evaluate is not None
    assert result.evaluate.to_dict() == {"text": ["b"], "label": [2]}
    assert result.origin == "x/a.csv; evaluation: y/b.csv"
    assert len(read(train="*/*.csv").train) == 2
    assert read(train="x", evaluate="y").evaluate is not None
    assert read("x/a.csv", evaluate="y/b.csv").evaluate is not None
    write("x/b.csv", "text,label\nbeside,2\n")
    beside = read("x/a.csv", evaluate="b.csv").evaluate
    assert beside is not None
    assert beside["text"][:] == ["beside"]


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (
            {"name": "reviws.csv"},
            "data.name is 'reviws.csv', but there is no such file or folder; did you mean reviews.csv",
        ),
        ({"name": "./reviews"}, r"no such file or folder; did you mean reviews.csv"),
        ({"name": "/no/such/folder"}, r"the folder /no/such can't be listed"),
        ({"name": "a/b/c"}, "no such file or folder"),
        ({"name": "https://x.org/a.csv"}, "addresses are not read: download it"),
        (
            {"train": "nothing"},
            "data.train is 'nothing', but there is no such file or folder; there are: empty, reviews",
        ),
        ({"train": "reviews.csv", "evaluate": "x.csv"}, "data.eval is 'x.csv', but there is no such file"),
        ({}, "data.name and data.train are both null"),
        ({"name": "empty"}, "the folder empty has no data files; read are .csv"),
        ({"name": "reviews.csv", "train": "a.csv"}, "data.name is the file reviews.csv and data.train is 'a.csv'"),
        ({"name": "reviews.csv", "config": "en"}, "data.name is the file reviews.csv and data.config is 'en'"),
        ({"train": "reviews.csv", "config": "en"}, "data.config is 'en', but data.train is a path"),
    ],
)
def test_bad_place(given: dict[str, str], match: str) -> None:
    write("reviews.csv")
    Path("empty").mkdir()
    write("empty/notes.txt", "x")
    refused(match, **given)


def test_files_with_different_columns() -> None:
    write("d/a.csv", "text,label\na,1\n")
    write("d/b.csv", "text,stars\na,1\n")
    refused(r"d/a.csv and d/b.csv do not have the same columns: only one of them has 'label', 'stars'", name="d")


# Saved data sets


@pytest.fixture
def saved(here: Path) -> str:
    splits = {name: datasets.Dataset.from_dict({"n": list(range(size))}) for name, size in (("train", 50), ("test", 5))}
    datasets.DatasetDict(splits).save_to_disk("saved")
    splits["train"].save_to_disk("single")
    return "saved"


def test_saved_splits(saved: str) -> None:
    result = read(saved)
    assert result.evaluate is not None
    assert (len(result.train), len(result.evaluate)) == (50, 5)
    assert result.origin.startswith("saved data set saved: train; evaluation: test, named a test set")
    result = read(saved, train="train[:10%]+test", evaluate="train[-3:]")
    assert result.train["n"][:] == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]
    assert result.evaluate is not None
    assert result.evaluate["n"][:] == [47, 48, 49]
    assert read("single").evaluate is None
    assert len(read(train="single", evaluate="single").train) == 50


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (
            {"train": "trian"},
            "data.train is 'trian', but saved data set saved has no split 'trian'; did you mean train",
        ),
        ({"evaluate": "dev[:5]"}, "data.eval is 'dev.:5.', but .* has no split 'dev'; there are: test, train"),
        ({"train": "train[:"}, "slices are written"),
        ({"train": "train[:0]"}, "has no rows"),
        ({"config": "en"}, "the saved data set saved has none"),
    ],
)
def test_bad_split(saved: str, given: dict[str, str], match: str) -> None:
    refused(match, name=saved, **given)


def test_damaged_saved_data_set(saved: str) -> None:
    next(Path("single").glob("*.arrow")).write_bytes(b"x")
    refused("single looks like a folder written by save_to_disk, but cannot be loaded", name="single")
    refused("saved holds the splits train, test", train="saved", evaluate="saved")


# The hub


def hub(monkeypatch: pytest.MonkeyPatch, answer: Any) -> list[Any]:
    calls: list[Any] = []

    def load_dataset(*given: Any, **named: Any) -> Any:
        calls.append((given, named))
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return calls


def test_hub_offline() -> None:
    assert datasets.config.HF_HUB_OFFLINE
    for name in ("acme/reviews", "reviews"):
        refused(
            f"the data set '{name}' is not in the local cache.*offline mode is on .HF_HUB_OFFLINE.*folder", name=name
        )


def test_hub_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    splits = {name: datasets.Dataset.from_dict({"n": list(range(size))}) for name, size in (("train", 8), ("valid", 2))}
    calls = hub(monkeypatch, datasets.DatasetDict(splits))
    result = read("acme/reviews", train="train[:50%]")
    assert calls == [(("acme/reviews", None), {})]  # no trust_remote_code
    assert result.evaluate is not None
    assert (len(result.train), len(result.evaluate)) == (4, 2)
    assert result.origin == "hub: acme/reviews (config default): train[:50%]; evaluation: valid"
    refused("has no split 'test'; there are: train, valid", name="acme/reviews", evaluate="test")


@pytest.mark.parametrize(
    ("error", "config", "match"),
    [
        (
            DatasetNotFoundError("Dataset 'a/b' doesn't exist on the Hub or cannot be accessed."),
            None,
            "'a/b' does not exist on the hub, or is private.*hf auth login.*local file or folder",
        ),
        (
            DatasetNotFoundError("Dataset 'a/b' is a gated dataset on the Hub."),
            None,
            "gated.*huggingface.co/datasets/a/b",
        ),
        (
            ConnectionError("Couldn't reach 'a/b' on the Hub (LocalEntryNotFoundError)"),
            None,
            "can't be reached from here",
        ),
        (
            RuntimeError("Dataset scripts are no longer supported, but found b.py"),
            None,
            "running its own code, which is not",
        ),
        (
            ValueError("Config name is missing.\nPlease pick one among the available configs: ['de', 'en']\nExample"),
            None,
            "several configurations; name one with data.config: de, en",
        ),
        (
            ValueError("BuilderConfig 'fr' not found. Available: ['de', 'en']"),
            "fr",
            "data.config is 'fr'.*there are: de, en",
        ),
        (OSError(28, "No space left on device"), None, "cannot be written .No space left on device.*HF_HOME"),
        (datasets.exceptions.DatasetGenerationError("An error occurred"), None, "cannot be loaded .An error occurred"),
    ],
)
def test_hub_refusals(monkeypatch: pytest.MonkeyPatch, error: Exception, config: str | None, match: str) -> None:
    hub(monkeypatch, error)
    refused(match, name="a/b", config=config)


def test_hub_defects_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    hub(monkeypatch, AttributeError("a defect"))
    with pytest.raises(AttributeError, match="a defect"):
        read("a/b")


@pytest.mark.parametrize("name", ["csv", "pandas", "imagefolder"])
def test_name_of_a_format_is_no_data_set(name: str) -> None:
    write("secret.csv")
    refused(f"data.name is '{name}', the name of a format", name=name)


def test_import_is_cheap() -> None:
    code = "import sys, toolkit.tables; print(sorted({'datasets', 'pyarrow', 'torch', 'pandas'} & set(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert result.stdout == "[]\n"
