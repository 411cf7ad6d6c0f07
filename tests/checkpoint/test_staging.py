"""A copy of tensors in memory is the content of a file that the safetensors library reads, bit for bit."""

from hashlib import sha256
from math import prod
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from toolkit.checkpoint.staging import CHUNK, DTYPES, StagingBuffer
from toolkit.checkpoint.writer import Content, Saver
from toolkit.errors import UserError
from toolkit.output.ledger import Ledger
from toolkit.output.run_folder import RunFolder

Specification = tuple[torch.dtype, tuple[int, ...], bool]

specifications = st.dictionaries(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).filter(lambda name: name != "__metadata__"),
    st.tuples(st.sampled_from(list(DTYPES)), st.lists(st.integers(0, 4), max_size=3).map(tuple), st.booleans()),
    max_size=6,
)


def tensors_of(wanted: dict[str, Specification], seed: int) -> dict[str, torch.Tensor]:
    """Return tensors of random bits, some of which do not lie in memory in the order of their elements."""
    random = np.random.default_rng(seed)
    made = {}
    for name, (dtype, shape, turned) in wanted.items():
        values = random.integers(0, 2 if dtype is torch.bool else 256, prod(shape) * dtype.itemsize)
        tensor = torch.tensor(values.tolist(), dtype=torch.uint8).view(dtype)
        made[name] = tensor.view(shape[::-1]).permute(axes(shape)) if turned else tensor.view(shape)
    return made


def axes(shape: tuple[int, ...]) -> list[int]:
    return list(reversed(range(len(shape))))


def bits(tensors: dict[str, torch.Tensor]) -> dict[str, tuple[torch.dtype, tuple[int, ...], bytes]]:
    return {
        name: (tensor.dtype, tuple(tensor.shape), tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
        for name, tensor in tensors.items()
    }


@settings(max_examples=80, deadline=None)
@given(specifications, specifications)
def test_the_file_of_a_snapshot_holds_the_bits_of_the_tensors(
    tmp_path_factory: pytest.TempPathFactory, first: dict[str, Specification], other: dict[str, Specification]
) -> None:
    """All types and shapes, also of no dimension and of no element; twice the same tensors, then others, then none."""
    path = tmp_path_factory.getbasetemp() / "snapshot.safetensors"
    staging_buffer = StagingBuffer()
    for number, wanted in enumerate((first, first, other, {})):
        tensors = tensors_of(wanted, seed=number)
        place = staging_buffer.content.data_ptr()
        staging_buffer.take(tensors)
        if number == 1:
            assert staging_buffer.content.data_ptr() == place
        size, digest = staging_buffer.write(path)
        # What training does to the tensors from here on is of no concern to the file.
        assert (size, digest) == (path.stat().st_size, sha256(path.read_bytes()).hexdigest())
        assert bits(load_file(path)) == bits(tensors)
        path.unlink()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_type_has_the_name_that_the_library_gives_it(dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = tensors_of({"one": (dtype, (3,), False)}, seed=0)
    staging_buffer = StagingBuffer()
    staging_buffer.take(tensors)
    staging_buffer.write(tmp_path / "ours")
    save_file(tensors, tmp_path / "theirs")
    assert bits(load_file(tmp_path / "ours")) == bits(load_file(tmp_path / "theirs")) == bits(tensors)


def test_a_snapshot_is_of_the_moment_in_which_it_was_taken(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    staging_buffer = StagingBuffer()
    staging_buffer.take({"weight": weight})
    with torch.no_grad():
        weight.zero_()
    staging_buffer.write(tmp_path / "file")
    assert load_file(tmp_path / "file")["weight"].tolist() == [1, 1, 1]


def test_a_file_of_many_chunks_is_written_whole(tmp_path: Path) -> None:
    tensors = {"large": torch.arange(2 * CHUNK // 8 + 5), "small": torch.tensor(7, dtype=torch.int8)}
    staging_buffer = StagingBuffer()
    staging_buffer.take(tensors)
    size, digest = staging_buffer.write(tmp_path / "file")
    assert (size, digest) == ((tmp_path / "file").stat().st_size, sha256((tmp_path / "file").read_bytes()).hexdigest())
    assert bits(load_file(tmp_path / "file")) == bits(tensors)


class Cuda:
    """Notes what memory is pinned; refuses all of it if asked to."""

    def __init__(self, refuses: bool) -> None:
        self.refuses = refuses
        self.pinned: dict[int, int] = {}

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802 - CUDA's name
        if not self.refuses:
            self.pinned[address] = size
        return 2 if self.refuses else 0

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802 - CUDA's name
        del self.pinned[address]
        return 0


def test_exactly_what_is_needed_is_pinned_and_let_go_before_it_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own pinned memory would be the next power of two."""
    cuda = Cuda(refuses=False)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cuda)
    staging_buffer = StagingBuffer(pinned=True)
    for size in (5000, 5000, 70_000):
        staging_buffer.take({"weight": torch.zeros(size)})
        assert cuda.pinned == {staging_buffer.content.data_ptr(): staging_buffer.content.nbytes}
        assert 4 * size < staging_buffer.content.nbytes < 4 * size + 200
    del staging_buffer
    assert cuda.pinned == {}


def test_a_copy_lies_in_ordinary_memory_where_none_can_be_pinned_and_that_is_said_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    cuda = Cuda(refuses=True)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cuda)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: None)
    # The first kernel after a refusal raises its error.
    kernel = mock.Mock(side_effect=RuntimeError("CUDA error: out of memory"))
    monkeypatch.setattr(torch, "zeros", kernel)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    saver = Saver(RunFolder(tmp_path), ledger, keep=2, pinned=True)
    for step in (1, 2):
        weight = torch.full((300_000,), float(step))
        content = Content(0.5, {"weights.safetensors": {"weight": weight}}, {})
        saver.save(step, lambda content=content: content)  # type: ignore[misc]
        saver.wait()
        assert saver.failure is None
        sealed = tmp_path / "checkpoints" / f"step-{step:06d}" / "weights.safetensors"
        assert load_file(sealed)["weight"].tolist() == weight.tolist()
    ledger.close()
    assert kernel.call_count == 1
    assert capfd.readouterr().err.count("refused to pin 1.2 MB of host memory for the copy of a checkpoint") == 1


def test_a_type_that_the_format_does_not_know_is_refused_by_name(tmp_path: Path) -> None:
    staging_buffer = StagingBuffer()
    with pytest.raises(UserError, match=r"of these types: wave \(torch.complex128\); use one of bfloat16, bool, "):
        staging_buffer.take({"wave": torch.zeros(2, dtype=torch.complex128), "fine": torch.zeros(2)})
    # It is as good as new.
    staging_buffer.take({"fine": torch.ones(2)})
    staging_buffer.write(tmp_path / "file")
    assert load_file(tmp_path / "file")["fine"].tolist() == [1, 1]
