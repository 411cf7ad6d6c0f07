"""The tensors of a checkpoint: any block of any tensor is read from the files that hold parts of it.

Tensors lie whole in `weights.safetensors` and `optimizer.safetensors`, or as shards in files such as
`weights-00003-of-00008.safetensors`. Then `pieces.json` says where: for each tensor its shape, its type, and file,
offset and size of every shard. In the file a shard has the name of its tensor, or where the file holds several of one
tensor, the name that the entry gives.
"""

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from toolkit.checkpoint.staging import DTYPES, check_types
from toolkit.distributed.shards import Held, Shard, ShardMap, all_of, as_bytes, is_sharded

WEIGHTS, OPTIMIZER, SHARDS = "weights.safetensors", "optimizer.safetensors", "pieces.json"
TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}


@dataclass(frozen=True)
class TensorEntry:
    shape: tuple[int, ...]
    dtype: torch.dtype
    shards: tuple[tuple[str, str, Shard], ...]
    """The file of each, its name there, and which block of the tensor it is."""

    @property
    def description(self) -> tuple[list[int], str]:
        """Shape and type, for a message."""
        return list(self.shape), str(self.dtype).removeprefix("torch.")


class CheckpointReader(ExitStack):
    """The tensors of one checkpoint; files are opened when something in them is asked for."""

    def __init__(self, checkpoint: Path) -> None:
        super().__init__()
        self.checkpoint = checkpoint
        self.files: dict[str, Any] = {}
        self.indices: dict[str, dict[str, TensorEntry]] = {}

    def open(self, file: str) -> Any:
        """Return a file of the checkpoint, opened once."""
        if file not in self.files:
            self.files[file] = self.enter_context(safe_open(self.checkpoint / file, framework="pt", device="cpu"))
        return self.files[file]

    def index(self, kind: str) -> Mapping[str, TensorEntry]:
        """Return all tensors of a kind, WEIGHTS or OPTIMIZER, by name; no tensor is read."""
        if kind not in self.indices:
            listed = self.checkpoint / SHARDS
            if listed.is_file():
                content = json.loads(listed.read_text(encoding="utf-8"))[Path(kind).stem]
                self.indices[kind] = {name: entry_of(name, entry) for name, entry in content.items()}
            else:
                self.indices[kind] = self.index_of_whole(kind)
        return self.indices[kind]

    def index_of_whole(self, file: str) -> dict[str, TensorEntry]:
        """Return the tensors of a file in which all are whole."""
        opened, found = self.open(file), {}
        for name in opened.keys():  # noqa: SIM118 - it is no mapping
            entry = opened.get_slice(name)
            shape = tuple(entry.get_shape())
            found[name] = TensorEntry(shape, TORCH_DTYPES[entry.get_dtype()], ((file, name, all_of(shape)),))
        return found

    def read_into(self, kind: str, name: str, shard: Shard, place: torch.Tensor) -> None:
        """Fill a tensor of the size of a block with that block; only what overlaps with it is read."""
        for file, key, held in self.index(kind)[name].shards:
            common = held.overlap(shard)
            if common is None:
                continue
            opened = self.open(file)
            part = opened.get_tensor(key) if common == held else opened.get_slice(key)[common.within(held)]
            place[common.within(shard)].copy_(part)

    def whole(self, kind: str, name: str) -> torch.Tensor:
        entry = self.index(kind)[name]
        if len(entry.shards) == 1:
            file, key, _ = entry.shards[0]
            tensor: torch.Tensor = self.open(file).get_tensor(key)
            return tensor
        place = torch.empty(entry.shape, dtype=entry.dtype)
        self.read_into(kind, name, all_of(entry.shape), place)
        return place


def same_weights(first: Path, second: Path) -> bool:
    """Return whether two checkpoints with tensors of the same names and shapes hold the same, bit for bit."""
    with CheckpointReader(first) as a, CheckpointReader(second) as b:
        pairs_of = ((a.whole(WEIGHTS, name), b.whole(WEIGHTS, name)) for name in a.index(WEIGHTS))
        return all(x.dtype == y.dtype and torch.equal(as_bytes(x), as_bytes(y)) for x, y in pairs_of)


def entry_of(name: str, entry: Mapping[str, Any]) -> TensorEntry:
    """Return the entry of a tensor in `pieces.json`.

    Raises:
        ValueError: it can't be right.
    """
    shards = tuple(
        (part["file"], part.get("name", name), Shard(tuple(part["offset"]), tuple(part["size"])))
        for part in entry["pieces"]
    )
    shape = tuple(entry["shape"])
    if any(Path(file).name != file for file, _, _ in shards):
        raise ValueError("a shard lies outside of its checkpoint")
    if not is_sharded(shape, tuple(shard for _, _, shard in shards)):
        raise ValueError("the shards of a tensor are not the whole of it, each part once")
    return TensorEntry(shape, TORCH_DTYPES[entry["dtype"]], shards)


def file_of(kind: str, shard_map: ShardMap, rank: int) -> str:
    """Return the name of the file into which a process writes its shards of a kind."""
    owners = shard_map.owners
    return f"{Path(kind).stem}-{owners.index(rank) + 1:05d}-of-{len(owners):05d}.safetensors"


def index_entries(kind: str, shard_map: ShardMap, tensors: Mapping[str, Held]) -> dict[str, Any]:
    """Return the part of `pieces.json` about the tensors of a kind.

    Raises:
        UserError: one of them, in whichever process it lies, has a type that the file format does not know.
    """
    check_types((name, tensor.dtype) for name, tensor in tensors.items())
    files = {rank: file_of(kind, shard_map, rank) for rank in shard_map.owners}
    entries: dict[str, Any] = {}
    for name, tensor in tensors.items():
        keys, pieces = shard_map.keys(name), []
        for shard, owner in shard_map.shards(name):
            own_name = {} if keys[shard] == name else {"name": keys[shard]}
            pieces.append({"file": files[owner], **own_name, "offset": list(shard.offset), "size": list(shard.size)})
        entries[name] = {"shape": list(tensor.shape), "dtype": DTYPES[tensor.dtype], "pieces": pieces}
    return entries


def index_as_json(index: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Return the content of `pieces.json`: one line for each tensor."""
    kinds = [
        f"{json.dumps(kind)}: {{\n"
        + ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in sorted(entries.items()))
        + "\n}"
        for kind, entries in index.items()
    ]
    return ("{" + ",\n".join(kinds) + "}\n").encode()
