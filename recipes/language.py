"""Train a language model further on texts: a causal one, which continues them, or a masked one, which fills in words.

    accelerate launch recipes/language.py
        the embedded corpus (docstrings of Python's standard library), a minute on two cores: about 2.2 bits per byte,
        where a model that knows only how frequent each token is has 3.1

    accelerate launch recipes/language.py --data.train texts/ --data.block 512 \\
        --model.name path/or/hub-id --epochs 1 --output runs/texts
        your own text files and model; whether it is causal or masked is found from the model

    accelerate launch --config_file accelerate_configs/cpu.yaml --num_processes 2 recipes/language.py
        the same numbers from two processes

Settings come from the defaults below, then from --config run.yaml, then from flags.
"""

from dataclasses import dataclass
from typing import Literal

from toolkit import BatchConfig, Config, Rates, Task, fine_tune
from toolkit.config.model import ModelConfig
from toolkit.losses import counted, mean_losses
from toolkit.models.export import pretrained_folder
from toolkit.models.tokenizer import tokenizer
from toolkit.tasks.language_modeling.blocks import pad_blocks
from toolkit.tasks.language_modeling.data import Documents
from toolkit.tasks.language_modeling.masks import Masking
from toolkit.tasks.language_modeling.metrics import (
    GUESSED,
    guesses,
    scores_of,
    show_guesses,
    token_accuracy,
    truths,
    unigram_scores,
)
from toolkit.tasks.language_modeling.models import embedded_tokenizer, find_objective, language_model
from toolkit.vocabulary_loss import causal_scores, laid_out, masked_scores


@dataclass(frozen=True)
class Language(Config):
    rates = Rates(new=2e-3)

    model: ModelConfig = ModelConfig()
    """Which language model is trained."""
    data: Documents = Documents()
    """Which texts it is trained on."""
    objective: Literal["auto", "causal", "masked"] = "auto"
    """Predict the next token (causal) or hidden ones (masked); auto is what the model was made for."""
    batch: BatchConfig = BatchConfig(size=8, eval=32)
    """How many blocks a step takes and how they are cut."""
    epochs: float | None = 1.2
    """Passes over the training data; give epochs or steps, not both."""


def task(config: Language) -> Task:
    objective = find_objective(config.model, config.objective)
    documents = config.data.read()
    tokens = tokenizer(
        config.model, documents.training_texts(), documents.training_digest, embedded_tokenizer(objective)
    )
    is_causal = objective == "causal"
    masking = None if is_causal else Masking(tokens, config.data.mask)
    data = documents.tokenize(tokens, objective)
    token_scores = causal_scores if is_causal else masked_scores

    return Task(
        model=lambda context: language_model(config.model, objective, len(tokens), trained=config.evaluate.only),
        data=data,
        transform=masking,
        evaluate_transform=masking,
        collate=pad_blocks(tokens),
        units=lambda batch: counted(batch["labels"]),
        loss=lambda model, batch: token_scores(model, batch).losses.sum(),
        predict=lambda model, batch: guesses(laid_out(token_scores(model, batch).guesses, batch), batch["labels"]),
        references=lambda batch: truths(batch["labels"]),
        scores=lambda model, batch: mean_losses(laid_out(token_scores(model, batch).losses, batch), batch["labels"]),
        metrics=[token_accuracy],
        named_metrics={"accuracy": token_accuracy},
        from_loss=lambda mean, units: scores_of(mean, units, data.evaluate.stream.bytes if is_causal else None),
        baseline_scores=lambda: unigram_scores(data.train.stream, data.evaluate.stream, tokens, objective),
        quality=GUESSED,
        show=show_guesses(data.evaluate, tokens, objective),
        decode=tokens.decode,
        export=pretrained_folder(tokens, None, "Language model", "text-generation" if is_causal else "fill-mask"),
        summary={"model": config.model.name or f"the embedded {objective} model, with new weights"},
    )


if __name__ == "__main__":
    fine_tune(Language, task)
