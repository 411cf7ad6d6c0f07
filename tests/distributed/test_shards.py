"""However a tensor is sharded, its shards are all of it, each element once, and any other sharding reads them."""

from itertools import pairwise, product
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import Partial, Replicate
from torch.distributed.tensor import Shard as ShardPlacement
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from toolkit.checkpoint.reader import SHARDS, WEIGHTS, CheckpointReader, file_of, index_as_json, index_entries
from toolkit.checkpoint.staging import StagingBuffer
from toolkit.distributed.shards import (
    LocalShards,
    Shard,
    ShardMap,
    Stretch,
    all_of,
    are_apart,
    blocks_of,
    is_sharded,
    local_shards,
    shard_at,
)

Shape = tuple[int, ...]
Sharding = tuple[tuple[int, ...], tuple[Placement, ...]]
"""The sizes of a mesh, and how a tensor is placed along each of its dimensions."""

shapes = st.lists(st.integers(0, 7), min_size=0, max_size=3).map(tuple)


@st.composite
def shardings(draw: st.DrawFn, dimensions: int) -> Sharding:
    mesh = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    placements: list[Placement] = []
    for size in mesh:
        kinds = ["replicate", *(["shard", "strided"] if dimensions else [])]
        kind = draw(st.sampled_from(kinds))
        dimension = draw(st.integers(0, max(0, dimensions - 1)))
        placements.append(
            Replicate()
            if kind == "replicate"
            else ShardPlacement(dimension)
            if kind == "shard"
            else _StridedShard(dimension, split_factor=size)
        )
    return tuple(mesh), tuple(placements)


@st.composite
def shapes_and_shardings(draw: st.DrawFn) -> tuple[Shape, Sharding, Sharding]:
    shape = draw(shapes)
    return shape, draw(shardings(len(shape))), draw(shardings(len(shape)))


def shards_of(shape: Shape, way: Sharding) -> list[Shard]:
    """Return the shard of each process of a mesh, by rank; an empty tensor is not sharded."""
    mesh, placements = way
    coordinates = product(*(range(size) for size in mesh))
    return [shard_at(shape, mesh, at, placements) if all(shape) else all_of(shape) for at in coordinates]


def shard_map_of(shape: Shape, shards: list[Shard]) -> ShardMap:
    held: list[dict[str, LocalShards]] = [
        {"x": (shape, ((shard.offset, shard.size),) if shard.elements or not all_of(shape).elements else ())}
        for shard in shards
    ]
    return ShardMap(held)


def write(folder: Path, values: torch.Tensor, shard_map: ShardMap) -> None:
    """Write a tensor as the processes of a shard map do."""
    for rank in shard_map.owners:
        staging_buffer = StagingBuffer()
        owned = next(shard for shard, owner in shard_map.shards("x") if owner == rank)
        staging_buffer.take({"x": values[owned.within(all_of(values.shape))]})
        staging_buffer.write(folder / file_of(WEIGHTS, shard_map, rank))
    entries = index_entries(WEIGHTS, shard_map, {"x": values})
    (folder / SHARDS).write_bytes(index_as_json({"weights": entries, "optimizer": {}}))


@settings(max_examples=80, deadline=None)
@given(shapes_and_shardings())
# Seven rows split in two and each part in three.
@example(
    ((7,), ((3, 2), (_StridedShard(0, split_factor=2), ShardPlacement(0))), ((2, 2), (ShardPlacement(0), Replicate())))
)
@example(((), ((2,), (Replicate(),)), ((1,), (Replicate(),))))
def test_what_is_written_in_one_sharding_is_read_in_another(drawn: tuple[Shape, Sharding, Sharding]) -> None:
    shape, written, wanted = drawn
    values = torch.randn(shape, dtype=torch.float64)
    with TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, values, shard_map_of(shape, shards_of(shape, written)))
        with CheckpointReader(folder) as reader:
            assert torch.equal(reader.whole(WEIGHTS, "x"), values)
            for shard in shards_of(shape, wanted):
                place = torch.full(shard.size, torch.nan, dtype=torch.float64)
                reader.read_into(WEIGHTS, "x", shard, place)
                assert torch.equal(place, values[shard.within(all_of(shape))])


@settings(max_examples=100, deadline=None)
@given(shapes_and_shardings())
def test_without_a_split_below_it_is_sharded_as_torch_does(drawn: tuple[Shape, Sharding, Sharding]) -> None:
    shape, (mesh, placements), _ = drawn
    if all(shape) and not any(isinstance(placement, _StridedShard) for placement in placements):
        for at in product(*(range(size) for size in mesh)):
            size, offset = _compute_local_shape_and_global_offset(shape, mesh, list(at), placements)
            shard = shard_at(shape, mesh, at, placements)
            assert shard.size == size
            # Where an empty part would begin is of no concern.
            assert shard.elements == 0 or shard.offset == offset


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 5))
def test_what_tensor_parallel_split_is_sharded_again_within_its_parts(length: int, shards: int, parts: int) -> None:
    placements = (_StridedShard(0, split_factor=parts), ShardPlacement(0))
    halves = torch.arange(length).chunk(parts)
    for shard, part in product(range(shards), range(parts)):
        within = halves[part].chunk(shards) if part < len(halves) else ()
        expected = within[shard].tolist() if shard < len(within) else []
        found = shard_at((length,), (shards, parts), (shard, part), placements)
        assert list(range(length))[found.within(all_of((length,)))[0]] == expected
        if length % parts == 0:
            size, offset = _compute_local_shape_and_global_offset((length,), (shards, parts), [shard, part], placements)
            assert found.size == size
            assert found.elements == 0 or found.offset == offset


def test_where_tensor_parallel_does_not_divide_the_blocks_of_torch_are_not_the_tensor() -> None:
    """Why `shard_at` is not torch's function; it can be, once this test fails."""
    placements = (_StridedShard(0, split_factor=2), ShardPlacement(0))
    found = []
    for at in product(range(3), range(2)):
        (size,), (offset,) = _compute_local_shape_and_global_offset((13,), (3, 2), list(at), placements)
        found += range(offset, offset + size)
    assert sorted(found) != list(range(13))


@settings(max_examples=100, deadline=None)
@given(shapes_and_shardings())
def test_of_those_that_hold_the_same_the_first_owns_it(drawn: tuple[Shape, Sharding, Sharding]) -> None:
    shape, way, _ = drawn
    shards = shards_of(shape, way)
    shard_map = shard_map_of(shape, shards)
    for shard, owner in shard_map.shards("x"):
        assert owner == shards.index(shard)
        assert shard_map.holders["x"][shard] == tuple(rank for rank, other in enumerate(shards) if other == shard)
    assert shard_map.is_whole == (shards[0] == all_of(shape))
    assert sum(shard.elements for shard, _ in shard_map.shards("x")) == all_of(shape).elements


def test_a_process_may_take_no_part_in_a_tensor() -> None:
    shape = (4,)
    shard_map = ShardMap([{"x": (shape, ())}, {"x": (shape, (((0,), (4,)),))}, {"x": (shape, (((0,), (4,)),))}])
    assert (shard_map.owners, shard_map.owned(1), shard_map.is_whole) == ([1], ["x"], False)


@pytest.mark.parametrize(
    "shards",
    [
        [Shard((0, 0), (2, 3))],
        [Shard((0, 0), (2, 3)), Shard((1, 0), (3, 3))],
        [Shard((0, 0), (2, 3)), Shard((1, 0), (2, 3))],
        [Shard((0, 0), (2, 3)), Shard((2, 1), (2, 3))],
        [],
    ],
)
def test_shards_with_holes_or_overlaps_are_no_shard_map(shards: list[Shard]) -> None:
    assert not is_sharded((4, 3), tuple(shards))
    with pytest.raises(RuntimeError, match="the shards of x that the processes hold are not the whole of it"):
        shard_map_of((4, 3), shards or [Shard((0, 0), (0, 3))])


BLOCK = st.tuples(*(st.tuples(st.integers(0, 3), st.integers(1, 3)) for _ in range(2)))


@given(st.lists(BLOCK, max_size=6))
def test_blocks_that_have_anything_in_common_are_found(blocks: list[tuple[tuple[int, int], ...]]) -> None:
    shards = [Shard(tuple(start for start, _ in block), tuple(length for _, length in block)) for block in blocks]
    cells = [{(x, y) for x in range(a, a + n) for y in range(b, b + m)} for (a, n), (b, m) in blocks]
    assert are_apart(shards) == (len(set().union(*cells)) == sum(map(len, cells)))


def test_processes_that_hold_other_tensors_are_no_shard_map() -> None:
    with pytest.raises(RuntimeError, match=r"process 0 and process 1 do not hold the same tensors: \['y'\]"):
        ShardMap([{"x": ((2,), (((0,), (2,)),))}, {"x": ((2,), (((0,), (2,)),)), "y": ((2,), (((0,), (2,)),))}])


def test_a_sum_that_is_still_to_be_made_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="placed as P"):
        shard_at((4,), (2,), (0,), (Partial(),))


def test_an_index_that_points_out_of_its_checkpoint_is_refused(tmp_path: Path) -> None:
    values = torch.zeros(2)
    shard_map = shard_map_of((2,), [all_of((2,))])
    index = {"weights": index_entries(WEIGHTS, shard_map, {"x": values})}
    index["weights"]["x"]["pieces"][0]["file"] = "../other.safetensors"
    (tmp_path / SHARDS).write_bytes(index_as_json(index))
    with CheckpointReader(tmp_path) as reader, pytest.raises(ValueError, match="outside of its checkpoint"):
        reader.index(WEIGHTS)


def test_an_index_with_a_hole_is_refused(tmp_path: Path) -> None:
    write(tmp_path, torch.arange(4.0), shard_map_of((4,), [Shard((0,), (2,)), Shard((2,), (2,))]))
    text = (tmp_path / SHARDS).read_text(encoding="utf-8")
    (tmp_path / SHARDS).write_text(text.replace('"offset": [2]', '"offset": [1]'), encoding="utf-8")
    with CheckpointReader(tmp_path) as reader, pytest.raises(ValueError, match="not the whole of it"):
        reader.index(WEIGHTS)


@settings(max_examples=200, deadline=None)
@given(st.data(), st.lists(st.integers(1, 5), max_size=4).map(tuple))
def test_a_stretch_of_the_row_of_numbers_is_a_few_blocks_in_its_order(data: st.DataObject, shape: Shape) -> None:
    values = torch.arange(prod(shape)).view(shape)
    start = data.draw(st.integers(0, prod(shape)))
    length = data.draw(st.integers(0, prod(shape) - start))
    held = values.flatten()[start : start + length].clone()
    stretch = Stretch(shape, values.dtype, start, held)
    found = list(stretch.shards())
    assert len(found) <= max(1, 2 * len(shape) - 1)
    for shard, part in found:
        assert torch.equal(values[shard.within(all_of(shape))], part)
        part.zero_()  # the same memory
    assert not held.any()
    # The rest of the tensor is what the others hold.
    rest = [*blocks_of(shape, 0, start), *blocks_of(shape, start + length, prod(shape) - start - length)]
    assert is_sharded(shape, (*(shard for shard, _ in found), *rest))


@settings(max_examples=30, deadline=None)
@given(st.data(), st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple), st.integers(1, 4))
def test_a_checkpoint_of_stretches_is_read_as_any_other(data: st.DataObject, shape: Shape, processes: int) -> None:
    values = torch.randn(shape)
    cuts = sorted(data.draw(st.lists(st.integers(0, prod(shape)), min_size=processes - 1, max_size=processes - 1)))
    held = [
        {"x": Stretch(shape, values.dtype, start, values.flatten()[start:end])}
        for start, end in pairwise([0, *cuts, prod(shape)])
    ]
    shard_map = ShardMap([local_shards(own) for own in held])
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for rank in shard_map.owners:
            staging_buffer, keys = StagingBuffer(), shard_map.keys("x")
            staging_buffer.take({keys[shard]: part for shard, part in held[rank]["x"].shards()})
            staging_buffer.write(folder / file_of(WEIGHTS, shard_map, rank))
        entries = index_entries(WEIGHTS, shard_map, {"x": values})
        (folder / SHARDS).write_bytes(index_as_json({"weights": entries, "optimizer": {}}))
        with CheckpointReader(folder) as reader:
            assert torch.equal(reader.whole(WEIGHTS, "x"), values)
            wanted = data.draw(shardings(len(shape)))
            for shard in shards_of(shape, wanted):
                place = torch.full(shard.size, torch.nan)
                reader.read_into(WEIGHTS, "x", shard, place)
                assert torch.equal(place, values[shard.within(all_of(shape))])
