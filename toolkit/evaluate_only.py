"""`--evaluate.only`: evaluate a saved model without training, and write down which weights and data these were."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolkit.checkpoint.format import digest_of_file
from toolkit.config.schema import AnyConfig
from toolkit.distributed.preflight import digests_of_data
from toolkit.distributed.runtime import Runtime
from toolkit.errors import SharedUserError, UserError
from toolkit.evaluation import evaluate_model
from toolkit.metric_choice import with_metrics
from toolkit.output.console import Console, Display
from toolkit.output.evaluation_file import NAME, PREDICTIONS_ALONE, numbers, write_evaluation
from toolkit.output.result import Result, print_result
from toolkit.output.run_folder import explain_disk_errors, read_record
from toolkit.prepare import prepare_for_evaluation
from toolkit.rehearsal.named_places import check_named_places
from toolkit.task import Task


def evaluate_only(
    config: AnyConfig, build_task: Callable[[AnyConfig], Task], recipe: str, runtime: Runtime, console: Console
) -> Result:
    """Evaluate the model in `model.name`, and write the evaluation into the folder `output`.

    Raises:
        UserError: the model can't be loaded, or there is nothing to evaluate it on.
    """
    chosen: Any = config
    section: Any = getattr(config, "model", None)
    if not hasattr(section, "name"):
        raise SharedUserError(
            f"evaluate.only needs a recipe that can load a saved model, by a setting model.name; {recipe} has none"
        )
    if section.name is None:
        raise SharedUserError(
            f"evaluate.only finds no run in {config.output}, and no model is named; name a run folder with --output, "
            "or a model with --model.name"
        )
    of_data = without_training_data(chosen)
    has_training_data = of_data is chosen
    task = runtime.together(lambda: build(build_task, of_data, has_training_data))
    if task.data.evaluate is None:
        raise SharedUserError("evaluate.only has nothing to evaluate on: the task has no evaluation data")
    if not has_training_data:
        # A trivial model learns from training data.
        task = replace(task, baseline=None, baseline_scores=None)
    output = Path(str(config.output))
    runtime.on_main(lambda: check_writable(output))
    # Neither an optimizer nor a training batch is needed.
    model = prepare_for_evaluation(task, chosen, runtime)
    weights, data = runtime.on_main(lambda: (weights_in(chosen.model.name), data_of(chosen, task)))
    summary = {"weights": weights["told"], "data": data["told"], "samples": f"{data['samples']:,}"}
    baseline = {} if has_training_data else runtime.on_main(lambda: known_baseline(weights, data))
    if not has_training_data and not baseline:
        summary["baseline"] = "none: it is learned from training data, and the run was evaluated on other data"
    summary |= {name: text for name, text in task.summary.items() if name == "thresholds"}
    summary |= {name: text for name, text in task.data.summary.items() if name == "columns"}
    if most := getattr(getattr(chosen, "data", None), "max_rows", None):
        summary["rows"] = f"at most {most:,} of each file (data.max_rows; --data.max_rows null takes all)"
    console.summary(f"{recipe}: evaluation only", summary)
    if runtime.on_main(lambda: is_trained_on(chosen, weights)):
        console.print(
            f"  warning: {chosen.data.eval} is the file that this model was trained on: the metrics promise too much"
        )
    with Display(console) as display:
        evaluation = evaluate_model(task, chosen, runtime, model, last=True, display=display)
    assert evaluation is not None  # requests to stop are not noted here
    if not has_training_data:
        evaluation = replace(evaluation, baseline=baseline)

    def write() -> None:
        with explain_disk_errors(output):
            (output / PREDICTIONS_ALONE).unlink(missing_ok=True)
            write_evaluation(output, evaluation, weights, data, PREDICTIONS_ALONE)

    runtime.on_main(write)
    result = Result(evaluation.metrics, evaluation.baseline, 0, output, evaluation.undefined)
    print_result(result, console, places={"evaluation": NAME, "predictions": PREDICTIONS_ALONE})
    return result


def without_training_data(config: Any) -> Any:
    """Return the settings with the evaluation data in place of the training data, if they name evaluation data.

    A saved model comes with all that training data decides: labels, tokenizer, sizes. So training data may be missing.
    """
    data: Any = getattr(config, "data", None)
    if getattr(data, "eval", None) is None or not hasattr(data, "train"):
        return config
    return replace(config, data=replace(data, train=data.eval))


def build(build_task: Callable[[Any], Task], config: Any, has_training_data: bool) -> Task:
    """Build the task. Where evaluation data replaces training data, its problems are reported once, by its name."""
    try:
        check_named_places(config)
        return with_metrics(build_task(config), config)
    except UserError as error:
        if has_training_data:
            raise
        problems = [problem.replace("training data", "evaluation data") for problem in error.problems]
        problems = [problem for problem in problems if not problem.startswith("data.train is ")]
        if isinstance(getattr(config.data, "header", None), tuple | list):
            hint = "; if these names are the run's, and this file has a header of its own, give --data.header true"
            problems = [problem + (hint if "data.header has" in problem else "") for problem in problems]
        raise UserError(*dict.fromkeys(problems)) from None


def weights_in(name: str) -> dict[str, Any]:
    """Return which weights a model folder holds: of which run and step, and the digests of the files."""
    folder = Path(name)
    if not folder.is_dir():
        return {"model": name, "told": f"{name}, of the hub"}
    record = read_record(folder.parent) if folder.name == "model" else {}
    files = {path.name: digest_of_file(path) for path in sorted(folder.glob("*.safetensors"))}
    # A run that was made longer and is not finished again has an older model than its record says.
    exported = record.get("exported") or {"step": record.get("step")}
    step = exported["step"] if record.get("status") == "finished" else None
    text = f"{folder}, after step {step:,} of the run in {folder.parent}" if step is not None else str(folder)
    if record and step is None:
        text += f", which the run in {folder.parent} saved before it went on"
    return {"model": str(folder.resolve()), "step": step, "sha256": files, "told": text}


def data_of(config: Any, task: Task) -> dict[str, Any]:
    """Return which data a model is evaluated on."""
    data = getattr(config, "data", None)
    name, train, evaluate = (getattr(data, key, None) for key in ("name", "train", "eval"))
    if evaluate is not None:
        text = f"{evaluate}" + (f" of {name}" if name else "")
    elif name or train:
        text = f"the evaluation data of {name or train} (a split of it, or rows that are held out)"
    else:
        text = "the embedded evaluation data"
    assert task.data.evaluate is not None
    files = {str(path.resolve()): digest_of_file(path) for path in task.data.files if path.is_file()}
    digest = digests_of_data(task)["evaluate"]
    return {"samples": len(task.data.evaluate), "digest": digest, "sha256": files, "told": text}


def known_baseline(weights: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, float]:
    """Return the baseline of the run that trained these weights, if it was evaluated on the same data."""
    if "sha256" not in weights:
        return {}  # of the hub
    record = read_record(Path(weights["model"]).parent)
    same = (record.get("data") or {}).get("evaluate") == data["digest"]
    return numbers(record.get("baseline") or {}) if same else {}


def is_trained_on(config: Any, weights: Mapping[str, Any]) -> bool:
    """Return whether the evaluation data is the file that the model was trained on."""
    data = getattr(config, "data", None)
    train, evaluate = getattr(data, "train", None), getattr(data, "eval", None)
    if "sha256" not in weights or train is None or evaluate is None or not Path(evaluate).is_file():
        return False
    known = read_record(Path(weights["model"]).parent).get("files", {}).get(str(Path(train).resolve()), {})
    return bool(known) and known["sha256"] == digest_of_file(Path(evaluate))


def check_writable(output: Path) -> None:
    """Check before the evaluation that its files can be written.

    Raises:
        UserError: they can't.
    """
    probe = output / f"{NAME}.partial"
    try:
        output.mkdir(parents=True, exist_ok=True)
        probe.write_text("", encoding="utf-8")
        probe.unlink()
    except OSError as error:
        raise UserError(
            f"output is '{output}', where the evaluation can't be written ({error.strerror}); give another folder"
        ) from error
