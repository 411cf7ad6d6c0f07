"""A copy of tensors in host memory, laid out as the safetensors file that it becomes.

Training waits while the copy is made, so its memory is kept for the next time. The copy already is the content of the
file: the thread that writes it only hashes and writes bytes, which Python does without its lock.
"""

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any
from weakref import finalize

import torch

from toolkit.errors import UserError

# The names that the format has for them: https://github.com/huggingface/safetensors#format
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
CHUNK = 8 * 1024 * 1024
PORTABLE = 1
"""What CUDA calls memory that is pinned for every device."""

Layout = tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]
"""Name, type and shape of each tensor in a file."""


class StagingBuffer:
    """The content of one file; each copy goes into the same memory as long as names and shapes stay."""

    def __init__(self, pinned: bool = False) -> None:
        self.pinned = pinned
        """Whether its memory is pinned, so that a device copies into it by itself; false once the system refused."""
        self.unpin: finalize[[torch.Tensor], StagingBuffer] | None = None
        self.layout: Layout | None = None
        self.content = torch.empty(0, dtype=torch.uint8)
        self.places: dict[str, torch.Tensor] = {}

    def take(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy the tensors; where memory is pinned, those on a device are still on their way when this returns.

        Raises:
            UserError: one of them has a type that the file format does not know.
        """
        layout = tuple((name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items())
        if layout != self.layout:
            self.lay_out(layout)
        for name, tensor in tensors.items():
            self.places[name].copy_(tensor.detach(), non_blocking=self.pinned)

    def lay_out(self, layout: Layout) -> None:
        """Write the header of the file, and give each tensor its place after it."""
        check_types((name, dtype) for name, dtype, _ in layout)
        # The widest first: every tensor then begins at a multiple of its element's size. In any other order than that
        # of their names, equal states would not be equal files.
        widest_first = sorted(layout, key=lambda entry: (-entry[1].itemsize, entry[0]))
        entries: dict[str, dict[str, object]] = {}
        spans: dict[str, tuple[int, int]] = {}
        end = 0
        for name, dtype, shape in widest_first:
            start, end = end, end + torch.Size(shape).numel() * dtype.itemsize
            spans[name] = (start, end)
            entries[name] = {"dtype": DTYPES[dtype], "shape": list(shape), "data_offsets": [start, end]}
        head = json.dumps(entries, separators=(",", ":")).encode()
        head += b" " * (-len(head) % 8)
        begin = 8 + len(head)
        # Let go of the old memory before taking the new.
        self.layout, self.places, self.content = None, {}, torch.empty(0, dtype=torch.uint8)
        if self.unpin is not None:
            self.unpin()
        self.content = torch.empty(begin + end, dtype=torch.uint8)
        if self.pinned:
            self.pinned = pin(self.content)
            self.unpin = finalize(self, unpin, self.content) if self.pinned else None
        self.content[:begin] = torch.frombuffer(bytearray(len(head).to_bytes(8, "little") + head), dtype=torch.uint8)
        for name, dtype, shape in widest_first:
            first, last = spans[name]
            self.places[name] = self.content[begin + first : begin + last].view(dtype).view(shape)
        self.layout = layout

    def write(self, path: Path) -> tuple[int, str]:
        """Write the file, flush it to the disk, and return its size in bytes and its SHA-256."""
        content = memoryview(self.content.numpy())  # type: ignore[arg-type]  # an array is a buffer
        digest = sha256()
        with path.open("wb", buffering=0) as file:
            for start in range(0, len(content), CHUNK):
                chunk = content[start : start + CHUNK]
                digest.update(chunk)
                written = 0
                while written < len(chunk):
                    written += file.write(chunk[written:])
            os.fsync(file.fileno())
        return len(content), digest.hexdigest()


def pin(memory: torch.Tensor) -> bool:
    """Pin memory that is there already, and return whether the system allowed it.

    (Torch's own pinned memory comes in powers of two: up to twice as much as is needed.)
    """
    cuda: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    refused = int(cuda.cudaHostRegister(memory.data_ptr(), memory.nbytes, PORTABLE))
    if refused:
        # CUDA keeps the error and hands it to the next kernel, whatever that is: this one.
        with suppress(RuntimeError):
            torch.zeros(1, device="cuda")
    return not refused


def unpin(memory: torch.Tensor) -> None:
    """Take back what `pin` did, before the memory is freed."""
    cuda: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    cuda.cudaHostUnregister(memory.data_ptr())


def check_types(types: Iterable[tuple[str, torch.dtype]]) -> None:
    """Refuse types that the file format does not know, by the names of their tensors.

    Raises:
        UserError: there are such.
    """
    unknown = [f"{name} ({dtype})" for name, dtype in types if dtype not in DTYPES]
    if unknown:
        raise UserError(
            f"a checkpoint can't hold tensors of these types: {', '.join(unknown)}; use one of "
            f"{', '.join(sorted(str(dtype).removeprefix('torch.') for dtype in DTYPES))}"
        )


def in_bytes(size: int) -> str:
    """Return a size in kB, MB or GB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if size >= scale:
            return f"{size / scale:,.1f} {unit}"
    return f"{size / 1e3:,.1f} kB"
