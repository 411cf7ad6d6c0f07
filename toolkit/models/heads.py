"""How the labels of the data meet the classification head that a model may already have."""

from collections.abc import Sequence
from dataclasses import Field, replace
from typing import Any, ClassVar, Protocol, TypeVar

from toolkit.data.labels import Kind
from toolkit.data.reading import listed
from toolkit.data.texts import Split
from toolkit.errors import UserError


class Labelled(Protocol):
    """What was read: a frozen dataclass of training and evaluation rows with numbered labels, such as `Texts`."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def kind(self) -> Kind:
        """One label for each row, several, or a number."""

    @property
    def labels(self) -> list[str]:
        """The name of each label id; empty for regression."""

    @property
    def train(self) -> Split:
        """The training rows."""

    @property
    def evaluate(self) -> Split:
        """The evaluation rows."""

    @property
    def summary(self) -> dict[str, str]:
        """Lines for the plan."""


Read = TypeVar("Read", bound=Labelled)
ReadFrom = TypeVar("ReadFrom", bound=Labelled, covariant=True)


class LabelledData(Protocol[ReadFrom]):
    """The `data` section of a recipe whose rows have labels."""

    def read(self, known_labels: Sequence[str] | None = None) -> ReadFrom:
        """Read the data; `known_labels` are those of a saved model, in the order of their ids."""


def read_for_head(data: LabelledData[Read], saved: Sequence[str] | None, trained: bool) -> Read:
    """Read data with labels for a model whose head has the labels `saved`, in the order of their ids.

    Args:
        data: the `data` section of the configuration.
        saved: the model's own labels; empty for a regression head, None where there is no head with names.
        trained: the head is used as it is, because nothing is trained: then every label has to be one of `saved`.

    The plan says what becomes of the head.

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


def renumbered(split: Split, names: Sequence[str]) -> Split:
    """Return the same rows with their labels as ids of `names`."""
    return replace(split, labels=split.labels.renamed(names)) if names else split
