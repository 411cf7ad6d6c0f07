"""Tables in zip archives, in workbooks and under keys of json: which are found, which are asked for, which refused."""

import gzip
import io
import json
import re
import shlex
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from table_reading import here, read, refused, write  # noqa: F401

from toolkit.config.parser import parse
from toolkit.config.schema import Config
from toolkit.data.config import DataConfig
from toolkit.data.formats import archive
from toolkit.errors import UserError
from toolkit.tasks.language_modeling.data import Documents

TABLE = "text,label\na,1\nb,2\n"
ROWS = {"text": ["a", "b"], "label": [1, 2]}
OBJECTS = [{"text": "a", "label": 1}, {"text": "b", "label": 2}]
CELLS = [["text", "label"], ["a", 1], ["b", 2]]


def packed(**files: str | bytes) -> bytes:
    """Return a zip archive; in names, __ stands for a slash and _ for a dot."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as target:
        for name, text in files.items():
            target.writestr(name.replace("__", "/").replace("_", "."), text)
    return content.getvalue()


def odd(*names: str) -> bytes:
    """Return an archive that names its files in an unusual way."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as target:
        for name in names:
            target.writestr(name, TABLE)
    return content.getvalue()


def book(hidden: str = "", **sheets: list[list[Any]]) -> bytes:
    """Return a workbook."""
    whole = openpyxl.Workbook()
    whole.remove(whole["Sheet"])
    for title, rows in sheets.items():
        sheet = whole.create_sheet(title)
        sheet.sheet_state = "hidden" if title == hidden else "visible"
        for row in rows:
            sheet.append(row)
    content = io.BytesIO()
    whole.save(content)
    return content.getvalue()


def as_parquet(columns: dict[str, list[Any]]) -> bytes:
    content = io.BytesIO()
    parquet.write_table(pa.table(columns), content)
    return content.getvalue()


FOUND: dict[str, tuple[str, str | bytes, str]] = {
    "one file, and what is none": (
        "a.zip",
        packed(rows_csv=TABLE, README_txt="notes", x___DS_Store="x"),
        "a.zip (the file rows.csv in it)",
    ),
    "packed twice": ("a.zip", packed(rows_csv_gz=gzip.compress(TABLE.encode())), "a.zip (the file rows.csv.gz in it)"),
    "a dot before its name": ("a.zip", odd("./rows.csv"), "a.zip (the file rows.csv in it)"),
    "two slashes": ("a.zip", odd("a//rows.csv"), "a.zip (the file a/rows.csv in it)"),
    "parquet in zip": ("a.zip", packed(rows_parquet=as_parquet(ROWS)), "a.zip (the file rows.parquet in it)"),
    "a workbook in zip": ("a.zip", packed(b_xlsx=book(S=CELLS)), "a.zip (the file b.xlsx in it, the sheet 'S')"),
    "zip called csv": (
        "a.csv",
        packed(rows_csv=TABLE),
        "a.csv (the file rows.csv in it)",
    ),
    "a sheet": ("a.xlsx", book(S=CELLS, empty=[]), "a.xlsx (the sheet 'S')"),
    "a hidden sheet beside": ("a.xlsx", book(S=CELLS, H=CELLS, hidden="H"), "a.xlsx (the sheet 'S')"),
    "Excel called csv": ("a.csv", book(S=CELLS), "a.csv (read as an Excel workbook, the sheet 'S')"),
    "empty rows and columns": (
        "a.xlsx",
        book(S=[[], [None, "text", None, "label"], [None, "a", None, 1], [], [None, "b", None, 2], []]),
        "a.xlsx (the sheet 'S', 1 empty row left out)",
    ),
    "a key": ("a.json", json.dumps({"version": 1, "rows": OBJECTS}), "a.json (the list under 'rows')"),
    "a key in a key": ("a.json", json.dumps({"r": {"x": OBJECTS}}), "a.json (the list under 'r/x')"),
    "data wins": ("a.json", json.dumps({"data": OBJECTS, "other": [{"x": 1}]}), "a.json"),
}

INNER: dict[str, tuple[str, bytes | str, str]] = {
    "file": ("a.zip", packed(x_csv=TABLE, y_csv="text\nc\n"), "a.zip/x.csv"),
    "file in a folder": ("a.zip", packed(d__x_csv=TABLE, d__y_csv="text\nc\n"), "a.zip/d/x.csv"),
    "pattern": ("a.zip", packed(x_csv=TABLE, y_json="[]"), "a.zip/*.csv"),
    "folder": ("a.zip", packed(x__a_csv=TABLE, y_csv="text\nc\n"), "a.zip/x"),
    "sheet": ("a.xlsx", book(S=CELLS, T=[["x"], ["y"]]), "a.xlsx/S"),
    "hidden sheet": ("a.xlsx", book(S=CELLS, T=[["x"], ["y"]], hidden="S"), "a.xlsx/S"),
    "sheet in zip": ("a.zip", packed(b_xlsx=book(S=CELLS, T=[["x"], ["y"]])), "a.zip/b.xlsx/S"),
    "key": ("a.json", json.dumps({"a": OBJECTS, "b": OBJECTS}), "a.json/a"),
    "key in zip": ("a.zip", packed(b_json=json.dumps({"a": OBJECTS, "b": OBJECTS})), "a.zip/b.json/a"),
}

SEVERAL: dict[str, tuple[str, str | bytes]] = {
    "files": ("a.zip", packed(x_csv=TABLE, y_csv=TABLE)),
    "sheets": ("a.xlsx", book(**{"May 1": CELLS, "June": CELLS})),
    "keys": ("a.json", json.dumps({"x": OBJECTS, "y": {"z": OBJECTS}})),
    "sheets in zip": ("a.zip", packed(b_xlsx=book(S=CELLS, T=CELLS))),
}

WRONG: dict[str, tuple[str, str | bytes, str, str]] = {
    "no such file": ("a.zip", packed(x_csv=TABLE), "a.zip/y.csv", "a.zip has no such file; did you mean x.csv"),
    "no such sheet": ("a.xlsx", book(S=CELLS), "a.xlsx/T", "a.xlsx has no sheet 'T'; there are: 'S'"),
    "no such key": ("a.json", json.dumps({"x": OBJECTS}), "a.json/y", "no list under the key 'y'; there are: x"),
    "a part of a csv": ("a.csv", TABLE, "a.csv/x", "a.csv is a file without parts"),
    "a part of lines": ("a.json", '{"a": 1}\n{"a": 2}\n', "a.json/x", "has an object on each line"),
    "nothing in it": ("a.zip", packed(), "a.zip", "an archive without a file"),
    "an archive in it": ("a.zip", packed(b_zip=packed(x_csv=TABLE)), "a.zip", "nothing but archives"),
    "an archive named": ("a.zip", packed(b_zip=packed(x_csv=TABLE)), "a.zip/b.zip", "an archive in an archive"),
    "a path outside": ("a.zip", odd("../x.csv"), "a.zip", "outside of itself"),
    "a file twice": ("a.zip", odd("x.csv", "./x.csv"), "a.zip", "has the file x.csv more than once"),
    "half of it": ("a.zip", packed(x_csv=TABLE)[:60], "a.zip", "a.zip is no whole zip archive"),
    "a binary workbook": ("a.xlsb", packed(xl__workbook_bin=b"x"), "a.xlsb", "binary Excel workbook"),
    "no rows": ("a.xlsx", book(S=[]), "a.xlsx", "no sheet with a value"),
    "only a header": ("a.xlsx", book(S=CELLS[:1]), "a.xlsx", "a.xlsx has no rows, only a header"),
    "a title above": ("a.xlsx", book(S=[["Report"], *CELLS]), "a.xlsx", r"row 2: 2 cells, but row 1, the first with"),
    "no header": ("a.xlsx", book(S=[["a b", 1], ["c d", 2]]), "a.xlsx", r'S, row 1 looks like data.*"\[text, label\]"'),
    "one conversation": ("a.json", '{"messages": [{"role": "user", "content": "x"}]}', "a.json", "one json object"),
}


@pytest.mark.parametrize("case", FOUND)
def test_the_only_table_is_found(case: str) -> None:
    name, content, origin = FOUND[case]
    write(name, content)
    result = read(train=name)
    assert result.train.to_dict() == ROWS
    assert result.origin == origin
    assert result.files == (Path(name),)


@pytest.mark.parametrize("case", INNER)
def test_a_path_goes_on_inside(case: str) -> None:
    name, content, path = INNER[case]
    write(name, content)
    for result in (read(train=path, evaluate=path), read(path)):
        assert result.train.to_dict() == ROWS
        assert result.files == (Path(name),)
    named = read(name, train=str(Path(path).relative_to(name)))
    assert named.train.to_dict() == ROWS


@pytest.mark.parametrize("case", SEVERAL)
def test_of_several_the_flag_in_the_message_names_one(case: str) -> None:
    name, content = SEVERAL[case]
    write(name, content)
    write("b.csv", TABLE)
    for asked, flag in (
        ({"train": name}, "--data.train"),
        ({"name": name}, "--data.train"),
        ({"train": "b.csv", "evaluate": name}, "--data.eval"),
    ):
        with pytest.raises(UserError) as caught:
            read(**asked)
        found = re.search(rf"such as {flag} (.*)$", str(caught.value))
        assert found
        (value,) = shlex.split(found[1])
        fixed = {**asked, "train" if flag == "--data.train" else "evaluate": value}
        result = read(**fixed)
        assert (result.train if flag == "--data.train" else result.evaluate).to_dict() == ROWS


@pytest.mark.parametrize("name", ["a.zip", "a.xlsx", "a.json"])
def test_usual_names_say_what_for(name: str) -> None:
    content = {
        "a.zip": packed(d__train_csv=TABLE, d__test_csv="text,label\nc,3\n", d__more_txt="x"),
        "a.xlsx": book(train=CELLS, test=[CELLS[0], ["c", 3]]),
        "a.json": json.dumps({"train": OBJECTS, "test": [{"text": "c", "label": 3}]}),
    }[name]
    write(name, content)
    for result in (read(train=name), read(name)):
        assert (result.train.to_dict(), result.evaluate.to_dict()) == (ROWS, {"text": ["c"], "label": [3]})
        assert result.origin.startswith(f"{name}: ")
        assert "named a test set" in result.origin


@pytest.mark.parametrize("case", WRONG)
def test_what_is_refused(case: str) -> None:
    name, content, path, match = WRONG[case]
    write(name, content)
    refused(match, train=path)


@pytest.mark.parametrize(
    "content",
    [
        {"text": ["a", "b"], "label": [1, 2]},
        {"text": {"0": "a", "1": "b"}, "label": {"0": 1, "1": 2}},
        {"first": OBJECTS[0], "second": OBJECTS[1]},
    ],
)
def test_the_command_in_the_message_makes_rows_of_columns(content: Any) -> None:
    write("of columns.json", json.dumps(content))
    with pytest.raises(UserError) as caught:
        read(train="of columns.json")
    command = str(caught.value).partition("a list is made of it by: python ")[2]
    subprocess.run(f"{shlex.quote(sys.executable)} {command}", shell=True, check=True)
    assert read(train="of columns.rows.json").train.to_dict() == ROWS


def test_the_command_in_the_message_converts_to_utf8() -> None:
    for name, content in (
        ("a b.csv", "text,label\nnaïve,1\n".encode("latin-1")),
        ("c.csv.gz", gzip.compress("text,label\nnaïve,1\n".encode("utf-16"))),
    ):
        write(name, content)
        with pytest.raises(UserError) as caught:
            read(train=name)
        command = re.search(r": ((zcat .* \| )?iconv .*)$", str(caught.value))
        assert command
        subprocess.run(command[1], shell=True, check=True)
        assert read(train=shlex.split(command[1])[-1]).train.to_dict() == {"text": ["naïve"], "label": [1]}


def test_encrypted_and_damaged_archives_and_traps(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = packed(x_csv=TABLE * 100)
    encrypted = bytearray(whole)
    for place in (6, whole.index(b"PK\x01\x02") + 8):
        encrypted[place] |= 1
    write("a.zip", bytes(encrypted))
    refused("a.zip: the file x.csv in it is encrypted; unpack it with its password", train="a.zip")
    write("b.zip", whole.replace(b"\x03\x04\x14", b"\x03\x04\x14")[:45] + bytes([whole[45] ^ 255]) + whole[46:])
    refused("b.zip/x.csv is no whole file in its archive", train="b.zip")
    monkeypatch.setattr(archive, "TOO_LARGE", 1000)
    monkeypatch.setattr(archive, "TOO_DENSE", 2)
    write("c.zip", whole)
    refused("c.zip: x.csv would be 1,900 bytes, unpacked from .*; that is no data but a trap", train="c.zip")
    write("d.xlsx", book(S=CELLS * 500))
    refused("d.xlsx: .* would be .* bytes", train="d.xlsx")
    dense = gzip.compress((TABLE * 100).encode())
    write("e.csv.gz", dense)
    refused("e.csv.gz has more than 1,900 bytes, unpacked from .*; that is no data but a trap", train="e.csv.gz")
    write("f.zip", packed(x_csv_gz=dense))
    refused("f.zip/x.csv.gz has more than", train="f.zip")
    # Packed twice: neither is dense, but what the disk has of it is.
    light = gzip.compress(("text,label\n" + "a,1\n" * 400).encode(), compresslevel=0)
    write("g.csv.gz", light)
    assert len(read(train="g.csv.gz").train) == 400
    write("g.zip", packed(x_csv_gz=light))
    refused("g.zip", train="g.zip")


def test_cells_are_what_a_csv_of_the_sheet_has() -> None:
    cells = ["007", 3, 3.0, 2.5, 1e300, True, date(2026, 1, 31), datetime(2026, 1, 31, 4, 5), "a\r\nb", None]
    write("a.xlsx", book(S=[["x", "n"], *([cell, 1] for cell in cells)]))
    assert read(train="a.xlsx").train.to_dict()["x"] == [
        *("007", "3", "3", "2.5", "1e+300", "TRUE", "2026-01-31", "2026-01-31 04:05:00", "a\r\nb", None)
    ]
    write("b.xlsx", book(S=[["n", "f"], [1, 1.5], [2, 2]]))
    assert read(train="b.xlsx").train.to_dict() == {"n": [1, 2], "f": [1.5, 2.0]}


def rewritten(content: bytes, pattern: bytes, by: bytes) -> bytes:
    """Return a workbook whose sheets were written by another program."""
    result = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(result, "w") as target:
        for name in source.namelist():
            target.writestr(name, re.sub(pattern, by, source.read(name)))
    return result.getvalue()


def test_escaped_characters_in_cells() -> None:
    cells = {"a_x000D_b": "a\rb", "_x005F_x000D_": "_x000D_", "_x0041_x": "Ax", "_xD83D_": "_xD83D_", "_x12_": "_x12_"}
    write("a.xlsx", book(S=[["x", "n"], *([cell, 1] for cell in cells)]))
    assert read(train="a.xlsx").train.to_dict()["x"] == [*cells.values()]


def test_cells_without_a_value_name_the_cause() -> None:
    write("a.xlsx", book(S=[*CELLS, ["c", "#N/A"]]))
    refused("a.xlsx/S, cell B4: the error #N/A, and no value", train="a.xlsx")
    write("t.xlsx", rewritten(book(S=[*CELLS, ["c", "N/A"]]), b">N/A<", b">#N/A<"))
    assert read(train="t.xlsx").train["label"][:] == ["1", "2", "#N/A"]
    formulas = book(S=[*CELLS, ["c", "=1+1"], ["d", "=1+1"]])
    write("b.xlsx", formulas)
    refused("a formula that was saved without its value, and 1 more like it; open the workbook", train="b.xlsx")
    write("c.xlsx", rewritten(formulas, b"<v></v>|<v */>", b"<v>2</v>"))
    assert read(train="c.xlsx").train["label"][:] == [1, 2, 2, 2]
    write("d.xlsx", rewritten(formulas, b'(<c r="B[45]")', rb'\1 t="str"'))
    assert read(train="d.xlsx").train["label"][:] == [1, 2, None, None]


def test_rows_behind_what_a_sheet_says_of_its_size() -> None:
    write("a.xlsx", rewritten(book(S=CELLS), b'<dimension ref="[^"]*"', b'<dimension ref="A1:B2"'))
    assert read(train="a.xlsx").train.to_dict() == ROWS


def test_what_stood_beside_data_in_a_folder_still_does() -> None:
    write("d/train.csv", TABLE)
    write("d/train.xlsx", book(S=[["other"], ["x"]]))
    write("d/all.zip", packed(x_csv="other\nx\n"))
    assert read("d").train.to_dict() == ROWS
    write("e/rows.xlsx", book(S=CELLS))
    assert read("e").train.to_dict() == ROWS


def test_evaluation_data_beside_and_inside_of_a_file() -> None:
    write("d/a.json", json.dumps({"data": OBJECTS, "more": [{"text": "x", "label": 9}]}))
    write("d/beside.csv", TABLE)
    write("there/dev.csv", TABLE)
    write("d/b.csv", TABLE)
    for evaluate in ("beside.csv", "there/dev.csv"):
        for name in ("d/a.json", "d/b.csv"):
            assert read(name, evaluate=evaluate).evaluate.to_dict() == ROWS
    assert read("d/a.json", train="data", evaluate="more").evaluate.to_dict() == {"text": ["x"], "label": [9]}
    refused("data.eval is 'no.csv', but there is no such file", name="d/b.csv", evaluate="no.csv")


def test_texts_of_an_archive_are_documents() -> None:
    write("a.zip", packed(x_txt="One.\n", y_txt="Two.\n", z_txt="Three.\n"))
    assert len([*Documents(train="a.zip", held_out=0.4).read().training_texts()]) == 2


TEXTS = st.text("abc xé,;\"'|", min_size=1, max_size=8).map(lambda text: f"t{text}t")
TABLES = st.lists(
    st.tuples(
        TEXTS, st.integers(-(10**9), 10**9), st.integers(-(10**6), 10**6).map(lambda number: (2 * number + 1) / 8)
    ),
    min_size=2,
    max_size=6,
)


@given(TABLES)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_same_rows_are_read_alike_from_every_format(rows: list[tuple[str, int, float]]) -> None:
    columns = dict(zip(("text", "number", "share"), map(list, zip(*rows, strict=True)), strict=True))
    objects = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def separated(sign: str) -> str:
        quoted = [['"' + str(cell).replace('"', '""') + '"' for cell in row.values()] for row in objects]
        return "".join(sign.join(row) + "\n" for row in [[*columns], *quoted])

    listed = json.dumps(objects)
    files: dict[str, str | bytes] = {
        "a.csv": separated(","),
        "a.tsv": separated("\t"),
        "a.json": listed,
        "b.json": json.dumps({"about": {"of": 1}, "items": objects}),
        "a.jsonl": "".join(json.dumps(row) + "\n" for row in objects),
        "a.xlsx": book(S=[[*columns], *([*row.values()] for row in objects)]),
        "a.csv.gz": gzip.compress(separated(",").encode()),
        "a.zip": packed(d__rows_csv=separated(",")),
        "b.zip": packed(rows_json=listed),
        "a.parquet": as_parquet(columns),
    }
    for name, content in files.items():
        write(name, content)
        assert read(train=name).train.to_dict() == columns, name


@dataclass(frozen=True)
class Run(Config):
    data: DataConfig = DataConfig()


def test_a_setting_names_what_is_inside() -> None:
    write("a.xlsx", book(**{"May 1": CELLS, "June": CELLS}))
    run = parse(Run, "", ["--data.name", "a.xlsx", "--data.train", "May 1", "--data.eval", "June"])
    found = run.data.tables(lambda: pytest.fail("the embedded data"))
    assert (found.train.to_dict(), found.evaluate.to_dict()) == (ROWS, ROWS)
    assert found.origin == "a.xlsx: May 1; evaluation: June"
