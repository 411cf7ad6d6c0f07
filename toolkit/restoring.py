"""The state of a run as tensors with names: what goes into a checkpoint, and how it gets back into every process."""

from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from toolkit.errors import UserError
from toolkit.optimizer_state import grouped_names, pack_optimizer, restore_optimizer
from toolkit.resume import Start
from toolkit.runtime import Runtime
from toolkit.saving import OPTIMIZER, WEIGHTS, Content


def parameter_names(model: torch.nn.Module) -> dict[torch.Tensor, str]:
    """Return the name of every parameter; one that stands twice in a model has one name."""
    return {parameter: name for name, parameter in model.named_parameters()}


def weights_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return trainable parameters and persistent buffers by name, each tensor once.

    Frozen parameters follow from the configuration: a checkpoint holds only their digest (`digest_of_frozen`).

    Raises:
        UserError: the model keeps a state that is no tensor.
    """
    weights, seen = {}, set()
    frozen = frozen_parameters(model)
    for name, tensor in model.state_dict(keep_vars=True).items():
        # A quantised parameter keeps its scales under names that begin with its own.
        parts = name.split(".")
        if any(".".join(parts[:depth]) in frozen for depth in range(1, len(parts) + 1)):
            continue
        if not isinstance(tensor, torch.Tensor):
            raise UserError(
                f"the model keeps a {type(tensor).__name__} under {name} (get_extra_state), which a checkpoint can't hold; "
                "make it a tensor"
            )
        if id(tensor) not in seen:
            seen.add(id(tensor))
            weights[name] = tensor
    return weights


def frozen_parameters(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters that are not trained, by every name that they have."""
    return {name: p for name, p in model.named_parameters(remove_duplicate=False) if not p.requires_grad}


def digest_of_frozen(model: torch.nn.Module) -> str | None:
    """Return a hash of the parameters that are not trained, or None if all are. About 1 s for 1 GB."""
    frozen = frozen_parameters(model)
    if not frozen:
        return None
    state = blake2b(digest_size=16)
    for name, tensor in frozen.items():
        state.update(name.encode())
        content = tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy()
        state.update(memoryview(content))  # type: ignore[arg-type]  # an array is a buffer
    return state.hexdigest()


def content_of(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int, epoch: float, state: Mapping[str, Any]
) -> Content:
    """Return what a checkpoint holds, nothing copied yet."""
    packed, tensors = pack_optimizer(optimizer, parameter_names(model))
    files = {WEIGHTS: weights_of(model), OPTIMIZER: tensors}
    return Content(epoch, files, {"step": step, "epoch": epoch, **state, "optimizer": packed})


def restore(start: Start, model: torch.nn.Module, optimizer: torch.optim.Optimizer, runtime: Runtime) -> None:
    """Put the weights and the optimizer's state of a checkpoint into all processes; the main one alone reads files.

    Raises:
        UserError: the checkpoint has other tensors than the model.
    """
    assert start.checkpoint is not None
    reader = TensorReader(start.checkpoint, runtime)
    weights = weights_of(model)
    # What is trained before what is frozen: the one decides the other.
    runtime.on_main(lambda: check_optimizer(start, grouped_names(optimizer, parameter_names(model))))
    runtime.on_main(lambda: reader.check(WEIGHTS, weights))
    runtime.on_main(lambda: check_frozen(start, model))
    with torch.no_grad():
        for name, place in weights.items():
            reader.read_into(WEIGHTS, name, place)
    shapes = runtime.on_main(lambda: reader.shapes(OPTIMIZER))

    def tensor(name: str, like: torch.Tensor) -> torch.Tensor:
        shape, dtype = shapes[name]
        place = torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)
        if place.shape == like.shape:
            # Fused optimizers walk through memory: their averages have to lie as the parameter does, transposed or not.
            place = torch.empty_like(like, dtype=place.dtype, memory_format=torch.preserve_format)
        reader.read_into(OPTIMIZER, name, place)
        return place

    restore_optimizer(optimizer, parameter_names(model), start.state["optimizer"], tensor)
    reader.close()


def check_frozen(start: Start, model: torch.nn.Module) -> None:
    """Hold the weights that are not trained against those that the checkpoint was written beside.

    Raises:
        UserError: they are others.
    """
    before, now = start.state.get("frozen"), digest_of_frozen(model)
    if before != now:
        raise UserError(
            f"the weights that are not trained are not those beside which {start.checkpoint} was written (their digest was "
            f"{before} and is now {now}). Give the former recipe and settings, or start a new run with --output"
        )


def check_optimizer(start: Start, groups: list[list[str]]) -> None:
    """Hold the parameters that an optimizer changes against those that it had changed.

    Raises:
        UserError: it has others.
    """
    former = start.state["optimizer"]["names"]
    if groups == former:
        return
    before, now = ({name for group in these for name in group} for these in (former, groups))
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


class TensorReader:
    """Reads tensors of a checkpoint in the main process and gives them to all."""

    def __init__(self, checkpoint: Path, runtime: Runtime) -> None:
        self.checkpoint = checkpoint
        self.runtime = runtime
        self.files: dict[str, Any] = {}

    def open(self, file: str) -> Any:
        """Return a file of the checkpoint, opened once."""
        if file not in self.files:
            self.files[file] = safe_open(self.checkpoint / file, framework="pt", device="cpu").__enter__()  # type: ignore[no-untyped-call]
        return self.files[file]

    def shapes(self, file: str) -> dict[str, tuple[list[int], str]]:
        """Return shape and type of every tensor in a file."""
        opened = self.open(file)
        found = {}
        for name in opened.keys():  # noqa: SIM118 - it is no mapping
            tensor = opened.get_tensor(name)
            found[name] = (list(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        return found

    def check(self, file: str, expected: Mapping[str, torch.Tensor]) -> None:
        """Hold names, shapes and types against the model.

        Raises:
            UserError: they differ.
        """
        found = self.shapes(file)
        wanted = {name: (list(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in expected.items()}
        different = [name for name in dict.fromkeys([*wanted, *found]) if wanted.get(name) != found.get(name)]
        if different:
            shown = "; ".join(f"{name} was {found.get(name)} and is now {wanted.get(name)}" for name in different[:5])
            raise UserError(
                f"the model is not the one that {self.checkpoint} was written for: {len(different)} tensor(s) differ: {shown}. "
                "Give the former recipe and settings, or start a new run with --output"
            )

    def read_into(self, file: str, name: str, place: torch.Tensor) -> None:
        """Fill a tensor in all processes."""
        if self.runtime.is_main:
            place.copy_(self.open(file).get_tensor(name))
        self.runtime.share(place)

    def close(self) -> None:
        """Close the files."""
        for opened in self.files.values():
            opened.__exit__(None, None, None)
