"""Zip archives: the files in them are read where they are; nothing is unpacked to the disk.

A file in an archive has a path that goes on behind that of the archive: rows.zip/train.csv.
"""

import io
import os
import zipfile
from collections import Counter
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import IO

from toolkit.errors import UserError

ZIP = (b"PK\x03\x04", b"PK\x05\x06")
"""The first bytes of an archive, and of an empty one."""
TOO_LARGE = 1 << 28
TOO_DENSE = 200
"""A file of more than 256 MB that is packed to less than a 200th is no data: texts shrink to a fifth or a tenth."""
ENCRYPTED = 0x1


def is_file(path: Path) -> bool:
    """Tell whether there is such a file that may be read, on the disk or in an archive."""
    return _on_disk(path) or archive_of(path) is not None


def archive_of(path: Path) -> tuple[Path, str] | None:
    """Return the archive in which a file is and its name there, or None for any other path."""
    for parent in path.parents:
        if _on_disk(parent):
            inner = path.relative_to(parent).as_posix()
            return (parent, inner) if starts_as_zip(parent) and inner in _files(parent) else None
        if parent.is_dir():
            return None
    return None


def file_on_disk(path: Path) -> Path:
    """Return the file of the disk that a path names, or leads into."""
    return next((place for place in (path, *path.parents) if _on_disk(place)), path)


def starts_as_zip(path: Path) -> bool:
    """Tell whether a file of the disk begins as archives do."""
    with path.open("rb") as file:
        return file.read(4) in ZIP


def names_in(path: Path) -> list[str]:
    """Return the names of the files in an archive, sorted, without those that systems and programs hide.

    Raises:
        UserError: it is damaged, or its names can't be trusted.
    """
    hidden = (".", "__")
    return [name for name in sorted(_files(path)) if not any(part.startswith(hidden) for part in name.split("/"))]


def open_member(archive: Path, name: str) -> IO[bytes]:
    """Open a file in an archive; `archive_of` returns both.

    Raises:
        UserError: it is encrypted, packed in an unknown way, or far larger than data are.
    """
    entry = _files(archive)[name]
    if entry.flag_bits & ENCRYPTED:
        raise UserError(f"{archive}: the file {name} in it is encrypted; unpack it with its password and give the file")
    check_size(archive, entry)
    try:
        return _opened(str(archive), *_stamp(archive))[0].open(entry)
    except NotImplementedError as error:
        raise UserError(f"{archive}: {name} can't be unpacked here ({error}); unpack it and give the file") from error


def packed_size(path: Path) -> int:
    """Return how many bytes of the disk a file takes, on its own or packed in an archive."""
    found = archive_of(path)
    return path.stat().st_size if found is None else _files(found[0])[found[1]].compress_size


def check_size(archive: Path, entry: zipfile.ZipInfo) -> None:
    """Raise UserError for a file that is far larger than what it is packed to."""
    if entry.file_size > TOO_LARGE and entry.file_size > TOO_DENSE * entry.compress_size:
        raise UserError(
            f"{archive}: {entry.filename} would be {entry.file_size:,} bytes, unpacked from {entry.compress_size:,}; "
            "that is no data but a trap, or one line again and again: if you know better, unpack it and give the file"
        )


def whole(path: Path) -> IO[bytes]:
    """Open a file so that it can be read in any order: one of an archive is held in memory."""
    found = None if _on_disk(path) else archive_of(path)
    if found is None:
        return path.open("rb")
    with open_member(*found) as file:
        return io.BytesIO(file.read())


def _files(path: Path) -> dict[str, zipfile.ZipInfo]:
    """Return what an archive says of each file in it, by name."""
    return _opened(str(path), *_stamp(path))[1]


@lru_cache(maxsize=2)
def _opened(path: str, modified: int, size: int) -> tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]:
    """Return an archive, kept open, and its files: the list of a large one takes a while to read.

    When it was `modified` and its `size` are given so that an archive that was changed is opened anew.
    """
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise UserError(f"{path} is no whole zip archive ({error}); write or download it again") from error
    entries = [entry for entry in archive.infolist() if not entry.is_dir()]
    for entry in entries:
        if entry.filename.startswith("/") or ".." in PurePosixPath(entry.filename).parts:
            raise UserError(
                f"{path} names a file outside of itself ({entry.filename}); it is not to be trusted: make it anew"
            )
    # As paths have them: some programs write ./rows.csv and a//rows.csv.
    names = [PurePosixPath(entry.filename).as_posix() for entry in entries]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise UserError(f"{path} has the file {twice[0]} more than once; unpack it and give the one that is meant")
    return archive, dict(zip(names, entries, strict=True))


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size


def _on_disk(path: Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises where a folder may not be read
