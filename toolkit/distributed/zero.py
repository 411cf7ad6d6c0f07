"""DeepSpeed's ZeRO: its engine around a model, and the master weights that it steps.

DeepSpeed lays the numbers of all weights out in rows, in float32, and cuts the rows into equal parts, one for each
process. It divides no gradient here but by the processes, and counts no micro-batch: the loop says which is the last
one. It clips, looks whether the norm is finite, and steps in one call.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MethodType
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from accelerate.utils import convert_outputs_to_fp32

from toolkit.distributed.shards import Held, Stretch, as_bytes
from toolkit.errors import UserError

OWN_ENTRIES = ("average", "averaged")
"""Entries of the state of a weight that are the toolkit's and that DeepSpeed knows nothing of."""
NAMED = 3
"""At most so many weights are named in a message."""


class Place(NamedTuple):
    """Where the part of a weight that lies in this process is found in a row of master weights."""

    row: torch.Tensor
    offset: int
    length: int
    group: int
    """The number of the group of the optimizer."""
    start: int
    """The place of the first of its numbers in the weight itself, laid out as a row."""


class MasterWeights(torch.optim.Optimizer):
    """The master weights in this process, as an optimizer over them: the piece of each weight is a parameter of it.

    A piece is a part of the memory of the row that DeepSpeed steps, and so are the averages of its gradients.
    """

    def __init__(
        self, engine: Any, weights: Mapping[torch.Tensor, tuple[str, torch.dtype]], backward: "BackwardAlone"
    ) -> None:
        """Find the pieces of the weights that are trained; of each the name and the type before DeepSpeed took it."""
        self.engine, self.zero, self.backward = engine, engine.optimizer, backward
        self.is_stage_3 = hasattr(engine.optimizer, "fp32_partitioned_groups_flat")
        self.stretches: dict[torch.Tensor, Stretch] = {}
        """By the weight itself."""
        self.by_piece: dict[torch.Tensor, Stretch] = {}
        self.names: dict[torch.Tensor, str] = {}
        """By the piece, in the order of the model."""
        self.places: dict[torch.Tensor, Place] = {}
        base: torch.optim.Optimizer = self.zero.optimizer
        pieces: list[list[torch.Tensor]] = [[] for _ in base.param_groups]
        for weight, (name, dtype) in weights.items():
            place = place_in_stage_3(self.zero, weight) if self.is_stage_3 else place_in_rows(self.zero, weight)
            piece = place.row.detach()[place.offset : place.offset + place.length]
            shape = tuple(getattr(weight, "ds_shape", weight.shape))
            self.stretches[weight] = Stretch(shape, dtype, place.start, piece)
            self.names[piece], self.places[piece], self.by_piece[piece] = name, place, self.stretches[weight]
            pieces[place.group].append(piece)
        self.defaults = base.defaults
        self.param_groups = [{**group, "params": own} for group, own in zip(base.param_groups, pieces, strict=True)]
        self.kept: dict[torch.Tensor, dict[str, Any]] = defaultdict(dict)
        self.is_linked = False
        """Whether what is kept of a piece is a part of what DeepSpeed keeps of its row."""
        self.check_places()

    @property
    def state(self) -> dict[torch.Tensor, dict[str, Any]]:  # type: ignore[override]
        """What is kept of each piece; empty before the first step, which makes it."""
        rows = self.zero.optimizer.state
        if rows and not self.is_linked:
            self.is_linked = True
            for piece, place in self.places.items():
                for key, value in rows.get(place.row, {}).items():
                    is_row = isinstance(value, torch.Tensor) and value.shape == place.row.shape
                    self.kept[piece][key] = value[place.offset : place.offset + place.length] if is_row else value
        return self.kept

    @property
    def has_stepped(self) -> bool:
        """Whether DeepSpeed keeps anything of the weights yet; SGD without momentum never does."""
        return bool(self.zero.optimizer.state) or not any(group.get("momentum", True) for group in self.param_groups)

    def check_places(self) -> None:
        """Make sure that the pieces are what the model holds at their places: all else rests on it.

        Raises:
            RuntimeError: they are not.
        """
        for weight, stretch in self.stretches.items():
            held: Any = weight
            whole = held.ds_tensor if self.is_stage_3 else held.detach().flatten()
            start, length = 0 if self.is_stage_3 else stretch.start, stretch.values.numel()
            expected = whole.detach()[start : start + length].to(stretch.values.device)
            # The bytes: a damaged weight may be no number.
            if not torch.equal(as_bytes(stretch.values.to(expected.dtype)), as_bytes(expected)):
                raise RuntimeError(f"DeepSpeed's master weights of {self.names[stretch.values]} lie elsewhere")

    def held(self, tensor: torch.Tensor) -> Held | None:
        """Return the master weights of a parameter, None for one that is not trained, and a buffer itself."""
        return self.stretches.get(tensor) if isinstance(tensor, torch.nn.Parameter) else tensor

    def stretched(self, entries: Mapping[str, torch.Tensor]) -> dict[str, Held]:
        """Return entries of the optimizer's state, named as "weight/entry", each as the stretch of a tensor as large as
        its weight; what is a lone number stays that."""
        by_name = {name: self.by_piece[piece] for piece, name in self.names.items()}
        found: dict[str, Held] = {}
        for name, value in entries.items():
            stretch = by_name[name.rpartition("/")[0]]
            found[name] = value if value.ndim == 0 else stretch_like(stretch, value)
        return found

    def like(self, piece: torch.Tensor) -> Stretch:
        """Return room for an entry of the state of a piece."""
        return stretch_like(self.by_piece[piece], torch.empty_like(piece))

    @torch.no_grad()
    def take_over(self) -> None:
        """Have DeepSpeed go on from the pieces and the state that were read into them.

        Raises:
            UserError: weights of a row have taken different numbers of steps.
        """
        self.check_steps()
        rows = self.zero.optimizer.state
        for piece, place in self.places.items():
            for key in [key for key in self.kept[piece] if key not in OWN_ENTRIES]:
                # Given up: it would lie beside the row for as long as the run lasts.
                value, entries = self.kept[piece].pop(key), rows[place.row]
                if isinstance(value, torch.Tensor) and value.ndim > 0:
                    if key not in entries:
                        entries[key] = torch.zeros_like(place.row)
                    entries[key][place.offset : place.offset + place.length].copy_(value)
                else:
                    entries[key] = value
        self.is_linked = False
        self.fill_model()

    def check_steps(self) -> None:
        """Make sure that all weights of a row have taken as many steps: the row has one count.

        Raises:
            UserError: they have not.
        """
        steps = {self.names[piece]: float(kept["step"]) for piece, kept in self.kept.items() if "step" in kept}
        if len({*steps.values()}) > 1:
            fewest, most = min(steps, key=steps.__getitem__), max(steps, key=steps.__getitem__)
            raise UserError(
                f"in the checkpoint {most} has taken {steps[most]:.0f} steps and {fewest} {steps[fewest]:.0f}, since "
                "it got no gradient in the others, and DeepSpeed keeps one count for both; go on in one process, or "
                "with fsdp2_one_node.yaml (on CPU cpu_fsdp2.yaml) of accelerate_configs/"
            )

    @torch.no_grad()
    def fill_model(self) -> None:
        """Give the model the values of the master weights."""
        if not self.is_stage_3:
            self.zero.update_lp_params()
            return
        self.zero._partition_all_parameters()
        for number in range(len(self.zero.fp32_partitioned_groups_flat)):
            self.zero._reassign_or_swap_out_partitioned_parameters(number)
        if self.zero.persistent_parameters:
            self.zero.persistent_parameters[0].all_gather(self.zero.persistent_parameters)

    def clip_and_step(self) -> torch.Tensor:
        """Clip the gradients, take a step unless their norm is not finite, and return that norm. All processes call it
        together.

        Raises:
            UserError: a weight got no gradient in this process.
        """
        self.check_gradients()
        for own, theirs in zip(self.param_groups, self.zero.optimizer.param_groups, strict=True):
            theirs.update({key: value for key, value in own.items() if key != "params"})
        self.engine.step()
        self.backward.reached.clear()
        norm = self.zero._global_grad_norm
        return torch.as_tensor(norm, device=self.engine.device)

    def check_gradients(self) -> None:
        """Make sure that each weight got a gradient in this step: DeepSpeed moves the others too, by their averages and
        decay, or by a gradient that an earlier step has left.

        Raises:
            UserError: some got none.
        """
        if len(self.backward.reached) == len(self.stretches):
            return
        names = [self.names[held.values] for p, held in self.stretches.items() if p not in self.backward.reached]
        raise UserError(
            f"{len(names)} trainable parameter(s) got no gradient in a step: {', '.join(names[:NAMED])}. One process "
            "would leave them as they are, and DeepSpeed would not; let the loss depend on them whatever a batch "
            "holds, freeze them (requires_grad_(False)), or use fsdp2_one_node.yaml (on CPU cpu_fsdp2.yaml) of "
            "accelerate_configs/"
        )

    def drop_gradients(self) -> None:
        """Drop gradients for which no step was taken: DeepSpeed does so by itself where their norm is not finite."""
        if not self.backward.reached:
            return
        infinite = torch.full((), torch.inf, device=self.engine.device)
        name, norm = ("_get_norm_groups", [infinite]) if self.is_stage_3 else ("scaled_global_norm", infinite)
        vars(self.zero)[name] = lambda *_, **__: norm
        try:
            self.engine.step()
        finally:
            del vars(self.zero)[name]
        self.backward.reached.clear()


def stretch_like(stretch: Stretch, values: torch.Tensor) -> Stretch:
    """Return other values for the same places of a tensor, of the same type or a more precise one."""
    return Stretch(stretch.shape, torch.promote_types(stretch.dtype, torch.float32), stretch.start, values)


def place_in_rows(zero: Any, weight: Any) -> Place:
    """Return where a weight lies under ZeRO 1 and 2, which cut the row of each group of the optimizer."""
    mapping = weight._hp_mapping
    if mapping is None:  # none of it is in this process
        group = next(number for number, group in enumerate(zero.bit16_groups) if any(weight is p for p in group))
        return Place(zero.single_partition_of_fp32_groups[group], 0, 0, group, 0)
    there, here = mapping.hp_fragment_address, mapping.lp_fragment_address
    group = mapping.param_group_index
    return Place(zero.single_partition_of_fp32_groups[group], there.start, there.numel, group, here.start)


def place_in_stage_3(zero: Any, weight: Any) -> Place:
    """Return where a weight lies under ZeRO 3, which cuts the row of each weight."""
    number, offset, length = zero.grad_position[zero.get_param_id(weight)]
    start = zero._get_param_partition_rank(weight) * length
    # The last parts are filled up with anything.
    length = max(0, min(length, weight.ds_numel - start))
    start = min(start, weight.ds_numel)
    return Place(zero.fp32_partitioned_groups_flat[number], offset, length, zero.sub_group_to_group_id[number], start)


class BackwardAlone:
    """Stands in Accelerate for its own wrapper of the engine, which takes a step in the last backward pass, whatever
    the units are."""

    def __init__(self, engine: Any, weights: Iterable[torch.Tensor]) -> None:
        self.engine = engine
        self.reached: set[torch.Tensor] = set()
        """The weights that got a gradient since the last step."""
        for weight in weights:
            weight.register_post_accumulate_grad_hook(self.reached.add)  # type: ignore[no-untyped-call]

    def backward(self, loss: torch.Tensor, sync_gradients: bool = True, **_: Any) -> None:
        """Run a backward pass; the gradients are complete with that in which `sync_gradients` is true."""
        self.engine.set_gradient_accumulation_boundary(is_boundary=sync_gradients)
        self.engine.backward(loss)


def prepare_with_engine(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: Any,
    accelerator: Accelerator,
    names: Mapping[torch.Tensor, str],
) -> tuple[torch.nn.Module, MasterWeights, Any]:
    """Return a model in DeepSpeed's engine, its master weights, and the loader, as Accelerate prepares them.

    Args:
        model: whole in each process.
        optimizer: over its trainable parameters.
        loader: of micro-batches.
        accelerator: built for DeepSpeed.
        names: of the parameters.
    """
    weights = {weight: (name, weight.dtype) for weight, name in names.items() if weight.requires_grad}
    # Else Accelerate warns, where a step of an earlier training had several micro-batches.
    accelerator.gradient_accumulation_steps = 1
    settings = accelerator.state.deepspeed_plugin.deepspeed_config
    # Under bf16 DeepSpeed would make the masters from what is left of these in bf16, which it lays down elsewhere.
    exact = {weight: weight.detach().flatten() for weight in weights} if settings["bf16"]["enabled"] else {}
    if settings["zero_optimization"]["stage"] == 3:
        # In evaluations torch's own layers would read the weights of their parts, which are not gathered for them.
        torch.backends.mha.set_fastpath_enabled(False)
    engine, prepared, loader = accelerator.prepare(model, optimizer, loader)
    accelerator.deepspeed_engine_wrapped = BackwardAlone(engine, weights)
    accelerator._optimizers.remove(prepared)
    masters = MasterWeights(engine, weights, accelerator.deepspeed_engine_wrapped)
    for weight, values in exact.items():
        held = masters.stretches[weight]
        held.values.copy_(values[held.start : held.start + held.values.numel()])
    return engine, masters, loader


def check_model(model: torch.nn.Module) -> None:
    """Refuse weights that DeepSpeed would not train, or not as it is asked.

    Raises:
        UserError: some are of a type other than float32 and float64.
    """
    kinds = {p.dtype for p in model.parameters() if p.requires_grad or not p.is_floating_point()}
    others = sorted(str(kind).removeprefix("torch.") for kind in kinds - {torch.float32, torch.float64})
    if others:
        raise UserError(
            "the launch configuration asks for DeepSpeed, which keeps its master weights in float32, and weights of "
            f"the model are {', '.join(others)}; set model.dtype to float32 (and mixed_precision to bf16 in the launch "
            "file to compute in it), leave model.lora.bits out, or use ddp_one_node.yaml of accelerate_configs/"
        )
    if len({p.dtype for p in model.parameters() if p.requires_grad}) > 1:
        raise UserError(
            "the launch configuration asks for DeepSpeed, which lays weights of one type in a row, and those of the "
            "model are float32 and float64; give all of them one type"
        )


def compute_in_bf16(model: Any, device: torch.device) -> None:
    """Have a model compute in bf16 as under every other strategy, where DeepSpeed would hand it inputs as they are."""
    autocast = torch.autocast(device.type, torch.bfloat16)
    if hasattr(model.forward, "__func__"):
        model.forward = MethodType(convert_outputs_to_fp32(autocast(model.forward.__func__)), model)
    else:
        model.forward = convert_outputs_to_fp32(autocast(model.forward))


@contextmanager
def gradients_seen(masters: MasterWeights) -> Iterator[set[torch.nn.Parameter]]:
    """Collect which parameters get a gradient in this process, drop these, and let DeepSpeed reduce nothing."""
    zero, seen = masters.zero, set[torch.nn.Parameter]()
    reducers = ("process_gradients", "reduce_ready_partitions_and_remove_grads")
    hidden = [name for name in reducers if hasattr(zero, name)]
    handles = []

    def drop(parameter: torch.nn.Parameter) -> None:
        seen.add(parameter)
        parameter.grad = None

    for name in hidden:
        vars(zero)[name] = lambda *_: None
    for parameter in masters.stretches:
        handles.append(parameter.register_post_accumulate_grad_hook(drop))  # type: ignore[no-untyped-call]
    try:
        yield seen
    finally:
        masters.backward.reached.clear()
        for handle in handles:
            handle.remove()
        for name in hidden:
            del vars(zero)[name]
