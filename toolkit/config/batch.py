"""The `batch` section: how many samples a step takes, and how they are cut."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from toolkit.config.fields import at_least, execution


@dataclass(frozen=True)
class BatchConfig:
    size: int = 32
    """Samples of one optimizer step, over all processes (the global batch)."""
    micro: int | Literal["auto"] | None = execution(None)
    """At most so many samples run through the model at once in one process; null means no limit, and auto tries before
    the first step how many of the longest fit into memory. It changes no number."""
    balance: bool = execution(True)
    """Cut each global batch by length: little padding, and about the same work for each process. It changes no
    number."""
    pack: Literal["auto", "always", "never"] = execution("auto")
    """Compute texts end to end instead of padding them to one length: auto where the model was tried so. It changes no
    number."""
    eval: int | None = execution(None)
    """Samples that one process evaluates at once; null means batch.micro if that is set, else 64. No number changes."""
    reduce_each: bool = execution(False)
    """Sum gradients over the processes after each micro-batch, not once per step: of a sharded model they then
    never lie whole in memory, and more is sent. It changes no number."""
    micro_tokens: int | None = execution(None)
    """At most so many tokens, padding included, run through the model at once in one process; null means no limit. It
    changes no number."""
    stages: int = execution(1)
    """Divide the layers of the model among so many processes, as many as are started (a pipeline): the micro-batches of
    a step go through them one behind the other. It changes no number."""
    compress: Literal["none", "bf16", "powersgd"] = "none"
    """Send gradients in fewer bytes over slow links, with several processes: bf16 rounds what each process sends;
    powersgd sends matrices of low rank, and adds what they leave out to the next step."""
    compress_rank: int = 4
    """The rank of what powersgd sends of each matrix: higher is closer to the gradient, and more to send."""

    @property
    def evaluated(self) -> int:
        """Samples that one process evaluates at once. (What fits into memory with gradients fits without them.)"""
        return self.eval or self.samples or 64

    @property
    def samples(self) -> int | None:
        """The most samples that run at once in one process, where a number is given."""
        return None if self.micro == "auto" else self.micro

    def problems(self) -> Iterator[str]:
        yield from at_least(1, "batch.size", self.size)
        yield from at_least(1, "batch.eval", self.eval)
        yield from at_least(1, "batch.micro", self.samples)
        yield from at_least(1, "batch.micro_tokens", self.micro_tokens)
        if self.micro_tokens is not None and self.micro == "auto":
            yield (
                f"batch.micro is auto and batch.micro_tokens is {self.micro_tokens}; give one of them: auto finds the "
                "bound on tokens by itself"
            )
        if self.micro_tokens is not None and not self.balance:
            yield (
                f"batch.micro_tokens is {self.micro_tokens} and batch.balance is false: only a cut by length keeps a "
                "bound on tokens; leave batch.balance out, or give batch.micro"
            )
        if 1 <= self.size < (self.samples or 0):
            yield (
                f"batch.micro is {self.micro}, but the global batch has only {self.size} samples (batch.size); "
                "give a smaller batch.micro or leave it out"
            )
        yield from at_least(1, "batch.compress_rank", self.compress_rank)
        yield from at_least(1, "batch.stages", self.stages)
        if self.stages > 1 and self.micro == "auto":
            yield (
                f"batch.micro is auto and batch.stages is {self.stages}: each process waits for another one in each "
                "pass, so that none could try alone what fits; give a number, or batch.micro_tokens"
            )
        if self.stages > 1 and self.compress != "none":
            yield (
                f"batch.compress is {self.compress} and batch.stages is {self.stages}: a pipeline sends no gradients "
                "of weights; leave one of them out"
            )
        if self.compress != "none" and self.reduce_each:
            yield (
                f"batch.compress is {self.compress}, and batch.reduce_each sends gradients after each micro-batch, of "
                "sharded models, which are not compressed; leave one of them out"
            )
