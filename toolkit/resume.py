"""Going on from a checkpoint: which one, whether it fits this run, and how its state gets into every process."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from toolkit.checkpoint import DamagedError, Manifest, inspect, read_state, sealed_folders, step_of
from toolkit.config import Config, changes_numbers
from toolkit.diagnosis import show
from toolkit.errors import UserError
from toolkit.ledger import LedgerEnd, check_end
from toolkit.optimizer_state import pack_optimizer, restore_optimizer
from toolkit.run_folder import RunFolder, now
from toolkit.runtime import Runtime
from toolkit.saving import OPTIMIZER, WEIGHTS, Content
from toolkit.settings_file import as_mapping, differing

Differences = list[tuple[str, Any, Any]]


@dataclass(frozen=True)
class Start:
    """Where a run begins: at its first step, or at a checkpoint."""

    step: int = 0
    """Optimizer steps done."""
    checkpoint: Path | None = None
    state: Mapping[str, Any] = field(default_factory=dict)
    """The checkpoint's state.json."""
    ledger: LedgerEnd | None = None
    """Where the ledger goes on."""
    seal: str | None = None
    repeated: int = 0
    """Steps in the ledger that are done again."""
    remarks: tuple[str, ...] = ()
    """What the user is told."""


def different_numbers(config: Config, former: Mapping[str, Any]) -> Differences:
    """Return the settings that would change the numbers of a run whose configuration was `former`."""
    return [entry for entry in differing(former, as_mapping(config)) if changes_numbers(config, entry[0])]


def listed(differences: Differences) -> str:
    """Return differing settings with both values."""
    return "; ".join(f"{key} was {show(before)} and is now {show(after)}" for key, before, after in differences)


def choose_start(folder: RunFolder, config: Config, precision: str) -> Start:
    """Return where the run goes on, in the main process, which holds the lock of the folder.

    Raises:
        UserError: there are checkpoints and none is valid, or the one that was named does not fit.
    """
    record = folder.record()
    if config.resume == "never":
        remark = set_aside(folder)
        return Start(remarks=(remark,) if remark else ())
    if config.resume != "auto" and record.get("resumed_from") != str(Path(config.resume).resolve()):
        return start_at(Path(config.resume), folder, config, precision)
    found, passed_over = newest_valid(folder.checkpoints)
    if found is None:
        if passed_over:
            raise UserError(
                *passed_over,
                f"none of the checkpoints in {folder.checkpoints} is valid; repair one, or start anew with --resume never, "
                "which sets them aside",
            )
        return Start(repeated=count_rows(folder.ledger_file))
    checkpoint, manifest = found
    state = read_state(checkpoint)
    check_state(state, checkpoint, config, precision)
    repeated = check_end(folder.ledger_file, manifest.ledger)
    for other in sealed_folders(folder.checkpoints):
        if step_of(other) > manifest.step:
            # The run will write one of this name again.
            other.rename(free_name(other, "damaged"))
    return Start(manifest.step, checkpoint, state, manifest.ledger, manifest.seal, repeated, tuple(passed_over))


def newest_valid(parent: Path) -> tuple[tuple[Path, Manifest] | None, list[str]]:
    """Return the newest valid checkpoint, and a sentence for each that was passed over."""
    remarks: list[str] = []
    for folder in sealed_folders(parent):
        try:
            return (folder, inspect(folder)), remarks
        except DamagedError as damage:
            remarks.append(f"the checkpoint {folder} is passed over: {damage}")
    return None, remarks


def start_at(checkpoint: Path, folder: RunFolder, config: Config, precision: str) -> Start:
    """Return the start from a checkpoint that the user named; what the run folder had done itself is set aside."""
    if not checkpoint.is_dir():
        raise UserError(
            f"resume is {config.resume!r}, but there is no such folder; give auto, never, or a checkpoint such as "
            f"{folder.checkpoints}/step-000100"
        )
    remarks: list[str] = []
    if (checkpoint / "checkpoints").is_dir():
        found, remarks = newest_valid(checkpoint / "checkpoints")
        if found is None:
            raise UserError(*remarks, f"resume is {config.resume!r}, a run folder without a valid checkpoint")
        checkpoint, manifest = found
    else:
        try:
            manifest = inspect(checkpoint)
        except DamagedError as damage:
            raise UserError(f"resume is {config.resume!r}, which is no valid checkpoint: {damage}") from None
    state = read_state(checkpoint)
    check_state(state, checkpoint, config, precision)
    ledger, end, rows = checkpoint.parent.parent / folder.ledger_file.name, manifest.ledger, b""
    try:
        check_end(ledger, end)
        with ledger.open("rb") as file:
            rows = file.read(end.bytes)
    except UserError as error:
        # The numbers do not need the earlier rows.
        end = replace(end, bytes=0)
        remarks += [*error.problems, f"the ledger of this run begins at step {end.rows + 1:,}"]
    within = checkpoint.resolve().parent == folder.checkpoints.resolve()
    aside = set_aside(folder, keep=checkpoint if within else None)
    remarks += [aside] if aside else []
    folder.ledger_file.write_bytes(rows)
    place = folder.checkpoints / checkpoint.name if within else checkpoint
    return Start(manifest.step, place, state, end, manifest.seal, remarks=tuple(remarks))


def check_state(state: Mapping[str, Any], checkpoint: Path, config: Config, precision: str) -> None:
    """Hold a checkpoint against the configuration and the launch file.

    Raises:
        UserError: the numbers of the run would change on the way.
    """
    differences = different_numbers(config, state["config"])
    if state["precision"] != precision:
        differences.append(("mixed precision (of the launch file)", state["precision"], precision))
    if differences:
        raise UserError(
            f"the checkpoint {checkpoint} is of a run with other numbers: {listed(differences)}. Give its settings, "
            "or start a new run with --output"
        )


def check_data(start: Start, digests: Mapping[str, str | None]) -> None:
    """Refuse to go on with other data than the run began with.

    Raises:
        UserError: a digest differs.
    """
    names = {"train": "training", "evaluate": "evaluation"}
    problems = [
        f"the {names[key]} data is not what it was when {start.checkpoint} was written (its digest was {before} and is now "
        f"{digests[key]}); put the former data back, or start a new run with --output"
        for key, before in start.state.get("data", {}).items()
        if before != digests[key]
    ]
    if problems:
        raise UserError(*problems)


def set_aside(folder: RunFolder, keep: Path | None = None) -> str | None:
    """Move ledger and checkpoints of what the folder did so far into a folder beside; return what the user is told."""
    moved = [path for path in (folder.ledger_file, folder.checkpoints) if path.exists()]
    if not moved:
        return None
    place = free_name(folder.path / "former", now().replace(":", ""))
    place.mkdir(parents=True)
    for path in moved:
        path.rename(place / path.name)
    if keep is not None:
        folder.checkpoints.mkdir()
        (place / "checkpoints" / keep.name).rename(folder.checkpoints / keep.name)
    return f"what this folder held of the run so far was moved to {place}"


def free_name(path: Path, ending: str) -> Path:
    """Return a name beside (or, for a folder called `former`, in) a path that nothing has yet."""
    stem = path / ending if path.name == "former" else path.with_name(f"{path.name}.{ending}")
    place, number = stem, 1
    while place.exists():
        number += 1
        place = stem.with_name(f"{stem.name}-{number}")
    return place


def count_rows(ledger: Path) -> int:
    """Return the rows of a ledger of which nothing else is left."""
    return sum(1 for _ in ledger.open("rb")) if ledger.is_file() else 0


def parameter_names(model: torch.nn.Module) -> dict[torch.Tensor, str]:
    """Return the name of every parameter; one that stands twice in a model has one name."""
    return {parameter: name for name, parameter in model.named_parameters()}


def weights_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and persistent buffers by name, each tensor once.

    Raises:
        UserError: the model keeps a state that is no tensor.
    """
    weights, seen = {}, set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if not isinstance(tensor, torch.Tensor):
            raise UserError(
                f"the model keeps a {type(tensor).__name__} under {name} (get_extra_state), which a checkpoint can't hold; "
                "make it a tensor"
            )
        if id(tensor) not in seen:
            seen.add(id(tensor))
            weights[name] = tensor
    return weights


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
    runtime.on_main(lambda: reader.check(WEIGHTS, weights))
    with torch.no_grad():
        for name, place in weights.items():
            reader.read_into(WEIGHTS, name, place)
    shapes = runtime.on_main(lambda: reader.shapes(OPTIMIZER))

    def tensor(name: str, device: torch.device) -> torch.Tensor:
        shape, dtype = shapes[name]
        place = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
        reader.read_into(OPTIMIZER, name, place)
        return place

    restore_optimizer(optimizer, parameter_names(model), start.state["optimizer"], tensor)
    reader.close()


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
