"""Opening text files, and what is said of those that cannot be read."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from toolkit.errors import UserError


def open_text(path: Path, newline: str) -> IO[str]:
    if is_gzip(path):
        return gzip.open(path, "rt", encoding="utf-8-sig", newline=newline)
    return path.open(encoding="utf-8-sig", newline=newline)


def is_gzip(path: Path) -> bool:
    """Tell whether a file is packed with gzip, by its name or by its first bytes: not every such file is called .gz."""
    return path.suffix.lower() == ".gz" or first_bytes(path, 2) == b"\x1f\x8b"


def first_bytes(path: Path, count: int) -> bytes:
    with path.open("rb") as file:
        return file.read(count)


@contextmanager
def told(path: Path) -> Iterator[None]:
    """Turn what the operating system and the decoders say about `path` into a UserError."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise UserError(_where_not_utf8(path, error)) from error
    except FileNotFoundError as error:
        raise UserError(f"there is no file {path}") from error
    except PermissionError as error:
        raise UserError(f"{path} may not be read by this user (permission denied); change its permissions") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is no whole gzip file ({error}); write or download it again") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error})") from error


def _where_not_utf8(path: Path, error: UnicodeDecodeError) -> str:
    offset = 0
    with gzip.open(path) if is_gzip(path) else path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as exact:
                if number == 1 and line[:2] in (b"\xff\xfe", b"\xfe\xff"):
                    return f"{path} is UTF-16, not UTF-8; convert it, for instance: iconv -f UTF-16 -t UTF-8"
                byte = line[exact.start]
                return (
                    f"{path}, line {number}: not UTF-8 (byte 0x{byte:02x} at offset {offset + exact.start}); "
                    "convert the file, for instance: iconv -f WINDOWS-1252 -t UTF-8"
                )
            offset += len(line)
    return f"{path}: not UTF-8 ({error})"
