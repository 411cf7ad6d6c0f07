"""Gradients that are made smaller before they are sent, for slow links (`batch.compress`)."""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from toolkit.distributed.mesh import Strategy
from toolkit.randomness import seed_for

LEAST_GAIN = 2
"""A matrix is compressed where that sends fewer numbers by this factor."""
UNSENT, DIRECTIONS = "power_sgd_unsent", "power_sgd_directions"
"""What a checkpoint keeps of it beside the optimizer's averages of a parameter."""
FRESH = 0.03
"""How much of random directions is mixed in: where a gradient had fewer directions than the rank, what is left of the
others is rounding, which would differ between topologies."""


def unfit_for(compress: str, strategy: Strategy, precision: str) -> list[str]:
    """Return a sentence for each reason for which gradients can't be compressed with this launch file."""
    problems = []
    if compress != "none" and strategy.is_sharded:
        problems.append(
            f"batch.compress is {compress}, and the launch configuration asks for {strategy.description}: only "
            "gradients of distributed data parallel are compressed; leave it out, or use ddp_one_node.yaml or "
            "ddp_several_nodes.yaml of accelerate_configs/"
        )
    if compress == "powersgd" and precision == "fp16":
        problems.append(
            "batch.compress is powersgd, which keeps a part of each gradient for the next step, where under mixed "
            "precision fp16 another scale may apply; set mixed_precision to bf16 or no in the launch file, or "
            "batch.compress to bf16"
        )
    return problems


def compress_sent(model: torch.nn.Module, compress: Literal["none", "bf16", "powersgd"]) -> None:
    """Have distributed data parallel send its gradients in bf16, or not at all, where PowerSGD does it."""
    if isinstance(model, DistributedDataParallel) and compress != "none":
        model.register_comm_hook(None, round_to_bf16 if compress == "bf16" else noop_hook)


def round_to_bf16(
    _: object,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """Send a bucket of gradients in bf16; under its own name torch takes this hook with NCCL alone, and gloo has the
    sums too."""
    found: torch.futures.Future[torch.Tensor] = bf16_compress_hook(None, bucket)  # type: ignore[arg-type]
    return found


class PowerSGD:
    """Averages gradients over the processes as products of two thin matrices (Vogels et al., arXiv 1905.13727).

    Let M (rows, columns) be a gradient and what earlier steps left unsent of it, and Q (columns, rank) directions. The
    mean of P = M Q is made orthogonal, the mean of R = transposed(M) P is taken, and P transposed(R) replaces the
    gradient; what M has beside that is left for the next step, whose directions are R. Each of these depends on the
    mean of M over the processes alone, so the numbers are the same on any number of them, one included.

    torch's own hook does not fit: it keeps its memory by buckets, which a resumed run forms anew, keeps a NaN for ever,
    and sends from the threads of gloo, in an order that may differ between processes.

    Args:
        optimizer: what changes the parameters; after `make_saveable` its state holds the memory, as checkpoints do.
        names: the name of every parameter.
        rank: of what is sent.
        seed: the first directions follow from it and the names.
        processes: how many average.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        names: Mapping[torch.Tensor, str],
        rank: int,
        seed: int,
        processes: int,
    ) -> None:
        self.optimizer, self.names, self.rank, self.seed, self.processes = optimizer, names, rank, seed, processes
        trained = [parameter for parameter in names if parameter.requires_grad]
        self.matrices = [parameter for parameter in trained if is_worth_it(parameter, rank)]
        kept = set(self.matrices)
        self.others = [parameter for parameter in trained if parameter not in kept]
        self.unsent: dict[torch.Tensor, torch.Tensor] = {}
        self.directions: dict[torch.Tensor, torch.Tensor] = {}
        self.random: dict[torch.Tensor, torch.Tensor] = {}
        self.is_saveable = True

    @property
    def sent(self) -> int:
        """Numbers that a process sends in a step."""
        thin = sum(sum(as_matrix(parameter).shape) * self.rank for parameter in self.matrices)
        return thin + sum(parameter.numel() for parameter in self.others)

    @property
    def whole(self) -> int:
        """Numbers that it would send uncompressed."""
        return sum(parameter.numel() for parameter in (*self.matrices, *self.others))

    @torch.no_grad()
    def average_gradients(self) -> None:
        """Replace the gradients of this process by what all processes take for their mean.

        One that is not finite anywhere becomes NaN everywhere, and nothing of it is kept for the next step.
        """
        self.begin()
        self.is_saveable = False
        others = [gradient_of(parameter) for parameter in self.others]
        wholes = [as_matrix(gradient_of(p)).add_(as_matrix(self.unsent[p])) for p in self.matrices]
        thin = [whole @ self.directions[p] for p, whole in zip(self.matrices, wholes, strict=True)]
        finite = self.average([*thin, *others])
        # QR of a NaN may hang or fail; those that are not finite are put back below.
        bases = [orthogonal(torch.where(finite, matrix, 0)) for matrix in thin]
        images = [whole.T @ basis for whole, basis in zip(wholes, bases, strict=True)]
        finite = finite & self.average(images)
        for parameter, whole, basis, image in zip(self.matrices, wholes, bases, images, strict=True):
            sent = basis @ image.T
            # Where a step is skipped, the memory stays what it was.
            unsent, directions = self.unsent[parameter], self.directions[parameter]
            unsent.copy_(torch.where(finite, (whole - sent).view_as(unsent), unsent))
            directions.copy_(torch.where(finite, self.mixed(parameter, image), directions))
            whole.copy_(torch.where(finite, sent, torch.nan))

    def average(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Replace tensors by their means over all processes, in one all-reduce; return whether all are finite."""
        if not tensors:
            return torch.ones((), dtype=torch.bool, device=next(iter(self.names)).device)
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        if self.processes > 1:
            dist.all_reduce(flat)
            flat /= self.processes
        begins = 0
        for tensor in tensors:
            tensor.copy_(flat[begins : begins + tensor.numel()].view_as(tensor))
            begins += tensor.numel()
        return torch.isfinite(flat).all()

    def begin(self) -> None:
        """Take the memory from the optimizer's state, which a checkpoint may have filled, or begin without any."""
        for parameter in () if self.random else self.matrices:
            columns = as_matrix(parameter).shape[1]
            # On the host: another device would draw other numbers.
            generator = torch.Generator().manual_seed(seed_for(self.seed, f"compression of {self.names[parameter]}"))
            drawn = torch.randn(columns, self.rank, generator=generator, dtype=torch.float64)
            self.random[parameter] = (drawn / columns**0.5).to(parameter.device, parameter.dtype)
            state = self.optimizer.state.get(parameter, {})
            self.unsent[parameter] = state.get(UNSENT, torch.zeros_like(parameter))
            self.directions[parameter] = state.get(DIRECTIONS, self.random[parameter].clone())

    def mixed(self, parameter: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        """Return the directions of the next step: those of this one's image, each of length one, and some fresh."""
        lengths = image.norm(dim=0, keepdim=True)
        return image / torch.where(lengths > 0, lengths, 1) + FRESH * self.random[parameter]

    @torch.no_grad()
    def make_saveable(self) -> None:
        """Put the memory into the optimizer's state, from where checkpoints take it; all processes call it together.

        What is unsent differs between processes, but only its mean counts: each goes on with that, as all do that read
        the checkpoint, however many they are.
        """
        if self.is_saveable:
            return
        self.is_saveable = True
        self.average(list(self.unsent.values()))
        for parameter, unsent in self.unsent.items():
            # Optimizers take an empty state for one that they have not begun yet.
            if state := self.optimizer.state[parameter]:
                state[UNSENT], state[DIRECTIONS] = unsent, self.directions[parameter]


def is_worth_it(parameter: torch.Tensor, rank: int) -> bool:
    """Return whether a parameter is a matrix, or several side by side, of which thin ones are much less to send."""
    if parameter.ndim < 2 or not parameter.is_contiguous() or parameter.numel() == 0:
        return False
    rows, columns = as_matrix(parameter).shape
    return LEAST_GAIN * (rows + columns) * rank <= rows * columns


def as_matrix(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of a contiguous tensor with its first dimension as rows: (rows, columns)."""
    return tensor.view(tensor.shape[0], -1)


def gradient_of(parameter: torch.Tensor) -> torch.Tensor:
    """Return a gradient; every trainable parameter has one in every step."""
    assert parameter.grad is not None
    return parameter.grad


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """Return an orthogonal basis (rows, rank) of the columns of a thin matrix, computed in float32 or better."""
    precise = matrix.float() if matrix.dtype.itemsize < 4 else matrix
    basis: torch.Tensor = torch.linalg.qr(precise).Q
    return basis.to(matrix.dtype)
