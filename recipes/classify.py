"""Put texts into classes: topics, intents, sentiment, pairs of texts, several labels for a text, or a number.

    accelerate launch recipes/classify.py
        the embedded corpus (which package of Python's standard library is this docstring from?), a minute on two
        cores: accuracy about 0.84, where the most frequent package alone has 0.14

    accelerate launch recipes/classify.py --data.train reviews.csv --data.text review --data.label stars \\
        --model.name path/or/hub-id --output runs/reviews
        your own table and encoder

    accelerate launch --config_file accelerate_configs/cpu.yaml --num_processes 2 recipes/classify.py
        the same numbers from two processes

Settings come from the defaults below, then from --config run.yaml, then from flags.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from toolkit import Config, Task, fine_tune
from toolkit.config.loss import LossConfig
from toolkit.config.model import ModelConfig
from toolkit.details import CLOSE, RIGHT_LABELS, Details, class_details, label_details, number_details, right_class
from toolkit.label_metrics import Thresholds
from toolkit.losses import class_probabilities, logits_of
from toolkit.metrics import class_metrics, correlation, multilabel_f1, positive_class, regression_errors
from toolkit.models.export import pretrained_folder, saved_thresholds
from toolkit.models.heads import read_for_head, saved_labels, sequence_classifier
from toolkit.models.tokenizer import tokenizer
from toolkit.task import Metric, Quality
from toolkit.tasks.text_classification.data import LabelledTexts
from toolkit.tasks.text_classification.metrics import named_metrics, probabilities_of
from toolkit.tasks.text_classification.texts import pad_texts

import torch


@dataclass(frozen=True)
class Classify(Config):
    model: ModelConfig = ModelConfig()
    """Which encoder is trained."""
    data: LabelledTexts = LabelledTexts(held_out=0.15)
    """Which texts and labels it is trained on."""
    loss: LossConfig = LossConfig()
    """How much which sample counts."""
    epochs: float | None = 3
    """Passes over the training data; give epochs or steps, not both."""


@dataclass(frozen=True)
class Kind:
    """What differs between one label for a text, several labels, and a number."""

    decide: Callable[[torch.Tensor], torch.Tensor]
    metrics: Callable[[list[str]], list[Metric]]
    details: Callable[[list[str]], Details]
    quality: Callable[[list[str]], Quality]
    scores: Callable[[list[str], torch.Tensor], list[dict[str, float]]] | None = None


KINDS = {
    "single": Kind(lambda logits: logits.argmax(-1), class_metrics, class_details, right_class, class_probabilities),
    "multi": Kind(
        lambda logits: (logits > 0).long(),
        lambda labels: [multilabel_f1],
        label_details,
        lambda labels: RIGHT_LABELS,
        partial(class_probabilities, several=True),
    ),
    "regression": Kind(
        lambda logits: logits.squeeze(-1),
        lambda labels: [regression_errors, correlation],
        lambda labels: number_details,
        lambda labels: CLOSE,
    ),
}


def task(config: Classify) -> Task:
    only = config.evaluate.only
    texts = read_for_head(config.data, saved_labels(config.model), trained=only)
    kind, loss = KINDS[texts.kind], texts.loss(config.loss)
    tokens = tokenizer(config.model, texts.training_texts(), texts.training_digest)
    saved = saved_thresholds(config.model) if only else None
    thresholds = Thresholds(texts.labels, saved) if texts.kind == "multi" else None

    return Task(
        model=lambda runtime: sequence_classifier(
            config.model, texts.labels, texts.kind, len(tokens), trained_head=only, padding=tokens.pad_token_id
        ),
        data=texts.task_data(*texts.tokenize(tokens)),
        collate=pad_texts(tokens, texts.kind),
        units=loss.units,
        loss=lambda model, batch: loss(logits_of(model, batch), batch),
        predict=lambda model, batch: kind.decide(logits_of(model, batch)),
        references=lambda batch: batch["labels"].long() if texts.kind == "multi" else batch["labels"],
        scores=kind.scores and (lambda model, batch: kind.scores(texts.labels, logits_of(model, batch))),
        metrics=kind.metrics(texts.labels),
        named_metrics=named_metrics(texts.kind, texts.labels),
        probabilities=probabilities_of(texts.kind),
        tuned=thresholds,
        baseline=texts.baseline,
        details=kind.details(texts.labels),
        quality=kind.quality(texts.labels),
        show=texts.show,
        decode=tokens.decode,
        export=pretrained_folder(tokens, config.data.resolved_max_length, "Text classification", "text-classification"),
        summary={
            "model": config.model.name or "the embedded encoder, with new weights",
            **(positive_class(texts.labels) if texts.kind == "single" else {}),
            **(thresholds.summary if thresholds else {}),
        },
    )


if __name__ == "__main__":
    fine_tune(Classify, task)
