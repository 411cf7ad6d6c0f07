"""Which model is trained, and how: the `model` section of every recipe with a model of Hugging Face Transformers."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from toolkit.config.fields import at_least, execution

Trained = Literal["new", "pretrained", "adapters"]
Dtype = Literal["float32", "float64", "bfloat16"]

ADAPTERS = "adapter_config.json"
"""The file of `peft` that tells a folder with adapters from one with a model."""


@dataclass(frozen=True)
class LoraConfig:
    rank: int | None = None
    """Train adapters of this rank (LoRA) and leave the model's own weights alone; null trains all weights."""
    alpha: float | None = None
    """The adapters' product is scaled by alpha / rank; null means twice the rank."""
    dropout: float = 0.0
    """The probability of dropout before the adapters."""
    targets: tuple[str, ...] | None = None
    """Names of the linear layers that get adapters, such as q_proj; null means all of them but the head."""
    bits: Literal[4, 8] | None = None
    """Keep the frozen weights in so many bits (QLoRA, pip install -e '.[qlora]'); null keeps them in model.dtype."""
    merge: bool = False
    """Save the whole model with the adapters merged in, and them in its folder `adapter`; false saves them alone. A
    new head needs true."""

    def problems(self) -> Iterator[str]:
        if self.rank is None:
            if self != LoraConfig():
                yield (
                    "model.lora has settings, but no model.lora.rank, so no adapters are trained; "
                    "give a rank, such as 16"
                )
            return
        yield from at_least(1, "model.lora.rank", self.rank)
        if self.alpha is not None and not self.alpha > 0:
            yield f"model.lora.alpha is {self.alpha}; it must be greater than 0"
        if not 0 <= self.dropout < 1:
            yield f"model.lora.dropout is {self.dropout}; it must be at least 0 and below 1"
        if self.targets is not None and not self.targets:
            yield "model.lora.targets is empty; name at least one layer, or leave it out for all linear layers"
        if self.bits is not None and self.merge:
            yield (
                f"model.lora.merge can't be had with model.lora.bits {self.bits}: rounded weights are not what the "
                "adapters would be merged into; leave merge out and merge into the whole model with peft afterwards"
            )


@dataclass(frozen=True)
class ModelConfig:
    name: str | None = None
    """A local model folder or a hub id; null is the embedded model, a small transformer with new weights."""
    revision: str | None = None
    """The branch, tag or commit of a hub id."""
    dtype: Dtype = "float32"
    """How the weights are kept; mixed precision is a matter of the launch configuration."""
    dropout: float | None = None
    """The probability of every dropout layer; null keeps the model's own."""
    attention: Literal["eager", "sdpa", "flash_attention_2"] | None = None
    """The implementation of attention; null leaves the choice to Transformers."""
    checkpoint_activations: bool = execution(False)
    """Keep few activations and compute the others again in the backward pass: less memory, a third more time."""
    compile: bool = execution(False)
    """Compile the layers for training, for GPUs: two CPU cores gain nothing. Numbers stay the same within rounding;
    a C++ compiler is needed."""
    lora: LoraConfig = LoraConfig()
    """Adapters instead of all weights."""

    @property
    def trains(self) -> Trained:
        """What is trained: new weights, those of a model that was trained before, or adapters of such a model."""
        if self.name is None:
            return "new"
        has_adapters = self.lora.rank is not None or (Path(self.name) / ADAPTERS).is_file()
        return "adapters" if has_adapters else "pretrained"

    def problems(self) -> Iterator[str]:
        if self.name is not None and not self.name.strip():
            yield "model.name is empty; give a model folder or a hub id, or leave it out for the embedded model"
        if self.revision is not None and self.name is None:
            yield f"model.revision is {self.revision!r}, but the embedded model has no revisions; give model.name too"
        if self.dropout is not None and not 0 <= self.dropout < 1:
            yield f"model.dropout is {self.dropout}; it must be at least 0 and below 1"
        if self.lora.rank is not None and self.name is None:
            yield (
                f"model.lora.rank is {self.lora.rank}, but the embedded model has new weights, which adapters can't "
                "make up for; name a trained model with model.name"
            )
        if self.compile and self.checkpoint_activations:
            yield (
                "model.compile and model.checkpoint_activations are both true, and what a compiled layer keeps is not "
                "computed again; leave one of them out"
            )
        yield from self.lora.problems()
