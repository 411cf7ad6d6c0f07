"""What can be wrong with a model that is named: checks, and messages that say what to do."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch

from toolkit.config.model import ADAPTERS, ModelConfig
from toolkit.errors import UserError
from toolkit.models.parameters import is_of_head

NEEDED = {
    "image processor": ("preprocessor_config.json", "processor_config.json"),
    "tokenizer": (
        "tokenizer.json",
        "vocab.txt",
        "vocab.json",
        "spiece.model",
        "tokenizer.model",
        "tokenizer_config.json",
    ),
}
"""The files that hold a part of a model, the usual one first."""
NAMED, WEIGHTS_NAMED = 3, 5
"""Folders, and weights, that a message names."""


def misplaced(folder: Path) -> str | None:
    """Say where a model is, if this folder is one that only holds it, or None."""
    if (folder / "config.json").is_file() or (folder / ADAPTERS).is_file():
        return None
    if (folder / "run.json").is_file():
        if (folder / "model").is_dir():
            return f"model.name is '{folder}', a run folder, whose model is in it: give --model.name {folder / 'model'}"
        return (
            f"model.name is '{folder}', the folder of a run that has saved no model yet; finish that run, or name "
            "another model"
        )
    if (folder / "manifest.json").is_file() and (folder / "state.json").is_file():
        return (
            f"model.name is '{folder}', a checkpoint, from which its run goes on; the model that the run saves when it "
            f"is finished is {folder.parent.parent / 'model'}"
        )
    inside = sorted(path.parent for path in folder.glob("*/config.json")) if folder.is_dir() else []
    if inside:
        named = " or ".join(map(str, inside[:NAMED]))
        return f"model.name is '{folder}', a folder without a config.json; below it there is: give --model.name {named}"
    return None


def model_folders(above: Path) -> list[Path]:
    """Return the folders of models in a folder, sorted."""
    try:
        return sorted(path.parent for path in above.glob("*/config.json"))
    except OSError:
        return []


def nearest_folder(wanted: Path, folders: Sequence[Path]) -> Path | None:
    """Return the folder whose path a mistyped one is near."""

    def end(path: Path) -> str:
        # A long beginning that they share would make any two alike.
        return "/".join(path.parts[-2:])

    found = {end(folder): folder for folder in folders}
    near = get_close_matches(end(wanted), found, 1, 0.75)
    return found[near[0]] if near else None


def may_not_be_an_id(name: str) -> bool:
    """Return whether a name can't be a hub id, and so has to be a folder."""
    return re.fullmatch(r"([\w-][\w.-]*/)?[\w-][\w.-]*", name) is None or name.endswith(".git")


def no_such_model(name: str) -> str | None:
    """Say that there is no folder of this name, and which one was probably meant; None if it may be a hub id.

    Folders beside it are looked at, and those in folders beside the one that it would lie in.
    """
    folder = Path(name)
    beside = [folder.parent, *(path for path in folder.parent.parent.glob("*") if path.is_dir())]
    near = nearest_folder(folder, [model for above in beside for model in model_folders(above)])
    if folder.is_file():
        inside = folder.parent if (folder.parent / "config.json").is_file() else near
        hint = f"give its folder: --model.name {inside}" if inside else "give a model folder or a hub id (owner/name)"
        return f"model.name is {name!r}, which is no folder; {hint}"
    if found := re.match(r"https?://(?:[^/]*huggingface\.co|hf\.co)/([^/]+(?:/[^/]+)?)", name):
        return f"model.name is {name!r}, an address, which is not read; give the hub id: --model.name {found[1]}"
    if near is not None:
        return f"model.name is {name!r}, and there is no such folder; did you mean {near}?"
    if may_not_be_an_id(name):
        return f"model.name is {name!r}, which is no folder; give a model folder or a hub id (owner/name)"
    return None


def cannot_load(part: str, config: ModelConfig, error: Exception) -> str:
    """Say why a part of a model could not be loaded, and what to do."""
    name = str(config.name)
    folder = Path(name)
    if (hint := misplaced(folder)) is not None or (not folder.is_dir() and (hint := no_such_model(name)) is not None):
        return hint
    if folder.is_dir():
        files = sorted(entry.name for entry in folder.iterdir())
        shown = ", ".join(files[:8]) + (", ..." if len(files) > 8 else "") if files else "nothing"
        if part == "weights" and not list(folder.glob("*.safetensors")):
            pickled = [file for file in files if file.endswith((".bin", ".pt", ".pth", ".ckpt"))]
            what = (
                f"only pickled weights ({pickled[0]}), which are not read because a pickle can run code; save them "
                "with `save_pretrained` (safetensors)"
                if pickled
                else f"no weights (model.safetensors); it holds {shown}"
            )
            return f"the model folder {name} has {what}"
        pointers = [path.name for path in sorted(folder.glob("*.safetensors")) if is_lfs_pointer(path)]
        if pointers:
            return (
                f"the model folder {name} was cloned without its large files: {pointers[0]} is a pointer of Git LFS; "
                f"fetch them with: git -C {name} lfs pull"
            )
        needed = NEEDED.get(part, ())
        missing = "" if not needed or any(file in files for file in needed) else f"there is no {needed[0]}"
        return (
            f"the model folder {name} has no {part} that can be read ({missing or first_line(error)}); it holds "
            f"{shown}: save or download it again"
        )
    if is_offline_mode():
        return (
            f"model.name is {name!r}: there is no such folder, it is not in the local cache, and the hub may not be "
            "asked: offline mode is on (HF_HUB_OFFLINE); give a local folder, or unset HF_HUB_OFFLINE"
        )
    return (
        f"model.name is {name!r}: there is no such folder, and the hub gave no {part} for it ({first_line(error)}). "
        "Check the spelling and the network, log in with `hf auth login` if it is "
        "private, or give a local folder"
    )


def is_offline_mode() -> bool:
    """Return whether the hub may not be asked."""
    import huggingface_hub

    return bool(huggingface_hub.constants.HF_HUB_OFFLINE)


def is_lfs_pointer(path: Path) -> bool:
    """Return whether a file is what Git leaves in the place of a large one."""
    with path.open("rb") as file:
        return file.read(24) == b"version https://git-lfs."


def wrong_generation(config: ModelConfig) -> str | None:
    """Say what is wrong with a model's settings for generation, which come with its weights, or None."""
    from transformers import GenerationConfig

    try:
        GenerationConfig.from_pretrained(config.name, revision=config.revision)
    except OSError:  # it has none
        return None
    except ValueError as error:
        return f"the generation_config.json of {config.name} holds what can't be ({first_line(error)}); correct it"
    return None


def check_weights(
    config: ModelConfig, module: torch.nn.Module, info: dict[str, Any], purpose: str, trained: bool
) -> list[str]:
    """Return the names of the head's parameters that are new, since they did not come with the weights.

    Refuses weights that leave the model itself, or a head that has to be trained already, with new numbers.

    A pooler counts as part of the head: models that were trained on masked words alone come without one.
    """
    strange = sorted(
        {str(key[0] if isinstance(key, tuple) else key) for key in (*info["missing_keys"], *info["mismatched_keys"])}
    )
    in_base = [key for key in strange if not is_of_head(module, key) and "pooler." not in key]
    if in_base:
        named = ", ".join(in_base[:WEIGHTS_NAMED]) + (
            f" and {len(in_base) - WEIGHTS_NAMED} more" if len(in_base) > WEIGHTS_NAMED else ""
        )
        raise UserError(
            f"the weights in {config.name} do not fit its config.json (architecture {type(module).__name__}): "
            f"{named} missing or of another size; the folder mixes two models or is incomplete: save or download it "
            "again"
        )
    if trained and strange:
        raise UserError(
            f"{config.name} has no trained head to {purpose} with ({', '.join(strange[:WEIGHTS_NAMED])}), so there is "
            "nothing to evaluate; name a model that was saved after training, such as the model folder of a run"
        )
    return strange


def check_head(config: ModelConfig, adapters: Path | None, new: Sequence[str], relabelled: bool) -> None:
    """Refuse adapters that would be saved alone and leave a head behind that is nowhere else.

    A folder of adapters names its base, from which a head of another size or the names of other labels can't be known.
    """
    if config.lora.merge or not (new or relabelled):
        return
    what = f"a new head ({', '.join(new[:WEIGHTS_NAMED])})" if new else "a head whose labels have other names here"
    if adapters is not None:
        raise UserError(
            f"the adapters in {adapters} are for {config.name}, which gets {what}: what it was trained with is not in "
            "that folder; save the whole model (--model.lora.merge true where it is trained) and name its folder"
        )
    bits = "" if config.lora.bits is None else " and leave model.lora.bits out"
    trained = ": the head is then trained beside the adapters" if new else ""
    raise UserError(
        f"{config.name} gets {what}, which adapters saved alone would lack; save the whole model with "
        f"--model.lora.merge true{bits}{trained}"
    )


def check_input(config: ModelConfig, module: Any, wanted: str, purpose: str) -> None:
    """Refuse a model that has the right class but takes something else than `wanted`, this task's texts or images."""
    takes = str(getattr(module, "main_input_name", wanted))
    if takes != wanted:
        raise UserError(
            f"model.name is {config.name!r}, whose {type(module).__name__} takes {takes}, and not the {wanted} of a "
            f"task that is to {purpose}; give another model"
        )


def no_attention(config: ModelConfig, error: Exception) -> str:
    """Say that the implementation of attention that was asked for is not to be had."""
    reason = first_line(error).partition(". ")[0]
    return f"model.attention is {config.attention!r}, which can't be had here ({reason}); leave it out"


def first_line(error: Exception) -> str:
    """Return the first line of an error of a library; of those that are meant for programmers with their type."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    # What libraries add for programmers comes after the first sentence.
    line = re.split(r"(?<=[\w`'\"])\. ", line)[0][:200]
    return f"{type(error).__name__}: {line}" if isinstance(error, KeyError | TypeError | AttributeError) else line
