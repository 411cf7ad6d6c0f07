"""Files are read exactly as written, and one sentence says what is wrong with them."""

import gzip
import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from table_reading import here, read, refused, write  # noqa: F401


def rows(content: str | bytes, name: str = "rows.csv") -> dict[str, list[Any]]:
    write(name, content)
    result: dict[str, list[Any]] = read(name).train.to_dict()
    return result


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


def test_csv_separated_by_semicolons_is_noted_in_the_plan() -> None:
    write("rows.csv", 'text;"label,de"\na, b;3,5\n')
    result = read("rows.csv")
    assert result.train.to_dict() == {"text": ["a, b"], "label,de": ["3,5"]}
    assert result.origin == "rows.csv (separated by semicolons)"


def test_csv_long_fields_and_nameless_index() -> None:
    assert rows(",text\n0," + "x" * 300_000 + "\n") == {"column 1": [0], "text": ["x" * 300_000]}


def test_csv_longer_than_one_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.data.formats.csv.ROWS_AT_ONCE", 3)
    monkeypatch.setattr("toolkit.data.formats.json.ROWS_AT_ONCE", 3)
    assert rows("label\n" + "1\n" * 7 + "2.5\n") == {"label": [1.0] * 7 + [2.5]}
    lines = [{"a": 1}, {"a": None}, {"a": None}, {"b": []}, {"b": [1]}, {"a": 2.5}, {"a": 3, "c": {"d": "x"}}]
    read = rows("\n".join(map(json.dumps, lines)), "rows.jsonl")
    assert read["a"] == [1.0, None, None, None, None, 2.5, 3.0]
    assert read["b"] == [None, None, None, [], [1], None, None]
    assert read["c"][-1] == {"d": "x"}
    write("bad.jsonl", '{"a": 1}\n' * 3 + '{"a": "x"}')
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
        ("a.jsonl.gz", gzip.compress(b'{"t": "x", "l": [1]}\n{"t": "2020-01-01", "l": []}\n', mtime=0)),
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
    assert rows(gzip.compress(b"text\na\n", mtime=0), "rows.csv.gz") == {"text": ["a"]}


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
            r"a.csv, line 6: 3 fields, but the header has 2 \('text', 'label'\)",
        ),
        ("a.csv", "text,label\na,1\nb\n", "a.csv, line 3: 1 field, but the header has 2"),
        (
            "a.csv",
            'text,label\na,1\n"b,2\nc,3\n',
            r"a.csv, line 3: malformed \(a quote that opens there is never closed\)",
        ),
        ("a.csv", 'text,label\n"a"b,1\n', r"a.csv, line 2: malformed .*expected after"),
        ("a.csv", "te\0xt,label\na,1\n", r"a.csv: the name of the column 'te\\x00xt' has a null character"),
        ("a.csv", "text,text\na,1\n", r"line 1: the header has 'text' more than once"),
        ("a.csv", b"text,label\nok,1\nna\xefve,2\n", r"a.csv, line 3: not UTF-8 \(byte 0xef at offset 18\)"),
        ("a.csv", b"text\n" + b"x\n" * 50_000 + b"\xff\n", r"line 50002: not UTF-8 \(byte 0xff at offset 100005\)"),
        ("a.csv", "text,label\n".encode("utf-16"), "a.csv is UTF-16, not UTF-8"),
        ("a.feather", b"ARROW1\0\0\xff\xff\xff\xff\n", "a.feather holds binary data and no text; save it as csv, json"),
        ("a.csv.gz", gzip.compress(b"text\na\n", mtime=0)[:-9], "a.csv.gz is no whole gzip file"),
        ("a.csv.gz", b"text\na\n", "a.csv.gz is no whole gzip file"),
        ("a.jsonl", '{"a": 1}\n\n{"a": \n', r"a.jsonl, line 3: malformed json"),
        ("a.jsonl", '{"a": 1}\n[1]\n', r"a.jsonl, line 2: a json list, not an object"),
        ("a.jsonl", "\n\n", "a.jsonl has no (columns|rows)"),
        ("a.jsonl", "{}\n{}\n", "a.jsonl has no rows, or only empty ones"),
        ("a.jsonl", '{"a": 1}\n{"a": "x"}\n', r"column 'a': mixed types: number in line 1, text in line 2; give all"),
        ("a.jsonl", '{"a": "\\ud800"}\n', r"a.jsonl, line 1, column 'a': .*half a character"),
        ("a.jsonl", '{"a": 123456789012345678901}\n', r"a.jsonl, line 1, column 'a'"),
        ("a.jsonl", b'{"a": "\xff"}\n', r"a.jsonl, line 1: not UTF-8"),
        ("a.json", "[" * 100_000, "a.json: malformed json .*recursion"),
        ("a.json", "[]", "a.json has no (columns|rows)"),
        ("a.json", '[{"a": 1},\n 3]', "a.json, row 2: a json number, not an object"),
        ("a.json", '[{"a": 1},\n {"a" 3}]', r"a.json, line 2: malformed json \(.* at column 7\)"),
        ("a.json", '{"a": [1, 2]}', "a.json holds one json object"),
        ("a.json", '"x"', "a.json holds one json text"),
        ("a.parquet", b"PAR1 nothing of the kind", "a.parquet is no readable parquet file"),
        ("a.log", "x", r"a.log has the ending .log; read are .csv, .tsv, .json"),
        ("a", "x", r"a has the ending \(none\)"),
        ("a.zip", "x", r"a.zip is no zip file, by its content"),
        ("a.tar.gz", "x", r"a.tar.gz is packed \(.tar.gz\); unpack it with: tar -xf a.tar.gz"),
        ("a.7z", "x", r"a.7z is packed \(.7z\); unpack it \(only zip"),
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


def test_type_that_only_parquet_has() -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    parquet.write_table(pa.table({"a": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))}), "a.parquet")
    refused("a.parquet has a column of a type that is not read here .*map", name="a.parquet")


def test_reasons_to_read_csv_and_json_with_the_standard_library() -> None:
    # If a release of pandas or pyarrow fails here, it may be able to take over from toolkit/data/formats/.
    import pandas as pd
    from pyarrow import ArrowInvalid, csv
    from pyarrow import json as arrow_json

    short, quote = write("short.csv", "text,label\na\n"), write("quote.csv", 'text,label\n"a"b,1\n')
    exactly = {"dtype": str, "keep_default_na": False, "na_values": [""]}
    assert pd.read_csv(short, **exactly)["label"].isna().all()  # not refused
    assert pd.read_csv(quote, **exactly)["text"].tolist() == ["ab"]
    assert csv.read_csv(quote)["text"].to_pylist() == ["ab"]
    with pytest.raises(ArrowInvalid, match=r"^[^5]*$"):  # it is line 5 of the file
        csv.read_csv(
            write("row.csv", '"te\nxt",label\n\na,1\nb\n'), parse_options=csv.ParseOptions(newlines_in_values=True)
        )
    numbers = write("numbers.jsonl", '{"a": 9007199254740993}\n{"a": null}\n')
    frame = pd.read_json(numbers, lines=True, dtype=False)
    assert frame["a"].tolist()[0] == 9007199254740992.0  # the last digit is lost
    dates = write("dates.jsonl", '{"a": "2020-01-31"}\n')
    assert str(arrow_json.read_json(dates).schema.field("a").type) == "timestamp[s]"
