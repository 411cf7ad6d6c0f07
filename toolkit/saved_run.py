"""Which settings an evaluation has: those of the run whose model is evaluated, and what the command says otherwise."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from toolkit.checkpoint.resume import begun_in
from toolkit.config.parser import Settings, parse, read
from toolkit.config.schema import Config
from toolkit.config.suggestions import show
from toolkit.config.yaml import as_mapping, flatten, read_yaml
from toolkit.errors import UserError
from toolkit.output.run_folder import read_record

AnyConfig = TypeVar("AnyConfig", bound=Config)

OF_TRAINING = (
    *("optim.", "checkpoint.", "epochs", "steps", "resume", "rehearse", "evaluate.every"),
    *("batch.balance", "batch.reduce_each"),
)
"""Settings that say nothing of an evaluation."""


def evaluation_settings(
    config_class: type[AnyConfig], description: str, arguments: Sequence[str], recipe: str
) -> AnyConfig:
    """Return the settings of a command with `--evaluate.only`.

    A run folder is named by `--output` or by `--config <run folder>/config.yaml`; without either it is the recipe's usual one,
    unless another model is named. Its settings stand in place of the recipe's defaults, and its trained model in place of the
    one that it began with; what the command gives wins over both.

    Returns:
        The settings, with the model to evaluate in `model.name` and the folder to write into in `output`.

    Raises:
        UserError: a setting has no meaning here, or the run has no model.
    """
    given = read(config_class, arguments)
    run, words = run_of(given, recipe), list(arguments)
    if run is not None:
        rest = without(run / "config.yaml", arguments)
        given, words = read(config_class, rest), ["--config", str(run / "config.yaml"), *rest]
    problems = refused(given, None if run is None else flatten(read_yaml(run / "config.yaml")))
    data = {key: given.values.get(f"data.{key}") for key in ("train", "name", "eval")}
    if data["eval"] is not None and data["train"] is None and data["name"] is None and "data.train" in given.known:
        # Data to evaluate on is enough here; what is trained on is not read (`toolkit/evaluate_only.py`).
        words += ["--data.train", str(data["eval"])]
    try:
        config, origins = parse(config_class, description, words), given.origins
    except UserError as error:
        raise UserError(*error.problems, *problems) from None
    if problems:
        raise UserError(*problems)
    if run is not None:
        config = found_from(config, begun_in(read_record(run)), origins)
    if run is not None and "model.name" not in origins and hasattr(getattr(config, "model", None), "name"):
        saved = run / "model"
        if not saved.is_dir():
            record = read_record(run)
            raise UserError(
                f"the run in {run} has no saved model yet (its status is {record.get('status')}, after step {record.get('step', 0):,}); "
                "let it finish with the same command without --evaluate.only, or name a model with --model.name"
            )
        config = with_model(config, str(saved))
    if "output" in origins:
        return config
    # Without a run to write it beside, an evaluation has a folder of its own.
    return replace(config, output=str(run) if run is not None else f"runs/{recipe}-evaluation")


def run_of(given: Settings, recipe: str) -> Path | None:
    """Return the run folder that a command means, if it means one."""
    beside = [Path(file).parent for file in given.files if Path(file).name == "config.yaml"]
    named = [Path(str(given.values["output"]))] if "output" in given.origins else []
    usual = [] if {"output", "model.name"} & set(given.origins) else [Path("runs") / recipe]
    return next((place for place in (*beside, *named, *usual) if is_run(place)), None)


def is_run(folder: Path) -> bool:
    """Return whether a folder holds a run that has begun."""
    return (folder / "config.yaml").is_file() and bool(read_record(folder))


def without(file: Path, arguments: Sequence[str]) -> list[str]:
    """Return the arguments without this file of settings, which comes first."""
    rest, words = [], list(arguments)
    while words:
        word = words.pop(0)
        if word == "--config" and words and Path(words[0]) == file:
            words.pop(0)
        elif word != f"--config={file}":
            rest.append(word)
    return rest


def refused(given: Settings, own: Mapping[str, Any] | None) -> list[str]:
    """Return a sentence for each setting that the command gives and that would change nothing here.

    `own` are the settings of the run that is evaluated, if there is one.
    """
    problems = []
    for key, origin in given.origins.items():
        if not key.startswith(OF_TRAINING):
            continue
        value = as_mapping(given.values[key])
        # A file may serve training and evaluation; but of another run than this one its settings would be lost.
        from_flag = origin.startswith("by ")
        if value == own.get(key) if own is not None else not from_flag:
            continue
        problems.append(
            f"{key} is {show(value)} (given {origin}), which is of the training, and --evaluate.only trains nothing; leave it out"
        )
    return problems


def with_model(config: AnyConfig, folder: str) -> AnyConfig:
    """Return the settings with the model in a folder."""
    changed: Any = config
    section: Any = changed.model
    revision = {"revision": None} if hasattr(section, "revision") else {}
    found: AnyConfig = replace(changed, model=replace(section, name=folder, **revision))
    return found


def found_from(config: AnyConfig, folder: str | None, given: Mapping[str, str]) -> AnyConfig:
    """Return the settings of a run with its relative paths to data as they are found from here.

    Args:
        config: the settings.
        folder: the folder in which the run was begun, if it is known.
        given: the settings of this command, which are found from its own folder.
    """
    changed: Any = config
    data: Any = getattr(config, "data", None)
    if folder is None or data is None:
        return config
    changes = {}
    for entry in fields(data):
        value = getattr(data, entry.name)
        if not entry.metadata.get("locates") or not isinstance(value, str) or f"data.{entry.name}" in given:
            continue
        place = Path(folder) / value
        if not Path(value).exists() and place.exists():
            changes[entry.name] = str(place)
    found: AnyConfig = replace(changed, data=replace(data, **changes))
    return found
