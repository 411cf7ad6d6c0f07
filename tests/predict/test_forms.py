"""`toolkit predict` reads a file as its training does: a text by its content, and the names that the training gave."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from recipe_layouts import config_class, load_recipe
from small_classify import WORDS
from small_tag import sentences, write_conll
from trial import Outcome, command_here, run_here

from toolkit.errors import UserError
from toolkit.predict.forms import header_of

ROWS = [(f"{row}_1", "ab"[row % 3 == 0], " ".join(WORDS[(row * k) % 7] for k in range(1, 6))) for row in range(24)]
LENGTH = ("--epochs", "null", "--steps", "2", "--model.dtype", "float64", "--batch.size", "8", "--threads", "1")


def write_table(path: Path, rows: Sequence[Sequence[str]], separator: str = "\t") -> Path:
    path.write_text("".join(separator.join(row) + "\n" for row in rows), encoding="utf-8")
    return path


def trained(recipe: str, folder: Path, *arguments: str) -> Path:
    loaded = load_recipe(recipe)
    return run_here(config_class(loaded), loaded.task, [*arguments, *LENGTH], folder / "run").done().folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a tabbed text without a header."""
    folder = tmp_path_factory.mktemp("classify")
    train = write_table(folder / "train.txt", ROWS)
    return trained("classify", folder, "--data.train", str(train), "--data.header", "[id, label, text]")


def predict(run: Path, file: Path, *more: str) -> Outcome:
    return command_here("predict", run, file, "--output", output(file), "--threads", "1", *more)


def output(file: Path) -> Path:
    return file.with_name(f"{file.name}.jsonl")


def predictions(file: Path, *names: str) -> list[tuple[Any, ...]]:
    rows = [json.loads(line) for line in output(file).read_text(encoding="utf-8").splitlines()]
    return [tuple(row[name] for name in names) for row in rows]


def test_a_tabbed_text_is_the_table_that_it_is_in_training(run: Path, tmp_path: Path) -> None:
    wanted = write_table(tmp_path / "named.csv", [("id", "label", "text"), *ROWS], ",")
    predict(run, wanted).done()
    columns = ("id", "text", "prediction", "score")
    header = "'id', 'label', 'text', which data.header of the training names"
    for name in ("new.txt", "new.tsv", "new.data"):
        file = write_table(tmp_path / name, ROWS)
        predict(run, file).done().says("24 rows", header)
        assert predictions(file, *columns) == predictions(wanted, *columns)
    given = write_table(tmp_path / "given.txt", ROWS)
    predict(run, given, "--header", "[id, label, text]").done().says("read as a table separated by tabs")
    assert predictions(given, *columns) == predictions(wanted, *columns)
    lines = write_table(tmp_path / "lines.txt", [(row[2],) for row in ROWS])
    predict(run, lines).done().says("each line is a row")
    assert predictions(lines, *columns[1:]) == predictions(wanted, *columns[1:])


def test_a_header_of_its_own_stays_one(run: Path, tmp_path: Path) -> None:
    """Names in another order, and others that are no data, are not taken for a row."""
    turned = write_table(tmp_path / "turned.txt", [("text", "label", "id"), *(row[::-1] for row in ROWS)])
    assert "data.header" not in predict(run, turned).done().output
    assert predictions(turned, "id", "text") == [(row[0], row[2]) for row in ROWS]
    other = write_table(tmp_path / "other.tsv", [("nr", "mood", "body"), *ROWS])
    predict(run, other).told("no column 'text'", "its columns are 'nr', 'mood', 'body'")


def test_a_header_is_refused_where_there_is_none(run: Path, tmp_path: Path) -> None:
    lines = write_table(tmp_path / "lines.txt", [(row[2],) for row in ROWS])
    predict(run, lines, "--header", "text").told("--header is given", "a text with a row on each line")
    (tmp_path / "a.jsonl").write_text('{"text": "red"}\n', encoding="utf-8")
    predict(run, tmp_path / "a.jsonl", "--header", "false").told("--header is given", "read as json lines")


def test_a_first_row_is_not_suggested_as_a_column(run: Path, tmp_path: Path) -> None:
    file = write_table(
        tmp_path / "new.csv", [("The concept is a hoot. The movie is a dud.",), *((r[2],) for r in ROWS)]
    )
    said = predict(run, file).told("looks like data", '--header "[text]"', "--header true")
    assert "--column" not in said.errors
    predict(run, file, "--header", "[text]").done()
    assert len(predictions(file, "text")) == 25
    wider = write_table(tmp_path / "wider.csv", [(row[2], row[1]) for row in ROWS], ",")
    predict(run, wider).told('--header "[text, label]"', "--header false")


def test_labelled_lines(tmp_path: Path) -> None:
    """A label is told from a first word by what the model knows; questions begin with few words too."""
    train = write_table(tmp_path / "train.txt", [row[1:] for row in ROWS], " ")
    run = trained("classify", tmp_path, "--data.train", str(train), "--data.header", "[label, words]")
    labelled = write_table(tmp_path / "labelled.txt", [row[1:] for row in ROWS], " ")
    predict(run, labelled).done().says("each line divided at its first space")
    assert predictions(labelled, "label", "words") == [row[1:] for row in ROWS]
    plain = write_table(tmp_path / "plain.txt", [(f"what {row[2]}",) for row in ROWS])
    predict(run, plain, "--column", "text=text").done().says("each line is a row")
    assert predictions(plain, "text") == [(f"what {row[2]}",) for row in ROWS]


def test_sentences_in_a_text(tmp_path: Path) -> None:
    train = write_conll(tmp_path / "train.txt", sentences(24, 1), " ")
    run = trained("tag", tmp_path, "--data.train", str(train))
    named = write_conll(tmp_path / "named.conll", sentences(6, 2), " ")
    predict(run, named).done()
    for separator in (" ", "\t"):
        text = write_conll(tmp_path / "text.txt", sentences(6, 2), separator)
        output(text).unlink(missing_ok=True)
        predict(run, text).done().says("6 rows, read as CoNLL")
        assert predictions(text, "tokens", "prediction") == predictions(named, "tokens", "prediction")
    plain = tmp_path / "plain.txt"
    plain.write_text("Ada Gauss sleeps\nEmmy walks to Turin\n", encoding="utf-8")
    predict(run, plain, "--column", "tokens=text").done().says("each line is a row")
    assert [len(tags) for (tags,) in predictions(plain, "prediction")] == [3, 4]


def test_headers_as_they_are_written() -> None:
    assert header_of(None) is None
    assert [header_of("true"), header_of("False")] == [True, False]
    for given in ("id,text", "[id, text]", '["id", text]', " id , text "):
        assert header_of(given) == ["id", "text"]
    assert header_of('["a, b", c]') == ["a, b", "c"]
    for wrong in ("", "[]", "[id, text", "id,,text", "a,a", "[a, [b]]", "[a, a]", "[a, b] c"):
        with pytest.raises(UserError, match="--header"):
            header_of(wrong)
