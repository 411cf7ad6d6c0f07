"""What the user is told when a part of a model can't be loaded."""

from pathlib import Path

from toolkit.config.model import ADAPTERS, ModelConfig

NAMED = 3


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


def cannot_load(part: str, config: ModelConfig, error: Exception) -> str:
    """Say why a part of a model could not be loaded, and what to do."""
    name = str(config.name)
    folder = Path(name)
    if (hint := misplaced(folder)) is not None:
        return hint
    if folder.is_dir():
        files = sorted(entry.name for entry in folder.iterdir())
        shown = ", ".join(files[:8]) + (", ..." if len(files) > 8 else "") if files else "nothing"
        if part == "weights" and not list(folder.glob("*.safetensors")):
            pickled = [file for file in files if file.endswith((".bin", ".pt", ".pth", ".ckpt"))]
            what = (
                f"only pickled weights ({pickled[0]}), which are not read because a pickle can run code; save them with "
                "`save_pretrained` (safetensors)"
                if pickled
                else f"no weights (model.safetensors); it holds {shown}"
            )
            return f"the model folder {name} has {what}"
        return f"the model folder {name} has no {part} that can be read ({first_line(error)}); it holds {shown}: save or download it again"
    return (
        f"model.name is {name!r}: there is no such folder, and the hub gave no {part} for it ({first_line(error)}). "
        "Check the spelling and the network (HF_HUB_OFFLINE=1 forbids it), log in with `hf auth login` if it is private, "
        "or give a local folder"
    )


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


def no_attention(config: ModelConfig, error: Exception) -> str:
    """Say that the implementation of attention that was asked for is not to be had."""
    reason = first_line(error).partition(". ")[0]
    return f"model.attention is {config.attention!r}, which can't be had here ({reason}); leave it out"


def first_line(error: Exception) -> str:
    """Return the first line of an error of a library; of those that are meant for programmers with their type."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    return f"{type(error).__name__}: {line}" if isinstance(error, KeyError | TypeError | AttributeError) else line
