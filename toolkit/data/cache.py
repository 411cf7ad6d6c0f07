"""Work that is done once per machine and then read by every process: a tokenizer, tokenized texts.

No collective is involved: a process that comes second waits at a file lock, as long as it takes, so that no collective
can time out.
"""

import errno
import json
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from toolkit.errors import UserError

VARIABLE = "FINETUNE_TOOLKIT_CACHE"
"""The environment variable that says where the cache is."""

FULL_OR_CLOSED = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}


def cache_root() -> Path:
    """Return the folder of the cache, which exists and can be written.

    Raises UserError if it cannot; the message names the folder and the variable that moves it.
    """
    root = _chosen_root()
    try:
        root.mkdir(parents=True, exist_ok=True)
        # Only a real write tells: permission bits say nothing to an administrator or on a mount that is read-only.
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        raise _cannot_write(root, error) from error
    return root


def once_per_machine(kind: str, key: str, build: Callable[[Path], None]) -> Path:
    """Return the folder `<root>/<kind>/<key>`, after `build` has filled it if it was not there.

    `build` gets an empty temporary folder, which is renamed when it returns: a reader finds a whole folder or none, and
    a failed build leaves nothing. Where a cache is shared by machines whose locks do not reach each other, two may
    build; the first to finish wins and both find its folder.
    """
    for part in (kind, key):
        if not part or part.startswith(".") or Path(part).name != part:
            raise ValueError(f"{part!r} is not the name of a folder in the cache")
    root = cache_root()
    place = root / kind / key
    if place.is_dir():
        return place
    try:
        place.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise _cannot_write(root, error) from error
    with _held(place.parent / f"{key}.lock") as alone:
        if place.is_dir():
            return place
        if alone:
            # What a killed process left: only the holder of the lock builds, so no live one can be using it.
            for leftover in place.parent.glob(f".{key}.*"):
                shutil.rmtree(leftover, ignore_errors=True)
        # Not tempfile.mkdtemp: its folders are closed to other users, and the cache may be shared.
        unfinished = place.parent / f".{key}.{uuid.uuid4().hex}"
        try:
            unfinished.mkdir()
            build(unfinished)
            _flush(unfinished)
            _publish(unfinished, place)
        except OSError as error:
            if error.errno in FULL_OR_CLOSED and _lies_in(error.filename, root):
                raise _cannot_write(root, error) from error
            raise
        except Exception as error:
            # `tokenizers` raises a bare Exception, with the number of the error in its text only.
            found = re.search(r"\(os error (\d+)\)", str(error))
            if found is None or int(found[1]) not in FULL_OR_CLOSED:
                raise
            number = int(found[1])
            raise _cannot_write(root, OSError(number, os.strerror(number))) from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return place


def remembered(kind: str, key: str) -> Any | None:
    """Return what `remember` wrote down on this machine; None if there is nothing, or no cache."""
    with suppress(UserError, OSError, ValueError):
        return json.loads((_chosen_root() / kind / f"{key}.json").read_text(encoding="utf-8"))
    return None


def remember(kind: str, key: str, value: Any, replace: bool = False) -> Any:
    """Write down a value of JSON for later runs, and return what stands there then.

    The first to write wins, unless it is to `replace` what was there. Where the cache can't be written nothing is
    remembered, and each run finds it out anew.
    """
    with suppress(UserError, OSError):
        folder = cache_root() / kind
        folder.mkdir(exist_ok=True)
        unfinished = folder / f".{key}.{uuid.uuid4().hex}"
        unfinished.write_text(json.dumps(value), encoding="utf-8")
        try:
            if replace:
                unfinished.replace(folder / f"{key}.json")
            else:
                (folder / f"{key}.json").hardlink_to(unfinished)
        finally:
            unfinished.unlink(missing_ok=True)
    known = remembered(kind, key)
    return value if known is None else known


def digest_of(*parts: Any) -> str:
    """Return a hash of the parts, 32 hexadecimal digits, the same in every process and on every machine.

    Parts are None, booleans, numbers, texts, bytes, paths, numpy arrays, and sequences or mappings of these (the order
    of a mapping counts for nothing). Types and lengths are hashed too: ("ab", "c") is not ("a", "bc"), nor 1 "1".
    """
    state = blake2b(digest_size=16)
    for part in parts:
        for encoded in _encoded(part):
            state.update(encoded)
    return state.hexdigest()


def _encoded(part: Any) -> Iterator[bytes]:
    content: bytes
    match part:
        case None | bool() | int() | float():
            content = repr(part).encode()
        case str():
            content = part.encode("utf-8", "surrogatepass")
        case bytes():
            content = part
        case Path():
            content = os.fsencode(part)
        case np.generic():
            yield from _encoded(part.item())
            return
        case np.ndarray():
            if part.dtype.hasobject:
                raise TypeError("an array of Python objects has no stable hash; give lists instead")
            yield from _encoded((part.dtype.str, part.shape))
            content = np.ascontiguousarray(part).tobytes()
        case Mapping():
            items = sorted(((b"".join(_encoded(key)), value) for key, value in part.items()), key=lambda item: item[0])
            yield f"mapping {len(items)}:".encode()
            for name, value in items:
                yield name
                yield from _encoded(value)
            return
        case Sequence():
            yield f"sequence {len(part)}:".encode()
            for value in part:
                yield from _encoded(value)
            return
        case _:
            raise TypeError(f"{type(part).__name__} has no stable hash here; give texts, numbers, bytes or arrays")
    yield f"{type(part).__name__} {len(content)}:".encode()
    yield content


def _chosen_root() -> Path:
    try:
        if chosen := os.environ.get(VARIABLE):
            return Path(chosen).expanduser().absolute()
        if shared := os.environ.get("XDG_CACHE_HOME"):
            return Path(shared).expanduser().absolute() / "finetune-toolkit"
        return Path.home() / ".cache" / "finetune-toolkit"
    except RuntimeError as error:
        raise UserError(
            f"no home folder is known for this user, so there is no place for a cache; set {VARIABLE} to a folder"
        ) from error


@contextmanager
def _held(path: Path) -> Iterator[bool]:
    """Hold the lock at `path`; yields False where the file system has no locks, and then holds nothing."""
    lock = FileLock(path)  # a lock of the operating system: it ends with its process, however that dies
    try:
        lock.acquire()
    except (NotImplementedError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
            raise _cannot_write(path.parent.parent, error) from error
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def _flush(folder: Path) -> None:
    """Bring all files to the disk: a renamed folder with empty files would poison every later run after a power cut."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def _publish(unfinished: Path, place: Path) -> None:
    try:
        unfinished.rename(place)
    except OSError:
        if not place.is_dir():
            raise


def _lies_in(filename: Any, root: Path) -> bool:
    return filename is None or str(filename).startswith(str(root))


def _cannot_write(root: Path, error: OSError) -> UserError:
    return UserError(
        f"the cache folder {root} cannot be written ({error.strerror or error}); "
        f"set the environment variable {VARIABLE} to a folder that can"
    )
