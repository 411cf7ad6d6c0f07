"""The model card: what was trained, on what, how good it is and under which conditions, how, and what is not known.

Nothing in it names a folder of whoever trained the model, or holds a token.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.config.model import ModelConfig
from toolkit.config.yaml import as_mapping, differing, to_yaml
from toolkit.models.lora import base_of, has_adapters
from toolkit.models.private_paths import is_local, last_part, paths_in, shown_command, shown_settings, without_folders
from toolkit.models.usage import usage_of
from toolkit.output.private_words import settings_without_secrets, without_secrets
from toolkit.output.provenance import versions

NOTE = "finetune_toolkit.json"
"""The file in a saved model's folder that says how it was trained, for `toolkit predict`."""
THRESHOLDS = "thresholds"
"""The entry there for the probability of each label above which it is predicted, where one was chosen."""
LOCAL = "local"
"""What stands for the id of a data set that is on no hub."""
OF_THE_PLACE = ("output", "resume", "threads", "rehearse", "evaluate.show", "log.", "timeout.", "checkpoint.keep")
"""Settings that say nothing of a model."""


def model_card(
    title: str, pipeline_tag: str, usage: str | None, library: str, module: Any, results: Mapping[str, Any]
) -> str:
    """Return a model card: metadata that the hub reads, and sections for a reader.

    Paths are given by their last part: the others name folders of whoever trained it, who may share the card.

    Args:
        title: the heading.
        pipeline_tag: the name of the task on the hub.
        usage: how to load the model, in Markdown; by default code with the pipeline of the task.
        library: the library that loads it, by the name that the hub has for it.
        module: the trained model.
        results: what an export is told of the run (`toolkit/rehearsal/end_of_run.py`).
    """
    from huggingface_hub import ModelCard, ModelCardData

    config = results["config"]
    adapters_alone = has_adapters(module) and not config.model.lora.merge
    data = ModelCardData(
        library_name="peft" if adapters_alone else library,
        pipeline_tag=pipeline_tag,
        base_model=base_on_hub(config),
        datasets=[dataset] if (dataset := dataset_on_hub(config)) else None,
        metrics=list(dict.fromkeys(metric_id(name) for name in results["metrics"] if metric_id(name) != "loss"))
        or None,
        tags=["finetune-toolkit", *(["lora"] if adapters_alone else [])],
        model_name=last_part(str(config.output)),
        eval_results=list(evaluation_results(pipeline_tag, config, results)) or None,
    )
    sections = {
        "": described(module, results),
        "Use": f"{usage or usage_of(pipeline_tag, results.get('inputs', {}))}\n\n{use_of_files(adapters_alone)}",
        "Evaluation": evaluation(results),
        "Data": data_section(results),
        "Training": training(results),
        "Limits": limits(results),
    }
    text = "\n\n".join(f"{f'## {name}' if name else f'# {title}'}\n\n{body}" for name, body in sections.items() if body)
    text = without_folders(text, paths_in(results))
    return without_secrets(str(ModelCard(f"---\n{data.to_yaml()}\n---\n\n{text}\n")))


def described(module: Any, results: Mapping[str, Any]) -> str:
    """Return what was trained, and from what."""
    size = sum(p.numel() for p in module.parameters())
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    whole = module.get_base_model() if has_adapters(module) else module
    places = " and a new head" if has_adapters(module) and module.active_peft_config.modules_to_save else ""
    adapted = f" Of these {trained:,} in adapters{places} were trained." if has_adapters(module) else ""
    total = results.get("record", {}).get("total_steps")
    decay = results["config"].optim.average if results["config"].exports_average else None
    average = f", averaged over the steps before (`optim.average` {decay:g})" if decay is not None else ""
    of_all = f" of {total:,}" if isinstance(total, int) and total != results["steps"] else ""
    return (
        f"A {type(whole).__name__} with {size:,} parameters, trained with finetune-toolkit. It began "
        f"{origin(results)}.{adapted} These are the weights after {results['steps']:,}{of_all} optimizer steps"
        f"{f': those of the evaluation with the {rule}' if (rule := results.get('rule')) else ''}{average}."
    )


def origin(results: Mapping[str, Any]) -> str:
    """Return which weights the training began with, as the end of a sentence."""
    config = results["config"]
    section = getattr(config, "model", None)
    name, revision = getattr(section, "name", None), getattr(section, "revision", None)
    if name is None:
        embedded = results["summary"].get("model")
        return f"as {embedded}" if embedded else "with new weights"
    base = base_on_hub(config)
    if base is not None:
        return f"as `{base}`" + (f" (revision `{revision}`)" if revision else "")
    return f"as a model in a folder, `{last_part(str(name))}`"


def use_of_files(adapters_alone: bool) -> str:
    """Return what else a user has to know to load the model."""
    alone = " It holds adapters alone: `peft` has to be installed, and loads the base model with them." * adapters_alone
    return f"`<this folder>` is the folder of this card, or the model's id on a hub.{alone}"


def evaluation(results: Mapping[str, Any]) -> str:
    """Return the metrics beside the baseline's, and under which conditions they were measured."""
    metrics, baseline, count = results["metrics"], results["baseline"], results.get("samples", {}).get("evaluate")
    if not metrics:
        return "It was not evaluated: the run had no evaluation data."
    columns = ["metric", "this model", "baseline"] if baseline else ["metric", "this model"]
    rows = [[name, *(figure(side[name]) if name in side else "" for side in (metrics, baseline))] for name in metrics]
    table = "\n".join(f"| {' | '.join(row[: len(columns)])} |" for row in [columns, ["---"] * len(columns), *rows])
    trivial = " The baseline is a trivial prediction, scored on the same samples." if baseline else ""
    return (
        f"On {f'{count:,} samples' if count else 'samples'} of {evaluation_data(results)}, with the weights after step "
        f"{results['steps']:,}. The loss is the mean over its units: tokens, samples or pairs.{trivial}"
        f"{thresholds_told(results)}\n\n{table}"
    )


def figure(value: float) -> str:
    """Return a metric as text; one that is not a number has no value there."""
    return f"{value:.4f}" if math.isfinite(value) else "undefined" if math.isnan(value) else str(value)


def thresholds_told(results: Mapping[str, Any]) -> str:
    """Return a sentence on the thresholds of several labels, if there are any."""
    thresholds = results.get("details", {}).get(THRESHOLDS)
    if not thresholds:
        return ""
    listed = ", ".join(f"{label} {limit:g}" for label, limit in thresholds.items())
    return (
        " Labels whose probability is above one half are predicted; for the metrics that begin with `tuned_` above a "
        f"threshold that is the best on these very samples, so that they promise too much: {listed}."
    )


def evaluation_data(results: Mapping[str, Any]) -> str:
    """Return which data the metrics were measured on, in words."""
    config = results["config"]
    data, dataset = getattr(config, "data", None), dataset_on_hub(config)
    sets, given = getattr(data, "eval_sets", None), getattr(data, "eval", None)
    if sets:
        return ", ".join(f"{name} (`{last_part(str(place))}`)" for name, place in sets.items())
    if given is not None:
        return f"`{last_part(str(given))}`{f' of `{dataset}`' if dataset else ''}"
    held_out = ", held out from training" if "held out" in results["summary"] else ""
    return f"`{data_name(config)}`{held_out}"


def data_name(config: Any) -> str:
    """Return what the data set is called: a hub id, the last part of a path, or the embedded corpus."""
    data = getattr(config, "data", None)
    if dataset := dataset_on_hub(config):
        return dataset
    named = [value for key in ("eval", "train", "name") if (value := getattr(data, key, None))]
    return Path(str(named[0])).name if named else "embedded corpus"


def data_section(results: Mapping[str, Any]) -> str:
    """Return what the data was: what the plan says of it, counts, hashes, and the files that it was read from."""
    record, samples = results.get("record", {}), results.get("samples", {})
    lines = [f"- {name}: {text}" for name, text in results["summary"].items() if name != "model"]
    for key, what in (("train", "training samples"), ("evaluate", "evaluation samples")):
        digest = (record.get("data") or {}).get(key)
        if samples.get(key):
            lines.append(f"- {what}: {samples[key]:,}" + (f", hash `{digest}`" if digest else ""))
    for path, facts in (record.get("files") or {}).items():
        lines.append(f"- file `{Path(path).name}`: {facts['bytes']:,} bytes, SHA-256 `{facts['sha256']}`")
    return "\n".join(lines)


def training(results: Mapping[str, Any]) -> str:
    """Return command, settings that differ from the recipe's defaults, versions, and the machines."""
    config, record = results["config"], results.get("record", {})
    parts = []
    if command := results["command"]:
        parts.append(f"Command: `{without_secrets(shown_command(command))}` (paths are shown by their last part)")
    given = shown_settings(settings_without_secrets(nested(changed_settings(config))))
    differ = f"these differ from the recipe's defaults:\n\n```yaml\n{to_yaml(given)}```" if given else "all defaults."
    parts.append(f"All settings are in `{NOTE}`; {differ}")
    parts.append("Versions: " + ", ".join(f"{name} {number}" for name, number in versions().items()) + ".")
    if starts := record.get("topology"):
        parts.append("\n".join(topology(starts)))
    return "\n\n".join(parts)


def changed_settings(config: Any) -> dict[str, Any]:
    """Return the settings that differ from the recipe's defaults and say something of the model, by dotted key."""
    try:
        defaults = as_mapping(type(config)())
    except TypeError:  # a recipe whose settings have to be given
        defaults = {}
    changed = ((key, value) for key, _, value in differing(defaults, as_mapping(config)))
    return {key: value for key, value in changed if not key.startswith(OF_THE_PLACE)}


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of dotted keys as nested mappings."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        *sections, name = key.split(".")
        place = found
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return found


def topology(starts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of a table: on what each start of the run computed."""
    yield "| from step | processes | strategy | device | mixed precision | machine |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for start in starts:
        keys = ("first_step", "processes", "strategy", "device", "precision", "machine")
        yield f"| {' | '.join(str(start.get(key, '')) for key in keys)} |"


def limits(results: Mapping[str, Any]) -> str:
    """Return what was not measured, in words that follow from the run."""
    config, metrics = results["config"], results["metrics"]
    found = ["It is made for the task above, on data like its training data; nothing else was tried."]
    if metrics:
        found.append(f"Beyond the figures above nothing was measured: {', '.join(NOT_MEASURED)}.")
        found.append(f"The figures come from one run with one seed ({config.seed}); their spread is not known.")
    if metrics and results.get("rule") and (count := results.get("evaluations", 0)) > 1:
        found.append(
            f"The same data chose these weights, among {count} evaluations, which makes the figures look a little "
            "better."
        )
    if metrics and "held out" in results["summary"]:
        found.append("The evaluation samples were held out of the same source as the training samples.")
    if getattr(getattr(config, "model", None), "name", "") is None:
        found.append("The weights began as random numbers, and the model is small: it is for trying things out.")
    found.append("This card gives no license: see those of the base model and of the data.")
    found += [f"The run warned: {' '.join(str(warning).split())}" for warning in results.get("warnings", ())]
    return "\n".join(f"- {line}" for line in found)


NOT_MEASURED = ("other sources, languages or times of data", "bias", "safety", "robustness against odd input")


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


def evaluation_results(pipeline_tag: str, config: Any, results: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the metrics as the hub has them in a model index: `huggingface_hub.EvalResult`s."""
    from huggingface_hub import EvalResult

    data, dataset = getattr(config, "data", None), dataset_on_hub(config)
    conditions = {"samples": results.get("samples", {}).get("evaluate"), "after_step": results["steps"]}
    digest = (results.get("record", {}).get("data") or {}).get("evaluate")
    for metric, value in results["metrics"].items():
        if math.isfinite(value):
            yield EvalResult(
                task_type=pipeline_tag,
                dataset_type=dataset or LOCAL,
                dataset_name=data_name(config),
                dataset_config=getattr(data, "config", None) if dataset else None,
                dataset_split=getattr(data, "eval", None) if dataset else None,
                dataset_args={**conditions, **({"hash": digest} if digest else {})},
                metric_type=metric_id(metric),
                metric_name=metric,
                metric_value=round(float(value), 6),
            )


def metric_id(name: str) -> str:
    """Return what the hub calls the kind of a metric, as far as it has a name for it; a group's name stands before."""
    kind = name.rpartition("/")[2]
    if kind.endswith("f1"):
        return "f1"
    return "rouge" if kind.startswith("rouge") else kind
