"""The trained model as others load it: `from_pretrained`, with its tokenizer and a model card."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from toolkit.run_folder import versions
from toolkit.settings_file import to_yaml


def pretrained_folder(
    tokenizer: Any, max_length: int | None, title: str, pipeline_tag: str
) -> Callable[[torch.nn.Module, Path, Mapping[str, Any]], None]:
    """Return a task's `export`: it writes weights (safetensors), configuration, tokenizer and README.md.

    A `max_length` that texts were cut to is kept as the tokenizer's limit, so that `transformers.pipeline` with
    `truncation=True` cuts them alike.
    """

    def export(module: Any, folder: Path, results: Mapping[str, Any]) -> None:
        module.save_pretrained(folder)
        if max_length is not None:
            tokenizer.model_max_length = max_length
        tokenizer.save_pretrained(folder)
        (folder / "README.md").write_text(model_card(title, pipeline_tag, module, results), encoding="utf-8")

    return export


def model_card(title: str, pipeline_tag: str, module: Any, results: Mapping[str, Any]) -> str:
    """Return a model card: what it is, what it reached beside the baseline, and the settings that reproduce it."""
    metrics, baseline = results["metrics"], results["baseline"]
    rows = "\n".join(
        f"| {name} | {value:.4f} | {f'{baseline[name]:.4f}' if name in baseline else ''} |"
        for name, value in metrics.items()
    )
    facts = "\n".join(f"- {name}: {text}" for name, text in results["facts"].items())
    used = ", ".join(f"{name} {number}" for name, number in versions().items())
    return f"""---
library_name: transformers
pipeline_tag: {pipeline_tag}
---

# {title}

A {type(module).__name__} with {sum(p.numel() for p in module.parameters()):,} parameters, trained for {results["steps"]:,}
optimizer steps with finetune-toolkit.

| evaluation | this model | baseline |
| --- | --- | --- |
{rows}

Load it with `transformers.pipeline("{pipeline_tag}", "<this folder>", truncation=True)`.

## Data

{facts}

## Settings

Written by `{results["command"]}`:

```yaml
{to_yaml(results["config"])}```

Versions: {used}.
"""
