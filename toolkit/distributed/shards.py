"""Shards of tensors: which part of each tensor a process holds, and which of those that hold the same part writes it.

A process holds at most one shard of a tensor, a block with an offset and a size; a whole tensor is one shard. Nothing
here communicates, or knows of a mesh other than the tensor's own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import prod

import torch
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor import Shard as ShardPlacement
from torch.distributed.tensor.placement_types import Placement, _StridedShard

LocalShard = tuple[tuple[int, ...], tuple[int, ...] | None, tuple[int, ...] | None]
"""What a process holds of a tensor: the shape of all of it, and offset and size of its shard, if it has one."""


@dataclass(frozen=True, order=True)
class Shard:
    """A block of a tensor."""

    offset: tuple[int, ...]
    size: tuple[int, ...]

    @property
    def elements(self) -> int:
        return prod(self.size)

    def overlap(self, other: "Shard") -> "Shard | None":
        """Return what two blocks of a tensor have in common, or None."""
        starts = tuple(max(a, b) for a, b in zip(self.offset, other.offset, strict=True))
        ends = (min(a + n, b + m) for a, n, b, m in zip(self.offset, self.size, other.offset, other.size, strict=True))
        size = tuple(end - start for start, end in zip(starts, ends, strict=True))
        return Shard(starts, size) if all(length > 0 for length in size) else None

    def within(self, outer: "Shard") -> tuple[slice, ...]:
        """Return where this block lies in a tensor that holds the block `outer`."""
        starts = (a - b for a, b in zip(self.offset, outer.offset, strict=True))
        return tuple(slice(start, start + length) for start, length in zip(starts, self.size, strict=True))


def all_of(shape: Sequence[int]) -> Shard:
    """Return the shard that is a whole tensor."""
    return Shard((0,) * len(shape), tuple(shape))


def shard_of(tensor: torch.Tensor) -> Shard | None:
    """Return which block of it this process holds; None if it takes no part in the tensor."""
    if not isinstance(tensor, DTensor) or tensor.numel() == 0:
        return all_of(tensor.shape)
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return None
    shard = shard_at(tuple(tensor.shape), tensor.device_mesh.shape, coordinate, tensor.placements)
    if tuple(tensor.to_local().shape) != shard.size:
        raise NotImplementedError(
            f"a tensor of the shape {list(tensor.shape)}, placed as {tensor.placements}, lies in this process as "
            f"{list(tensor.to_local().shape)} and not as {list(shard.size)}"
        )
    return shard


def shard_at(
    shape: tuple[int, ...], mesh: Sequence[int], coordinate: Sequence[int], placements: Sequence[Placement]
) -> Shard:
    """Return the block at a coordinate of a mesh.

    FSDP shards what tensor parallelism has split before, though its dimension of the mesh comes first; a strided
    placement says so. torch has a function for this too, and both agree wherever tensor parallelism divides (a test
    holds it). This one stays because torch's is private; gives blocks that overlap where it does not divide; takes a
    `Partial` for whole; and lists every row of a strided shard (0.3 to 9 ms a tensor, here 8 us) while training waits.
    """
    offset, size = [0] * len(shape), list(shape)
    strided = [number for number, placement in enumerate(placements) if isinstance(placement, _StridedShard)]
    others = [number for number in range(len(placements)) if number not in strided]
    for number in (*others, *strided):
        placement = placements[number]
        if isinstance(placement, Replicate):
            continue
        if not isinstance(placement, ShardPlacement | _StridedShard):
            raise NotImplementedError(f"a checkpoint can't hold a tensor that is placed as {placement}")
        dimension = placement.dim % len(shape)
        # As torch.chunk does: all parts but the last ones are of one length, and those may be empty.
        length = -(-size[dimension] // mesh[number])
        start = min(coordinate[number] * length, size[dimension])
        offset[dimension] += start
        size[dimension] = min(length, size[dimension] - start)
    return Shard(tuple(offset), tuple(size))


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor that lies in this process: the same memory, without its gradient."""
    tensor = tensor.detach()
    if not isinstance(tensor, DTensor):
        return tensor
    return tensor.to_local() if tensor.numel() else tensor.to_local().reshape(tensor.shape)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor as its bytes: not every backend sends every type."""
    return tensor.reshape(-1).view(torch.uint8)


def local_shards(tensors: Mapping[str, torch.Tensor]) -> dict[str, LocalShard]:
    """Return what this process holds, as plain data that can be sent."""
    found: dict[str, LocalShard] = {}
    for name, tensor in tensors.items():
        shard = shard_of(tensor)
        block = (None, None) if shard is None else (shard.offset, shard.size)
        found[name] = (tuple(tensor.shape), *block)
    return found


class ShardMap:
    """Who holds which shards of which tensors; the same in all processes.

    The process with the lowest rank among those that hold the same shard owns it: it alone writes and reads it.
    """

    def __init__(self, everybody: Sequence[Mapping[str, LocalShard]]) -> None:
        """Take what each process holds, by rank.

        Raises:
            RuntimeError: they do not hold the same tensors, or what they hold together is not all of one.
        """
        self.processes = len(everybody)
        self.shapes = {name: shape for name, (shape, _, _) in everybody[0].items()}
        self.holders: dict[str, dict[Shard, tuple[int, ...]]] = {name: {} for name in self.shapes}
        for rank, held in enumerate(everybody):
            if {name: shape for name, (shape, _, _) in held.items()} != self.shapes:
                different = sorted(set(held) ^ set(self.shapes)) or "their shapes"
                raise RuntimeError(f"process 0 and process {rank} do not hold the same tensors: {different}")
            for name, (shape, offset, size) in held.items():
                if offset is None or size is None or (prod(size) == 0 and prod(shape) > 0):
                    continue
                shards = self.holders[name]
                shards[Shard(offset, size)] = (*shards.get(Shard(offset, size), ()), rank)
        for name, shape in self.shapes.items():
            if not is_sharded(shape, tuple(self.holders[name])):
                raise RuntimeError(
                    f"the shards of {name} that the processes hold are not the whole of it, each part once"
                )

    def of(self, prefix: str) -> "ShardMap":
        """Return the part of it that is about tensors whose names begin so, without these beginnings."""
        part = ShardMap([{}] * self.processes)
        part.shapes = {n.removeprefix(prefix): shape for n, shape in self.shapes.items() if n.startswith(prefix)}
        part.holders = {name: self.holders[prefix + name] for name in part.shapes}
        return part

    def shards(self, name: str) -> Iterator[tuple[Shard, int]]:
        """Yield the shards of a tensor with the rank of their owner, in the order of their offsets."""
        for shard, ranks in sorted(self.holders[name].items()):
            yield shard, ranks[0]

    def owned(self, rank: int) -> list[str]:
        """Return the names of the tensors of which a process owns a shard."""
        return [name for name, shards in self.holders.items() if any(ranks[0] == rank for ranks in shards.values())]

    @property
    def owners(self) -> list[int]:
        """The ranks that own anything."""
        return sorted({ranks[0] for shards in self.holders.values() for ranks in shards.values()})

    @property
    def is_whole(self) -> bool:
        """Whether process 0 holds every tensor whole."""
        return all(
            owner == 0 and shard == all_of(self.shapes[n]) for n in self.shapes for shard, owner in self.shards(n)
        )


@lru_cache(maxsize=1024)
def is_sharded(shape: tuple[int, ...], shards: tuple[Shard, ...]) -> bool:
    """Return whether shards are a whole tensor, each part of it once; cached, since many tensors are sharded alike."""
    whole = all_of(shape)
    inside = all(shard == whole or shard.overlap(whole) == shard for shard in shards)
    apart = all(a.overlap(b) is None for a, b in combinations(shards, 2))
    return inside and apart and sum(shard.elements for shard in shards) == whole.elements
