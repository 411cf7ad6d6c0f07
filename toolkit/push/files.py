"""Which files of a folder are a model, for whoever is to load it, and what must not be sent with them."""

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolkit.errors import UserError
from toolkit.models.lora import MERGED
from toolkit.models.private_paths import BEGINS_AS_PATH, home_folders, last_part
from toolkit.output.private_words import has_secret
from toolkit.output.run_folder import is_locked, read_record, step_of

NAMES = re.compile(
    r"README\.md|LICENSE(?:\.\w+)?|NOTICE(?:\.\w+)?"
    r"|[^/]+\.safetensors(?:\.index\.json)?"
    r"|(?:adapter_|generation_|preprocessor_|processor_|video_preprocessor_|tokenizer_)?config\.json|processor\.json"
    r"|tokenizer\.json|special_tokens_map\.json|added_tokens\.json|vocab[\w.-]*\.(?:json|txt)|merges\.txt|normalizer\.json"
    r"|[^/]*(?:spiece|sentencepiece|tokenizer|spm|source|target|bpe)[^/]*\.model|(?:dict|emoji)\.txt|bpe\.codes|tekken\.json"
    r"|chat_template\.(?:jinja|json)|additional_chat_templates/[^/]+\.jinja"
    r"|modules\.json|sentence_\w+_config\.json|config_sentence_transformers\.json|\d+_\w+/(?:config\.json|model\.safetensors)"
    r"|adapter/(?:adapter_config\.json|adapter_model\.safetensors)"
    r"|finetune_toolkit\.json|reference\.json|confusion_matrix\.csv|thresholds\.json"
)
"""The files of a model: those of Transformers, peft, sentence-transformers, and this toolkit's own."""
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".npy", ".npz", ".h5", ".msgpack", ".distcp")
"""What can run code where it is loaded, or is loaded by nobody who takes safetensors."""
FOLDERS_TO_LOOK_INTO = re.compile(r"adapter|additional_chat_templates|\d+_\w+")
OF_TEXT_PIECES = re.compile(r".*\.(?:safetensors|model)|tokenizer\.json|(?:vocab|merges|added_tokens|bpe)[^/]*")
"""Files whose content is no sentence of anybody, and is not looked through for what is private."""


@dataclass(frozen=True)
class Parts:
    """What of a folder is sent, and what is not."""

    sent: dict[str, int] = field(default_factory=dict)
    """Paths in the folder, with their sizes in bytes."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Files and folders, with the reason."""


def find_model_folder(given: Path) -> Path:
    """Return the folder of the model in a run folder, or the folder itself.

    Raises:
        UserError: there is none, it is that of a checkpoint, or its run is under way.
    """
    if given.is_file():
        raise UserError(f"{given} is a file; give a run folder or the folder of a model")
    if not given.is_dir():
        raise UserError(f"there is no folder {given}; give a run folder or the folder of a model")
    if step_of(given) >= 0 or (given / "manifest.json").is_file():
        raise UserError(
            f"{given} is a checkpoint, which others can't load; make its model with toolkit export RUN --step "
            f"{max(step_of(given), 1)}, then push RUN"
        )
    record = read_record(given)
    run = given if record else given.parent if given.name == "model" and read_record(given.parent) else None
    if run is not None and read_record(run).get("status") == "running" and is_locked(run):
        raise UserError(f"a process works in {run}: the run is still under way; push it when it has ended")
    if record:
        status = record.get("status")
        if not (given / "model").is_dir():
            raise UserError(
                f"the run in {given} has no saved model (its status is {status}); let it finish, or save the best one "
                f"so far with: toolkit export {given}"
            )
        return given / "model"
    if (given / "run.json").is_file():
        raise UserError(f"{given / 'run.json'} can't be read, so that it can't be told what {given} holds")
    return given


def parts_of(folder: Path, also: Sequence[str] = ()) -> Parts:
    """Return what of a folder is sent.

    Args:
        folder: of a model.
        also: further files, as they are named in the folder.

    Raises:
        UserError: it holds no model in safetensors, or what would be sent holds a token or names folders of this
            machine.
    """
    sent, left_out = {}, {}
    for path in sorted(folder.iterdir()):
        is_part = path.is_dir() and FOLDERS_TO_LOOK_INTO.fullmatch(path.name)
        for one in sorted(path.iterdir()) if is_part else [path]:
            name = one.relative_to(folder).as_posix()
            if reason := why_not(one, name, name in also):
                left_out[name] = reason
            else:
                sent[name] = one.stat().st_size
    problems = [f"--also names {name}, which is not in {folder}" for name in also if name not in {*sent, *left_out}]
    problems += [f"--also names {name}, {left_out[name]}" for name in also if name in left_out]
    if not any(name.endswith(".safetensors") and "/" not in name for name in sent):
        pickled = [name for name in left_out if name.lower().endswith(PICKLES)]
        why = f"it has {', '.join(pickled)}, which can run code where it is loaded" if pickled else "it has none"
        problems.append(f"{folder} is no model: its weights have to be a .safetensors file, and {why}")
    elif not {"config.json", "adapter_config.json"} & set(sent):
        problems.append(
            f"{folder} is no model that others can load: it has neither config.json nor adapter_config.json"
        )
    problems += private_problems(folder, sent, left_out)
    if problems:
        raise UserError(*problems)
    return Parts(sent, left_out)


def why_not(path: Path, name: str, asked: bool) -> str | None:
    """Return why a file is not sent, None if it is."""
    if path.is_dir():
        return "a folder"
    if not path.is_file():
        return "a link to nothing"
    if path.suffix.lower() in PICKLES:
        return "not safetensors: it can run code where it is loaded"
    if not os.access(path, os.R_OK):
        return "it can't be read"
    return None if asked or NAMES.fullmatch(name) else "no part of a model"


def private_problems(folder: Path, sent: dict[str, int], left_out: dict[str, str]) -> Iterator[str]:
    """Yield what in the files must not be read by others; what only this machine needs is left out instead."""
    for name in list(sent):
        if name not in sent or OF_TEXT_PIECES.fullmatch(name):
            continue
        text = (folder / name).read_bytes().decode("utf-8", errors="replace")
        if has_secret(text):
            yield f"{folder / name} holds what looks like a token or a password; take it out, and have it made invalid"
        if name == "reference.json" and is_here(content(text).get("name")):
            left_out[name] = "it names a folder of this machine"
            del sent[name]
            continue
        base = content(text).get("base_model_name_or_path") if name.endswith("adapter_config.json") else None
        if is_here(base) and name.startswith(f"{MERGED}/"):
            for one in [one for one in sent if one.startswith(f"{MERGED}/")]:
                left_out[one] = "its base is in a folder of this machine; the model has it merged in"
                del sent[one]
        elif is_here(base):
            yield (
                f"{folder / name} says that the adapters' base is in a folder of this machine, "
                f"{last_part(str(base))}, where nobody else finds it; write the id that the base has on the hub into "
                "base_model_name_or_path, or train with --model.lora.merge true, which saves the whole model"
            )
        elif any(f"{home}/" in text for home in home_folders() if home not in ("", "/")):
            yield f"{folder / name} names the home folder of this machine; take that out"


def content(text: str) -> dict[str, Any]:
    """Return a JSON object, empty where a text is none."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def is_here(name: Any) -> bool:
    """Return whether a model's name is a path of this machine."""
    return isinstance(name, str) and (BEGINS_AS_PATH.match(name) is not None or Path(name).exists())
