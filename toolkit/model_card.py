"""The model card: what a saved model is and what it reached, for a reader, and in the metadata that the hub reads."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from toolkit.adapters import base_of, has_adapters
from toolkit.model_config import ModelConfig
from toolkit.provenance import versions
from toolkit.settings_file import as_mapping, flatten, to_yaml

LOCAL = "local"
"""What stands for the id of a data set that is on no hub."""
ABSOLUTE = re.compile(r"(?<![\w.:/<>~])(?:/[\w.@+~-]+)+/([\w.@+~-]+)")
"""A path from the root on, of two parts at least, and its last part."""


def model_card(
    title: str, pipeline_tag: str, usage: str | None, library: str, module: Any, results: Mapping[str, Any]
) -> str:
    """Return a model card: what it is, what it reached beside the baseline, and the settings that made it.

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
        model_name=Path(str(config.output)).name,
        eval_results=list(evaluation_results(pipeline_tag, config, results["metrics"])) or None,
    )
    text = without_folders(card_text(title, usage or pipeline_call(pipeline_tag), module, results), paths_in(results))
    return str(ModelCard(f"---\n{data.to_yaml()}\n---\n\n{text}"))


def card_text(title: str, usage: str, module: Any, results: Mapping[str, Any]) -> str:
    """Return what the card says below its metadata."""
    metrics, baseline = results["metrics"], results["baseline"]
    rows = "\n".join(
        f"| {name} | {value:.4f} | {f'{baseline[name]:.4f}' if name in baseline else ''} |"
        for name, value in metrics.items()
    )
    facts = "\n".join(f"- {name}: {text}" for name, text in results["facts"].items())
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

{facts}

## Settings

Written by `{results["command"]}` (paths are shown by their last part):

```yaml
{to_yaml(results["config"])}```

Versions: {used}.
"""


def pipeline_call(pipeline_tag: str) -> str:
    """Return how a model is loaded as a pipeline; only text classification cuts texts that are too long."""
    options = ", truncation=True" if pipeline_tag == "text-classification" else ""
    return f'Load it with `transformers.pipeline("{pipeline_tag}", "<this folder>"{options})`.'


def base_on_hub(config: Any) -> str | None:
    """Return the hub id of the model that was trained further, or None if it is new or in a folder."""
    section = getattr(config, "model", None)
    if not isinstance(section, ModelConfig) or section.name is None:
        return None
    base, _ = base_of(section, only=False)
    return None if Path(str(base.name)).exists() else base.name


def dataset_on_hub(config: Any) -> str | None:
    """Return the hub id of the data set, or None if it is embedded or in files."""
    name = getattr(getattr(config, "data", None), "name", None)
    return None if name is None or Path(name).exists() else str(name)


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


def paths_in(results: Mapping[str, Any]) -> set[str]:
    """Return the absolute paths that the settings name; they may have blanks in them."""
    settings = flatten(as_mapping(results["config"]))
    return {text for text in texts_in(settings.values()) if text.startswith(("/", "~/"))}


def texts_in(values: Iterable[Any]) -> Iterator[str]:
    """Yield all texts among values and lists of them."""
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            yield from texts_in(value)


def without_folders(text: str, paths: Iterable[str]) -> str:
    """Return a text with the last part alone of each absolute path: of those that are known, and of other ones."""
    for path in sorted(paths, key=len, reverse=True):
        if len(Path(path).parts) > 1:
            text = text.replace(path, Path(path).name)
    return ABSOLUTE.sub(r"\1", text)
