"""Blocks of tensors: whatever way a tensor is cut, its pieces are all of it, each element once, and any other cut reads them."""

from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from toolkit.checkpoint.reader import PIECES, WEIGHTS, StoredTensors, file_of, index_as_json, index_entries
from toolkit.checkpoint.staging import Snapshot
from toolkit.distributed.shards import Holding, Layout, Piece, all_of, cut, is_cut

Shape = tuple[int, ...]
Cut = tuple[tuple[int, ...], tuple[Placement, ...]]
"""The sizes of a mesh, and how a tensor is placed along each of its dimensions."""

shapes = st.lists(st.integers(0, 7), min_size=0, max_size=3).map(tuple)


@st.composite
def cuts(draw: st.DrawFn, dimensions: int) -> Cut:
    mesh = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    placements: list[Placement] = []
    for size in mesh:
        kinds = ["replicate", *(["shard", "strided"] if dimensions else [])]
        kind = draw(st.sampled_from(kinds))
        dimension = draw(st.integers(0, max(0, dimensions - 1)))
        placements.append(
            Replicate()
            if kind == "replicate"
            else Shard(dimension)
            if kind == "shard"
            else _StridedShard(dimension, split_factor=size)
        )
    return tuple(mesh), tuple(placements)


@st.composite
def shapes_and_cuts(draw: st.DrawFn) -> tuple[Shape, Cut, Cut]:
    shape = draw(shapes)
    return shape, draw(cuts(len(shape))), draw(cuts(len(shape)))


def pieces_of(shape: Shape, way: Cut) -> list[Piece]:
    """Return the piece of each process of a mesh, by rank; an empty tensor is not cut."""
    mesh, placements = way
    coordinates = product(*(range(size) for size in mesh))
    return [cut(shape, mesh, at, placements) if all(shape) else all_of(shape) for at in coordinates]


def layout_of(shape: Shape, pieces: list[Piece]) -> Layout:
    held: list[dict[str, Holding]] = [{"x": (shape, piece.offset, piece.size)} for piece in pieces]
    return Layout(held)


def write(folder: Path, values: torch.Tensor, layout: Layout) -> None:
    """Write a tensor as the processes of a layout do."""
    for rank in layout.owners:
        snapshot = Snapshot()
        owned = next(piece for piece, owner in layout.pieces("x") if owner == rank)
        snapshot.take({"x": values[owned.within(all_of(values.shape))]})
        snapshot.write(folder / file_of(WEIGHTS, layout, rank))
    entries = index_entries(WEIGHTS, layout, {"x": values})
    (folder / PIECES).write_bytes(index_as_json({"weights": entries, "optimizer": {}}))


@settings(max_examples=80, deadline=None)
@given(shapes_and_cuts())
# Seven rows split in two and each part in three.
@example(((7,), ((3, 2), (_StridedShard(0, split_factor=2), Shard(0))), ((2, 2), (Shard(0), Replicate()))))
@example(((), ((2,), (Replicate(),)), ((1,), (Replicate(),))))
def test_what_is_written_in_one_cut_is_read_in_another(drawn: tuple[Shape, Cut, Cut]) -> None:
    shape, written, wanted = drawn
    values = torch.randn(shape, dtype=torch.float64)
    with TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, values, layout_of(shape, pieces_of(shape, written)))
        with StoredTensors(folder) as stored:
            assert torch.equal(stored.whole(WEIGHTS, "x"), values)
            for piece in pieces_of(shape, wanted):
                place = torch.full(piece.size, torch.nan, dtype=torch.float64)
                stored.read_into(WEIGHTS, "x", piece, place)
                assert torch.equal(place, values[piece.within(all_of(shape))])


@settings(max_examples=100, deadline=None)
@given(shapes_and_cuts())
def test_without_a_split_below_it_is_cut_as_torch_does(drawn: tuple[Shape, Cut, Cut]) -> None:
    shape, (mesh, placements), _ = drawn
    if all(shape) and not any(isinstance(placement, _StridedShard) for placement in placements):
        for at in product(*(range(size) for size in mesh)):
            size, offset = _compute_local_shape_and_global_offset(shape, mesh, list(at), placements)
            piece = cut(shape, mesh, at, placements)
            assert piece.size == size
            # Where an empty part would begin is of no concern.
            assert piece.elements == 0 or piece.offset == offset


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 5))
def test_what_tensor_parallel_split_is_cut_again_within_its_parts(length: int, shards: int, parts: int) -> None:
    placements = (_StridedShard(0, split_factor=parts), Shard(0))
    halves = torch.arange(length).chunk(parts)
    for shard, part in product(range(shards), range(parts)):
        within = halves[part].chunk(shards) if part < len(halves) else ()
        expected = within[shard].tolist() if shard < len(within) else []
        piece = cut((length,), (shards, parts), (shard, part), placements)
        assert list(range(length))[piece.within(all_of((length,)))[0]] == expected


@settings(max_examples=100, deadline=None)
@given(shapes_and_cuts())
def test_of_those_that_hold_the_same_the_first_owns_it(drawn: tuple[Shape, Cut, Cut]) -> None:
    shape, way, _ = drawn
    pieces = pieces_of(shape, way)
    layout = layout_of(shape, pieces)
    for piece, owner in layout.pieces("x"):
        assert owner == pieces.index(piece)
        assert layout.holders["x"][piece] == tuple(rank for rank, other in enumerate(pieces) if other == piece)
    assert layout.is_whole == (pieces[0] == all_of(shape))
    assert sum(piece.elements for piece, _ in layout.pieces("x")) == all_of(shape).elements


def test_a_process_may_take_no_part_in_a_tensor() -> None:
    shape = (4,)
    layout = Layout([{"x": (shape, None, None)}, {"x": (shape, (0,), (4,))}, {"x": (shape, (0,), (4,))}])
    assert (layout.owners, layout.owned(1), layout.is_whole) == ([1], ["x"], False)


@pytest.mark.parametrize(
    "pieces",
    [
        [Piece((0, 0), (2, 3))],
        [Piece((0, 0), (2, 3)), Piece((1, 0), (3, 3))],
        [Piece((0, 0), (2, 3)), Piece((1, 0), (2, 3))],
        [Piece((0, 0), (2, 3)), Piece((2, 1), (2, 3))],
        [],
    ],
)
def test_pieces_with_holes_or_overlaps_are_no_layout(pieces: list[Piece]) -> None:
    assert not is_cut((4, 3), tuple(pieces))
    with pytest.raises(RuntimeError, match="the pieces of x that the processes hold are not the whole of it"):
        layout_of((4, 3), pieces or [Piece((0, 0), (0, 3))])


def test_processes_that_hold_other_tensors_are_no_layout() -> None:
    with pytest.raises(RuntimeError, match=r"process 0 and process 1 do not hold the same tensors: \['y'\]"):
        Layout([{"x": ((2,), (0,), (2,))}, {"x": ((2,), (0,), (2,)), "y": ((2,), (0,), (2,))}])


def test_a_sum_that_is_still_to_be_made_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="placed as P"):
        cut((4,), (2,), (0,), (Partial(),))


def test_an_index_that_points_out_of_its_checkpoint_is_refused(tmp_path: Path) -> None:
    values = torch.zeros(2)
    layout = layout_of((2,), [all_of((2,))])
    index = {"weights": index_entries(WEIGHTS, layout, {"x": values})}
    index["weights"]["x"]["pieces"][0]["file"] = "../other.safetensors"
    (tmp_path / PIECES).write_bytes(index_as_json(index))
    with StoredTensors(tmp_path) as stored, pytest.raises(ValueError, match="outside of its checkpoint"):
        stored.index(WEIGHTS)


def test_an_index_with_a_hole_is_refused(tmp_path: Path) -> None:
    write(tmp_path, torch.arange(4.0), layout_of((4,), [Piece((0,), (2,)), Piece((2,), (2,))]))
    text = (tmp_path / PIECES).read_text(encoding="utf-8")
    (tmp_path / PIECES).write_text(text.replace('"offset": [2]', '"offset": [1]'), encoding="utf-8")
    with StoredTensors(tmp_path) as stored, pytest.raises(ValueError, match="not the whole of it"):
        stored.index(WEIGHTS)
