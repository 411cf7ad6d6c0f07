"""What all tests share: no network, folders of their own, and a tiny encoder with a table that it can learn."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

import pytest
from launching import start_copies
from recipe_layouts import load_recipe

import toolkit  # noqa: F401 (sets what the libraries read when they are loaded)

if TYPE_CHECKING:
    from transformers import BertConfig
    from trial import Outcome

HERE = Path(tempfile.mkdtemp(prefix="finetune-toolkit-tests-"))
# Before anything of Hugging Face is imported, which reads these once. The cache is one for the session, so that corpus,
# tokenizers and tokens are made once; HF_HOME is also where Accelerate looks for a remembered launch file.
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "HF_HOME": str(HERE / "huggingface"),
    "FINETUNE_TOOLKIT_CACHE": str(HERE / "cache"),
}
# The tests may themselves run inside a job.
for variable in tuple(os.environ):
    if variable.startswith("ACCELERATE_") or variable.endswith(("RANK", "WORLD_SIZE")):
        os.environ.pop(variable, None)

start_copies()
pytest.register_assert_rewrite("trial")
ROOT = Path(__file__).parents[1]
WORDS = ["red", "green", "blue", "one", "two", "three", "four", "five", "six", "seven"]


def pytest_unconfigure() -> None:
    shutil.rmtree(HERE, ignore_errors=True)


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """Have what a test, or a library for it, sets in the environment end with the test: the next one's commands would
    find it."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def recipe() -> ModuleType:
    """recipes/classify.py as a module; its name is that of the run's messages."""
    return load_recipe("classify")


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty rows of text with the labels a and b."""
    path = tmp_path_factory.mktemp("table") / "reviews.jsonl"
    rows = [
        {"text": " ".join(WORDS[(7 * i + j) % 10] for j in range(1 + i % 5)), "label": "ab"[i % 2]} for i in range(40)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved BERT of one layer without a head, which knows fourteen words."""
    from transformers import BertModel

    folder = tmp_path_factory.mktemp("models") / "encoder"
    BertModel(tiny_bert()).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


class Classify(Protocol):
    """Runs the classification recipe; options that are not given name the tiny encoder and the table."""

    def __call__(
        self, *arguments: str | Path, model: Path | str | None = ..., train: Path | str | None = ...
    ) -> "Outcome":
        """Run it in this process."""


@pytest.fixture
def classify(recipe: ModuleType, encoder: Path, table: Path, tmp_path: Path) -> Classify:
    """The recipe in this process, with the run folder tmp_path/run."""
    from trial import run_here

    def run(*arguments: str | Path, model: Path | str | None = encoder, train: Path | str | None = table) -> "Outcome":
        named = [("--model.name", model), ("--data.train", train)]
        # One thread: a second one waits for the first longer than these sizes take.
        given = ["--threads", "1"] + [word for flag, value in named if value is not None for word in (flag, str(value))]
        return run_here(recipe.Classify, recipe.task, [*given, *map(str, arguments)], tmp_path / "run")

    return run


def tiny_bert(**changes: object) -> "BertConfig":
    """Return the settings of a BERT that costs nothing."""
    from transformers import BertConfig

    sizes = {"vocab_size": 14, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return BertConfig(**{**sizes, "intermediate_size": 16, "max_position_embeddings": 128, **changes})


def save_tokenizer(folder: Path) -> None:
    """Save a tokenizer of whole words, fourteen with the special ones, in a model's folder."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    words = {word: number for number, word in enumerate([*special, *WORDS])}
    backend = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=128,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(folder)


@pytest.fixture
def tracker_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Trackio and MLflow keep their runs in the test's folder."""
    import trackio.sqlite_storage
    import trackio.utils

    # Trackio reads its variable when it is imported.
    for module in (trackio.utils, trackio.sqlite_storage):
        monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    for name in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME", "TRACKIO_PROJECT", "WANDB_API_KEY", "WANDB_MODE"):
        # What sends sets some of these for itself, and does so here in the tests' own process.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished tiny run of 12 steps with 4 evaluations, which was sent to no tracker; copies of it are used."""
    from resuming import run

    return run(tmp_path_factory.mktemp("finished") / "run", "--evaluate.every", "3").done().folder
