"""How a model writes its answers: the `generate` section of a recipe, and the texts themselves."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from toolkit.config.fields import at_least
from toolkit.task import Batch


@dataclass(frozen=True)
class GenerateConfig:
    beams: int = 1
    """Continuations that are followed at once (beam search); 1 takes the likeliest next token each time."""
    length_penalty: float | None = None
    """Beam search divides the log-probability of a text by its length to this power: above 0 favours long texts; null
    keeps the model's own."""
    max_length: int | None = None
    """The longest text that is generated, in tokens; null means the longest target of the training data."""

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the values, a sentence each."""
        yield from at_least(1, "generate.beams", self.beams)
        if self.max_length is not None:
            yield from at_least(1, "generate.max_length", self.max_length)
        if self.length_penalty is not None and self.beams == 1:
            yield (
                f"generate.length_penalty is {self.length_penalty}, which counts only in a beam search; give "
                "generate.beams 2 or more, or leave it out"
            )


def prepare_generation(module: Any, config: GenerateConfig, longest_target: int) -> None:
    """Write into a model's own generation settings how it generates, so that the saved model does the same by itself.

    What else is there (a first token that is forced, a least length, n-grams that are not repeated) is kept.

    Args:
        module: the model.
        config: how it is to generate.
        longest_target: the longest target of the training data, in tokens.
    """
    settings = module.generation_config
    settings.num_beams = config.beams
    if config.length_penalty is not None:
        settings.length_penalty = config.length_penalty
    settings.max_new_tokens = config.max_length or longest_target
    settings.max_length = None
    # Sampling would make every evaluation another one; what only sampling reads would be warned of.
    settings.do_sample = False
    settings.temperature = settings.top_k = settings.top_p = None
    # One text for each source, as a tensor.
    settings.num_return_sequences, settings.return_dict_in_generate = 1, False
    if config.beams == 1:
        settings.early_stopping = False
        settings.length_penalty = None


def generated_texts(model: Any, batch: Batch, tokenizer: Any) -> list[str]:
    """Return what the model writes for each source of a batch.

    Each process generates for its own batch on the module itself, without a collective: one may need more tokens than
    another. Padding is masked, so a text does not depend on its neighbours, but for rounding: where two tokens are
    equally likely to the last digits, another batch may take the other one.
    """
    with torch.no_grad():
        ids = model.generate(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], tokenizer=tokenizer)
    texts = tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return [text.strip() for text in texts]
