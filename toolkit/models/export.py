"""The trained model as others load it: `from_pretrained`, with its tokenizer and a model card."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from toolkit.models.card import model_card
from toolkit.models.lora import has_adapters, save_adapters


def pretrained_folder(
    tokenizer: Any,
    max_length: int | None,
    title: str,
    pipeline_tag: str,
    usage: str | None = None,
    library: str = "transformers",
) -> Callable[[torch.nn.Module, Path, Mapping[str, Any]], None]:
    """Return a task's `export`: it writes weights (safetensors), configuration, tokenizer and README.md.

    Args:
        tokenizer: it, or the image processor.
        max_length: what texts were cut to; it is kept as the tokenizer's limit, so that `transformers.pipeline` with
            `truncation=True` cuts them alike. None where nothing was cut.
        title: the heading of the model card.
        pipeline_tag: the name of the task on the hub and in `transformers.pipeline`.
        usage: what the card says on loading the folder; by default the call of the pipeline.
        library: the library that loads the folder, by the name that the hub has for it.
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

    return export
