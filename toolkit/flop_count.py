"""How many floating-point operations a micro-batch takes, known from its sizes.

What a micro-batch takes is a sum: so much for each element of a tensor, each pair of positions that attention compares,
each unit, each sample, each pass. The first micro-batches of a start are counted, operation by operation, while they
train, until what is learnt from them foretells those that follow; after that nothing is counted any more.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, nan
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from toolkit.data.loader import LoadedMicroBatch

aten = torch.ops.aten
EXACT, CLOSE = 1e-9, 0.01
"""What the earlier counts may be wrong by on the next one, relatively: where all that matters was found, and where
sizes tell no more (of the lengths of two texts, say, of which only one is known)."""
ENOUGH = 8
"""So many in succession are foretold before nothing is counted any more."""
ATTEMPTS = 32
"""So many micro-batches are counted at most; what is not foretold closely by then stays unknown."""
# Whose operations multiply no matrices beyond those that have a formula.
PLAIN = {"aten", "prim", "prims", "profiler", "c10d", "_c10d_functional", "fsdp", "torchvision", "toolkit"}


def grouped_flops(a: torch.Tensor, b: torch.Tensor, *_: Any, **__: Any) -> int:
    """Return the operations of a product in groups, as mixtures of experts use it: each row meets one group alone."""
    return int(2 * a.shape[-2] * a.shape[-1] * b.shape[-1] * (a.shape[0] if a.ndim == b.ndim == 3 else 1))


def formulas() -> dict[Any, Callable[..., Any]]:
    """Return torch's formula for each operation that multiplies matrices, and those that torch 2.13 lacks."""
    known: dict[Any, Callable[..., Any]] = dict(FlopCounterMode(display=False).flop_registry)
    forward = known[aten._scaled_dot_product_flash_attention]
    backward = known[aten._scaled_dot_product_flash_attention_backward]
    return {
        aten._scaled_dot_product_flash_attention_for_cpu: forward,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: backward,
        aten._scaled_dot_product_fused_attention_overrideable: forward,
        aten._scaled_dot_product_fused_attention_overrideable_backward: backward,
        aten._grouped_mm: grouped_flops,
        **known,
    }


class FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what runs inside of it in this process: forward and backward passes, as `FlopCounterMode` does.

    Other than there, what activation checkpointing computes again in a backward pass does not count, and of a tensor
    that is split over processes this process's part does.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.formulas = formulas()
        self.flops = 0
        self.is_counting = True
        self.unknown: set[str] = set()
        """Operations that may multiply matrices and have no formula."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes again, with the parts that lie here
        result = func(*args, **(kwargs or {}))
        # A backward pass records no graph; what is computed again in it does.
        if not self.is_counting or (torch._C._current_graph_task_id() != -1 and torch.is_grad_enabled()):
            return result
        packet = getattr(func, "_overloadpacket", func)
        if (formula := self.formulas.get(packet)) is not None:
            self.flops += formula(*args, **(kwargs or {}), out_val=result)
        elif getattr(func, "namespace", "") not in PLAIN or packet.__name__.endswith("_mm"):
            self.unknown.add(str(packet))
        return result

    @property
    def is_complete(self) -> bool:
        """Whether all was counted."""
        return self.flops > 0 and not self.unknown


Sizes = dict[str, float]
Counted = tuple[Sizes, float]
"""The sizes of a micro-batch, and the floating-point operations that it was counted to take."""


def sizes_of(micro: LoadedMicroBatch) -> Sizes:
    """Return what the operations of a micro-batch follow from. About 3 us."""
    plan, batch, count = micro.plan, micro.batch, len(micro.ids)
    # What comes first is taken first where the counts can't tell two apart.
    sizes: Sizes = {name: tensor.numel() for name, tensor in batch.items() if tensor.ndim > 1}
    # Where lengths are unknown, each row of a table is compared with itself.
    squared = plan.padded_squared or max((t.numel() * t.shape[1] for t in batch.values() if t.ndim == 2), default=0)
    # What a model computes of padding the counts tell.
    sizes |= {"used": plan.used, "used squared": plan.used_squared, "padded squared": squared}
    sizes |= {"samples": count, "units": micro.units}
    for name, tensor in batch.items():
        if tensor.ndim == 1:
            # Of a list of positions, each may be computed in every sample.
            sizes[name] = tensor.numel()
            sizes[f"{name} of samples"] = tensor.numel() * count
    sizes["pass"] = 1
    return sizes


@dataclass(frozen=True)
class FlopModel:
    """What a micro-batch takes for each of its sizes."""

    each: Mapping[str, float]

    @staticmethod
    def fitted(counts: Sequence[Counted]) -> "FlopModel":
        """Return the model that fits micro-batches that were counted, at least one, by least relative squares.

        No size takes operations away. With that the fit finds the few sizes that matter, out of few counts.
        """
        # A tenth of a second, which `--help` does not wait for.
        from scipy.optimize import nnls

        names = list(dict.fromkeys(name for sizes, _ in counts for name in sizes))
        table = np.array([[sizes.get(name, 0) / flops for name in names] for sizes, flops in counts])
        scale = np.linalg.norm(table, axis=0)
        scale[scale == 0] = 1
        table /= scale
        # Where the counts can't tell two sizes apart, the first one is taken.
        _, first = np.unique(table.round(12), axis=1, return_index=True)
        told = sorted(first.tolist())
        each = nnls(table[:, told], np.ones(len(counts)))[0]
        return FlopModel({names[n]: float(value / scale[n]) for n, value in zip(told, each, strict=True) if value})

    def of_sizes(self, sizes: Sizes) -> float:
        """Return the floating-point operations of a micro-batch of these sizes."""
        return sum([value * sizes.get(name, 0) for name, value in self.each.items()])


class Uncounted:
    """Stands where a micro-batch is not counted."""

    def __enter__(self) -> "Uncounted":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def stop(self) -> None:
        """Do nothing."""


UNCOUNTED = Uncounted()


class FlopMeter:
    """Tells what a micro-batch takes in this process, once it has counted enough of them."""

    def __init__(self, attempts: int = ATTEMPTS) -> None:
        self.left = attempts
        """How many micro-batches are still counted; none where it is known, or will not be."""
        self.counts: list[Counted] = []
        self.errors: deque[float] = deque([inf] * ENOUGH, maxlen=ENOUGH)
        """By how much the earlier ones were wrong on each of the last."""
        self.model: FlopModel | None = None

    def counting(self, micro: LoadedMicroBatch) -> "CountedPass | Uncounted":
        """Return the context in which a micro-batch runs; after its backward pass `stop` is called."""
        return CountedPass(self, micro) if self.left and not micro.plan.dummy else UNCOUNTED

    def of(self, micro: LoadedMicroBatch) -> float:
        """Return the floating-point operations of a micro-batch, not a number where they are not known (yet)."""
        return nan if self.model is None else self.model.of_sizes(sizes_of(micro))

    def learn(self, sizes: Sizes, flops: int | None) -> None:
        """Take what a micro-batch was counted to take; None if that could not be done."""
        self.left -= 1
        if flops is None:
            self.left = 0
            return
        if self.counts:
            self.errors.append(abs(FlopModel.fitted(self.counts).of_sizes(sizes) / flops - 1))
        self.counts.append((sizes, flops))
        if max(self.errors) <= (EXACT if self.left else CLOSE):
            self.model, self.left = FlopModel.fitted(self.counts), 0


class CountedPass(FlopCounter):  # type: ignore[no-untyped-call]
    """Counts the forward and the backward pass of one micro-batch, and tells the meter."""

    def __init__(self, meter: FlopMeter, micro: LoadedMicroBatch) -> None:
        super().__init__()
        self.meter = meter
        self.micro = micro

    def stop(self) -> None:
        """Note that the backward pass is done: what an optimizer multiplies does not count."""
        self.is_counting = False
        self.meter.learn(sizes_of(self.micro), self.flops if self.is_complete else None)
