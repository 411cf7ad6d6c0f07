"""Sharded tensors: who holds which shards of them, and how the main process gets one whole.

No process holds more than its own part and one whole tensor, except for what the caller asks for.
"""

import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

import torch
import torch.distributed

from toolkit.distributed.runtime import FOR_EVER, Runtime
from toolkit.distributed.shards import Held, Shard, ShardMap, all_of, as_bytes, held_shards, local_shards
from toolkit.errors import SharedUserError
from toolkit.models.parameters import check_is_tensor, held_of, named_state, weights_of
from toolkit.output.run_folder import RunFolder

# A file system that is shared over a network may show a new file late.
SECONDS_TO_APPEAR = 10.0


def shard_map_of(tensors: Mapping[str, Held], runtime: Runtime) -> ShardMap:
    """Return who holds which shards of these; all processes call it together, with the same names."""
    return ShardMap(runtime.gather_all(local_shards(tensors)))


class Sharing:
    """Gives a shard to all processes that hold it, from its owner; all processes make it together."""

    def __init__(self, shard_map: ShardMap, runtime: Runtime) -> None:
        self.shard_map = shard_map
        self.runtime = runtime
        self.everybody = tuple(range(shard_map.processes))
        sets = {ranks for shards in shard_map.holders.values() for ranks in shards.values()}
        self.groups: dict[tuple[int, ...], Any] = {
            # Over the host: a shard was just read from a file. Every process has to make every group.
            ranks: torch.distributed.new_group(list(ranks), backend="gloo", timeout=FOR_EVER)
            for ranks in sorted(sets)
            if 1 < len(ranks) < shard_map.processes
        }
        self.groups[self.everybody] = runtime.control

    def holders(self, name: str, shard: Shard) -> tuple[int, ...]:
        """Return the ranks that hold a shard, its owner first."""
        return self.shard_map.holders[name][shard]

    def share(self, local: torch.Tensor, ranks: tuple[int, ...]) -> None:
        """Fill a local tensor in these processes from the first of them; no other process calls it."""
        if len(ranks) == 1:
            return
        if len(ranks) == self.shard_map.processes and local.device.type == self.runtime.device.type:
            self.runtime.share(local)
            return
        content = local.cpu().contiguous()
        torch.distributed.broadcast(as_bytes(content), src=ranks[0], group=self.groups[ranks])
        if self.runtime.rank != ranks[0]:
            local.copy_(content)


def whole_on_main(tensors: Mapping[str, Held], runtime: Runtime) -> Iterator[tuple[str, torch.Tensor | None]]:
    """Yield each tensor with its name: whole and on the host in the main process, None in the others.

    All processes iterate together. A tensor that is whole in the main process is not sent, only copied from a device.
    """
    shard_map = shard_map_of(tensors, runtime)
    for name, tensor in tensors.items():
        mine, whole = dict(held_shards(tensor)), all_of(tensor.shape)
        if runtime.is_main and whole in mine:
            yield name, mine[whole].to("cpu", tensor.dtype)
            continue
        found = torch.empty(tensor.shape, dtype=tensor.dtype) if runtime.is_main else None
        for shard, owner in shard_map.shards(name):
            if found is not None:
                part = mine[shard].cpu() if owner == runtime.rank else received(shard, owner, tensor.dtype, runtime)
                found[shard.within(whole)].copy_(part)
            elif owner == runtime.rank:
                part = mine[shard].to("cpu", tensor.dtype).contiguous()
                torch.distributed.send(as_bytes(part), dst=0, group=runtime.control)
        yield name, found


def received(shard: Shard, owner: int, dtype: torch.dtype, runtime: Runtime) -> torch.Tensor:
    """Return a shard that its owner sends to this process."""
    part = torch.empty(shard.size, dtype=dtype)
    torch.distributed.recv(as_bytes(part), src=owner, group=runtime.control)
    return part


def whole_weights(model: torch.nn.Module, runtime: Runtime) -> dict[str, torch.Tensor]:
    """Return all parameters and persistent buffers whole and on the host, in the main process; the others get nothing.

    Under ZeRO those that are not trained are left out: they are what they were.

    All processes call it together. Names are those of `state_dict` without what wrappers put in; tensors that the model
    ties are one tensor here too. The main process needs the memory of the whole model, and of one shard on its way.

    Raises:
        UserError: the model keeps a state that is no tensor.
    """
    names: dict[str, str] = {}
    first: dict[int, str] = {}
    tensors: dict[str, Held] = {}
    for name, tensor in named_state(model):
        check_is_tensor(name, tensor)
        held = held_of(model, tensor)
        if held is None:
            continue
        names[name] = first.setdefault(id(held), name)
        tensors.setdefault(names[name], held)
    found = {name: whole for name, whole in whole_on_main(tensors, runtime) if whole is not None}
    return {name: found[one] for name, one in names.items() if one in found}


def check_folder_is_shared(
    folder: RunFolder, model: torch.nn.Module, runtime: Runtime, patience: float = SECONDS_TO_APPEAR
) -> None:
    """Make sure that every process which writes a part of a checkpoint sees the run folder of the main one.

    All processes call it together, once the main one holds the folder.

    Raises:
        SharedUserError: some do not; it names them and their machines.
    """
    shard_map = shard_map_of(weights_of(model), runtime)
    if shard_map.is_whole:
        return
    token = runtime.on_main(lambda: write_token(folder))
    sees = runtime.rank not in shard_map.owners or finds_token(folder.lock_file, token, patience)
    here = runtime.gather_all((socket.gethostname(), sees))
    blind: dict[str, list[str]] = {}
    for rank, (machine, found) in enumerate(here):
        if not found:
            blind.setdefault(machine, []).append(str(rank))
    if blind:
        who = "; ".join(f"process {', '.join(ranks)} on {machine}" for machine, ranks in blind.items())
        raise SharedUserError(
            f"the run folder {folder.path.absolute()} of process 0 on {here[0][0]} can't be seen by {who}, and with "
            "this sharding each process writes its part of a checkpoint into it; give with --output a folder that all "
            "machines share, or shard inside each machine only (hybrid sharding), for which process 0's machine alone "
            "needs the folder"
        )


def write_token(folder: RunFolder) -> str:
    """Write a token into the lock file, which is there anyway, and return it."""
    token = uuid4().hex
    assert folder.lock is not None
    folder.lock.truncate(0)
    folder.lock.write(token)
    folder.lock.flush()
    return token


def finds_token(file: Path, token: str, patience: float) -> bool:
    """Return whether a token appears in a file within so many seconds."""
    until = monotonic() + patience
    while True:
        try:
            if file.read_text(encoding="utf-8") == token:
                return True
        except OSError:
            pass
        if monotonic() > until:
            return False
        sleep(0.2)
