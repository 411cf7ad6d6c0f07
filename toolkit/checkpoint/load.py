"""The weights and the optimizer's state of a checkpoint, put back into all processes of a run."""

from collections.abc import Mapping

import torch
from torch.distributed.tensor import DTensor

from toolkit.checkpoint.reader import OPTIMIZER, WEIGHTS, CheckpointReader
from toolkit.checkpoint.resume import Start
from toolkit.checkpoint.sharded import Sharing, shard_map_of
from toolkit.checkpoint.state_dict import grouped_names, load_optimizer, regrouped, trained_names
from toolkit.distributed.runtime import Runtime
from toolkit.distributed.shards import Held, Stretch, held_shards, local_of
from toolkit.distributed.zero import MasterWeights
from toolkit.errors import UserError
from toolkit.models.parameters import weights_of
from toolkit.optimizer import AVERAGE, AVERAGED

WHOLE = tuple(f"/{entry}" for entry in ("step", AVERAGED, "row_var", "col_var", "variance"))
"""How the names of what an optimizer keeps end where each process has all of it, however its weight is sharded."""


def load_checkpoint(
    start: Start, model: torch.nn.Module, optimizer: torch.optim.Optimizer, runtime: Runtime, frozen: str | None
) -> None:
    """Put the weights and the optimizer's state of a checkpoint into all processes; they call it together.

    Of the processes that hold the same shard of a tensor one alone reads it, and no other part of the tensor.

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
    weights, names = weights_of(model), trained_names(model, optimizer)
    with CheckpointReader(start.checkpoint) as reader:
        # Which weights are trained decides which are frozen.
        runtime.on_main(lambda: check_optimizer(start, optimizer, names))
        runtime.on_main(lambda: check_weights(reader, weights))
        runtime.on_main(lambda: check_frozen(start, frozen))
        # Only processes that own a shard have to see the files.
        index = runtime.on_main(lambda: reader.index(OPTIMIZER))
        loader = Loader(reader, Sharing(shard_map_of(weights, runtime), runtime), runtime)
        with torch.no_grad():
            for name, place in weights.items():
                loader.fill(WEIGHTS, name, place, of=name)

        def tensor(name: str, like: torch.Tensor) -> torch.Tensor:
            entry = index[name]
            if isinstance(optimizer, MasterWeights) and like in names and not name.endswith(WHOLE):
                stretch = optimizer.like(like)
                with torch.no_grad():
                    loader.fill(OPTIMIZER, name, stretch, of=names[like])
                return stretch.values
            place = torch.empty(entry.shape, dtype=entry.dtype, device=local_of(like).device)
            # Some are whole everywhere, also where the weight happens to have their shape.
            if entry.shape == tuple(like.shape) and not name.endswith(WHOLE):
                # Fused optimizers walk through memory: their averages have to lie as the parameter does, transposed or
                # not.
                place = torch.empty_like(like, dtype=entry.dtype, memory_format=torch.preserve_format)
            with torch.no_grad():
                loader.fill(OPTIMIZER, name, place.detach(), of=names.get(like))
            return place

        load_optimizer(optimizer, names, start.state["optimizer"], tensor)
    if isinstance(optimizer, MasterWeights):
        optimizer.take_over()


@torch.no_grad()
def load_exported(start: Start, model: torch.nn.Module, frozen: str | None, averaged: bool) -> None:
    """Put the weights of a checkpoint into a model that lies whole in this process, or their average if it holds one.

    Args:
        start: names the checkpoint.
        model: not trained any more.
        frozen: the digest of the weights that are not trained.
        averaged: whether the averages of the weights are wanted.

    Raises:
        UserError: the checkpoint has other tensors than the model.
    """
    assert start.checkpoint is not None
    weights = weights_of(model)
    with CheckpointReader(start.checkpoint) as reader:
        check_weights(reader, weights)
        check_frozen(start, frozen)
        averages = reader.index(OPTIMIZER) if averaged else {}
        for name, place in weights.items():
            average = f"{name}/{AVERAGE}"
            is_averaged = average in averages
            assert isinstance(place, torch.Tensor)
            place.copy_(reader.whole(OPTIMIZER, average) if is_averaged else reader.whole(WEIGHTS, name))


def check_frozen(start: Start, now: str | None) -> None:
    """Compare the weights that are not trained with those at the time of the checkpoint.

    Raises:
        UserError: they are others.
    """
    before = start.state.get("frozen")
    if before != now:
        raise UserError(
            f"the weights that are not trained are not those beside which {start.checkpoint} was written (their digest "
            f"was {before} and is now {now}). Give the previous recipe and settings, or start a new run with --output"
        )


def check_optimizer(start: Start, optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str]) -> None:
    """Compare the parameters that an optimizer changes with those that it had changed.

    Raises:
        UserError: it has others, or treats them in another way.
    """
    previous, groups = start.state["optimizer"]["names"], grouped_names(optimizer, names)
    before, now = ({name for group in these for name in group} for these in (previous, groups))
    if before == now and not regrouped(optimizer, names, start.state["optimizer"]):
        return
    changes = [
        f"{label}: {', '.join(sorted(names)[:5])} ({len(names)} in all)"
        for label, names in (("trained then and not now", before - now), ("trained now and not then", now - before))
        if names
    ]
    raise UserError(
        f"the optimizer does not change the parameters that it did when {start.checkpoint} was written: "
        f"{'; '.join(changes) or 'the same ones are grouped in another way'}. Give the previous recipe and settings, "
        "or start a new run with --output"
    )


class Loader:
    """Reads tensors of a checkpoint into all processes, each shard once."""

    def __init__(self, reader: CheckpointReader, sharing: Sharing, runtime: Runtime) -> None:
        self.reader = reader
        self.sharing = sharing
        self.runtime = runtime

    def fill(self, kind: str, name: str, place: Held, of: str | None) -> None:
        """Fill a tensor in all processes; one that is sharded lies as the weight `of` does."""
        for shard, local in held_shards(place):
            holders = self.sharing.everybody
            if of is not None and isinstance(place, DTensor | Stretch):
                holders = self.sharing.holders(of, shard)
            elif of is not None and self.runtime.strategy.stages > 1:
                # Of a weight that lies whole in one stage, or in two.
                (holders,) = self.sharing.shard_map.holders[of].values()
            if self.runtime.rank == holders[0]:
                # Straight from the file where the tensor lies on the host; a device gets it by way of one shard on the
                # host.
                self.reader.read_into(kind, name, shard, local)
            self.sharing.share(local, holders)


def check_weights(reader: CheckpointReader, expected: Mapping[str, Held]) -> None:
    """Compare names, shapes and types of the weights in a checkpoint with the model.

    Raises:
        UserError: they differ.
    """
    found = {name: entry.description for name, entry in reader.index(WEIGHTS).items()}
    wanted = {name: (list(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in expected.items()}
    different = [name for name in dict.fromkeys([*wanted, *found]) if wanted.get(name) != found.get(name)]
    if different:
        shown = "; ".join(f"{name} was {found.get(name)} and is now {wanted.get(name)}" for name in different[:5])
        raise UserError(
            f"the model is not the one that {reader.checkpoint} was written for: {len(different)} tensor(s) differ: "
            f"{shown}. Give the previous recipe and settings, or start a new run with --output"
        )
