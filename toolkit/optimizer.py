"""Optimizers, built from the configuration."""

import torch

from toolkit.config import OptimConfig


def build_optimizer(config: OptimConfig, model: torch.nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer over the trainable parameters of `model`.

    Both are the fused kind: one kernel for all weights, and one that leaves the weights alone where `found_inf` is set,
    which is how the loop keeps a non-finite gradient out without waiting for the device.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": config.weight_decay},
        # Biases, norms and scales: to shrink them does not regularise, it only biases.
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if config.name == "sgd":
        optimizer = torch.optim.SGD(groups, lr=config.lr, momentum=config.betas[0], fused=True)
        for parameter in trainable:
            # Left to itself the fused kernel takes uninitialised memory for it if the very first step is skipped.
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return optimizer
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)
