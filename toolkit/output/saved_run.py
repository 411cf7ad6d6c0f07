"""The settings of `--evaluate.only`: those of the saved run, and those that the command gives."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from toolkit.config.parser import Settings, parse, read
from toolkit.config.schema import AnyConfig
from toolkit.config.suggestions import show
from toolkit.config.yaml import as_mapping, flatten, read_yaml
from toolkit.errors import UserError
from toolkit.output.run_folder import begun_in, read_record

OF_TRAINING = (
    *("optim.", "checkpoint.", "epochs", "steps", "resume", "rehearse", "evaluate.every"),
    *("batch.balance", "batch.reduce_each", "batch.stages", "batch.micro_tokens"),
    *("batch.compress", "batch.compress_rank"),
    "track.",
)
"""Settings that have no meaning for an evaluation."""


def evaluation_settings(
    config_class: type[AnyConfig], description: str, arguments: Sequence[str], recipe: str
) -> AnyConfig:
    """Return the settings of a command with `--evaluate.only`.

    A run folder is named by `--output` or by `--config <run folder>/config.yaml`. If neither is given it is the
    recipe's usual one, unless another model is named. The settings of the run replace the recipe's defaults, and its
    trained model replaces the model that it began with; what the command gives wins over both.

    Returns:
        The settings, with the model to evaluate in `model.name` and the folder to write into in `output`.

    Raises:
        UserError: a setting has no meaning here, or the run has no model.
    """
    given = read(config_class, arguments)
    run, words = run_folder_of(given, recipe), list(arguments)
    if run is not None:
        rest = without_file(run / "config.yaml", arguments)
        given, words = read(config_class, rest), ["--config", str(run / "config.yaml"), *rest]
    problems = training_settings_given(given, None if run is None else flatten(read_yaml(run / "config.yaml")))
    data = {key: given.values.get(f"data.{key}") for key in ("train", "name", "eval")}
    if data["eval"] is not None and data["train"] is None and data["name"] is None and "data.train" in given.known:
        # Evaluation data alone is enough; training data is not read (`toolkit/evaluate_only.py`).
        words += ["--data.train", str(data["eval"])]
    try:
        config = parse(config_class, description, words)
    except UserError as error:
        raise UserError(*error.problems, *problems) from None
    if problems:
        raise UserError(*problems)
    if run is not None:
        record = read_record(run)
        config = with_paths_from(config, begun_in(record), given.origins)
        if "model.name" not in given.origins and hasattr(getattr(config, "model", None), "name"):
            if not (run / "model").is_dir():
                raise UserError(
                    f"the run in {run} has no saved model yet (its status is {record.get('status')}, after step "
                    f"{record.get('step', 0):,}); let it finish with the same command without --evaluate.only, or name "
                    "a model with --model.name"
                )
            config = with_model(config, run / "model")
    if "output" in given.origins:
        return config
    # Without a run folder, an evaluation is written into a folder of its own.
    return replace(config, output=str(run) if run is not None else f"runs/{recipe}-evaluation")


def run_folder_of(given: Settings, recipe: str) -> Path | None:
    """Return the run folder that a command means, None if there is none."""
    by_config = [Path(file).parent for file in given.files if Path(file).name == "config.yaml"]
    by_output = [Path(str(given.values["output"]))] if "output" in given.origins else []
    usual = [] if {"output", "model.name"} & set(given.origins) else [Path("runs") / recipe]
    return next((folder for folder in (*by_config, *by_output, *usual) if is_run(folder)), None)


def is_run(folder: Path) -> bool:
    """Return whether a folder holds a run that has begun."""
    return (folder / "config.yaml").is_file() and bool(read_record(folder))


def without_file(file: Path, arguments: Sequence[str]) -> list[str]:
    """Return the arguments without a `--config` of this file."""
    rest, words = [], list(arguments)
    while words:
        word = words.pop(0)
        if word == "--config" and words and Path(words[0]) == file:
            words.pop(0)
        elif word != f"--config={file}":
            rest.append(word)
    return rest


def training_settings_given(given: Settings, of_run: Mapping[str, Any] | None) -> list[str]:
    """Return a sentence for each setting that the command gives and that would change nothing here.

    `of_run` are the settings of the run that is evaluated, if there is one.
    """
    problems = []
    for key, origin in given.origins.items():
        if not key.startswith(OF_TRAINING):
            continue
        value = as_mapping(given.values[key])
        # A settings file may serve training and evaluation. If it is not that of the run, its settings would be lost.
        from_file = not origin.startswith("by ")
        if value == of_run.get(key) if of_run is not None else from_file:
            continue
        problems.append(
            f"{key} is {show(value)} (given {origin}), which is of the training, and --evaluate.only trains nothing; "
            "leave it out"
        )
    return problems


def with_model(config: AnyConfig, folder: Path) -> AnyConfig:
    """Return the settings with the model in a folder."""
    changed: Any = config
    revision = {"revision": None} if hasattr(changed.model, "revision") else {}
    found: AnyConfig = replace(changed, model=replace(changed.model, name=str(folder), **revision))
    return found


def with_paths_from(config: AnyConfig, folder: str | None, given: Mapping[str, str]) -> AnyConfig:
    """Return the settings of a run whose relative paths to data are found from the current folder.

    Args:
        config: the settings.
        folder: the folder in which the run was started, if it is known.
        given: the settings of this command, which are relative to the current folder already.
    """
    changed: Any = config
    data: Any = getattr(config, "data", None)
    if folder is None or data is None:
        return config
    paths: dict[str, Any] = {}
    for entry in fields(data):
        value = getattr(data, entry.name)
        if isinstance(value, dict) and entry.metadata.get("locates") and f"data.{entry.name}" not in given:
            paths[entry.name] = {name: found_from(folder, place) for name, place in value.items()}
        if not entry.metadata.get("locates") or not isinstance(value, str) or f"data.{entry.name}" in given:
            continue
        paths[entry.name] = found_from(folder, value)
    found: AnyConfig = replace(changed, data=replace(data, **paths))
    return found


def found_from(folder: str, place: str) -> str:
    """Return where a place is that was named from a folder: as it is, if it is there, or if it is not in the folder
    either."""
    path = Path(folder) / place
    return str(path) if not Path(place).exists() and path.exists() else place
