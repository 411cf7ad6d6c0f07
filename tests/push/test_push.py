"""`toolkit push` against a hub on this machine: what it gets, what it never gets, and what is said when it refuses."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import Classify
from hub_server import READER, TOKEN, Hub, hub
from huggingface_hub import HfApi, ModelCard, constants
from launching import clean_environment
from trial import Outcome, command_here, state_of

from toolkit.errors import UserError
from toolkit.push.command import check_visibility

PARTS = {"README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that this process pushes to."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        yield server


@pytest.fixture
def model(encoder: Path, tmp_path: Path) -> Path:
    """A model folder of its own, with a card."""
    folder = tmp_path / "model"
    shutil.copytree(encoder, folder)
    (folder / "README.md").write_text("---\nlibrary_name: transformers\n---\n\n# A model\n", encoding="utf-8")
    return folder


def push(*words: str | Path) -> Outcome:
    """Push, and check that no token was shown."""
    outcome = command_here("push", *words)
    for token in (TOKEN, READER):
        assert token not in outcome.output + outcome.errors
    return outcome


def test_what_a_run_pushes_loads_from_what_the_hub_got(server: Hub, classify: Classify, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    run = classify("--steps", "2", "--epochs", "null").done().folder
    before = state_of(run)
    outcome = push(run, "ann/reviews").done().says("ann/reviews", "new", "private", "model.safetensors")
    assert state_of(run) == before
    head = server.repositories["ann/reviews"].branches["main"]
    outcome.says(f"sent: {server.address}/ann/reviews/commit/{head}")
    files = server.files("ann/reviews")
    assert set(files) == {path.name for path in (run / "model").iterdir()} | {".gitattributes"}
    assert all(content == (run / "model" / name).read_bytes() for name, content in files.items() if name[0] != ".")
    assert server.repositories["ann/reviews"].private
    assert server.repositories["ann/reviews"].messages[-1] == "Model of run after step 2"
    # As anybody would get it, who may.
    place = tmp_path / "downloaded"
    HfApi(endpoint=server.address, token=TOKEN).snapshot_download("ann/reviews", local_dir=place)
    there, here = (AutoModelForSequenceClassification.from_pretrained(folder) for folder in (place, run / "model"))
    assert all(torch.equal(a, b) for a, b in zip(there.parameters(), here.parameters(), strict=True))
    card = ModelCard.load(place / "README.md")
    assert {result.dataset_args["samples"] for result in card.data.eval_results} == {outcome_samples(run)}
    lines = re.findall(r"```python\n(.*?)```", card.text, flags=re.DOTALL)
    exec(lines[0].replace("<this folder>", str(place)), {})


def outcome_samples(run: Path) -> int:
    """Return the number of evaluation samples of a run."""
    count: int = json.loads((run / "run.json").read_text(encoding="utf-8"))["samples"]["evaluate"]
    return count


def test_the_same_again_makes_no_commit_and_a_change_makes_one(server: Hub, model: Path) -> None:
    push(model, "ann/m").done()
    repository = server.repositories["ann/m"]
    assert len(repository.commits) == 2
    push(model, "ann/m", "--message", "again").done().says("no commit was made", repository.branches["main"])
    assert len(repository.commits) == 2
    weights = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").rename(model / "model-00001-of-00001.safetensors")
    (model / "README.md").write_text("---\nlibrary_name: transformers\n---\n\n# Another\n", encoding="utf-8")
    push(model, "ann/m", "--message", "in shards").done().says("removed there", "model.safetensors: weights of an")
    assert repository.messages[-1] == "in shards"
    assert set(server.files("ann/m")) == (PARTS - {"model.safetensors"}) | {
        "model-00001-of-00001.safetensors",
        ".gitattributes",
    }
    assert server.files("ann/m")["model-00001-of-00001.safetensors"] == weights
    assert list(server.uploaded.values()) == [1]


def test_what_is_public_is_so_only_when_asked(server: Hub, model: Path) -> None:
    push(model, "ann/open", "--public").done().says("everybody (public)")
    assert not server.repositories["ann/open"].private
    commits = len(server.repositories["ann/open"].commits)
    push(model, "ann/open").told("is public on", "it was to be private", "nothing was sent", "--public")
    push(model, "ann/closed").done()
    push(model, "ann/closed", "--public").told("is private on", "leave out --public")
    assert len(server.repositories["ann/open"].commits) == commits
    # A hub that makes it public all the same gets no file.
    server.ignores_private = True
    push(model, "ann/leaky").told("ann/leaky is public on", "nothing was sent")
    assert set(server.files("ann/leaky")) == {".gitattributes"}


def test_a_password_in_the_address_of_the_hub_is_shown_nowhere(
    server: Hub, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(model, "ann/m").done()
    head = server.repositories["ann/m"].branches["main"]
    there = SimpleNamespace(oid=head, commit_url=f"http://ann:hunter2@host.example/commit/{head}")
    monkeypatch.setattr(HfApi, "upload_folder", lambda self, **words: there)
    outcome = push(model, "ann/m").done().says("no commit was made", f"http://host.example/commit/{head}")
    assert "hunter2" not in outcome.output
    api = SimpleNamespace(
        endpoint="http://ann:hunter2@host.example", repo_info=lambda name: SimpleNamespace(private=False)
    )
    with pytest.raises(UserError, match=r"is public on http://host\.example, and it was to be private"):
        check_visibility("ann/m", public=False, api=api)


def test_branches_and_names(server: Hub, model: Path) -> None:
    push(model, "mine", "--revision", "dev/2").done().says("ann/mine", "dev/2, new", 'revision="dev/2"')
    assert set(server.files("ann/mine")) == {".gitattributes"}
    assert set(server.files("ann/mine", "dev/2")) == PARTS | {".gitattributes"}
    push(model, "ann/mine", "--revision", "dev/2").done().says("no commit was made")
    server.repositories["ann/mine"].tags["v1"] = server.repositories["ann/mine"].branches["main"]
    push(model, "ann/mine", "--revision", "v1").told("a tag of ann/mine")


def test_only_what_is_a_model_is_sent(server: Hub, model: Path) -> None:
    for name in ("optimizer.pt", "training_args.bin", "ledger.jsonl", "config.yaml", "run.lock", "notes.txt"):
        (model / name).write_text("x", encoding="utf-8")
    (model / "checkpoints" / "step-000001").mkdir(parents=True)
    (model / "adapter").mkdir()
    (model / "adapter" / "adapter_config.json").write_text('{"base_model_name_or_path": "owner/base"}')
    (model / "reference.json").write_text(json.dumps({"name": str(model)}))
    outcome = push(model, "ann/m", "--also", "notes.txt").done()
    assert set(server.files("ann/m")) == PARTS | {"notes.txt", "adapter/adapter_config.json", ".gitattributes"}
    outcome.says("optimizer.pt (not safetensors: it can run code", "ledger.jsonl (no part of a model)")
    outcome.says("checkpoints (a folder)", "reference.json (it names a folder of this machine)")
    push(model, "ann/m", "--also", "optimizer.pt", "--also", "nothing").told("--also names optimizer.pt", "nothing,")
    (model / "old.BIN").write_text("x", encoding="utf-8")
    push(model, "ann/m", "--also", "old.BIN").told("--also names old.BIN, not safetensors: it can run code")


def test_adapters_beside_a_merged_model_are_left_out_where_their_base_is_a_folder(server: Hub, model: Path) -> None:
    (model / "adapter").mkdir()
    shutil.copy(model / "model.safetensors", model / "adapter" / "adapter_model.safetensors")
    (model / "adapter" / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(model)}))
    (model / "README.md").unlink()
    push(model, "ann/m").done().says("its base is in a folder of this machine", "none: there is no README.md")
    assert set(server.files("ann/m")) == (PARTS - {"README.md"}) | {".gitattributes"}


def test_folders_that_hold_no_model(server: Hub, model: Path, tmp_path: Path) -> None:
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "config.json").write_text("{}")
    (pickled / "pytorch_model.bin").write_text("x")
    push(pickled, "ann/m").told("pytorch_model.bin, which can run code")
    push(tmp_path / "nowhere", "ann/m").told("there is no folder")
    push(model / "config.json", "ann/m").told("is a file")
    push(tmp_path, "ann/m").told("is no model")
    checkpoint = tmp_path / "step-000012"
    shutil.copytree(model, checkpoint)
    push(checkpoint, "ann/m").told("is a checkpoint", "toolkit export RUN --step 12")
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"status": "preempted"}))
    push(run, "ann/m").told("has no saved model (its status is preempted)", f"toolkit export {run}")
    (model / "config.json").unlink()
    push(model, "ann/m").told("it has neither config.json nor")
    assert not server.requests


def test_a_run_under_way_is_left_alone(server: Hub, model: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(model, run / "model")
    for status, text in (("running", "still under way"), ("finished", "another process works in")):
        (run / "run.json").write_text(json.dumps({"status": status}))
        code = "import fcntl,sys; f=open(sys.argv[1],'a'); fcntl.lockf(f,fcntl.LOCK_EX); print(1,flush=True); input()"
        holder = subprocess.Popen(
            [sys.executable, "-c", code, str(run / "run.lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert holder.stdout is not None
        holder.stdout.readline()
        try:
            for place in (run, run / "model"):
                push(place, "ann/m").told(text)
        finally:
            holder.communicate(b"\n")
    assert not server.requests
    push(run, "ann/m").done()


def test_what_is_private_is_not_sent(server: Hub, model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    card = (model / "README.md").read_text(encoding="utf-8")
    (model / "README.md").write_text(f"{card}\nMade with {TOKEN}.\n", encoding="utf-8")
    (model / "finetune_toolkit.json").write_text(json.dumps({"from": f"{tmp_path}/x"}))
    (model / "generation_config.json").write_text(json.dumps({"from": "https://me:hunter2secret@host/x"}))
    (model / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(model)}))
    push(model, "ann/m").told(
        "README.md holds what looks like a token",
        "generation_config.json holds what looks like a token or a password",
        "finetune_toolkit.json names the home folder",
        "adapters' base is in a folder of this machine, model, where",
    )
    assert not server.requests


@pytest.mark.parametrize(
    ("words", "environment", "texts"),
    [
        (["a//b"], {}, ["no name that a hub accepts"]),
        (["ann/é"], {}, ["no name that a hub accepts"]),
        (["datasets/ann/m"], {}, ["no name that a hub accepts"]),
        (["ann/m", "--revision", "0" * 40], {}, ["a commit; only a branch"]),
        (["ann/m", "--revision", "a..b"], {}, ["can't be the name of a branch"]),
        (["ann/m", "--revision", ".x"], {}, ["can't be the name of a branch"]),
        (["ann/m", "--message", " "], {}, ["--message is empty"]),
        (["ann/m", "--message", f"by {READER}"], {}, ["--message holds what looks like a token"]),
        (["ann/m"], {"HF_TOKEN": ""}, ["there is no token", "hf auth login", "HF_TOKEN"]),
        (["ann/m"], {"HF_TOKEN": "hf_" + "z" * 34}, ["does not accept the token", "hf auth login"]),
        (["ann/m"], {"HF_TOKEN": READER}, ["may not write to ann/m"]),
        (["bob/m"], {}, ["may not write to bob/m", "under the namespace bob"]),
        (["https://hub.example/ann/m"], {}, ["no name that a hub accepts"]),
        (["ann/m"], {"HF_TOKEN": "ünïcode-and-long"}, ["HF_TOKEN"]),
        (["ann/m"], {"HF_ENDPOINT": "http://[::1"}, ["HF_ENDPOINT"]),
        (["ann/m"], {"HF_ENDPOINT": "hub"}, ["HF_ENDPOINT is 'hub'"]),
        (["ann/m"], {"HF_ENDPOINT": "http://ann:secret@127.0.0.1:9"}, ["http://127.0.0.1:9 was not reached"]),
        (["ann/m"], {"HF_ENDPOINT": "http://no-such-host.invalid"}, ["was not reached", "HF_ENDPOINT"]),
    ],
)
def test_mistakes_are_told_and_nothing_is_sent(
    server: Hub,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    environment: dict[str, str],
    texts: list[str],
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    outcome = push(model, *words).told(*texts)
    assert "secret" not in outcome.output + outcome.errors
    assert not server.repositories


def test_mistakes_are_told_together(server: Hub, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    (model / "model.safetensors").unlink()
    push(model, "ann/x/y", "--message", "").told(
        "no name that", "--message is empty", "HF_HUB_OFFLINE is set", "is no model", "there is no token"
    )


@pytest.mark.parametrize(
    ("part", "status", "text"),
    [
        ("/commit/", 500, "has a fault of its own (500"),
        ("/commit/", 412, "was changed by somebody else"),
        ("/commit/", 429, "wants fewer requests"),
        ("/objects/", 413, "takes no such large files"),
        ("/repos/create", 402, "asks for a payment"),
        ("/preupload/", 400, "does not take it: Odd"),
        ("/commit/", 404, "was not found"),
        ("/validate-yaml", 400, "does not take the metadata of README.md"),
    ],
)
def test_a_hub_that_refuses_is_told_in_words_and_the_same_command_goes_on(
    server: Hub, model: Path, part: str, status: int, text: str
) -> None:
    server.answers[part] = (status, "Odd")
    push(model, "ann/m").told(text, *(["Odd"] if part != "/validate-yaml" else []))
    server.answers.clear()
    push(model, "ann/m").done()
    assert set(server.files("ann/m")) == PARTS | {".gitattributes"}
    assert list(server.uploaded.values()) == [1]


def test_after_a_kill_the_same_command_goes_on(server: Hub, model: Path) -> None:
    server.holds_back = True
    environment = clean_environment(
        HF_HUB_OFFLINE="0", HF_HUB_DISABLE_XET="1", HF_ENDPOINT=server.address, HF_TOKEN=TOKEN
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "toolkit", "push", str(model), "ann/m"],
        env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert server.at_upload.wait(60)
    process.send_signal(signal.SIGKILL)
    process.wait()
    server.holds_back = False
    assert set(server.files("ann/m")) == {".gitattributes"}
    push(model, "ann/m").done().says("there already")
    assert set(server.files("ann/m")) == PARTS | {".gitattributes"}
    # The large file had arrived.
    assert list(server.uploaded.values()) == [1]
    assert len(server.repositories["ann/m"].commits) == 2
