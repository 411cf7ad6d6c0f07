"""What gzip has packed, as long as it is data and no trap: it is counted while it is unpacked."""

import gzip
import io
from pathlib import Path
from typing import IO, TYPE_CHECKING

from toolkit.data.formats import archive
from toolkit.errors import UserError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


def open_gzip(path: Path, packed: IO[bytes]) -> IO[bytes]:
    """Return the content of a file that is packed with gzip, on the disk or in an archive, opened for reading.

    Reading it raises UserError once it is far larger than what it is packed to, as files in archives may not be.
    """
    return io.BufferedReader(_Unpacked(path, packed))


class _Unpacked(io.RawIOBase):
    """The unpacked bytes of a file."""

    def __init__(self, path: Path, packed: IO[bytes]) -> None:
        self.path, self.packed = path, packed
        self.content = gzip.GzipFile(fileobj=packed)
        self.most = archive.packed_size(path)
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        read = self.content.readinto(buffer)
        self.count += read
        if self.count > archive.TOO_LARGE:
            # A file in an archive is packed twice: what counts is what the disk has of it.
            packed = min(self.packed.tell(), self.most)
            if self.count > archive.TOO_DENSE * packed:
                raise UserError(
                    f"{self.path} has more than {self.count:,} bytes, unpacked from {packed:,}; that is no data but a "
                    "trap, or one line again and again: if you know better, unpack it and give the file"
                )
        return read

    def close(self) -> None:
        if not self.closed:
            self.content.close()
            self.packed.close()
        super().close()
