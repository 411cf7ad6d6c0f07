"""Splits of saved data sets and of the hub are chosen by name, and one sentence says why data cannot be had."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest
from datasets.exceptions import DatasetNotFoundError
from table_reading import here, read, refused, write  # noqa: F401

# Saved data sets


@pytest.fixture
def saved(here: Path) -> str:  # noqa: F811
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


@pytest.mark.parametrize("name", ["acme/reviews", "reviews"])
def test_hub_offline(name: str, here: Path) -> None:  # noqa: F811
    # A process of its own: the variable is read when huggingface_hub is first imported.
    arguments = f"name={name!r}, config=None, train=None, evaluate=None"
    code = f"from toolkit.data.sources import read_splits; read_splits({arguments})"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    environment |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(here)}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    message = result.stderr.strip().splitlines()[-1]
    assert message == (
        f"toolkit.errors.UserError: the data set {name!r} is not in the local cache, and the hub may not be asked: "
        f"offline mode is on (HF_HUB_OFFLINE); no file or folder {name} is here either; "
        "give the path of a local file or folder, or unset HF_HUB_OFFLINE"
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
            "'a/b' does not exist on the hub, or is private.*hf auth login; if b is a configuration of a, give "
            "--data.name a --data.config b; .*local file or folder",
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
    code = (
        "import sys, toolkit.data.sources; print(sorted({'datasets', 'pyarrow', 'torch', 'pandas'} & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert result.stdout == "[]\n"
