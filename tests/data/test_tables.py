"""The files that are meant are found, and one sentence names what is missing or ambiguous."""

from pathlib import Path

import datasets
import pytest
from table_reading import here, read, refused, write  # noqa: F401

from toolkit.errors import UserError


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
    write("x/b.csv", "text,label\nneighbour,2\n")
    neighbour = read("x/a.csv", evaluate="b.csv").evaluate
    assert neighbour is not None
    assert neighbour["text"][:] == ["neighbour"]


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
        ({"train": ".gitignored"}, "no such file or folder; did you mean .gitignore"),
        ({"train": "reviews.csv", "evaluate": "x.csv"}, "data.eval is 'x.csv', but there is no such file"),
        ({}, "data.name and data.train are both null"),
        ({"name": "empty"}, "the folder empty has no data files; read are .csv"),
        ({"train": "fold*"}, "data.train is 'fold.', which matches 2 names, the folder fold1 among them; give one"),
        ({"name": "reviews.csv", "train": "a.csv"}, "data.name is the file reviews.csv and data.train is 'a.csv'"),
        ({"name": "reviews.csv", "config": "en"}, "data.name is the file reviews.csv and data.config is 'en'"),
        ({"train": "reviews.csv", "config": "en"}, "data.config is 'en', but data.train is a path"),
    ],
)
def test_bad_place(given: dict[str, str], match: str) -> None:
    write("reviews.csv")
    Path("empty").mkdir()
    write("empty/notes.log", "x")
    if given.get("train") == "fold*":
        Path("fold1").mkdir()
        Path("fold2").mkdir()
    write(".git/notes.log", "x")
    write(".gitignore", "x")
    refused(match, **given)


def test_files_with_different_columns() -> None:
    write("d/a.csv", "text,label\na,1\n")
    write("d/b.csv", "text,stars\na,1\n")
    refused(r"d/a.csv and d/b.csv do not have the same columns: only one of them has 'label', 'stars'", name="d")
