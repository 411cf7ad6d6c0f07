"""What a language model is measured by: perplexity, bits per byte, the unigram model, and its best guesses."""

from collections.abc import Callable, Mapping
from math import exp, inf, log, nan
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from toolkit.losses import NOT_COUNTED
from toolkit.metrics import Scores
from toolkit.task import Quality
from toolkit.tasks.language_modeling.blocks import Blocks
from toolkit.tasks.language_modeling.models import Objective
from toolkit.tasks.language_modeling.stream import Stream

SHOWN = 24
"""Places of a block, the last ones with something to predict, whose guesses a reader sees."""
BEFORE = 240
"""Characters of the text before them."""
GUESSED = Quality(
    "share of tokens guessed right",
    lambda guessed, truth, scores: int(guessed[0]) / int(truth[0]) if int(truth[0]) else nan,
)
LARGEST = 700
"""The exponential of more than this is no number any more."""


def token_accuracy(predictions: Any, references: Any) -> Scores:
    """Return the share of tokens that are the model's best guess, given what `guesses` and `truths` return."""
    right, every = (sum(int(row[0]) for row in rows) for rows in (predictions, references))
    return {"accuracy": right / every} if every else {}


def scores_of(loss: float, units: float, size: int | None) -> Scores:
    """Return perplexity and, where the predicted text has a `size` in bytes, bits per byte.

    `loss` is the mean over `units` in nats. The bits of all tokens, those that end documents included, are divided by
    the bytes of the texts alone.
    """
    scores = {"perplexity": exp(loss) if loss < LARGEST else inf}
    if size is not None:
        scores["bits_per_byte"] = loss * units / log(2) / size
    return scores


def unigram_scores(train: Stream, evaluate: Stream, tokenizer: Any, objective: Objective) -> Scores:
    """Return the scores of a model that knows only how frequent each token is in the training data, plus one for each.

    For the masked objective they are those of all tokens that could be hidden, which is what the hidden ones have on
    average.
    """
    vocabulary = len(tokenizer)
    seen, asked = train.counts(vocabulary), evaluate.counts(vocabulary)
    if objective == "masked":
        for counts in (seen, asked):
            counts[list(tokenizer.all_special_ids)] = 0
    units = int(asked.sum())
    if not units:
        return {}
    probabilities = (seen + 1) / (seen + 1).sum()
    loss = float(-(asked * np.log(probabilities)).sum() / units)
    size = evaluate.bytes if objective == "causal" else None
    return {"loss": loss, **scores_of(loss, units, size), "accuracy": float(asked[seen.argmax()] / units)}


def guesses(best: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return of each block how many tokens are guessed right, and the guesses at the places shown: (blocks, 1 + 24).

    Args:
        best: the likeliest token at each place, int64 (blocks, tokens); where there is no label, any.
        labels: the same shape.
    """
    right = ((best == labels) & (labels != NOT_COUNTED)).sum(1, keepdim=True)
    places = places_shown(labels)
    return torch.cat([right, best.gather(1, places.clamp(min=0)).where(places >= 0, NOT_COUNTED)], 1)


def truths(labels: torch.Tensor) -> torch.Tensor:
    """Return of each block how many labels it has, the places shown, and the labels there: (blocks, 1 + 2 * 24)."""
    places = places_shown(labels)
    shown = labels.gather(1, places.clamp(min=0)).where(places >= 0, NOT_COUNTED)
    return torch.cat([(labels != NOT_COUNTED).sum(1, keepdim=True), places, shown], 1)


def places_shown(labels: torch.Tensor) -> torch.Tensor:
    """Return the last labelled places of each block, ascending, -1 before them where there are fewer: (blocks, 24)."""
    count = torch.arange(1, labels.shape[1] + 1, device=labels.device)
    last = torch.where(labels != NOT_COUNTED, count, 0).topk(min(SHOWN, labels.shape[1]), dim=1).values.flip(1) - 1
    return F.pad(last, (SHOWN - last.shape[1], 0), value=-1)


def show_guesses(blocks: Blocks, tokenizer: Any, objective: Objective) -> Callable[[int, Any, Any], Mapping[str, Any]]:
    """Return a task's `show`: a part of a text, what really stands there, and what the model takes for most likely.

    For the causal objective these are the last tokens of a block, each guessed from the true text before it. For the
    masked one a reader sees the text with every hidden token marked, and the tokens in their order.
    """

    def show(number: int, prediction: Any, reference: Any) -> dict[str, Any]:
        places, actual = (np.asarray(part) for part in np.split(np.asarray(reference)[1:], 2))
        used = places >= 0
        guessed = np.asarray(prediction)[1:][used]
        places, actual = places[used], actual[used]
        tokens = blocks.fetch([number])[0]["input_ids"]
        if objective == "causal":
            # Labels stand one place further than their inputs.
            before = tokenizer.decode(tokens[: places[0] + 1])[-BEFORE:]
            return {"text": before, "actual": tokenizer.decode(actual), "guessed": tokenizer.decode(guessed)}
        tokens[places] = tokenizer.mask_token_id
        words = [[tokenizer.decode([token]) for token in part] for part in (actual, guessed)]
        return {"text": tokenizer.decode(tokens), "actual": words[0], "guessed": words[1]}

    return show
