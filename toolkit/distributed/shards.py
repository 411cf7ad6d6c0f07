"""Shards of tensors: which part of each tensor a process holds, and which of those that hold the same part writes it.

A shard is a block with an offset and a size; a whole tensor is one shard. A process holds at most one of a tensor, or
the few that a stretch of its numbers is made of. Nothing here communicates, or knows of a mesh other than the
tensor's own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import torch
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor import Shard as ShardPlacement
from torch.distributed.tensor.placement_types import Placement, _StridedShard

LocalShards = tuple[tuple[int, ...], tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]]
"""What a process holds of a tensor: the shape of all of it, and offset and size of each of its shards."""


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


@dataclass(frozen=True, eq=False)
class Stretch:
    """What a process holds of a tensor whose numbers were laid out in one row, and the row cut anywhere."""

    shape: tuple[int, ...]
    """Of the whole tensor."""
    dtype: torch.dtype
    """That in which it is written; it is held in another one where DeepSpeed keeps it so."""
    start: int
    """The place in the row of the first number that is held here."""
    values: torch.Tensor
    """A row of numbers."""

    def shards(self) -> Iterator[tuple[Shard, torch.Tensor]]:
        """Yield the blocks of the tensor that are held here, each with its numbers, in the same memory."""
        taken = 0
        for shard in blocks_of(self.shape, self.start, self.values.numel()):
            yield shard, self.values.detach()[taken : taken + shard.elements].view(shard.size)
            taken += shard.elements


Held = torch.Tensor | Stretch
"""A tensor, or what a process holds of one."""


def blocks_of(shape: tuple[int, ...], start: int, length: int) -> Iterator[Shard]:
    """Yield the blocks of which a stretch of the row of a tensor's numbers is made, in order: of a matrix the end of a
    line, whole lines, and the beginning of one."""
    if length == 0:
        if prod(shape) == 0:
            yield all_of(shape)
        return
    if len(shape) <= 1:
        yield Shard((start,) if shape else (), (length,) if shape else ())
        return
    line, end = prod(shape[1:]), start + length
    first, last = -(-start // line), end // line
    if first > last:  # within one line
        yield from inside(start // line, blocks_of(shape[1:], start % line, length))
        return
    yield from inside(first - 1, blocks_of(shape[1:], start % line, first * line - start))
    if last > first:
        yield Shard((first,) + (0,) * (len(shape) - 1), (last - first, *shape[1:]))
    yield from inside(last, blocks_of(shape[1:], 0, end - last * line))


def inside(line: int, blocks: Iterator[Shard]) -> Iterator[Shard]:
    """Yield blocks of one line of a tensor as blocks of the tensor."""
    for block in blocks:
        yield Shard((line, *block.offset), (1, *block.size))


def all_of(shape: Sequence[int]) -> Shard:
    """Return the shard that is a whole tensor."""
    return Shard((0,) * len(shape), tuple(shape))


def shard_of(tensor: torch.Tensor) -> Shard | None:
    """Return which block of it this process holds; None if it takes no part in the tensor."""
    if tensor.is_meta:
        return None  # it lies in another stage of the pipeline
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


def shards_of(held: Held) -> list[Shard]:
    """Return which blocks of a tensor this process holds."""
    if isinstance(held, Stretch):
        return list(blocks_of(held.shape, held.start, held.values.numel()))
    shard = shard_of(held)
    return [] if shard is None or (shard.elements == 0 and held.numel() > 0) else [shard]


def held_shards(held: Held) -> list[tuple[Shard, torch.Tensor]]:
    """Return the blocks of a tensor that this process holds, each with its numbers, in the same memory."""
    if isinstance(held, Stretch):
        return list(held.shards())
    return [(shard, local_of(held)) for shard in shards_of(held)]


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor as its bytes: not every backend sends every type."""
    return tensor.reshape(-1).view(torch.uint8)


def local_shards(tensors: Mapping[str, Held]) -> dict[str, LocalShards]:
    """Return what this process holds, as plain data that can be sent."""
    return {
        name: (tuple(held.shape), tuple((shard.offset, shard.size) for shard in shards_of(held)))
        for name, held in tensors.items()
    }


class ShardMap:
    """Who holds which shards of which tensors; the same in all processes.

    The process with the lowest rank among those that hold the same shard owns it: it alone writes and reads it.
    """

    def __init__(self, everybody: Sequence[Mapping[str, LocalShards]]) -> None:
        """Take what each process holds, by rank.

        Raises:
            RuntimeError: they do not hold the same tensors, or what they hold together is not all of one.
        """
        self.processes = len(everybody)
        self.shapes = {name: shape for name, (shape, _) in everybody[0].items()}
        self.holders: dict[str, dict[Shard, tuple[int, ...]]] = {name: {} for name in self.shapes}
        for rank, held in enumerate(everybody):
            if {name: shape for name, (shape, _) in held.items()} != self.shapes:
                different = sorted(set(held) ^ set(self.shapes)) or "their shapes"
                raise RuntimeError(f"process 0 and process {rank} do not hold the same tensors: {different}")
            for name, (_, blocks) in held.items():
                shards = self.holders[name]
                for shard in (Shard(*block) for block in blocks):
                    shards[shard] = (*shards.get(shard, ()), rank)
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

    def keys(self, name: str) -> dict[Shard, str]:
        """Return under which name each shard of a tensor lies in the file of its owner: that of the tensor, with a
        number where the owner has several of them."""
        own: dict[int, list[Shard]] = {}
        for shard, owner in self.shards(name):
            own.setdefault(owner, []).append(shard)
        return {
            shard: name if len(shards) == 1 else f"{name}#{number}"
            for shards in own.values()
            for number, shard in enumerate(shards)
        }

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
    return inside and are_apart(shards) and sum(shard.elements for shard in shards) == whole.elements


def are_apart(shards: Sequence[Shard]) -> bool:
    """Return whether no two blocks of a tensor have anything in common.

    Each is compared only with those that reach as far as its first line: there may be thousands of others.
    """
    reaching: list[Shard] = []
    for shard in sorted(shards):
        if shard.offset:  # a lone number has no lines
            reaching = [other for other in reaching if other.offset[0] + other.size[0] > shard.offset[0]]
        if any(shard.overlap(other) for other in reaching):
            return False
        reaching.append(shard)
    return True
