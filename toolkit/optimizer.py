"""Optimizers, built from the configuration."""

from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim.sgd import sgd

from toolkit.config.schema import OptimConfig
from toolkit.distributed.shards import local_of


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


def build_optimizer(config: OptimConfig, model: torch.nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer over the trainable parameters of `model`.

    Both are the fused kind: one kernel for all weights, and one that leaves the weights alone where `found_inf` is set,
    which is how the loop keeps a non-finite gradient out without waiting for the device.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = []
    # Biases, norms and scales: to shrink them does not regularise, it only biases.
    for decayed, decay in ((True, config.weight_decay), (False, 0.0)):
        # A fused kernel takes no list that mixes tensors that are split over processes with whole ones.
        for split in (False, True):
            members = [p for p in trainable if (p.ndim >= 2) == decayed and isinstance(p, DTensor) == split]
            if members:
                groups.append({"params": members, "weight_decay": decay, "decayed": decayed})
    if config.name == "sgd":
        sharded = any(isinstance(parameter, DTensor) for parameter in trainable)
        kind = ShardedSGD if sharded else torch.optim.SGD
        return kind(groups, lr=config.rate, momentum=config.betas[0], fused=True)
    return torch.optim.AdamW(groups, lr=config.rate, betas=config.betas, eps=config.eps, fused=True)


def begin_averages(optimizer: torch.optim.Optimizer) -> None:
    """Set the momentum of SGD to zero, once its parameters are those that are trained.

    Left to itself the fused kernel takes uninitialised memory for it if the very first step is skipped.
    """
    if isinstance(optimizer, torch.optim.SGD):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
