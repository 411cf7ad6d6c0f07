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


FOR_INFERENCE = {
    "auto": "which is balanced in Transformers too, and may use the host's memory",
    "balanced_low_0": "which leaves the first GPU free for the texts that are generated",
    "sequential": "which fills one GPU with weights after another and leaves no room for their gradients",
}
"""What Transformers and Accelerate call other device maps, and why they do not suit a training."""


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
    device_map: str | None = execution(None)
    """balanced lays consecutive layers on the GPUs of the one process, of which one works at a time; null keeps the
    model on one. Where it can be had, fsdp2_one_node.yaml is faster."""
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
        if self.device_map is not None:
            yield from self.problems_of_device_map(self.device_map)
        yield from self.lora.problems()

    def problems_of_device_map(self, given: str) -> Iterator[str]:
        """Yield why layers can't be spread in this way, or beside what else is asked for."""
        said = f"model.device_map is {given!r}"
        if given in FOR_INFERENCE:
            yield f"{said}, {FOR_INFERENCE[given]}; give balanced, or leave it out"
        elif "cpu" in given or "disk" in given:
            yield (
                f"{said}, and weights that a device map leaves on the host or on a disk get no gradient; give "
                "balanced, or leave it out and use fsdp2_cpu_offload.yaml of accelerate_configs/"
            )
        elif given != "balanced":
            yield (
                f"{said}; it must be balanced, or left out: the layers are laid by their sizes on all GPUs that the "
                "process sees, which CUDA_VISIBLE_DEVICES chooses"
            )
        if self.lora.bits is not None:
            yield (
                f"model.device_map and model.lora.bits {self.lora.bits} are given, and quantised weights lie on one "
                "GPU; leave one of them out"
            )
        if self.compile:
            yield (
                "model.device_map is given and model.compile is true, and a compiled layer takes nothing from another "
                "GPU; leave one of them out"
            )
