"""Evaluate a saved model and train nothing: which weights on which data, and what came of it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from toolkit.checkpoint.format import digest_of_file
from toolkit.config.schema import Config
from toolkit.distributed.preflight import digests_of_data
from toolkit.distributed.runtime import Runtime
from toolkit.errors import SharedUserError, UserError
from toolkit.evaluation import Evaluation, evaluate_model
from toolkit.evaluation_file import NAME, numbers, write_evaluation
from toolkit.output.console import Console, Display
from toolkit.output.result import Result, print_result
from toolkit.output.run_folder import read_record, told_if_refused
from toolkit.prepare import prepare_for_evaluation
from toolkit.task import Task

AnyConfig = TypeVar("AnyConfig", bound=Config)

PREDICTIONS_ALONE = "evaluation_predictions.jsonl"
"""Beside those of the training, which stay."""


def evaluate_only(
    config: AnyConfig, build_task: Callable[[AnyConfig], Task], recipe: str, runtime: Runtime, console: Console
) -> Result:
    """Evaluate the model in `model.name`, and write what came of it into the folder `output`.

    Raises:
        UserError: the model can't be had, or there is nothing to evaluate it on.
    """
    chosen: Any = config
    section: Any = getattr(config, "model", None)
    if not hasattr(section, "name"):
        raise SharedUserError(
            f"evaluate.only needs a recipe that can load a saved model, by a setting model.name; {recipe} has none"
        )
    if section.name is None:
        raise SharedUserError(
            f"evaluate.only finds no run in {config.output}, and no model is named; name a run folder with --output, or a model "
            "with --model.name"
        )
    alone = without_training_data(chosen)
    task = runtime.together(lambda: built(build_task, alone, is_alone=alone is not chosen))
    if task.data.evaluate is None:
        raise SharedUserError("evaluate.only has nothing to evaluate on: the task has no evaluation data")
    if alone is not chosen:
        # What a trivial model would predict is learned from training data.
        task = replace(task, baseline=None, baseline_scores=None)
    output = Path(str(config.output))
    runtime.on_main(lambda: check_writable(output))
    # No optimizer and no training batch: what does not fit the training is of no concern here.
    model = prepare_for_evaluation(task, chosen, runtime)
    weights, data = runtime.on_main(lambda: (weights_in(chosen.model.name), data_of(chosen, task)))
    summary = {"weights": weights["told"], "data": data["told"], "samples": f"{data['samples']:,}"}
    baseline = runtime.on_main(lambda: known_baseline(weights, data)) if alone is not chosen else {}
    if alone is not chosen and not baseline:
        summary["baseline"] = "none: it is learned from training data, and the run was evaluated on other data"
    console.summary(f"{recipe}: evaluation only", summary)
    if runtime.on_main(lambda: trained_on(chosen, weights)):
        console.print(
            f"  warning: {chosen.data.eval} is the file that this model was trained on: the metrics promise too much"
        )
    with Display(console) as display:
        evaluation = evaluate_model(task, chosen, runtime, model, last=True, display=display)
    assert evaluation is not None  # nobody listens to requests to stop here
    if alone is not chosen:
        evaluation = replace(evaluation, baseline=baseline)
    runtime.on_main(lambda: write(output, evaluation, weights, data))
    result = Result(evaluation.metrics, evaluation.baseline, 0, output)
    print_result(result, console, places={"evaluation": NAME, "predictions": PREDICTIONS_ALONE})
    return result


def without_training_data(config: Any) -> Any:
    """Return the settings with the evaluation data in place of the training data, if they name any.

    Everything that training data decides comes with a saved model: labels, tokenizer, sizes. So it need not be there any more.
    """
    data: Any = getattr(config, "data", None)
    if getattr(data, "eval", None) is None or not hasattr(data, "train"):
        return config
    return replace(config, data=replace(data, train=data.eval))


def built(build_task: Callable[[Any], Task], config: Any, is_alone: bool) -> Task:
    """Return the task; of data that stands in for training data too, each problem is told once."""
    try:
        return build_task(config)
    except UserError as error:
        if not is_alone:
            raise
        told = [text.replace("training data", "evaluation data") for text in error.problems]
        raise UserError(*dict.fromkeys(text for text in told if not text.startswith("data.train is "))) from None


def weights_in(name: str) -> dict[str, Any]:
    """Return which weights a model folder holds: of which run and step, and the digests of the files."""
    folder = Path(name)
    if not folder.is_dir():
        return {"model": name, "told": f"{name}, of the hub"}
    record = read_record(folder.parent) if folder.name == "model" else {}
    files = {path.name: digest_of_file(path) for path in sorted(folder.glob("*.safetensors"))}
    # A run that goes on for longer has saved its model when it was finished before, and its record is ahead of that.
    step = record.get("step") if record.get("status") == "finished" else None
    told = f"{folder}, after step {step:,} of the run in {folder.parent}" if step is not None else str(folder)
    if record and step is None:
        told += f", which the run in {folder.parent} saved before it went on"
    return {"model": str(folder.resolve()), "step": step, "sha256": files, "told": told}


def data_of(config: Any, task: Task) -> dict[str, Any]:
    """Return what a model is evaluated on."""
    data = getattr(config, "data", None)
    named = {key: getattr(data, key, None) for key in ("name", "train", "eval")}
    if named["eval"] is not None:
        told = f"{named['eval']}" + (f" of {named['name']}" if named["name"] else "")
    elif named["name"] or named["train"]:
        told = f"the evaluation data of {named['name'] or named['train']} (a split of it, or rows that are held out)"
    else:
        told = "the embedded evaluation data"
    assert task.data.evaluate is not None
    files = {str(path.resolve()): digest_of_file(path) for path in task.data.files if path.is_file()}
    return {
        "samples": len(task.data.evaluate),
        "digest": digests_of_data(task)["evaluate"],
        "sha256": files,
        "told": told,
    }


def known_baseline(weights: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, float]:
    """Return the baseline of the run whose weights these are, if it was evaluated on the same data."""
    if "sha256" not in weights:
        return {}  # of the hub
    record = read_record(Path(weights["model"]).parent)
    same = (record.get("data") or {}).get("evaluate") == data["digest"]
    return numbers(record.get("baseline") or {}) if same else {}


def trained_on(config: Any, weights: Mapping[str, Any]) -> bool:
    """Return whether the evaluation data is the very file that the training data of the model's run was."""
    data = getattr(config, "data", None)
    own, other = getattr(data, "train", None), getattr(data, "eval", None)
    if "sha256" not in weights or own is None or other is None or not Path(other).is_file():
        return False
    known = read_record(Path(weights["model"]).parent).get("files", {}).get(str(Path(own).resolve()), {})
    return bool(known) and known["sha256"] == digest_of_file(Path(other))


def check_writable(output: Path) -> None:
    """Try before the evaluation what is done after it.

    Raises:
        UserError: nothing can be written there.
    """
    place = output / f"{NAME}.partial"
    try:
        output.mkdir(parents=True, exist_ok=True)
        place.write_text("", encoding="utf-8")
        place.unlink()
    except OSError as error:
        raise UserError(
            f"output is '{output}', where the evaluation can't be written ({error.strerror}); give another folder"
        ) from error


def write(output: Path, evaluation: Evaluation, weights: Mapping[str, Any], data: Mapping[str, Any]) -> None:
    """Write evaluation.json and the samples for a reader."""
    with told_if_refused(output):
        (output / PREDICTIONS_ALONE).unlink(missing_ok=True)
        write_evaluation(output, evaluation, weights, data, PREDICTIONS_ALONE)
