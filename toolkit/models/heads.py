"""Classification heads, and how the labels of the data meet the head that a model may already have."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import torch

from toolkit.config.model import ModelConfig
from toolkit.data.labelled_rows import LabelledData, LabelledRows
from toolkit.data.reading import listed
from toolkit.errors import UserError
from toolkit.models.load import SEQUENCE_CLASSIFIER, Architecture, check_architecture, load_model, model_settings
from toolkit.models.tiny import encoder


def saved_labels(config: ModelConfig, architecture: Architecture = SEQUENCE_CLASSIFIER) -> list[str] | None:
    """Return the label names of the model's head in the order of their ids, or None if it has no head that was named.

    A number stands for the label of a regression: the list is empty then.

    Raises:
        UserError: the model can't be loaded, or its kind has no such architecture.
    """
    if config.name is None:
        return None
    settings = model_settings(config)
    # Now, before data and tokenizer are read, so that their problems don't hide this one.
    check_architecture(config, settings, architecture)
    ending = architecture.auto.removeprefix("AutoModel")
    if not any(name.endswith(ending) for name in settings.architectures or []):
        return None
    if settings.problem_type == "regression":
        return []
    names = [name for _, name in sorted((settings.id2label or {}).items())]
    return None if names == [f"LABEL_{number}" for number in range(len(names))] else names


def labels_of_head(labels: Sequence[str]) -> dict[str, Any]:
    """Return the settings of a model's configuration that hold the labels of its head."""
    return {
        "num_labels": len(labels),
        "id2label": dict(enumerate(labels)),
        "label2id": {name: number for number, name in enumerate(labels)},
    }


def sequence_classifier(
    config: ModelConfig,
    labels: Sequence[str],
    kind: str,
    vocabulary: int,
    trained_head: bool = False,
    padding: int | None = None,
) -> torch.nn.Module:
    """Return an encoder with a classification head.

    Args:
        config: which one.
        labels: the label names in the order of their ids; empty for regression.
        kind: single, multi or regression.
        vocabulary: the number of tokens that the tokenizer knows.
        trained_head: the head has to come with the weights, as it does when nothing is trained.
        padding: the tokenizer's padding token, for a model that names none and reads a text by its last token.

    Raises:
        UserError: the folder or id holds no such model, no weights in a safe format, or weights of another one.
    """
    problem = {
        "single": "single_label_classification",
        "multi": "multi_label_classification",
        "regression": "regression",
    }[kind]
    own = model_settings(config) if config.name is not None else None
    known = own.problem_type if trained_head and own is not None else None
    if known not in (None, problem):
        raise UserError(
            f"{config.name} was trained for {known.replace('_', ' ')}, and the labels here are for "
            f"{problem.replace('_', ' ')}; say with --data.kind what the labels are (single, multi, regression), or "
            "name another model"
        )
    settings = {**labels_of_head(list(labels) or ["value"]), "problem_type": problem}
    if own is not None and padding is not None and own.get_text_config().pad_token_id is None:
        settings["pad_token_id"] = padding
    return load_model(
        config, SEQUENCE_CLASSIFIER, encoder, vocabulary=vocabulary, settings=settings, trained=trained_head
    )


Read = TypeVar("Read", bound=LabelledData, covariant=True)


class Reads(Protocol[Read]):
    """The `data` section of a recipe whose rows have labels."""

    def read(self, known_labels: Sequence[str] | None = None) -> Read:
        """Read the data; `known_labels` are those of a saved model, in the order of their ids."""


def read_for_head(data: Reads[Read], saved: Sequence[str] | None, trained: bool) -> Read:
    """Read data with labels for a model whose head has the labels `saved`, in the order of their ids.

    Args:
        data: the `data` section of the configuration.
        saved: the model's own labels; empty for a regression head, None where there is no head with names.
        trained: the head is used as it is, because nothing is trained: then every label has to be one of `saved`.

    A line for the plan says whether the head is kept or new.

    Raises:
        UserError: the data can't be used, or `trained` and the head is for other labels.
    """
    if trained:
        read = data.read(saved)
        if saved is not None and not saved and read.kind != "regression":
            numbers = "--data.kind regression if these labels are numbers, or " if hasattr(data, "kind") else ""
            raise UserError(
                f"the labels are {len(read.labels)} classes ({listed(read.labels)}), but the model gives a number "
                f"(regression); give {numbers}another model with --model.name"
            )
        return read
    read = data.read()
    new = f"{len(read.labels)} labels" if read.labels else "one number"
    if saved is None:
        read.summary["head"] = f"new weights, {new}"
    elif sorted(saved) == sorted(read.labels):
        read.summary["head"] = f"the model's own, {new}"
        return replace(
            read, labels=list(saved), train=renumbered(read.train, saved), evaluate=renumbered(read.evaluate, saved)
        )
    elif len(saved) != len(read.labels):
        own = f"{len(saved)} labels ({listed(saved)})" if saved else "one number"
        read.summary["head"] = f"new weights, {new}, because the model's own is for {own}"
    else:
        read.summary["head"] = f"starts from the model's own, which was trained for other labels ({listed(saved)})"
    return read


def renumbered(split: LabelledRows, names: Sequence[str]) -> LabelledRows:
    """Return the same rows with their labels as ids of `names`."""
    return replace(split, labels=split.labels.renamed(names)) if names else split
