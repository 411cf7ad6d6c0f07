"""Optimizers, built from the configuration."""

import torch
from torch.distributed.tensor import DTensor

from toolkit.config import OptimConfig


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
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.betas[0], fused=True)
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


def begin_averages(optimizer: torch.optim.Optimizer) -> None:
    """Set the momentum of SGD to zero, once its parameters are those that are trained.

    Left to itself the fused kernel takes uninitialised memory for it if the very first step is skipped.
    """
    if isinstance(optimizer, torch.optim.SGD):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
