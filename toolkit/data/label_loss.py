"""From the `loss` section of a configuration and the labels of the training data to the loss of samples with labels."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from toolkit.config.loss import LossConfig
from toolkit.data.labels import Array, Kind
from toolkit.data.reading import listed
from toolkit.errors import UserError

if TYPE_CHECKING:
    from toolkit.losses import LabelLoss

Weights = list[list[float]]
"""A row with the weights of all classes. Where a sample may have several labels, a row for each label: what counts a
sample without it, and one with it."""


def label_loss(
    config: LossConfig, kind: Kind, names: Sequence[str], counts: Array, samples: int, summary: dict[str, str]
) -> "LabelLoss":
    """Return the loss that a configuration asks for.

    Args:
        config: the `loss` section.
        kind: one label for each sample, several, or a number.
        names: the name of each label id; empty for regression.
        counts: how many training samples have each label.
        samples: the number of training samples.
        summary: gets a line on the weights for the plan.

    Raises:
        UserError: the weights are not for these labels, a class without a sample can't be balanced, or the labels are
            numbers, which have no classes.
    """
    from toolkit.losses import LabelLoss

    given = [f"loss.{name}" for name, value in vars(config).items() if value is not None]
    if kind == "regression" and given:
        raise UserError(
            f"{' and '.join(given)} {'is' if len(given) == 1 else 'are'} for labels that are classes, and these are "
            "numbers (regression); leave it out, or say what the labels are with data.kind"
        )
    weights: Weights | None = None
    if config.class_weights == "balanced":
        weights = balanced(kind, names, counts.tolist(), samples)
    elif config.class_weights is not None:
        weights = in_order(config.given_weights, kind, names)
    if weights is not None:
        # Of several labels: what counts a sample with the label.
        by_label = sorted(zip((row[-1] for row in weights) if kind == "multi" else weights[0], names, strict=True))
        (least, rarely), (most, often) = by_label[0], by_label[-1]
        summary["class weights"] = f"from {least:.4g} for {rarely!r} to {most:.4g} for {often!r}"
    return LabelLoss(kind, weights, config.label_smoothing or 0.0, config.focal or 0.0)


def balanced(kind: Kind, names: Sequence[str], counts: Sequence[int], samples: int) -> Weights:
    """Return weights by which all classes count alike: samples / (number of classes x samples of the class).

    They are those of scikit-learn's `compute_class_weight("balanced", ...)`. Where a sample may have several labels,
    each label divides the samples into two classes: those without it and those with it.

    Raises:
        UserError: a class has no training sample.
    """
    rows = [list(counts)] if kind == "single" else [[samples - count, count] for count in counts]
    absent = [name for name, count in zip(names, counts, strict=True) if not count]
    everywhere = [name for name, count in zip(names, counts, strict=True) if kind == "multi" and count == samples]
    lacking = [f"with the label {listed(absent)}"] if absent else []
    lacking += [f"without the label {listed(everywhere)}"] if everywhere else []
    if lacking:
        raise UserError(
            *(
                f"loss.class_weights is balanced, but the training data has no sample {what}; add some, or give each "
                f"label a weight of its own, such as {{{names[0]}: 1, ...}}"
                for what in lacking
            )
        )
    return [[samples / (len(row) * count) for count in row] for row in rows]


def in_order(given: Mapping[str, float], kind: Kind, names: Sequence[str]) -> Weights:
    """Return given weights in the order of the ids. Where a sample may have several labels, one without a label counts
    1 for it.

    Raises:
        UserError: a label has no weight, or a weight is for no label.
    """
    problems = []
    if unknown := [name for name in given if name not in names]:
        problems.append(f"loss.class_weights names {listed(unknown)}, and the labels are {listed(names)}")
    if missing := [name for name in names if name not in given]:
        problems.append(f"loss.class_weights gives no weight to {listed(missing)}")
    if problems:
        raise UserError("; ".join([*problems, "give each label its weight once"]))
    return [[given[name] for name in names]] if kind == "single" else [[1.0, given[name]] for name in names]
