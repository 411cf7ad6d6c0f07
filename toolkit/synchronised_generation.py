"""Generating texts with a model whose weights are sharded: every process has to take part in every forward pass.

Each process may have other texts to write, of other lengths, or none. So before each call of `generate` the processes agree
that one of them has something to write, and whoever has nothing writes a token that nobody reads.
"""

from typing import Any

from toolkit.distributed.runtime import Runtime


class SynchronisedGeneration:
    """Stands for the `generate` of a sharded model, while one batch is evaluated."""

    def __init__(self, runtime: Runtime, module: Any) -> None:
        self.runtime = runtime
        self.module = module

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Generate as the module does, together with all other processes, until the last of them is done."""
        self.runtime.any_of(True)
        return self.module.generate(*args, **kwargs, synced_gpus=True)

    def keep_up(self, ids: Any) -> None:
        """Take part in what the others still generate; `ids` are token ids of any text, shape (rows, tokens)."""
        while self.runtime.any_of(False):
            self.module.generate(
                input_ids=ids[:1, :1], max_new_tokens=1, num_beams=1, do_sample=False, synced_gpus=True
            )
