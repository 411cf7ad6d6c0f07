"""The trained model as others load it: `from_pretrained`, with its tokenizer and a model card."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from toolkit.config.model import ModelConfig
from toolkit.config.yaml import as_mapping
from toolkit.models.card import NOTE, THRESHOLDS, model_card
from toolkit.models.load import read_json
from toolkit.models.lora import has_adapters, save_adapters
from toolkit.models.private_paths import shown_settings
from toolkit.output.private_words import settings_without_secrets
from toolkit.output.provenance import versions


def note_in(folder: Path) -> dict[str, Any]:
    """Return what the toolkit has written into a model folder of its training; empty where there is nothing."""
    try:
        content = json.loads((folder / NOTE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def saved_thresholds(config: ModelConfig) -> dict[str, float] | None:
    """Return the thresholds of the labels of a saved model, None where it has none."""
    if config.name is None:
        return None
    found = ((read_json(config, NOTE) or {}).get("settings") or {}).get(THRESHOLDS)
    return found if isinstance(found, dict) else None


def pretrained_folder(
    tokenizer: Any,
    max_length: int | None,
    title: str,
    pipeline_tag: str,
    usage: str | None = None,
    library: str = "transformers",
    known: Mapping[str, Any] | None = None,
) -> Callable[[torch.nn.Module, Path, Mapping[str, Any]], None]:
    """Return a task's `export`: it writes weights (safetensors), configuration, tokenizer and README.md.

    Args:
        tokenizer: it, or the image processor.
        max_length: what texts were truncated to, or None; it becomes the tokenizer's limit, so that
            `transformers.pipeline` with `truncation=True` truncates them alike.
        title: the heading of the model card.
        pipeline_tag: the name of the task on the hub and in `transformers.pipeline`.
        usage: how to load the folder, for the card, in Markdown; by default code with the pipeline of the task.
        library: the library that loads the folder, by the name that the hub has for it.
        known: what predictions need besides the settings, by name.
    """

    def export(module: Any, folder: Path, results: Mapping[str, Any]) -> None:
        card = model_card(title, pipeline_tag, usage, library, module, results)
        if has_adapters(module):
            save_adapters(module, folder, merge=results["config"].model.lora.merge)
        else:
            module.save_pretrained(folder)
        if max_length is not None:
            tokenizer.model_max_length = max_length
        tokenizer.save_pretrained(folder)
        (folder / "README.md").write_text(card, encoding="utf-8")
        settings = {**shown_settings(settings_without_secrets(as_mapping(results["config"]))), **(known or {})}
        if thresholds := results["details"].get(THRESHOLDS):
            settings[THRESHOLDS] = thresholds
        note = {
            "task": pipeline_tag,
            "step": results["steps"],
            "inputs": results["inputs"],
            "settings": settings,
            "versions": versions(),
        }
        (folder / NOTE).write_text(json.dumps(note, indent=2) + "\n", encoding="utf-8")

    return export
