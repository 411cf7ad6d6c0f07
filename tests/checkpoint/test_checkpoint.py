"""A checkpoint exists whole or not at all: no byte of it can change unnoticed, and nothing else is taken for one."""

import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from resuming import is_valid, left_half_done, numbers, run, stopped, undisturbed

from toolkit.checkpoint.format import (
    FORMAT,
    DamagedError,
    Manifest,
    inspect,
    read_manifest,
    read_state,
    remove_leftovers,
    retire,
    seal_of,
    write_checkpoint,
)
from toolkit.checkpoint.staging import StagingBuffer
from toolkit.errors import UserError
from toolkit.output.ledger import LedgerEnd
from toolkit.output.run_folder import sealed_folders, step_of

FILES = ("weights.safetensors", "optimizer.safetensors", "state.json", "manifest.json")
STATE = {"best": {"step": 3, "value": 0.5}, "pending": None}
END = LedgerEnd(7, 2100, "0123456789abcdef")

Damage = Callable[[Path], object]

DAMAGES: dict[str, Damage] = {
    "truncated": lambda file: os.truncate(file, file.stat().st_size - 2),
    "emptied": lambda file: os.truncate(file, 0),
    "removed": Path.unlink,
    "grown": lambda file: file.write_bytes(file.read_bytes() + b"\0"),
    "made a folder": lambda file: (file.unlink(), file.mkdir()),
}


class Killed(BaseException):
    """Ends what is going on as a SIGKILL does: nobody tidies up."""


def sealed(parent: Path, step: int = 7, previous: str | None = None) -> Manifest:
    """Write a checkpoint of a few hundred bytes."""
    weights, optimizer = StagingBuffer(), StagingBuffer()
    weights.take({"w": torch.tensor([step, -1.5])})
    optimizer.take({"w/momentum": torch.tensor(3)})
    files = {"weights.safetensors": weights.write, "optimizer.safetensors": optimizer.write}
    return write_checkpoint(parent, step, files, STATE, END, previous)


def refusal(folder: Path) -> Exception | None:
    """Return why a folder is not taken for a checkpoint, None if it is."""
    try:
        inspect(folder)
    except (DamagedError, UserError) as error:
        return error
    return None


def flipped(path: Path, masks: tuple[int, ...]) -> Iterator[int]:
    """Change every byte of a file in turn, in these ways, and put it back."""
    with path.open("r+b", buffering=0) as file:
        for place, byte in enumerate(path.read_bytes()):
            for changed in (*(byte ^ mask for mask in masks), byte):
                file.seek(place)
                file.write(bytes([changed]))
                if changed != byte:
                    yield place


def test_what_was_sealed_is_what_is_found(tmp_path: Path) -> None:
    manifest = sealed(tmp_path, previous="the seal before")
    folder = tmp_path / "step-000007"
    assert inspect(folder) == read_manifest(folder) == manifest
    assert (manifest.step, manifest.ledger, manifest.previous) == (7, END, "the seal before")
    assert read_state(folder) == STATE
    assert {path.name for path in folder.iterdir()} == set(FILES) == {*manifest.files, "manifest.json"}
    assert [path.name for path in tmp_path.iterdir()] == ["step-000007"]
    # The same content has the same seal; another step or another checkpoint before it gives another.
    assert sealed(tmp_path / "again", previous="the seal before").seal == manifest.seal
    others = {sealed(tmp_path / "one", 7, "another").seal, sealed(tmp_path / "two", 8, "the seal before").seal}
    assert len(others - {manifest.seal}) == 2


@pytest.mark.parametrize("name", FILES)
def test_every_byte_that_changes_is_found(name: str, tmp_path: Path) -> None:
    """In the files any bit is as good as another; of the manifest, which is text, every bit is tried."""
    sealed(tmp_path)
    folder = tmp_path / "step-000007"
    masks = tuple(1 << bit for bit in range(8)) if name == "manifest.json" else (0x01, 0xFF)
    for place in flipped(folder / name, masks):
        # The format number may become that of a newer version.
        assert refusal(folder) is not None, f"byte {place} of {name} was changed and nothing noticed it"
    assert is_valid(folder)


def places(content: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the keys that lead to each value in nested mappings."""
    for key, value in content.items() if isinstance(content, dict) else ():
        yield (*before, key)
        yield from places(value, (*before, key))


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sealed checkpoint; who changes it puts it back."""
    sealed(parent := tmp_path_factory.mktemp("pristine"))
    return parent / "step-000007"


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_manifest_with_another_value_anywhere_is_not_valid(pristine: Path, data: st.DataObject) -> None:
    """Whatever the value is; one that differs in nothing but its type may pass, and then it has to mean the same."""
    manifest, file = inspect(pristine), pristine / "manifest.json"
    before = file.read_text()
    content = json.loads(before)
    *keys, last = data.draw(st.sampled_from(sorted(places(content))))
    target = content
    for key in keys:
        target = target[key]
    small = st.one_of(st.booleans(), st.integers(0, 9000), st.floats(0, 2), st.text(max_size=3))
    target[last] = data.draw(st.one_of(small, st.none(), st.just({}), st.lists(small, max_size=2)))
    file.write_text(json.dumps(content))
    refused, newer = refusal(pristine), last == "format" and isinstance(target[last], int) and target[last] > FORMAT
    if content == json.loads(before):
        assert refused is not None or inspect(pristine) == manifest
    else:
        assert isinstance(refused, UserError if newer else DamagedError)
    file.write_text(before)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named(name: str, damage: str, tmp_path: Path) -> None:
    sealed(tmp_path)
    DAMAGES[damage](tmp_path / "step-000007" / name)
    with pytest.raises(DamagedError, match=name):
        inspect(tmp_path / "step-000007")


def test_a_folder_without_a_manifest_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "step-000001").mkdir()
    with pytest.raises(DamagedError, match="the folder is empty"):
        inspect(tmp_path / "step-000001")
    (tmp_path / "step-000001" / "weights.safetensors").touch()
    with pytest.raises(DamagedError, match=r"it has no manifest\.json"):
        inspect(tmp_path / "step-000001")
    (tmp_path / "step-000002").touch()
    with pytest.raises(DamagedError, match=r"manifest\.json can't be read"):
        inspect(tmp_path / "step-000002")


def test_a_checkpoint_under_the_name_of_another_step_is_not_valid(tmp_path: Path) -> None:
    sealed(tmp_path)
    (tmp_path / "step-000007").rename(tmp_path / "step-000008")
    with pytest.raises(DamagedError, match="its manifest is that of step 7"):
        inspect(tmp_path / "step-000008")
    # Under a name that says nothing it is: people copy checkpoints.
    (tmp_path / "step-000008").rename(tmp_path / "my best one")
    assert inspect(tmp_path / "my best one").step == 7


@pytest.mark.parametrize("more", [{}, {"shards": 4}])
def test_a_newer_format_is_refused_by_both_versions(more: dict[str, int], tmp_path: Path) -> None:
    """Whatever else it holds: only the newer version knows what is valid."""
    sealed(tmp_path)
    file = tmp_path / "step-000007" / "manifest.json"
    content = {**json.loads(file.read_text()), **more, "format": FORMAT + 1}
    del content["seal"]
    file.write_text(json.dumps({**content, "seal": seal_of(content)}))
    problem = rf"{tmp_path}/step-000007 has format version {FORMAT + 1}, and this version of the toolkit "
    problem += rf"reads up to {FORMAT};"
    with pytest.raises(UserError, match=problem):
        inspect(tmp_path / "step-000007")


@pytest.mark.parametrize(
    "name",
    ["step-000009.partial", "step-000009.retired", "step-000009.damaged", "step-9", "step-000009x", "x-000009", "9"],
)
def test_what_has_not_the_name_of_a_checkpoint_is_not_taken_for_one(name: str, tmp_path: Path) -> None:
    """Even if its content is that of a checkpoint."""
    sealed(tmp_path, 9)
    (tmp_path / "step-000009").rename(tmp_path / name)
    sealed(tmp_path, 5)
    sealed(tmp_path, 1_234_567)
    assert [path.name for path in sealed_folders(tmp_path)] == ["step-1234567", "step-000005"]
    remove_leftovers(tmp_path)
    assert (tmp_path / name).exists() == (not name.endswith((".partial", ".retired")))
    assert all(map(is_valid, sealed_folders(tmp_path)))
    assert sealed_folders(tmp_path / "nothing") == []


class Disk:
    """Takes down what is flushed, renamed and deleted, and at a chosen one of these ends or refuses it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[tuple[str, str]] = []
        self.fails_at: int | None = None
        self.error: BaseException = Killed()
        fsync, rename, rmtree = os.fsync, Path.rename, shutil.rmtree

        def flushed(handle: int) -> None:
            self.happens("flush", str(Path(f"/proc/self/fd/{handle}").readlink()))
            fsync(handle)

        def renamed(path: Path, target: Path) -> Path:
            self.happens("rename", str(target))
            return rename(path, target)

        def deleted(path: Path, ignore_errors: bool = False) -> None:
            if path.exists():
                self.happens("delete", str(path))
            rmtree(path, ignore_errors=ignore_errors)

        monkeypatch.setattr(os, "fsync", flushed)
        monkeypatch.setattr(Path, "rename", renamed)
        monkeypatch.setattr(shutil, "rmtree", deleted)

    def happens(self, what: str, path: str) -> None:
        if self.fails_at == len(self.events):
            self.fails_at = None
            raise self.error
        self.events.append((what, Path(path).name))


WRITING = [
    ("flush", "weights.safetensors"),
    ("flush", "optimizer.safetensors"),
    ("flush", "state.json"),
    ("flush", "manifest.json"),
    ("flush", "step-000008.partial"),
    ("rename", "step-000008"),
    ("flush", "checkpoints"),
]


def test_it_is_written_beside_flushed_sealed_and_then_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    sealed(tmp_path / "checkpoints", 8)
    assert disk.events == WRITING


@pytest.mark.parametrize("moment", range(len(WRITING)), ids=lambda moment: " ".join(WRITING[moment]))
@pytest.mark.parametrize("error", [Killed(), OSError(28, "No space left on device")], ids=["killed", "disk full"])
def test_what_came_before_stays_as_it_was_whenever_writing_ends(
    error: BaseException, moment: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = tmp_path / "checkpoints"
    sealed(parent, 7)
    before = {path.name: path.read_bytes() for path in (parent / "step-000007").iterdir()}
    disk = Disk(monkeypatch)
    disk.fails_at, disk.error = moment, error
    with pytest.raises(type(error)):
        sealed(parent, 8)
    assert all(map(is_valid, sealed_folders(parent)))
    # At the last moment it has its name; whether the name is on the disk nobody knows.
    assert [step_of(folder) for folder in sealed_folders(parent)] == ([8, 7] if moment == len(WRITING) - 1 else [7])
    if isinstance(error, OSError):
        assert left_half_done(tmp_path) == []
    remove_leftovers(parent)
    assert left_half_done(tmp_path) == []
    assert {path.name: path.read_bytes() for path in (parent / "step-000007").iterdir()} == before
    if moment < len(WRITING) - 1:
        sealed(parent, 8)
    assert [is_valid(folder) for folder in sealed_folders(parent)] == [True, True]


@settings(max_examples=60, deadline=None)
@given(
    st.sets(st.integers(0, 40), max_size=7),
    st.integers(1, 4),
    st.sets(st.integers(0, 40), max_size=2),
    st.integers(0, 20),
)
def test_the_newest_and_the_protected_stay_and_one_half_deleted_is_none(
    tmp_path_factory: pytest.TempPathFactory, steps: set[int], keep: int, protected: set[int], killed_at: int
) -> None:
    parent = tmp_path_factory.mktemp("retire")
    for step in steps:
        (parent / f"step-{step:06d}").mkdir()
        (parent / f"step-{step:06d}" / "manifest.json").touch()
    stay = {*sorted(steps)[-keep:], *(steps & protected)}
    with pytest.MonkeyPatch.context() as monkeypatch:
        disk = Disk(monkeypatch)
        disk.fails_at = killed_at
        try:
            retire(parent, keep, protected)
        except Killed:
            assert {step_of(folder) for folder in sealed_folders(parent)} >= stay
            assert all((folder / "manifest.json").exists() for folder in sealed_folders(parent))
            remove_leftovers(parent)
            retire(parent, keep, protected)
    assert {step_of(folder) for folder in sealed_folders(parent)} == stay
    assert left_half_done(parent) == []


def test_nothing_that_is_read_can_execute_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run goes on without pickle, which can; the same poison stops a reader that uses it."""
    folder = stopped(tmp_path / "run", 8, "--checkpoint.every", "3")

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("something was unpickled")

    for module, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")):
        monkeypatch.setattr(module, name, refuse)
    monkeypatch.setattr("pickle._Unpickler.load", refuse)
    with pytest.raises(AssertionError, match="unpickled"):
        pickle.loads(pickle.dumps(1))
    run(folder, "--checkpoint.every", "3").done().says("going on after step 8")
    monkeypatch.undo()
    assert numbers(folder) == undisturbed()
    names = {path.name for path in (folder / "checkpoints").rglob("*") if path.is_file()}
    assert names == set(FILES)
