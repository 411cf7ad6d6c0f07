"""Tag words: entities in a text (persons, places, products), parts of speech, or any class for each word.

    accelerate launch recipes/tag.py
        the embedded corpus (what is each token of a line of Python: a keyword, a parameter, an attribute, ...?), a
        minute on two cores: accuracy about 0.99 and macro F1 0.97, where the most frequent tag alone has 0.48 and 0.05

    accelerate launch recipes/tag.py --data.train train.conll --data.eval dev.conll \\
        --model.name path/or/hub-id --output runs/entities
        your own sentences and encoder: CoNLL files, or tables with the columns tokens and tags

    accelerate launch --config_file accelerate_configs/cpu.yaml --num_processes 2 recipes/tag.py
        the same numbers from two processes

Settings come from the defaults below, then from --config run.yaml, then from flags.
"""

from dataclasses import dataclass, replace
from functools import partial

from toolkit import Batch, Config, Task, fine_tune
from toolkit.config.loss import LossConfig
from toolkit.config.model import ModelConfig
from toolkit.details import RIGHT_WORDS
from toolkit.losses import NOT_COUNTED, logits_of
from toolkit.models.export import pretrained_folder
from toolkit.models.heads import labels_of_head, saved_labels
from toolkit.models.load import TOKEN_CLASSIFIER, load_model
from toolkit.models.tiny import encoder
from toolkit.models.tokenizer import ENCODER, tokenizer
from toolkit.tasks.token_classification.data import TaggedTexts
from toolkit.tasks.token_classification.details import tag_details
from toolkit.tasks.token_classification.metrics import named_tag_metrics, tag_metrics
from toolkit.tasks.token_classification.windows import pad_words, prepare_for_words

import torch


@dataclass(frozen=True)
class Tag(Config):
    model: ModelConfig = ModelConfig()
    """Which encoder is trained."""
    data: TaggedTexts = TaggedTexts()
    """Which sentences and tags it is trained on."""
    loss: LossConfig = LossConfig()
    """How much which word counts; a word's label stands at its first token."""
    epochs: float | None = 2
    """Passes over the training data; give epochs or steps, not both."""


def predict(model: torch.nn.Module, batch: Batch) -> list[list[list[float]]]:
    """Return for each window, of the words that belong to it, the tags and how probable each is: (2, words)."""
    logits = logits_of(model, batch)
    tags = logits.argmax(-1, keepdim=True)
    sure = logits.softmax(-1).gather(-1, tags)
    found, labelled = torch.cat([tags.to(sure.dtype), sure], -1).mT.cpu(), batch["labels"].cpu() != NOT_COUNTED
    return [row[:, where].tolist() for row, where in zip(found, labelled, strict=True)]


def task(config: Tag) -> Task:
    only = config.evaluate.only
    sentences = config.data.read(saved_labels(config.model, TOKEN_CLASSIFIER), trained=only)
    loss = sentences.loss(config.loss)
    embedded = replace(ENCODER, prefix_space=True)
    tokens = prepare_for_words(tokenizer(config.model, sentences.training_texts(), sentences.training_digest, embedded))
    data = sentences.tokenize(tokens)
    return Task(
        model=lambda context: load_model(
            config.model,
            TOKEN_CLASSIFIER,
            encoder,
            vocabulary=len(tokens),
            settings=labels_of_head(sentences.labels),
            trained=only,
        ),
        data=data,
        collate=pad_words(tokens),
        units=loss.units,
        loss=lambda model, batch: loss(logits_of(model, batch), batch),
        predict=predict,
        postprocess=partial(sentences.postprocess, data.evaluate),
        metrics=tag_metrics(sentences.kind),
        named_metrics=named_tag_metrics(sentences.kind, sentences.labels),
        details=tag_details(sentences.kind),
        quality=RIGHT_WORDS,
        show=sentences.show,
        decode=tokens.decode,
        export=pretrained_folder(
            tokens,
            None,
            "Token classification",
            "token-classification",
            known={"commonest_tag": sentences.commonest},
        ),
        summary={"model": config.model.name or "the embedded encoder, with new weights"},
    )


if __name__ == "__main__":
    fine_tune(Tag, task)
