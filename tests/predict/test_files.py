"""`toolkit predict` keeps a file's rows, columns and order, in every format, on any number of processes and through
kills."""

import csv
import gzip
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from command_server import PROGRAMS
from launching import CPU, Process, begin, clean_environment
from recipe_layouts import config_class, load_recipe, small_arguments
from small_classify import WORDS
from trial import Outcome, command_here, run_here, state_of

from toolkit.predict.command import batches_of
from toolkit.predict.parts import Parts
from toolkit.predict.rows import ROWS_AT_ONCE

ROWS = 3 * ROWS_AT_ONCE + 17


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run of the classifier."""
    folder = tmp_path_factory.mktemp("trained")
    recipe = load_recipe("classify")
    arguments = [*small_arguments("classify", folder / "data"), "--threads", "1"]
    return run_here(config_class(recipe), recipe.task, arguments, folder / "run").done().folder


def rows(count: int) -> list[dict[str, Any]]:
    """Return rows of words; every 50th has no text."""
    texts = [" ".join(WORDS[(row * k + k) % 7] for k in range(1, 2 + row % 23)) for row in range(count)]
    return [{"id": f"{row:05d}", "text": text if row % 50 else None, "n": row} for row, text in enumerate(texts)]


def write_lines(path: Path, given: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in given), encoding="utf-8")
    return path


def write_csv(path: Path, given: Sequence[dict[str, Any]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(given[0]))
        writer.writeheader()
        writer.writerows(given)
    return path


def predict(run: Path, file: Path, output: Path, *more: str) -> Outcome:
    return command_here("predict", run, file, "--output", output, "--threads", "1", *more)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file that was written."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as parquet

        found: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
        return found
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))


def test_every_format_in_and_out(run: Path, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    given = rows(60)
    predict(run, write_lines(tmp_path / "in.jsonl", given), tmp_path / "out.jsonl").done()
    wanted = read(tmp_path / "out.jsonl")
    assert [{key: row[key] for key in ("id", "text", "n")} for row in wanted] == given
    assert [row["prediction"] is None for row in wanted] == [row["text"] is None for row in given]
    write_csv(tmp_path / "in.csv", given)
    parquet.write_table(pa.Table.from_pylist(given), tmp_path / "in.parquet")
    (tmp_path / "in.json").write_text(json.dumps(given), encoding="utf-8")
    with gzip.open(tmp_path / "in.csv.gz", "wb") as packed:
        packed.write((tmp_path / "in.csv").read_bytes())
    for name in ("in.csv", "in.parquet", "in.json", "in.csv.gz"):
        for ending in (".csv", ".tsv", ".jsonl", ".parquet"):
            output = tmp_path / f"{name}{ending}"
            predict(run, tmp_path / name, output).done()
            found = read(output)
            typed = ending in (".jsonl", ".parquet")
            assert [row["prediction"] or None for row in found] == [row["prediction"] for row in wanted]
            assert [row["score"] if typed else float(row["score"] or "nan") for row in found] == pytest.approx(
                [row["score"] if typed or row["score"] else float("nan") for row in wanted], nan_ok=True
            )
            # A number of a csv file stays a text: "007" is none.
            assert [str(row["n"]) for row in found] == [str(row["n"]) for row in given]
            assert [row["id"] for row in found] == [row["id"] for row in given]
    assert parquet.read_schema(tmp_path / "in.parquet.parquet").field("n").type == pa.int64()


def test_the_output_is_the_same_on_any_number_of_processes(run: Path, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "in.csv", rows(ROWS))
    predict(run, file, tmp_path / "1.csv").done().says("predicted", "without a text", "rows/s")
    alone = (tmp_path / "1.csv").read_bytes()
    assert len(read(tmp_path / "1.csv")) == ROWS
    for processes in (2, 4):
        output = tmp_path / f"{processes}.csv"
        done = started(run, file, output, processes=processes).communicate(timeout=180)
        assert output.is_file(), done
        assert output.read_bytes() == alone
        assert not Parts(output).folder.exists()


def started(run: Path, file: Path, output: Path, *more: str, processes: int = 1) -> Process:
    """Start the command in processes of their own."""
    launcher = [PROGRAMS / "accelerate", "launch", "--config_file", CPU, "--main_process_port", "0"]
    launcher += ["--num_processes", str(processes)]
    words = ["-m", "toolkit", "predict", str(run), str(file), "--output", str(output), "--threads", "1", *more]
    return begin([*(launcher if processes > 1 else [sys.executable]), *words], clean_environment())


def test_a_kill_loses_at_most_a_block(run: Path, tmp_path: Path) -> None:
    file, output = write_lines(tmp_path / "in.jsonl", rows(ROWS)), tmp_path / "out.jsonl"
    predict(run, file, tmp_path / "whole.jsonl", "--batch", "2").done()
    process = started(run, file, output, "--batch", "2")
    parts = Parts(output)
    until = time.monotonic() + 60
    while not parts.has(1) and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert parts.has(1)
    assert not output.exists()
    there = sum(map(parts.has, range(4)))
    again = predict(run, file, output, "--batch", "2").done().says(f"{there:,} of 4 blocks of rows are there already")
    assert f"predicted {ROWS - there * ROWS_AT_ONCE:,} rows" in again.output
    assert output.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert not parts.folder.exists()


def test_what_was_begun_with_something_else_is_not_mixed(run: Path, tmp_path: Path) -> None:
    file, output = write_lines(tmp_path / "in.jsonl", rows(20)), tmp_path / "out.jsonl"
    Parts(output).begin({"model": "another"}, overwrite=False)
    before = state_of(tmp_path)
    predict(run, file, output).told("begun with another", "--overwrite")
    assert state_of(tmp_path) == before
    predict(run, file, output, "--overwrite").done()


def test_batches_are_of_like_length() -> None:
    assert list(batches_of([3, 9, 1, 9, 4], 2)) == [[1, 3], [4, 0], [2]]
    assert list(batches_of([], 2)) == []


def test_columns_are_found_named_and_missed(run: Path, tmp_path: Path) -> None:
    given = [{"body": row["text"] or "", "text_id": row["id"]} for row in rows(9)]
    file, output = write_csv(tmp_path / "in.csv", given), tmp_path / "out.csv"
    predict(run, file, output).told("the file has no column 'text'", "which the model was trained on", "--column text=")
    predict(run, file, output, "--column", "text=bodi").told("no column 'bodi'", "--column text=body")
    predict(run, file, output, "--column", "body").told("--column is 'body'", "PART=COLUMN")
    predict(run, file, output, "--column", "text=body").done()
    assert [row["text_id"] for row in read(output)] == [row["text_id"] for row in given]


def test_mistakes(run: Path, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "in.jsonl", rows(5))
    before = state_of(tmp_path)
    predict(run, tmp_path / "no.csv", tmp_path / "o.txt", "--batch", "0").told(
        "there is no file", "--output is", ".jsonl", "--batch is 0"
    )
    predict(run, file, file).told("the file that is read")
    predict(tmp_path / "no" / "model", file, tmp_path / "o.csv").told("there is no such folder")
    predict(run / "data", file, tmp_path / "o.csv").told("there is no such folder")
    (tmp_path / "empty.csv").write_text("")
    predict(run, tmp_path / "empty.csv", tmp_path / "o.csv").told("is empty")
    (tmp_path / "empty.csv").unlink()
    write_lines(tmp_path / "taken.jsonl", [{"text": "red", "score": 1}])
    predict(run, tmp_path / "taken.jsonl", tmp_path / "o.csv").told("'score' already")
    (tmp_path / "taken.jsonl").unlink()
    (tmp_path / "bad.jsonl").write_text('{"text": "red"}\n{"text": \n')
    predict(run, tmp_path / "bad.jsonl", tmp_path / "o.csv").told("bad.jsonl, line 2: malformed json")
    (tmp_path / "bad.jsonl").unlink()
    assert state_of(tmp_path) == before


def test_rows_that_differ(run: Path, tmp_path: Path) -> None:
    """A column that comes late, and predictions that begin late, are kept in every format."""
    given = [{"text": None, "n": 1}] * ROWS_AT_ONCE + [{"text": "one", "more": 2.5}]
    file = write_lines(tmp_path / "in.jsonl", given)
    for ending in ("csv", "parquet", "jsonl"):
        predict(run, file, tmp_path / f"out.{ending}", "--scores").done()
        found = read(tmp_path / f"out.{ending}")
        scores = found[-1]["scores"]
        assert set(json.loads(scores) if ending == "csv" else scores) == {"a", "b"}
        assert [row.get("n") or None for row in found] == [
            str(row["n"]) if ending == "csv" and "n" in row else row.get("n") for row in given
        ]
        assert float(found[-1]["more"]) == 2.5
        assert found[-1]["prediction"] in ("a", "b")
        assert not found[0]["prediction"]


def test_cells_with_line_ends_come_back(run: Path, tmp_path: Path) -> None:
    given = [{"text": text} for text in ("red\rgreen", 'one "two", three', "blue\nred", "four\r\nfive")]
    predict(run, write_lines(tmp_path / "in.jsonl", given), tmp_path / "out.csv").done()
    assert [row["text"] for row in read(tmp_path / "out.csv")] == [row["text"] for row in given]


def test_numbers_that_json_does_not_have(tmp_path: Path, run: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "red", "n": NaN, "of": [{"x": -Infinity}, 0.5]}\n', encoding="utf-8")
    for ending in ("jsonl", "csv"):
        predict(run, tmp_path / "in.jsonl", tmp_path / f"out.{ending}").done()
    (row,) = read(tmp_path / "out.jsonl")
    assert (row["n"], row["of"]) == (None, [{"x": None}, 0.5])
    assert read(tmp_path / "out.csv")[0]["of"] == '[{"x": null}, 0.5]'


def test_files_that_are_none(run: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    bad = {
        "number.jsonl": ('{"text": "red"}\n5\n', "number.jsonl, line 2: no object"),
        "half.jsonl": ('{"text": "\\ud800"}\n', "half.jsonl, line 1: a text with half a character"),
        "cut.parquet": ("PAR1 and nothing else", "no readable parquet file"),
        "bare.csv": ("red\nred\nred\nblue\n", "looks like data"),
    }
    for name, (content, message) in bad.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
        predict(run, tmp_path / name, output).told(message)
    predict(run, tmp_path / "bare.csv", output, "--header", "text").done()
    assert [row["text"] for row in read(output)] == ["red", "red", "red", "blue"]
    file = write_lines(tmp_path / "in.jsonl", rows(5))
    predict(run, file, output, "--overwrite", "--column", "txt=text").told("did you mean text=text?")
    predict(run, file, output, "--overwrite", "--threads", "0").told("threads is 0")


def test_what_parquet_cannot_keep_is_refused_before_predictions(run: Path, tmp_path: Path) -> None:
    before = [{"text": "red", "more": 2**60 + 1}] * ROWS_AT_ONCE
    for given, message in (
        ([{"text": "red", "more": {}}], "the column 'more' holds struct<>"),
        ([{"text": "red", "more": [{}]}], "the column 'more' holds list<"),
        ([{"text": "red", "more": 2**63}], "a whole number beyond 64 bits"),
        ([*before, {"text": "red", "more": 2.5}], "values of several types"),
    ):
        file, output = write_lines(tmp_path / "in.jsonl", given), tmp_path / "out.parquet"
        predict(run, file, output).told(message, "can't keep", ".jsonl")
        assert not Parts(output).folder.exists()
    predict(run, write_lines(file, [{"text": "red", "more": 2**63, "of": {}}]), tmp_path / "out.jsonl").done()
    assert read(tmp_path / "out.jsonl")[0]["more"] == 2**63


def test_a_batch_that_does_not_fit_is_halved(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from toolkit.tasks.text_classification import prediction

    file = write_lines(tmp_path / "in.jsonl", rows(40))
    predict(run, file, tmp_path / "whole.jsonl").done()
    real, most = prediction.probabilities, 5

    def scarce(kind: str, model: Any, batch: Any) -> Any:
        if len(batch["input_ids"]) > most:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
        return real(kind, model, batch)

    monkeypatch.setattr(prediction, "probabilities", scarce)
    predict(run, file, tmp_path / "out.jsonl").done()
    found, wanted = read(tmp_path / "out.jsonl"), read(tmp_path / "whole.jsonl")
    assert [row["prediction"] for row in found] == [row["prediction"] for row in wanted]
    most = 0
    predict(run, file, tmp_path / "none.jsonl").told("for a single sample")


def test_folders_of_images_go_on(tmp_path: Path) -> None:
    """The output may lie in the folder; an image that is another one by now is noticed."""
    recipe = load_recipe("classify_images")
    arguments = [*small_arguments("classify_images", tmp_path / "data"), "--threads", "1"]
    trained = run_here(config_class(recipe), recipe.task, arguments, tmp_path / "run").done().folder
    folder = tmp_path / "data" / "val"
    output = folder / "out.jsonl"
    predict(trained, folder, output).done()
    first = read(output)
    output.unlink()
    (tmp_path / "elsewhere").mkdir()
    assert len(first) == 11
    predict(trained, folder, output).done()
    assert read(output) == first
