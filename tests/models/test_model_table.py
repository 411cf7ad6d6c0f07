"""Models as they come: every architecture that the documentation names is trained, or refused by a sentence."""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
from accelerate.state import AcceleratorState
from launching import ROOT, launch
from model_table import DIFFERENT, ROWS, Job, Outcome, jobs, page, walk

TOGETHER = 420
"""Seconds for all pairs on two processes on a busy machine; where nothing else runs it takes 80."""
ORDINARY = {"MASK", "BIO", "ENCODER", "Bit", "OpenAI", "NaN"}
"""Words of the documentation that are no models, though Transformers has some that are called so or begin like that."""
CLOSE = 2e-5
"""Of float32; without any rounding it would be nothing."""


@dataclass(frozen=True)
class Walked:
    folder: Path
    jobs: list[Job]
    found: dict[str, Outcome]


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Walked:
    """All pairs on one process."""
    # What another test had chosen would outlive it here.
    AcceleratorState._reset_state(reset_partial_state=True)
    folder = tmp_path_factory.mktemp("models")
    todo = list(jobs(folder))
    return Walked(folder, todo, walk(todo))


def test_each_pair_trains_or_is_refused_as_the_page_says(walked: Walked) -> None:
    written = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    assert page(walked.found) == written, "print it again: python tests/helpers/model_table.py > docs/models.md"
    assert len(walked.found) == len(walked.jobs) >= 60


@pytest.mark.soak
def test_two_processes_do_the_same_as_one(walked: Walked) -> None:
    todo, output = walked.folder / "todo.json", walked.folder / "found.json"
    todo.write_text(json.dumps([asdict(job) for job in walked.jobs]), encoding="utf-8")
    done = launch(ROOT / "tests" / "helpers" / "model_table.py", str(todo), str(output), timeout=TOGETHER)
    assert done.returncode == 0, done.stderr
    found = json.loads(output.read_text(encoding="utf-8"))
    assert list(found) == list(walked.found)
    for name, one in walked.found.items():
        two = found[name]
        assert (two["said"], tuple(two["unused"]), tuple(two["limits"])) == (one.said, one.unused, one.limits), name
        if not set(one.limits) & set(DIFFERENT):
            assert two["numbers"] == pytest.approx(one.numbers, rel=CLOSE, abs=1e-6), name


def test_every_architecture_that_the_documentation_names_stands_in_the_table() -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    def plain(name: str) -> str:
        return re.sub(r"[^a-z0-9]", "", name.lower())

    kinds = {plain(kind) for kind in CONFIG_MAPPING_NAMES}
    rows = [plain(row.name) for row in ROWS]
    named: dict[str, str] = {}
    for document in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *(ROOT / "recipes").glob("*.py")):
        if document.name in ("models.md", "predictions.md"):
            continue
        for word in re.findall(r"\b[A-Z][A-Za-z0-9-]*[A-Za-z0-9]\b", document.read_text(encoding="utf-8")):
            several = sum(letter.isupper() or letter.isdigit() for letter in word) > 1
            # A name in capitals may stand for a family: MobileNet, NLLB.
            family = several and len(word) > 2 and any(kind.startswith(plain(word)) for kind in kinds)
            if word not in ORDINARY and (family or plain(word) in kinds):
                named[word] = document.name
    assert {"BERT", "Llama", "T5", "NLLB", "MobileNet", "ConvNeXt", "Marian", "GPT-2"} <= set(named)
    missing = {word: document for word, document in named.items() if not any(plain(word) in row for row in rows)}
    assert not missing
