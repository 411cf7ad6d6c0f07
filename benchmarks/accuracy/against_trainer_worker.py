"""One training of `against_trainer.py` or `throughput.py`: a recipe's task by the toolkit's loop, or by another one.

python benchmarks/accuracy/against_trainer_worker.py OUTPUT.json RECIPE METHOD [flags of the recipe]

METHOD is toolkit, Trainer (Transformers' own, its batches grouped by length), "Trainer, default" (its random batches),
or "by hand" (a loop written for this one purpose, samples end to end: `packed_by_hand.py`).
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "tests" / "helpers"), str(ROOT / "benchmarks" / "performance")]

from recipe_layouts import config_class, load_recipe  # noqa: E402

from toolkit.config.learning_rates import with_learning_rate  # noqa: E402
from toolkit.config.parser import parse  # noqa: E402
from toolkit.distributed.runtime import Runtime  # noqa: E402
from toolkit.distributed.start_runtime import start_runtime  # noqa: E402
from toolkit.evaluation import evaluate_model  # noqa: E402
from toolkit.loop import train  # noqa: E402
from toolkit.models.build import build_model  # noqa: E402
from toolkit.prepare import prepare  # noqa: E402
from toolkit.task import Source, Task  # noqa: E402

Figures = dict[str, Any]


def main() -> None:
    """Train, and write metrics and seconds."""
    place, name, method, *flags = sys.argv[1:]
    recipe = load_recipe(name)
    given: Any = parse(config_class(recipe), recipe.__doc__ or "", [*flags, "--output", "runs/not-written"])
    config = with_learning_rate(given)
    runtime = start_runtime(config)
    task = recipe.task(config)
    if "SKIP_EVALUATION" in os.environ:
        task = replace(task, data=replace(task.data, evaluate=None))
    match method:
        case "toolkit":
            figures = with_toolkit(task, config, runtime)
        case "by hand":
            from packed_by_hand import train_by_hand

            figures = train_by_hand(task, config, runtime)
        case _:
            figures = with_trainer(task, config, runtime, grouped="default" not in method)
    Path(place).write_text(json.dumps({**figures, "flags": flags}, indent=1), encoding="utf-8")
    runtime.close()


def with_toolkit(task: Task, config: Any, runtime: Runtime) -> Figures:
    """Train with the loop of this project; evaluation comes once, at the end."""
    never = replace(config, evaluate=replace(config.evaluate, every=10**9))
    training = prepare(task, never, runtime)
    training.output.rows = rows = []
    last = train(training)
    own = [sum(lengths_of(task.data.train, training.order.global_batch(step))) for step in range(len(rows))]
    return {"metrics": last.metrics, **timed([row.seconds for row in rows], own, task.data.train)}


def timed(seconds: list[float], tokens: list[int], source: Source) -> Figures:
    """Return what there is to say of steps that took so many seconds each, on so many tokens without padding."""
    usual = float(np.mean(lengths_of(source, np.arange(len(source)))))
    steps = {"seconds of steps": seconds, "tokens of steps": tokens, "tokens of a sample": usual}
    return {"seconds": sum(seconds), "steps": len(seconds), **steps}


def lengths_of(source: Source, ids: Any) -> list[int]:
    """Return the lengths of samples, 1 where they have none."""
    lengths = source.lengths(ids)
    return [1] * len(ids) if lengths is None else lengths.tolist()


class Samples(torch.utils.data.Dataset[Any]):
    """A source as the Trainer takes it, with what is random about a sample drawn as usual: from one generator."""

    def __init__(self, source: Source, transform: Callable[[Any, np.random.Generator], Any] | None, seed: int) -> None:
        self.source, self.transform, self.generator = source, transform, np.random.default_rng(seed)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, number: int) -> Any:
        if number >= len(self):
            raise IndexError(number)  # the sampler iterates until then
        (sample,) = self.source.fetch([number])
        own = sample if self.transform is None else self.transform(sample, self.generator)
        lengths = self.source.lengths(np.array([number]))
        # To group them the Trainer asks how many "input_ids" each has.
        length = 0 if lengths is None else int(lengths[0])
        return {"sample": own, "input_ids": range(length), "length": length or 1}


def with_trainer(task: Task, config: Any, runtime: Runtime, grouped: bool) -> Figures:
    """Train with Transformers' Trainer, its own loss and sampler; the toolkit evaluates what came out."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append(time.perf_counter())

    tokens: list[int] = []
    collate = task.collate

    def counted(samples: list[Any]) -> Any:
        tokens.append(sum(own["length"] for own in samples))
        return collate([own["sample"] for own in samples])

    trainer = trainer_of(task, config, runtime, grouped, counted)
    trainer.add_callback(Clock())
    ends = [time.perf_counter()]
    trainer.train()
    seconds = np.diff(ends).tolist()
    tokens = tokens[: len(seconds)]  # it collates a batch ahead
    last = evaluate_model(task, config, runtime, trainer.model) if task.data.evaluate is not None else None
    return {"metrics": last.metrics if last is not None else {}, **timed(seconds, tokens, task.data.train)}


def trainer_of(
    task: Task, config: Any, runtime: Runtime, grouped: bool, collate: Callable[[list[Any]], Any] | None = None
) -> Any:
    """Return Transformers' Trainer for a task, with the settings of a recipe; `collate` is given what `Samples` has."""
    collated = collate or (lambda samples: task.collate([own["sample"] for own in samples]))
    from transformers import Trainer, TrainingArguments

    model = build_model(task, config, runtime)
    source = task.data.train
    lengths = source.lengths(np.arange(len(source)))
    optim = config.optim
    arguments = TrainingArguments(
        "runs/not-written",  # nothing is saved
        per_device_train_batch_size=config.batch.size,
        # A part of an epoch is rounded by each in its own way.
        max_steps=config.steps or round(config.epochs * -(-len(source) // config.batch.size)),
        learning_rate=optim.lr,
        weight_decay=optim.weight_decay,
        adam_beta1=optim.betas[0],
        adam_beta2=optim.betas[1],
        adam_epsilon=optim.eps,
        max_grad_norm=optim.clip or 0.0,
        warmup_steps=optim.warmup,
        lr_scheduler_type=optim.schedule,
        train_sampling_strategy="group_by_length" if grouped and lengths is not None else "random",
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=config.seed,
        use_cpu=True,
        remove_unused_columns=False,
    )
    view = VIEWS[type(config).__name__]
    return Trainer(
        model,
        arguments,
        data_collator=lambda samples: view(collated(samples)),
        train_dataset=Samples(source, task.transform, config.seed),
    )


FOR_THE_MODEL = ("input_ids", "attention_mask", "token_type_ids", "pixel_values", "labels")


def as_it_is(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch whose names are those of the model, without what only the toolkit reads."""
    return {name: batch[name] for name in FOR_THE_MODEL if name in batch}


def spans(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch of questions with the two ends of each answer under the model's names for them."""
    inputs = {name: values for name, values in as_it_is(batch).items() if name != "labels"}
    return {**inputs, "start_positions": batch["labels"][:, 0], "end_positions": batch["labels"][:, 1]}


def shifted(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch of blocks, whose labels are the next tokens already."""
    return {**as_it_is(batch), "shift_labels": batch["labels"]}


VIEWS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "Classify": as_it_is,
    "Tag": as_it_is,
    "ClassifyImages": as_it_is,
    "Answer": spans,
    "Chat": as_it_is,
    "Language": shifted,
}
"""How a batch of a recipe looks to the model's own loss, which the Trainer uses; by the recipe's configuration."""


if __name__ == "__main__":
    main()
