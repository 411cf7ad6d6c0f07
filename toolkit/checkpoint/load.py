"""The state of a run as tensors with names: what goes into a checkpoint, and how it gets back into every process."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from toolkit.checkpoint.optimizer_state import grouped_names, load_optimizer, pack_optimizer, regrouped
from toolkit.checkpoint.reader import CheckpointReader, file_of, index_entries
from toolkit.checkpoint.resume import Start
from toolkit.checkpoint.sharded import Sharing, shard_map_of
from toolkit.checkpoint.writer import OPTIMIZER, WEIGHTS, Content
from toolkit.distributed.runtime import Runtime
from toolkit.distributed.shards import local_of, shard_of
from toolkit.errors import UserError
from toolkit.models.parameters import digest_of_frozen as digest_of_frozen
from toolkit.models.parameters import parameter_names
from toolkit.models.parameters import weights_of as weights_of


def content_of(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    step: int,
    epoch: float,
    state: Mapping[str, Any],
    sharded: Runtime | None = None,
) -> Content:
    """Return what a checkpoint holds, nothing copied yet: all of it, or what this process owns.

    With `sharded` every process writes the pieces that it owns, and all of them call this together.
    """
    packed, averages = pack_optimizer(optimizer, parameter_names(model))
    kinds = {WEIGHTS: weights_of(model), OPTIMIZER: averages}
    state = {"step": step, "epoch": epoch, **state, "optimizer": packed}
    if sharded is None:
        files = {kind: {name: local_of(tensor) for name, tensor in tensors.items()} for kind, tensors in kinds.items()}
        return Content(epoch, files, state)
    return sharded_content(kinds, epoch, state, sharded)


def sharded_content(
    kinds: Mapping[str, Mapping[str, torch.Tensor]], epoch: float, state: Mapping[str, Any], runtime: Runtime
) -> Content:
    """Return what this process writes of tensors that are spread over all of them."""
    both = {f"{kind}/{name}": tensor for kind, tensors in kinds.items() for name, tensor in tensors.items()}
    together = shard_map_of(both, runtime)
    files, shards = {}, {}
    for kind, tensors in kinds.items():
        shard_map = together.of(f"{kind}/")
        shards[kind.removesuffix(".safetensors")] = index_entries(kind, shard_map, tensors)
        if runtime.rank in shard_map.owners:
            owned = shard_map.owned(runtime.rank)
            files[file_of(kind, shard_map, runtime.rank)] = {name: local_of(tensors[name]) for name in owned}
    return Content(epoch, files, state, shards, tuple(together.owners))


def load_checkpoint(
    start: Start, model: torch.nn.Module, optimizer: torch.optim.Optimizer, runtime: Runtime, frozen: str | None
) -> None:
    """Put the weights and the optimizer's state of a checkpoint into all processes; they call it together.

    Of the processes that hold the same piece of a tensor one alone reads it, and no other part of the tensor.

    Args:
        start: where the run goes on.
        model: prepared; it may lie in the processes in another way than when the checkpoint was written.
        optimizer: prepared.
        runtime: this process.
        frozen: the digest of the weights that are not trained, in the main process.

    Raises:
        UserError: the checkpoint has other tensors than the model.
    """
    assert start.checkpoint is not None
    weights, names = weights_of(model), parameter_names(model)
    with CheckpointReader(start.checkpoint) as stored:
        # What is trained before what is frozen: the one decides the other.
        runtime.on_main(lambda: check_optimizer(start, optimizer, names))
        runtime.on_main(lambda: check(stored, weights))
        runtime.on_main(lambda: check_frozen(start, frozen))
        # Only who owns something has to see the files.
        index = runtime.on_main(lambda: stored.index(OPTIMIZER))
        reader = Reader(stored, Sharing(shard_map_of(weights, runtime), runtime), runtime)
        with torch.no_grad():
            for name, place in weights.items():
                reader.fill(WEIGHTS, name, place, of=name)

        def tensor(name: str, like: torch.Tensor) -> torch.Tensor:
            entry = index[name]
            place = torch.empty(entry.shape, dtype=entry.dtype, device=local_of(like).device)
            # A count is whole everywhere, also beside a weight that is a lone number.
            if entry.shape == tuple(like.shape) and not name.endswith("/step"):
                # Fused optimizers walk through memory: their averages have to lie as the parameter does, transposed or not.
                place = torch.empty_like(like, dtype=entry.dtype, memory_format=torch.preserve_format)
            with torch.no_grad():
                reader.fill(OPTIMIZER, name, place.detach(), of=names.get(like))
            return place

        load_optimizer(optimizer, names, start.state["optimizer"], tensor)


def check_frozen(start: Start, now: str | None) -> None:
    """Hold the weights that are not trained against those that the checkpoint was written beside.

    Raises:
        UserError: they are others.
    """
    before = start.state.get("frozen")
    if before != now:
        raise UserError(
            f"the weights that are not trained are not those beside which {start.checkpoint} was written (their digest was "
            f"{before} and is now {now}). Give the former recipe and settings, or start a new run with --output"
        )


def check_optimizer(start: Start, optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str]) -> None:
    """Hold the parameters that an optimizer changes against those that it had changed.

    Raises:
        UserError: it has others, or treats them in another way.
    """
    previous, groups = start.state["optimizer"]["names"], grouped_names(optimizer, names)
    before, now = ({name for group in these for name in group} for these in (previous, groups))
    if before == now and not regrouped(optimizer, names, start.state["optimizer"]):
        return
    words = [
        f"{label}: {', '.join(sorted(names)[:5])} ({len(names)} in all)"
        for label, names in (("trained then and not now", before - now), ("trained now and not then", now - before))
        if names
    ]
    raise UserError(
        f"the optimizer does not change the parameters that it did when {start.checkpoint} was written: "
        f"{'; '.join(words) or 'the same ones are grouped in another way'}. Give the former recipe and settings, or start a new run "
        "with --output"
    )


class Reader:
    """Reads tensors of a checkpoint into all processes."""

    def __init__(self, stored: CheckpointReader, sharing: Sharing, runtime: Runtime) -> None:
        self.stored = stored
        self.sharing = sharing
        self.runtime = runtime

    def fill(self, kind: str, name: str, place: torch.Tensor, of: str | None) -> None:
        """Fill a tensor in all processes; one that is spread lies as the weight `of` does."""
        shard, local = shard_of(place), local_of(place)
        if shard is None or (shard.elements == 0 and place.numel() > 0):
            return
        holders = self.sharing.everybody
        if of is not None and isinstance(place, DTensor):
            holders = self.sharing.holders(of, shard)
        if self.runtime.rank == holders[0]:
            # From the file straight into place where it lies on the host, and by way of one piece where it does not.
            self.stored.read_into(kind, name, shard, local)
        self.sharing.share(local, holders)


def check(stored: CheckpointReader, expected: Mapping[str, torch.Tensor]) -> None:
    """Hold names, shapes and types of the weights in a checkpoint against the model.

    Raises:
        UserError: they differ.
    """
    found = {name: entry.words for name, entry in stored.index(WEIGHTS).items()}
    wanted = {name: (list(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in expected.items()}
    different = [name for name in dict.fromkeys([*wanted, *found]) if wanted.get(name) != found.get(name)]
    if different:
        shown = "; ".join(f"{name} was {found.get(name)} and is now {wanted.get(name)}" for name in different[:5])
        raise UserError(
            f"the model is not the one that {stored.checkpoint} was written for: {len(different)} tensor(s) differ: {shown}. "
            "Give the former recipe and settings, or start a new run with --output"
        )
