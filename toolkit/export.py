"""The trained model as others load it: `from_pretrained`, with its tokenizer and a model card."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from toolkit.adapters import has_adapters, save_adapters
from toolkit.provenance import versions
from toolkit.settings_file import to_yaml


def pretrained_folder(
    tokenizer: Any, max_length: int | None, title: str, pipeline_tag: str, usage: str | None = None
) -> Callable[[torch.nn.Module, Path, Mapping[str, Any]], None]:
    """Return a task's `export`: it writes weights (safetensors), configuration, tokenizer and README.md.

    Args:
        tokenizer: it, or the image processor.
        max_length: what texts were cut to; it is kept as the tokenizer's limit, so that `transformers.pipeline` with
            `truncation=True` cuts them alike. None where nothing was cut.
        title: the heading of the model card.
        pipeline_tag: the name of the task on the hub and in `transformers.pipeline`.
        usage: what the card says on loading the folder; by default the call of the pipeline.
    """

    def export(module: Any, folder: Path, results: Mapping[str, Any]) -> None:
        card = model_card(title, pipeline_tag, usage or pipeline_call(pipeline_tag), module, results)
        if has_adapters(module):
            save_adapters(module, folder, merge=results["config"].model.lora.merge)
        else:
            module.save_pretrained(folder)
        if max_length is not None:
            tokenizer.model_max_length = max_length
        tokenizer.save_pretrained(folder)
        (folder / "README.md").write_text(card, encoding="utf-8")

    return export


def pipeline_call(pipeline_tag: str) -> str:
    """Return how a model is loaded as a pipeline; only text classification cuts texts that are too long."""
    options = ", truncation=True" if pipeline_tag == "text-classification" else ""
    return f'Load it with `transformers.pipeline("{pipeline_tag}", "<this folder>"{options})`.'


def model_card(title: str, pipeline_tag: str, usage: str, module: Any, results: Mapping[str, Any]) -> str:
    """Return a model card: what it is, what it reached beside the baseline, and the settings that reproduce it."""
    metrics, baseline = results["metrics"], results["baseline"]
    rows = "\n".join(
        f"| {name} | {value:.4f} | {f'{baseline[name]:.4f}' if name in baseline else ''} |"
        for name, value in metrics.items()
    )
    facts = "\n".join(f"- {name}: {text}" for name, text in results["facts"].items())
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    whole = module.get_base_model() if has_adapters(module) else module
    places = " and a new head" if has_adapters(module) and module.active_peft_config.modules_to_save else ""
    adapted = f", of which {trained:,} in adapters{places} were trained" if has_adapters(module) else ""
    used = ", ".join(f"{name} {number}" for name, number in versions().items())
    return f"""---
library_name: transformers
pipeline_tag: {pipeline_tag}
---

# {title}

A {type(whole).__name__} with {sum(p.numel() for p in module.parameters()):,} parameters{adapted}, trained for {results["steps"]:,}
optimizer steps with finetune-toolkit.

| evaluation | this model | baseline |
| --- | --- | --- |
{rows}

{usage}

## Data

{facts}

## Settings

Written by `{results["command"]}`:

```yaml
{to_yaml(results["config"])}```

Versions: {used}.
"""
