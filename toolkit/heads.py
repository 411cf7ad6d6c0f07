"""How the labels of the data meet the classification head that a model may already have."""

from collections.abc import Sequence
from dataclasses import replace

from toolkit.errors import UserError
from toolkit.labelled_texts import LabelledTexts
from toolkit.texts import Split, Texts, listed


def read_for_head(data: LabelledTexts, saved: Sequence[str] | None, trained: bool) -> Texts:
    """Read labelled texts for a model whose head has the labels `saved`, in the order of their ids.

    Args:
        data: the `data` section of the configuration.
        saved: the model's own labels; empty for a regression head, None where there is no head with names.
        trained: the head is used as it is, because nothing is trained: then every label has to be one of `saved`.

    The plan says what becomes of the head.

    Raises:
        UserError: the data can't be used, or `trained` and the head is for other labels.
    """
    if trained:
        texts = data.read(saved)
        if saved is not None and not saved and texts.kind != "regression":
            raise UserError(
                f"the labels are {len(texts.labels)} classes ({listed(texts.labels)}), but the model gives a number "
                "(regression); give --data.kind regression if these labels are numbers, or another model with --model.name"
            )
        return texts
    texts = data.read()
    new = f"{len(texts.labels)} labels" if texts.labels else "one number"
    if saved is None:
        texts.facts["head"] = f"new weights, {new}"
    elif sorted(saved) == sorted(texts.labels):
        texts.facts["head"] = f"the model's own, {new}"
        return replace(
            texts, labels=list(saved), train=renumbered(texts.train, saved), evaluate=renumbered(texts.evaluate, saved)
        )
    elif len(saved) != len(texts.labels):
        own = f"{len(saved)} labels ({listed(saved)})" if saved else "one number"
        texts.facts["head"] = f"new weights, {new}, because the model's own is for {own}"
    else:
        texts.facts["head"] = f"starts from the model's own, which was trained for other labels ({listed(saved)})"
    return texts


def renumbered(split: Split, names: Sequence[str]) -> Split:
    """Return the same rows with their labels as ids of `names`."""
    return replace(split, labels=split.labels.renamed(names)) if names else split
