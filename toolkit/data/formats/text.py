"""Text files: how they are opened, what is wrong with those that cannot be read, and a whole file as one document."""

import gzip
import io
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import IO, TYPE_CHECKING

from toolkit.data.formats.archive import archive_of, open_member
from toolkit.data.formats.gzipped import open_gzip
from toolkit.errors import UserError

if TYPE_CHECKING:
    import pyarrow

LINES_LOOKED_AT = 100
"""Lines from which it is told what a file is, or what separates its fields."""
ROWS_AT_ONCE = 100_000
"""Rows that are Python objects at one time; as an Arrow table they take about a tenth of the memory."""


def read_text(path: Path) -> "pyarrow.Table":
    """Return a text file as one row with the column "text", its line ends as they are."""
    import pyarrow as pa

    with open_text(path, newline="") as file:
        return pa.table({"text": pa.array([file.read()], pa.large_string())})


def open_text(path: Path, newline: str) -> IO[str]:
    """Open a file of the disk or an archive, in UTF-8 with or without a byte order mark, packed with gzip or not."""
    if is_gzip(path):
        return io.TextIOWrapper(open_gzip(path, open_bytes(path)), "utf-8-sig", newline=newline)
    return io.TextIOWrapper(open_bytes(path), "utf-8-sig", newline=newline)


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file, on the disk or in an archive."""
    found = archive_of(path)
    return path.open("rb") if found is None else open_member(*found)


def first_lines(path: Path, count: int, newline: str) -> list[str]:
    """Return the first lines that are not blank, with their ends."""
    with open_text(path, newline) as file:
        return list(islice((line for line in file if line.strip()), count))


def is_gzip(path: Path) -> bool:
    """Tell whether a file is packed with gzip, by its name or by its first bytes: not every such file is called .gz."""
    return path.suffix.lower() == ".gz" or first_bytes(path, 2) == b"\x1f\x8b"


def first_bytes(path: Path, count: int) -> bytes:
    """Return the first bytes of a file."""
    with open_bytes(path) as file:
        return file.read(count)


def is_empty(path: Path) -> bool:
    """Tell whether a file has no bytes; a pipe, which could be read only once, counts as such."""
    return path.stat().st_size == 0 if archive_of(path) is None else not first_bytes(path, 1)


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Turn the errors of the operating system and of the decoders about `path` into a UserError."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise UserError(_not_utf8(path, error)) from error
    except FileNotFoundError as error:
        raise UserError(f"there is no file {path}") from error
    except PermissionError as error:
        raise UserError(f"{path} may not be read by this user (permission denied); change its permissions") from error
    except (EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile) as error:
        kind = "gzip file" if archive_of(path) is None else "file in its archive"
        raise UserError(f"{path} is no whole {kind} ({error}); write or download it again") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error})") from error


def _not_utf8(path: Path, error: UnicodeDecodeError) -> str:
    """Return the message that names the line: the decoder of a stream counts from the beginning of a block."""
    offset = 0
    packed = is_gzip(path)
    with open_gzip(path, open_bytes(path)) if packed else open_bytes(path) as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as exact:
                if number == 1 and line[:2] in (b"\xff\xfe", b"\xfe\xff"):
                    return f"{path} is UTF-16, not UTF-8; convert it{converted(path, 'UTF-16', packed)}"
                if b"\0" in line:
                    return f"{path} holds binary data and no text; save it as csv, json lines or parquet"
                byte = line[exact.start]
                return (
                    f"{path}, line {number}: not UTF-8 (byte 0x{byte:02x} at offset {offset + exact.start}); "
                    f"convert the file, if it is Windows-1252{converted(path, 'WINDOWS-1252', packed)}"
                )
            offset += len(line)
    return f"{path}: not UTF-8 ({error})"


def converted(path: Path, encoding: str, packed: bool) -> str:
    """Return the command that writes a file of another encoding in UTF-8, as the end of a sentence."""
    command, source = f"iconv -f {encoding} -t UTF-8", quote(str(path))
    if archive_of(path) is not None:
        return f" once it is unpacked: {command} {quote(path.name)} > ..."
    name = path.name.removesuffix(".gz")
    stem, dot, ending = name.rpartition(".")
    new = quote(str(path.with_name(f"{stem}.utf8.{ending}" if dot else f"{name}.utf8")))
    return f": zcat {source} | {command} > {new}" if packed else f": {command} {source} > {new}"
