"""The model card: what a saved model is and what it reached, for a reader, and in the metadata that the hub reads."""

import math
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from toolkit.config.model import ModelConfig
from toolkit.config.yaml import as_mapping, flatten, to_yaml
from toolkit.models.lora import base_of, has_adapters
from toolkit.output.provenance import versions

LOCAL = "local"
"""What stands for the id of a data set that is on no hub."""
PART = r"[\w.@+~-]+"
PLACE = re.compile(rf"(?<![\w./<>~@])(?:~(?:[a-zA-Z_][\w.-]*)?|(?:\.\./)*\.\.|/{PART})(?:/{PART})+/?")
"""In a text: a path from the root on, of two parts at least, or from a home folder or a folder above on."""
ADDRESS = re.compile(r"file:/[^\s'\"`<>()\[\]{},]*")
"""In a text: the address of a file of this machine."""
HOME = re.compile(r"~[^/]*|(?:/|(?:\.\./)+)(?:home|Users)/[^/]+")
"""A home folder, whose last part is the name of a person."""
BEGINS_AS_PATH = re.compile(r"/|file:/|\.\.?/|~[\w.-]*(?:/|$)")
HUB_ID = re.compile(r"[a-zA-Z0-9][\w.-]*/[a-zA-Z0-9][\w.-]*")


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
        model_name=last_part(str(config.output)),
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
    """Return how a model is loaded as a pipeline; only text classification cuts texts that are too long."""
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


def shown_command(command: str) -> str:
    """Return a command with the last part alone of each path in it."""
    try:
        return shlex.join(map(shown, shlex.split(command)))
    except ValueError:  # not made by a shell's rules
        return without_folders(command, ())


def shown_settings(value: Any) -> Any:
    """Return settings, as plain mappings, lists and scalars, with the last part alone of each path in them."""
    if isinstance(value, Mapping):
        return {key: shown_settings(inside) for key, inside in value.items()}
    if isinstance(value, list):
        return [shown_settings(inside) for inside in value]
    return shown(value) if isinstance(value, str) else value


def shown(word: str) -> str:
    """Return a word of a command, or a setting: the last part alone if it is a path, or if what stands behind its = is one."""
    if word.startswith(("[", "{")):
        return re.sub(r"[^\s\[\]{},:'\"][^\[\]{},'\"]*", lambda inside: shown(inside[0]), word)
    name, equals, value = word.partition("=")
    if equals and "/" not in name:
        return f"{name}={shown(value)}"
    return last_part(word) if is_path(word) else without_folders(word, ())


def is_path(word: str) -> bool:
    """Return whether a word is a path as it is written; an id of the hub is none, unless it is there as a folder too."""
    if BEGINS_AS_PATH.match(word):
        return True
    if "/" not in word or "://" in word or word.startswith("-"):
        return False
    return exists(word) or (HUB_ID.fullmatch(word) is None and not any(map(str.isspace, word)))


def is_local(name: str) -> bool:
    """Return whether the name of a model or a data set is that of a folder or a file, and of nothing on the hub."""
    return is_path(name) or exists(name)


def exists(word: str) -> bool:
    """Return whether there is such a file or folder; no word is too odd to ask."""
    return os.path.exists(word)  # noqa: PTH110 (Path.exists fails on a name that is too long)


def last_part(path: str) -> str:
    """Return the last part of a path; of a home folder that would be the name of a person, and it is shown as ~."""
    plain = re.sub(r"^file:/+", "/", path).rstrip("/")
    if HOME.fullmatch(plain) or (plain and plain in home_folders()):
        return "~"
    return plain.rpartition("/")[2] or path


def home_folders() -> set[str]:
    """Return the paths of the home folder of whoever trains."""
    home = os.path.expanduser("~")  # noqa: PTH111 (Path.home fails for a user without one)
    return {home.rstrip("/"), os.path.realpath(home).rstrip("/")} - {"", "~"}


def paths_in(results: Mapping[str, Any]) -> set[str]:
    """Return the paths that settings and command name, in all the ways in which a text may give them; and the home folder."""
    try:
        words = shlex.split(results["command"])
    except ValueError:
        words = []
    named = {*texts_in(flatten(as_mapping(results["config"])).values()), *words}
    named |= {word.partition("=")[2] for word in words}
    return {form for word in named if is_path(word) for form in forms(word)} | home_folders()


def forms(path: str) -> set[str]:
    """Return a path as it is written, from the root on, and without links."""
    plain = re.sub(r"^file:/+", "/", path)
    place = os.path.abspath(os.path.expanduser(plain))  # noqa: PTH100, PTH111 (texts, also of what can't be a path)
    try:
        return {path, plain, place, os.path.realpath(place)}
    except (OSError, ValueError):  # a text with a null byte
        return {path, plain, place}


def texts_in(values: Iterable[Any]) -> Iterator[str]:
    """Yield all texts among values and lists of them."""
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            yield from texts_in(value)


def without_folders(text: str, paths: Iterable[str]) -> str:
    """Return a text with the last part alone of each path in it: of those that are known, and what is below, and of other ones.

    A known path may have blanks in it. It counts where it stands as a whole, and not as a part of other words.
    """
    for path in sorted({path.rstrip("/") for path in paths}, key=len, reverse=True):
        if "/" in path and path.strip("./"):
            whole = rf"(?<![\w./~@+-]){re.escape(path)}(?:/{PART})*/?(?![\w@+~-]|\.\w)"
            text = re.sub(whole, lambda found: last_part(found[0]), text)
    return PLACE.sub(lambda found: last_part(found[0]), ADDRESS.sub(lambda found: last_part(found[0]), text))
