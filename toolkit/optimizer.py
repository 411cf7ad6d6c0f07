"""Optimizers, built from the configuration, and the average of the weights that they leave behind.

Each of them leaves weights and state alone where `found_inf` is set, on the device itself: so the loop keeps a gradient
that is not finite out without waiting for the device. The fused ones of torch do that by themselves; the others here
compute the step and choose by `torch.where`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod, sqrt
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim.sgd import sgd

from toolkit.config.optim import OptimConfig
from toolkit.config.schema import Config
from toolkit.distributed.shards import Held, all_of, local_of, shard_of
from toolkit.distributed.zero import MasterWeights
from toolkit.errors import UserError
from toolkit.models.parameters import layer_numbers, layer_stacks, reshard

# Of a matrix whose singular values lie in (0, 1], x (a + b x^2 + c x^4), five times, brings all of them near 1.
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5
SMALLEST_NORM = 1e-7
# With this part of its longer side an orthogonal matrix changes weights as much as AdamW does (arXiv 2502.16982).
RMS_OF_ADAMW = 0.2
AVERAGE, AVERAGED = "average", "averaged"
"""Entries of an optimizer's state for a weight: its average over the steps, and the sum of what each of them counts."""


class ShardedSGD(torch.optim.SGD):
    """SGD whose fused kernel works on this process's shard of each weight; torch's own refuses sharded tensors."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Take a step. Every parameter has its momentum already (`begin_averages`)."""
        for group in self.param_groups:
            held = [parameter for parameter in group["params"] if parameter.grad is not None]
            momentum = group["momentum"]
            sgd(
                [local_of(parameter) for parameter in held],
                [local_gradient(parameter) for parameter in held],
                [local_of(self.state[parameter]["momentum_buffer"]) for parameter in held] if momentum else [],
                fused=True,
                found_inf=getattr(self, "found_inf", None),
                weight_decay=group["weight_decay"],
                momentum=momentum,
                lr=group["lr"],
                dampening=group["dampening"],
                nesterov=group["nesterov"],
                maximize=group["maximize"],
            )


def local_gradient(parameter: torch.Tensor) -> torch.Tensor:
    """Return the gradient of what of a weight lies in this process."""
    gradient = parameter.grad
    assert gradient is not None
    if isinstance(gradient, DTensor) and isinstance(parameter, DTensor):
        gradient = gradient.redistribute(placements=parameter.placements)
    return local_of(gradient)


class Adafactor(torch.optim.Adafactor):
    """Adafactor (arXiv 1804.04235) as torch has it, without a wait for the device, and of sharded weights too.

    Of a matrix it keeps the mean squares of rows and columns alone, which is why it needs whole matrices: each process
    gathers one after another, computes the same, and changes its own part. What it keeps is small, and whole in each.
    """

    _step_supports_amp_scaling = True

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Take a step."""
        is_finite = is_step_taken(self)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.change(parameter, group, is_finite)

    def change(self, parameter: torch.Tensor, group: dict[str, Any], is_finite: torch.Tensor) -> None:
        """Change a weight, and what is kept of its gradients."""
        # In half precision squares would be too coarse.
        gradient, state = whole(parameter.grad).to(precise_type(parameter)), self.state[parameter]
        if "step" not in state:
            state["step"] = torch.zeros((), device=gradient.device)
            if gradient.ndim > 1:
                state["row_var"] = gradient.new_zeros([*gradient.shape[:-1], 1])
                state["col_var"] = gradient.new_zeros([*gradient.shape[:-2], 1, gradient.shape[-1]])
            else:
                state["variance"] = torch.zeros_like(gradient)
        smallest = group["eps"][0] or torch.finfo(gradient.dtype).eps
        step = (state["step"] + 1).to(gradient.dtype)
        share = step ** group["beta2_decay"]
        if gradient.ndim > 1:
            squares = gradient.square()
            row = state["row_var"].lerp(squares.mean(-1, keepdim=True), share)
            column = state["col_var"].lerp(squares.mean(-2, keepdim=True), share)
            estimate = row @ column / row.mean(-2, keepdim=True).clamp(min=smallest)
            kept = {"row_var": row, "col_var": column}
        else:
            estimate = state["variance"].lerp(gradient.square(), share)
            kept = {"variance": estimate}
        update = estimate.clamp(min=smallest**2).rsqrt() * gradient
        squared_size = whole(parameter.detach().to(gradient.dtype).square().sum()) / parameter.numel()
        size, length = squared_size.sqrt(), update.square().mean().sqrt()
        rate = size.clamp(min=group["eps"][1]) * step.rsqrt().clamp(max=group["lr"])
        update = own_part(update * (rate / (length / group["d"]).clamp(min=1.0)), parameter)
        own = local_of(parameter)
        replace_if(is_finite, own, own * (1 - group["lr"] * group["weight_decay"]) - update)
        for name, value in {**kept, "step": state["step"] + 1}.items():
            replace_if(is_finite, state[name], value)


class Muon(torch.optim.AdamW):
    """Muon for the groups of matrices, and AdamW for the others.

    Of the running mean of a matrix's gradients only the directions are taken: it is made (nearly) orthogonal by a
    Newton-Schulz iteration on the whole matrix (https://kellerjordan.github.io/posts/muon/). Of sharded weights each
    process gathers one mean after another, computes the same, and changes its own part. torch.optim.Muon iterates in
    bfloat16, whose rounding would differ between layouts; here the type is `iterate_in`, or that of the weights.
    """

    iterate_in: torch.dtype | None = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Take a step."""
        groups = self.param_groups
        self.param_groups = [group for group in groups if not group["matrices"]]
        try:
            if self.param_groups:
                # That of Adam and not of AdamW, which torch may have wrapped: what waits for a step would see two.
                torch.optim.Adam.step(self)
        finally:
            self.param_groups = groups
        is_finite = is_step_taken(self)
        for group in groups:
            for parameter in group["params"]:
                if group["matrices"] and parameter.grad is not None:
                    self.change(parameter, group, is_finite)

    def change(self, parameter: torch.Tensor, group: dict[str, Any], is_finite: torch.Tensor) -> None:
        """Change a matrix, and the running mean of its gradients."""
        state, momentum = self.state[parameter], group["betas"][0]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        kept, gradient = local_of(state["momentum_buffer"]), local_gradient(parameter)
        mean = kept.lerp(gradient, 1 - momentum)
        # Nesterov's: where the mean would be after one more such gradient.
        ahead = gradient.lerp(mean, momentum)
        if isinstance(parameter, DTensor):
            layout = (parameter.device_mesh, parameter.placements)
            ahead = DTensor.from_local(ahead, *layout, shape=parameter.shape, stride=parameter.stride())
        update = own_part(orthogonal(whole(ahead), self.iterate_in), parameter)
        rate = group["lr"] * RMS_OF_ADAMW * sqrt(max(parameter.shape))
        own = local_of(parameter)
        replace_if(is_finite, kept, mean)
        replace_if(is_finite, own, own * (1 - group["lr"] * group["weight_decay"]) - rate * update)


def orthogonal(matrix: torch.Tensor, iterate_in: torch.dtype | None = None) -> torch.Tensor:
    """Return a matrix with the same singular vectors, whose singular values are all near 1 (0.7 to 1.2)."""
    a, b, c = NEWTON_SCHULZ
    wide: torch.Tensor = matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix
    wide = wide.to(iterate_in or matrix.dtype)
    wide = wide / wide.norm().clamp(min=SMALLEST_NORM)
    for _ in range(NEWTON_SCHULZ_STEPS):
        square = wide @ wide.mT
        wide = a * wide + (b * square + c * square @ square) @ wide
    return (wide.mT if matrix.shape[0] > matrix.shape[1] else wide).to(matrix.dtype)


def whole(tensor: torch.Tensor | None) -> torch.Tensor:
    """Return all of a tensor; the processes among which it is split call this together."""
    assert tensor is not None
    every: torch.Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return every.detach()


def own_part(update: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return of a whole update what belongs to the part of a weight that lies in this process."""
    shard = shard_of(parameter)
    assert shard is not None
    return update[shard.within(all_of(parameter.shape))]


def is_step_taken(optimizer: torch.optim.Optimizer) -> torch.Tensor:
    """Return whether the gradients are finite, as a tensor beside the first weight: to look at it would be to wait."""
    # Of the weights in other stages of a pipeline none is here.
    held = (p for group in optimizer.param_groups for p in group["params"] if not p.is_meta)
    device = next((local_of(p).device for p in held), torch.device("cpu"))
    found_inf: torch.Tensor | None = getattr(optimizer, "found_inf", None)
    if found_inf is None:
        return torch.ones((), dtype=torch.bool, device=device)
    return found_inf.to(device).reshape(()) == 0


def replace_if(condition: torch.Tensor, old: torch.Tensor, new: torch.Tensor) -> None:
    """Put the values of `new` into `old`, in place, or leave them alone, also where `new` is not finite."""
    old.copy_(torch.where(condition.to(old.device), new.to(old.dtype), old))


def build_optimizer(config: OptimConfig, model: torch.nn.Module, precision: str = "no") -> torch.optim.Optimizer:
    """Return the optimizer over the trainable parameters of `model`.

    AdamW and SGD are the fused kind: one kernel for all weights.

    Args:
        config: which optimizer. The rate of each group is that of the run times its "rate_factor".
        model: where it is sharded or split, that is done before. It has layers if they are asked for (`check_layers`).
        precision: the mixed precision of the run; under bf16 Muon iterates in bfloat16.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    numbers = layer_numbers(model)
    # Of what is trained: beside adapters the head may be frozen, and the last layer then has the full rate.
    top = max(numbers[parameter] for parameter in trainable)
    hidden = hidden_matrices(model) if config.name == "muon" else set()
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for parameter in trainable:
        # Biases, norms and scales: to shrink them does not regularise, it only biases.
        decayed = parameter.ndim >= 2
        factor = (config.layer_decay or 1.0) ** (top - numbers[parameter])
        group: dict[str, Any] = {"params": [], "weight_decay": config.weight_decay if decayed else 0.0}
        group |= {"decayed": decayed, "rate_factor": factor}
        if config.name == "muon":
            group["matrices"] = parameter in hidden
        # A fused kernel takes no list that mixes tensors that are split over processes with whole ones.
        key = (decayed, isinstance(parameter, DTensor), factor, parameter in hidden)
        groups.setdefault(key, group)["params"].append(parameter)
    ordered = [groups[key] for key in sorted(groups, key=lambda key: (not key[0], *key[1:]))]
    match config.name:
        case "sgd":
            sharded = any(isinstance(parameter, DTensor) for parameter in trainable)
            kind = ShardedSGD if sharded else torch.optim.SGD
            return kind(ordered, lr=config.rate, momentum=config.betas[0], fused=True)
        case "adafactor":
            return Adafactor(ordered, lr=config.rate)
        case "muon":
            muon = Muon(ordered, lr=config.rate, betas=config.betas, eps=config.eps, fused=True)
            muon.iterate_in = torch.bfloat16 if precision == "bf16" else None
            return muon
        case "adamw":
            return torch.optim.AdamW(ordered, lr=config.rate, betas=config.betas, eps=config.eps, fused=True)


def check_layers(config: OptimConfig, model: torch.nn.Module) -> None:
    """Refuse settings about layers for a model that has none.

    Raises:
        UserError: it has none.
    """
    asked = {
        f"optim.layer_decay is {config.layer_decay}": (config.layer_decay or 1.0) != 1.0,
        "optim.name is muon": config.name == "muon",
    }
    if any(asked.values()) and not layer_stacks(model):
        raise UserError(
            *(
                f"{setting}, and the {type(model).__name__} has no layers: no torch.nn.ModuleList of several modules "
                "that are made of others; leave it out, or train a model that holds its layers in one"
                for setting, is_asked in asked.items()
                if is_asked
            )
        )


def hidden_matrices(model: torch.nn.Module) -> set[torch.Tensor]:
    """Return the matrices in the layers of a model; embeddings are none, nor is a head."""
    layers = [layer for stack in layer_stacks(model).values() for layer in stack]
    embedded = {p for m in model.modules() if isinstance(m, torch.nn.Embedding) for p in m.parameters(recurse=False)}
    inside = {parameter for layer in layers for parameter in layer.parameters()}
    return {p for p in inside - embedded if p.ndim == 2}


def begin_averages(optimizer: torch.optim.Optimizer) -> None:
    """Set the momentum of SGD to zero, once its parameters are those that are trained.

    Left to itself the fused kernel takes uninitialised memory for it if the very first step is skipped.
    """
    if isinstance(optimizer, torch.optim.SGD):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if not parameter.is_meta:
                    optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def kept_bytes(config: OptimConfig, optimizer: torch.optim.Optimizer) -> int:
    """Return the size of what an optimizer keeps of all its weights together, their average included."""
    total = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            held = optimizer.by_piece[parameter] if isinstance(optimizer, MasterWeights) else parameter
            shape, size, precise = tuple(held.shape), held.dtype.itemsize, precise_type(held).itemsize
            match config.name:
                case "adafactor" if len(shape) > 1:
                    total += precise * (prod(shape[:-1]) + prod((*shape[:-2], shape[-1])))
                case "adafactor":
                    total += precise * prod(shape)
                case "sgd":
                    total += size * prod(shape)
                case "adamw" | "muon":
                    total += size * prod(shape) * (1 if group.get("matrices") else 2)
            if config.average is not None:
                total += precise * prod(shape)
    return total


def precise_type(parameter: Held) -> torch.dtype:
    """Return the type of what changes little from step to step: in half precision it would stand still."""
    return torch.promote_types(parameter.dtype, torch.float32)


@torch.no_grad()
def take_into_average(optimizer: torch.optim.Optimizer, decay: float, norm: torch.Tensor) -> None:
    """Take the weights after a step into their average, unless the step was left out because of its gradients' norm.

    The average of n steps is the sum of decay^(n - i) w_i over the sum of decay^(n - i), for i from 1 to n: it does not
    lean towards the weights of the beginning, however short the run.
    """
    # Those of other stages of a pipeline are averaged there.
    parameters = [p for group in optimizer.param_groups for p in group["params"] if not p.is_meta]
    # Of no step there is no average: a state that holds it alone could not be resumed elsewhere.
    if not parameters or (isinstance(optimizer, MasterWeights) and not optimizer.has_stepped):
        return
    for parameter in parameters:
        state = optimizer.state[parameter]
        if AVERAGE not in state:
            state[AVERAGE] = parameter.detach().to(precise_type(parameter), copy=True)
            state[AVERAGED] = torch.zeros((), dtype=torch.float64, device=local_of(parameter).device)
    # What was summed up is the same for all of them.
    before = optimizer.state[parameters[0]][AVERAGED]
    taken = torch.isfinite(norm).to(before.device)
    now = torch.where(taken, 1 + decay * before, before)
    share = torch.where(taken, 1 / now, torch.zeros_like(now))
    shares: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}
    for parameter in parameters:
        state = optimizer.state[parameter]
        state[AVERAGED] = now
        average = local_of(state[AVERAGE])
        kind = (average.device, average.dtype)
        if kind not in shares:
            shares[kind] = share.to(*kind)
        average.lerp_(local_of(parameter).to(average.dtype), shares[kind])


@contextmanager
def exported_weights(config: Config, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Have the model hold the weights that are evaluated and saved, in this block: their average, if that is exported.

    The last weights are copied meanwhile, which takes the memory of the gradients that are not there now. Buffers stay
    as they are. Before the first step there is no average, and the weights stay too.
    """
    averaged = {p: s[AVERAGE] for p, s in optimizer.state.items() if AVERAGE in s} if config.exports_average else {}
    if not averaged:
        yield
        return
    reshard(model)
    last, has_ended = {parameter: local_of(parameter).clone() for parameter in averaged}, False
    try:
        fill({parameter: local_of(average) for parameter, average in averaged.items()})
        if isinstance(optimizer, MasterWeights):
            optimizer.fill_model()
        yield
        has_ended = True
    finally:
        # A layer that is whole since a forward pass would keep the average.
        reshard(model)
        fill(last)
        # After an error of this process alone the others would not take part.
        if isinstance(optimizer, MasterWeights) and has_ended:
            optimizer.fill_model()


@torch.no_grad()
def fill(values: dict[torch.Tensor, torch.Tensor]) -> None:
    """Give weights other values, each process to its own part."""
    for parameter, value in values.items():
        local_of(parameter).copy_(value)
