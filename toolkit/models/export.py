"""The trained model as others load it: `from_pretrained`, with its tokenizer and a model card."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from toolkit.config.model import ModelConfig
from toolkit.config.yaml import as_mapping, to_yaml
from toolkit.models.lora import base_of, has_adapters, save_adapters
from toolkit.models.private_paths import (
    is_local,
    last_part,
    paths_in,
    shown_command,
    shown_settings,
    without_folders,
)
from toolkit.output.provenance import versions

NOTE = "finetune_toolkit.json"
"""The file in a saved model's folder that says how it was trained, for `toolkit predict`."""
THRESHOLDS = "thresholds"
"""The entry there for the probability of each label above which it is predicted, where one was chosen."""
LOCAL = "local"
"""What stands for the id of a data set that is on no hub."""


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
    found = (note_in(Path(config.name)).get("settings") or {}).get(THRESHOLDS)
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
        usage: how to load the folder, for the card; by default the call of the pipeline.
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
        settings = {**shown_settings(as_mapping(results["config"])), **(known or {})}
        if thresholds := results["details"].get(THRESHOLDS):
            settings[THRESHOLDS] = thresholds
        note = {"task": pipeline_tag, "inputs": results["inputs"], "settings": settings, "versions": versions()}
        (folder / NOTE).write_text(json.dumps(note, indent=2) + "\n", encoding="utf-8")

    return export


def model_card(
    title: str, pipeline_tag: str, usage: str | None, library: str, module: Any, results: Mapping[str, Any]
) -> str:
    """Return a model card: what it is, its metrics and the baseline's, and the settings that made it.

    Paths are given by their last part: the others name folders of whoever trained it, who may share the card.
    """
    from huggingface_hub import ModelCard, ModelCardData

    config = results["config"]
    adapters_alone = has_adapters(module) and not config.model.lora.merge
    data = ModelCardData(
        library_name="peft" if adapters_alone else library,
        pipeline_tag=pipeline_tag,
        base_model=base_on_hub(config),
        datasets=[dataset] if (dataset := dataset_on_hub(config)) else None,
        metrics=list(dict.fromkeys(metric_id(name) for name in results["metrics"] if name != "loss")) or None,
        tags=["lora"] if adapters_alone else None,
        model_name=last_part(str(config.output)),
        eval_results=list(evaluation_results(pipeline_tag, config, results["metrics"])) or None,
    )
    text = without_folders(card_text(title, usage or pipeline_call(pipeline_tag), module, results), paths_in(results))
    return str(ModelCard(f"---\n{data.to_yaml()}\n---\n\n{text}"))


def card_text(title: str, usage: str, module: Any, results: Mapping[str, Any]) -> str:
    """Return the card below its metadata."""
    metrics, baseline = results["metrics"], results["baseline"]
    rows = "\n".join(
        f"| {name} | {value:.4f} | {f'{baseline[name]:.4f}' if name in baseline else ''} |"
        for name, value in metrics.items()
    )
    summary = "\n".join(f"- {name}: {text}" for name, text in results["summary"].items())
    size = sum(p.numel() for p in module.parameters())
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    whole = module.get_base_model() if has_adapters(module) else module
    places = " and a new head" if has_adapters(module) and module.active_peft_config.modules_to_save else ""
    adapted = f", of which {trained:,} in adapters{places} were trained" if has_adapters(module) else ""
    used = ", ".join(f"{name} {number}" for name, number in versions().items())
    return f"""# {title}

A {type(whole).__name__} with {size:,} parameters{adapted}, trained for {results["steps"]:,}
optimizer steps with finetune-toolkit.

| evaluation | this model | baseline |
| --- | --- | --- |
{rows}

{usage}

## Data

{summary}

## Settings

Written by `{shown_command(results["command"])}` (paths are shown by their last part):

```yaml
{to_yaml(shown_settings(as_mapping(results["config"])))}```

Versions: {used}.
"""


def pipeline_call(pipeline_tag: str) -> str:
    """Return how a model is loaded as a pipeline; only text classification truncates texts."""
    options = ", truncation=True" if pipeline_tag == "text-classification" else ""
    return f'Load it with `transformers.pipeline("{pipeline_tag}", "<this folder>"{options})`.'


def base_on_hub(config: Any) -> str | None:
    """Return the hub id of the model that was trained further, or None if it is new or in a folder."""
    section = getattr(config, "model", None)
    if not isinstance(section, ModelConfig) or section.name is None:
        return None
    base, _ = base_of(section, only=False)
    return None if is_local(str(base.name)) else base.name


def dataset_on_hub(config: Any) -> str | None:
    """Return the hub id of the data set, or None if it is embedded or in files."""
    name = getattr(getattr(config, "data", None), "name", None)
    return None if name is None or is_local(str(name)) else str(name)


def evaluation_results(pipeline_tag: str, config: Any, metrics: Mapping[str, float]) -> Iterator[Any]:
    """Yield the metrics as the hub has them in a model index: `huggingface_hub.EvalResult`s."""
    from huggingface_hub import EvalResult

    data, dataset = getattr(config, "data", None), dataset_on_hub(config)
    files = [value for key in ("eval", "train", "name") if (value := getattr(data, key, None))]
    name = dataset or (Path(files[0]).name if files else "embedded corpus")
    for metric, value in metrics.items():
        if math.isfinite(value):
            yield EvalResult(
                task_type=pipeline_tag,
                dataset_type=dataset or LOCAL,
                dataset_name=name,
                dataset_config=getattr(data, "config", None) if dataset else None,
                dataset_split=getattr(data, "eval", None) if dataset else None,
                metric_type=metric_id(metric),
                metric_name=metric,
                metric_value=round(float(value), 6),
            )


def metric_id(name: str) -> str:
    """Return what the hub calls the kind of a metric, as far as it has a name for it."""
    if name.endswith("f1"):
        return "f1"
    return "rouge" if name.startswith("rouge") else name
