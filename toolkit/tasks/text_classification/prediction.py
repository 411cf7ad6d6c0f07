"""Classes, or numbers, for texts without labels."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from toolkit.config.model import ModelConfig
from toolkit.data.collate import fillers_of, pad
from toolkit.data.columns import PAIR_NAMES, TEXT_NAMES, plain_name
from toolkit.data.text_columns import length_limit
from toolkit.errors import UserError
from toolkit.label_metrics import HALF
from toolkit.losses import full_precision, logits_of
from toolkit.models.card import THRESHOLDS
from toolkit.models.heads import sequence_classifier
from toolkit.models.load import model_settings
from toolkit.models.tokenizer import tokenizer
from toolkit.predictor import Encoded, Predictor, Request, Row, encoded_texts, rounded
from toolkit.task import Batch

SHOWN = 10
"""Labels whose thresholds are shown."""
KINDS = {
    "single_label_classification": "single",
    "multi_label_classification": "multi",
    "regression": "regression",
}


def predictor(config: ModelConfig, request: Request) -> Predictor:
    """Return what puts the texts of a file into classes.

    Raises:
        UserError: the model can't be loaded, or it can't be told which column holds the text.
    """
    own = model_settings(config)
    labels = [name for _, name in sorted((own.id2label or {}).items())]
    kind = KINDS.get(own.problem_type or "", "single" if len(labels) > 1 else "regression")
    columns = text_columns(request)
    thresholds = thresholds_of(request, labels, kind)
    tokens = tokenizer(config, (), "")
    limit = request.setting("data", "max_length", None) or length_limit(tokens)
    model = sequence_classifier(
        config, [] if kind == "regression" else labels, kind, len(tokens), True, tokens.pad_token_id
    )
    fillers = fillers_of(tokens, "texts")
    return Predictor(
        model.eval(),
        adds(kind, request.scores),
        ("text", "text_pair"),
        partial(encoded_texts, tokens, columns, limit),
        lambda samples: pad(samples, fillers, tokens.padding_side),
        partial(probabilities, kind),
        partial(decode, kind, labels, request.scores, thresholds),
        {
            "text": " and ".join(map(repr, columns)),
            "labels": f"{len(labels)}" if kind != "regression" else "a number",
            **thresholds_line(request, thresholds),
        },
    )


def thresholds_of(request: Request, labels: Sequence[str], kind: str) -> dict[str, float]:
    """Return the probability of each label above which it is predicted: the one that is given, or those that were
    chosen when the model was trained, or one half. Empty where a text has one label.

    Raises:
        UserError: a threshold is given, and there is nothing to decide by it.
    """
    if kind != "multi":
        if request.threshold is not None:
            raise UserError(
                f"--threshold is {request.threshold}, and this model gives a text one label, or a number; leave it out"
            )
        return {}
    chosen = request.settings.get(THRESHOLDS) or {}
    return {
        label: request.threshold if request.threshold is not None else float(chosen.get(label, HALF))
        for label in labels
    }


def thresholds_line(request: Request, thresholds: Mapping[str, float]) -> dict[str, str]:
    """Return a line for the user on the thresholds, where there are any."""
    if not thresholds:
        return {}
    several = sorted(set(thresholds.values()))
    if len(several) == 1:
        return {"threshold": f"{several[0]:g} for each label"}
    shown = ", ".join(f"{label} {value:g}" for label, value in [*thresholds.items()][:SHOWN])
    more = f", ... ({len(thresholds)} in all)" if len(thresholds) > SHOWN else ""
    return {
        "thresholds": f"{shown}{more}, chosen on the evaluation data of the training (--threshold 0.5 takes others)"
    }


def text_columns(request: Request) -> list[str]:
    """Return the column with the text, or the two with a pair of texts.

    Raises:
        UserError: the file has no such column, or it can't be told which it is.
    """
    text, second = request.optional_column("text"), request.optional_column("text_pair")
    if text is None and second is not None:
        raise UserError("--column text_pair is given without a text; give --column text=COLUMN too")
    if text is not None:
        return [text] if second is None else [text, second]
    plain = {plain_name(name): name for name in request.columns}
    pair = next(([plain[one], plain[other]] for one, other in PAIR_NAMES if one in plain and other in plain), None)
    if pair is not None and "text" not in plain:
        return pair
    return [request.column("text", TEXT_NAMES)]


def adds(kind: str, scores: bool) -> dict[str, str]:
    """Return the columns of a prediction, and what is in them."""
    match kind:
        case "regression":
            return {"prediction": "number"}
        case "multi":
            return {"prediction": "texts", "scores": "scores"}
    return {"prediction": "text", "score": "number", **({"scores": "scores"} if scores else {})}


def probabilities(kind: str, model: torch.nn.Module, batch: Batch) -> list[list[float]]:
    """Return the probability of each class for each sample, or the number itself."""
    logits = full_precision(logits_of(model, batch))
    match kind:
        case "single":
            values = logits.softmax(-1)
        case "multi":
            values = logits.sigmoid()
        case _:
            values = logits
    found: list[list[float]] = values.cpu().tolist()
    return found


def decode(
    kind: str,
    labels: Sequence[str],
    scores: bool,
    thresholds: Mapping[str, float],
    rows: Sequence[Row],
    encoded: Encoded,
    found: Sequence[list[float]],
) -> Mapping[int, Mapping[str, Any]]:
    """Return label and score of each row."""
    made: dict[int, dict[str, Any]] = {}
    for place, values in zip(encoded.owners, found, strict=True):
        by_label = {name: rounded(value) for name, value in zip(labels, values, strict=True)}
        match kind:
            case "regression":
                made[place] = {"prediction": rounded(values[0])}
            case "multi":
                chosen = [name for name, value in zip(labels, values, strict=True) if value > thresholds[name]]
                made[place] = {"prediction": chosen, "scores": by_label}
            case _:
                best = max(range(len(values)), key=values.__getitem__)
                made[place] = {"prediction": labels[best], "score": rounded(values[best])}
                made[place] |= {"scores": by_label} if scores else {}
    return made
