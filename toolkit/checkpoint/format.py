"""A checkpoint on disk. It is written as step-N.partial, flushed, sealed by a manifest and renamed: whole or not there.

    checkpoints/step-000200/
      weights.safetensors     parameters and buffers
      optimizer.safetensors   the tensors of the optimizer
      state.json              everything else that the run is
      manifest.json           every file with its size and SHA-256, and where the ledger ended; written last

Where no process holds all of a state, each writes its part: weights-00001-of-00004.safetensors and so on, and
pieces.json says which block of which tensor lies where (`toolkit/checkpoint/reader.py`). Nothing that is read back can
execute code.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from toolkit.errors import UserError
from toolkit.output.ledger import LedgerEnd
from toolkit.output.run_folder import NAME, folder_name, sealed_folders, step_of

FORMAT = 1
CHUNK = 8 * 1024 * 1024
ENTRIES = {"format", "step", "files", "ledger", "previous", "seal"}


@dataclass(frozen=True)
class SealedFile:
    """A file as it was when the checkpoint was sealed."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What seals a checkpoint."""

    step: int
    """Optimizer steps done."""
    files: dict[str, SealedFile]
    ledger: LedgerEnd
    """Where the ledger ended."""
    previous: str | None
    """The seal of the checkpoint before this one in the run."""
    seal: str
    """The hash of all of this."""


class DamagedError(Exception):
    """A folder is no valid checkpoint, for the reason in the text."""


def write_checkpoint(
    parent: Path,
    step: int,
    files: Mapping[str, Callable[[Path], tuple[int, str]]],
    state: Mapping[str, Any],
    ledger: LedgerEnd,
    previous: str | None,
    others: Callable[[Path], Mapping[str, SealedFile]] | None = None,
) -> Manifest:
    """Write and seal a checkpoint; a process that dies meanwhile leaves what came before as it was.

    Args:
        parent: the folder of all checkpoints.
        step: optimizer steps done.
        files: for each file a function that writes and flushes it and returns its size and SHA-256.
        state: what goes into state.json.
        ledger: where the ledger ends; its rows are on the disk already.
        previous: the seal of the checkpoint before.
        others: waits until all other processes have written their files into the folder, and returns these.

    Raises:
        OSError: the disk is full, or the folder can't be written.
    """
    place = parent / folder_name(step)
    partial = partial_folder(parent, step)
    try:
        if others is None:
            shutil.rmtree(partial, ignore_errors=True)
        # Another process may have made it, and write in it already.
        partial.mkdir(parents=True, exist_ok=True)
        try:
            sealed = {name: SealedFile(*write(partial / name)) for name, write in files.items()}
        finally:
            # Wait for the others in any case, so that nobody still writes when this returns.
            theirs = others(partial) if others is not None else {}
        sealed |= theirs
        sealed["state.json"] = write_flushed(partial / "state.json", as_json(state))
        manifest = write_manifest(partial, step, sealed, ledger, previous)
        flush_folder(partial)
        partial.rename(place)
        flush_folder(parent)
    except (OSError, RuntimeError):
        # On a full disk this makes room for run.json, which records the failure.
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return manifest


def partial_folder(parent: Path, step: int) -> Path:
    """Return where the checkpoint of a step is written before it is sealed."""
    return parent / f"{folder_name(step)}.partial"


def write_manifest(
    partial: Path, step: int, sealed: Mapping[str, SealedFile], ledger: LedgerEnd, previous: str | None
) -> Manifest:
    """Write the file that makes a checkpoint of what lies in a folder."""
    content = {
        "format": FORMAT,
        "step": step,
        "files": {name: asdict(entry) for name, entry in sealed.items()},
        "ledger": asdict(ledger),
        "previous": previous,
    }
    seal = seal_of(content)
    write_flushed(partial / "manifest.json", as_json({**content, "seal": seal}))
    return Manifest(step, dict(sealed), ledger, previous, seal)


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a checkpoint; the files that it names are not looked at.

    Raises:
        DamagedError: there is none, or it is not what was written.
        UserError: a newer version of the toolkit wrote it.
    """
    try:
        text = (folder / "manifest.json").read_bytes()
        content = json.loads(text)
    except FileNotFoundError:
        empty = folder.is_dir() and not any(folder.iterdir())
        raise DamagedError("the folder is empty" if empty else "it has no manifest.json") from None
    except (OSError, ValueError):
        raise DamagedError("its manifest.json can't be read") from None
    if isinstance(content, dict) and isinstance(content.get("format"), int) and content["format"] > FORMAT:
        raise UserError(
            f"the checkpoint {folder} has format version {content['format']}, and this version of the toolkit reads up "
            f"to {FORMAT}; use the newer version that wrote it, or name an older checkpoint with --resume"
        )
    if not isinstance(content, dict) or set(content) != ENTRIES:
        raise DamagedError("its manifest.json is not that of a checkpoint")
    unchanged = text == as_json(content)
    seal = content.pop("seal")
    if seal != seal_of(content) or not unchanged:
        raise DamagedError("its manifest.json was changed: the seal does not fit")
    files = {name: SealedFile(**entry) for name, entry in content["files"].items()}
    return Manifest(content["step"], files, LedgerEnd(**content["ledger"]), content["previous"], seal)


def inspect(folder: Path) -> Manifest:
    """Read every byte of a checkpoint and compare it with the manifest.

    Raises:
        DamagedError: something is missing or differs.
        UserError: a newer version of the toolkit wrote it.
    """
    manifest = read_manifest(folder)
    if NAME.fullmatch(folder.name) and step_of(folder) != manifest.step:
        raise DamagedError(f"its manifest is that of step {manifest.step}")
    for name, entry in manifest.files.items():
        try:
            size = (folder / name).stat().st_size
        except OSError:
            raise DamagedError(f"its file {name} is missing") from None
        if size != entry.bytes:
            raise DamagedError(f"its file {name} has {size:,} bytes instead of {entry.bytes:,}")
        try:
            digest = digest_of_file(folder / name)
        except OSError as error:
            raise DamagedError(f"its file {name} can't be read ({error.strerror})") from None
        if digest != entry.sha256:
            raise DamagedError(f"its file {name} has another content than when it was sealed")
    return manifest


def read_state(folder: Path) -> dict[str, Any]:
    """Return the state.json of a checkpoint that was inspected."""
    state: dict[str, Any] = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    return state


def retire(parent: Path, keep: int, protected: Iterable[int]) -> None:
    """Delete all checkpoints but the newest `keep` and those of the protected steps.

    A folder is renamed first, so that one that is half deleted is never taken for a checkpoint.
    """
    spared = set(protected)
    for folder in sealed_folders(parent)[keep:]:
        if step_of(folder) not in spared:
            retired = folder.with_name(f"{folder.name}.retired")
            folder.rename(retired)
            shutil.rmtree(retired, ignore_errors=True)


def remove_leftovers(parent: Path) -> None:
    """Delete what a process left that died while it wrote or deleted a checkpoint."""
    if parent.is_dir():
        for path in parent.iterdir():
            if path.name.endswith((".partial", ".retired")):
                shutil.rmtree(path, ignore_errors=True)


def digest_of_file(path: Path) -> str:
    digest = sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def seal_of(content: Mapping[str, Any]) -> str:
    """Return the hash of the content of a manifest."""
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def as_json(content: Mapping[str, Any]) -> bytes:
    """Return JSON for a file that people may read."""
    return (json.dumps(content, indent=2) + "\n").encode()


def write_flushed(path: Path, content: bytes) -> SealedFile:
    """Write a file, flush it to the disk, and return what it is."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return SealedFile(len(content), sha256(content).hexdigest())


def flush_folder(folder: Path) -> None:
    """Have the names in a folder on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
