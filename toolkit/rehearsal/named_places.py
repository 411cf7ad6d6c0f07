"""Whether the data and the model that the settings name are there, told together before either is read."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolkit.config.model import ModelConfig
from toolkit.data.config import DataConfig
from toolkit.data.missing import is_there, looks_like_a_path, no_such_place
from toolkit.errors import UserError
from toolkit.models.errors import misplaced, no_such_model
from toolkit.models.load import model_settings


def check_named_places(config: Any) -> None:
    """Look where the settings name data and a model. Nothing is read where all is there.

    Raises:
        UserError: with everything that is missing.
    """
    data, model = getattr(config, "data", None), getattr(config, "model", None)
    problems = list(missing_places(data)) if isinstance(data, DataConfig) else []
    if isinstance(model, ModelConfig) and model.name is not None:
        problems += problems_of_model(model, ask=bool(problems))
    if problems:
        raise UserError(*problems)


def missing_places(data: DataConfig) -> Iterator[str]:
    """Yield which files and folders of data are named and not there, as far as that is known without reading any."""
    if data.name is not None:
        if looks_like_a_path(data.name) and not is_there(data.name):
            yield no_such_place("data.name", data.name)
        return
    for field, given in (("data.train", data.train), ("data.eval", data.eval)):
        if given and not is_there(given):
            yield no_such_place(field, given)
    for name, given in (data.eval_sets or {}).items():
        if given and not is_there(given):
            yield no_such_place("data.eval", given).replace("data.eval is ", f"data.eval_sets {name} is ")


def problems_of_model(config: ModelConfig, ask: bool) -> list[str]:
    """Return what is wrong with a model's name; `ask` for its configuration too, which may take a question to the
    hub."""
    folder = Path(str(config.name))
    hint = misplaced(folder) or (None if folder.is_dir() else no_such_model(str(config.name)))
    if hint is not None or not ask:
        return [] if hint is None else [hint]
    try:
        model_settings(config)
    except UserError as error:
        return list(error.problems)
    return []
