"""Compare the weights of two runs at the newest step of which both have a valid checkpoint."""

from dataclasses import dataclass
from math import inf, sqrt
from pathlib import Path

import torch

from toolkit.checkpoint.format import DamagedError, inspect
from toolkit.checkpoint.reader import WEIGHTS, CheckpointReader, same_weights
from toolkit.errors import UserError
from toolkit.output.run_folder import RunFolder, step_of
from toolkit.verify.evidence import READ_ERRORS, checkpoint_folders


@dataclass(frozen=True)
class WeightsDifference:
    """How far the weights of two checkpoints differ."""

    step: int | None = None
    difference: float = inf
    """||a - b|| / ||b|| over all weights together."""
    identical: bool = False
    """Bit for bit."""
    problem: str | None = None
    dtypes: tuple[str, ...] = ()
    """The types of the weights of both."""

    def __str__(self) -> str:
        if self.problem or self.step is None:
            return self.problem or "there is no step of which both have a valid checkpoint"
        if self.identical:
            return f"after step {self.step:,}: the same bit for bit"
        return f"after step {self.step:,}: relative difference {self.difference:.2g}"


def compare_weights(first: Path, second: Path) -> WeightsDifference:
    """Compare the weights of two run folders."""
    folders = [
        {step_of(path): path for path in checkpoint_folders(RunFolder(run).checkpoints)} for run in (first, second)
    ]
    for step in sorted(set(folders[0]) & set(folders[1]), reverse=True):
        a, b = folders[0][step], folders[1][step]
        try:
            sealed = [inspect(folder).files.get(WEIGHTS) for folder in (a, b)]
            difference, dtypes = weights_difference(a, b)
            # Only unsharded weights are equal exactly where their files are.
            identical = sealed[0] == sealed[1] if all(sealed) else same_weights(a, b)
        except UserError as error:
            return WeightsDifference(step, problem=f"after step {step:,}: {error}")
        except (DamagedError, *READ_ERRORS):
            continue
        return WeightsDifference(step, 0.0 if identical else difference, identical, dtypes=tuple(dtypes))
    return WeightsDifference()


def weights_difference(first: Path, second: Path) -> tuple[float, set[str]]:
    """Return ||a - b|| / ||b|| over all weights of two checkpoints together, and their types.

    Tensors without floating-point numbers, such as a count, have no part in the norm. If they are not equal, the
    difference is infinite.

    Raises:
        UserError: the checkpoints hold different tensors.
    """
    squares = norm = 0.0
    dtypes = set()
    equal = True
    with CheckpointReader(first) as a, CheckpointReader(second) as b:
        others = sorted(set(a.index(WEIGHTS)) ^ set(b.index(WEIGHTS)))
        if others:
            raise UserError(f"they have other tensors: {', '.join(others[:5])} ({len(others):,}) in one alone")
        for name in a.index(WEIGHTS):
            x, y = a.whole(WEIGHTS, name), b.whole(WEIGHTS, name)
            if x.shape != y.shape:
                raise UserError(f"{name} has the shapes {list(x.shape)} and {list(y.shape)}")
            if not (x.is_floating_point() and y.is_floating_point()):
                equal &= torch.equal(x, y)
                continue
            dtypes |= {str(tensor.dtype).removeprefix("torch.") for tensor in (x, y)}
            x, y = x.double(), y.double()
            squares += float((x - y).square().sum())
            norm += float(y.square().sum())
    if not equal or squares != squares:
        return inf, dtypes
    return (sqrt(squares / norm) if norm else inf) if squares else 0.0, dtypes
