"""Make texts into vectors, near each other where the texts belong together: search, duplicates, clusters.

    accelerate launch recipes/embed.py
        the embedded corpus (docstrings of one package of Python's standard library belong together), a minute on two
        cores: the nearest of 686 held-out docstrings is of the same package (recall@1) for about 0.75 of them, by word
        counts (TF-IDF) for 0.64; of triplets 0.89 are in the right order, by word counts 0.61

    accelerate launch recipes/embed.py --data.train pairs.csv --data.text question --data.text_pair answer \\
        --model.name path/or/hub-id --batch.size 64 --output runs/answers
        your own pairs that belong together; with --data.score COLUMN, pairs with a score of how alike they are

    accelerate launch --config_file accelerate_configs/cpu.yaml --num_processes 2 recipes/embed.py
        the same numbers from two processes: the negatives are those of the whole global batch

Settings come from the defaults below, then from --config run.yaml, then from flags.
"""

from dataclasses import dataclass

from toolkit import Batch, Config, Rates, Task, UserError, fine_tune
from toolkit.metrics import correlation, named_number_metrics
from toolkit.models.tokenizer import tokenizer
from toolkit.task import GlobalBatchLoss
from toolkit.tasks.sentence_embedding.data import EmbeddingData
from toolkit.tasks.sentence_embedding.losses import ContrastConfig, cosine_error, in_batch_loss
from toolkit.tasks.sentence_embedding.metrics import FOUND_EARLY, named_search_metrics, search_quality
from toolkit.tasks.sentence_embedding.models import (
    EmbeddingModelConfig,
    embed,
    embedding_folder,
    embedding_model,
    pooling_of,
)
from toolkit.tasks.sentence_embedding.search import Search
from toolkit.tasks.sentence_embedding.texts import Partners, pad_sides

import torch


@dataclass(frozen=True)
class Embed(Config):
    rates = Rates(pretrained=2e-5)

    model: EmbeddingModelConfig = EmbeddingModelConfig()
    """Which encoder is trained, and how a text's vector is made of its states."""
    data: EmbeddingData = EmbeddingData(held_out=0.15)
    """Which texts it is trained on."""
    contrast: ContrastConfig = ContrastConfig()
    """How positives are told apart from the other samples of a step."""
    epochs: float | None = 2
    """Passes over the training data; give epochs or steps, not both."""


def task(config: Embed) -> Task:
    texts, pooling = config.data.read(), pooling_of(config.model)
    if texts.kind == "scores" and (unused := list(config.contrast.unused())):
        raise UserError(*unused)
    if texts.kind != "scores" and len(texts.columns) < 3 and config.batch.size < 2:
        raise UserError(
            "batch.size is 1, but the negatives of a pair are the other samples of the step; give 2 or more, better 32 "
            "or more"
        )
    tokens = tokenizer(config.model, texts.training_texts(), texts.training_digest)
    train, held_out = texts.tokenize(tokens)
    search = Search(texts)
    partners = Partners(train, texts.train.identities[:, 0]) if texts.kind == "labels" else None

    def vectors(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        return embed(model, batch, pooling)

    scored = lambda model, batch: cosine_error(vectors(model, batch), batch["scores"])  # noqa: E731
    in_batch = GlobalBatchLoss(
        embed=vectors,
        loss=lambda found, identities: in_batch_loss(
            found, identities, config.contrast.scale, config.contrast.symmetric
        ),
        extra=lambda batch: batch["identities"],
    )

    return Task(
        model=lambda runtime: embedding_model(config.model, len(tokens), only=config.evaluate.only),
        data=texts.task_data(train, held_out),
        transform=partners.of_the_others if partners else None,
        evaluate_transform=partners.of_all if partners else None,
        collate=pad_sides(tokens),
        units=lambda batch: len(batch["identities"]),
        loss=scored if texts.kind == "scores" else in_batch,
        # Of texts with labels the text itself, without its partner; of pairs both sides, without the negative.
        predict=lambda model, batch: vectors(model, batch)[:, : 1 if partners else 2],
        postprocess=search.postprocess,
        metrics=[correlation if texts.kind == "scores" else search_quality],
        named_metrics=named_number_metrics() if texts.kind == "scores" else named_search_metrics(),
        baseline_scores=search.baseline,
        quality=None if texts.kind == "scores" else FOUND_EARLY,
        show=search.show,
        decode=tokens.decode,
        export=embedding_folder(tokens, config.data.resolved_max_length, pooling),
        summary={"model": config.model.name or "the embedded encoder, with new weights", "pooling": pooling},
    )


if __name__ == "__main__":
    fine_tune(Embed, task)
