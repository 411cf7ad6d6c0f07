"""The work of `topology.py` done by others: Transformers' `Trainer`, and the loop of Accelerate's documentation.

`strategies.py` runs that loop under DeepSpeed too.

They can only take layouts in which micro-batch x accumulation x processes is the global batch.
"""

import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import DeepSpeedPlugin, DistributedType
from topology_models import MODELS, Images, Source, collate
from topology_work import GLOBAL_BATCH, LayoutResult, all_weights, sources, work_config
from torch.utils.data import DataLoader
from transformers import EvalPrediction, Trainer, TrainingArguments, get_linear_schedule_with_warmup

SETTINGS = work_config(GLOBAL_BATCH).optim


class WithMeanLoss(torch.nn.Module):
    """The plain transformer with the interface that `Trainer` expects: labels in, mean loss out."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Return the loss averaged over the samples, and the logits."""
        logits = self.model(input_ids, attention_mask)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def build(name: str) -> torch.nn.Module:
    """Return a model with the same new weights in every process and layout."""
    torch.manual_seed(0)
    model = MODELS[name].build()
    return WithMeanLoss(model) if name == "plain transformer" else model


def is_by_token(name: str) -> bool:
    """Return whether a model learns tokens, and no classes."""
    return MODELS[name].kind in ("continuations", "answers")


def as_list(source: Source | Images) -> list[Any]:
    """Return the samples as a list, which is a data set to both."""
    return source.fetch(range(len(source)))


def run_trainer(name: str, processes: int, micro: int, epochs: int, samples: int) -> LayoutResult:
    """Train one layout with Transformers' `Trainer`."""
    training, evaluation = sources(name, samples)
    by_token = is_by_token(name)
    with TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=micro,
            per_device_eval_batch_size=micro,
            gradient_accumulation_steps=GLOBAL_BATCH // (micro * processes),
            num_train_epochs=epochs,
            learning_rate=SETTINGS.lr,
            weight_decay=SETTINGS.weight_decay,
            max_grad_norm=SETTINGS.clip or 0.0,
            warmup_steps=SETTINGS.warmup,
            lr_scheduler_type="linear",
            logging_steps=1,
            eval_strategy="epoch",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            seed=0,
            use_cpu=True,
            ddp_backend="gloo" if processes > 1 else None,
            remove_unused_columns=False,
            prediction_loss_only=by_token,
        )
        trainer = Quiet(
            build(name),
            arguments,
            data_collator=partial(collate, MODELS[name].kind),
            train_dataset=as_list(training),
            eval_dataset=as_list(evaluation),
            compute_metrics=None if by_token else share_right,
        )
        trainer.train()
        weights = all_weights(trainer.accelerator.unwrap_model(trainer.model))
        history = trainer.state.log_history
        trainer.accelerator.free_memory()
    steps = [entry for entry in history if "grad_norm" in entry]
    return LayoutResult(
        weights,
        [entry["loss"] for entry in steps],
        [entry["grad_norm"] for entry in steps],
        [
            {key: value for key, value in entry.items() if key in ("eval_loss", "eval_accuracy")}
            for entry in history
            if "eval_loss" in entry
        ],
        [],
    )


class Quiet(Trainer):
    """`Trainer` that prints nothing: its figures are read from its history, unrounded."""

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Keep the figures."""
        self.state.log_history.append({**logs, "step": self.state.global_step})


def share_right(predicted: EvalPrediction) -> dict[str, float]:
    """Return the accuracy."""
    return {"accuracy": float((np.argmax(predicted.predictions, -1) == predicted.label_ids).mean())}


def with_deepspeed(stage: int, steps: int) -> Accelerator:
    """Return an Accelerator for ZeRO, set up as its DeepSpeed guide says, for so many micro-batches a step.

    On CPU Accelerate 1.15 has to be told which process this is before it hears of DeepSpeed: else each is number 0.
    """
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed.ops

    # It would be compiled now.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    # It refuses a second plugin in a process.
    AcceleratorState._reset_state()
    state = PartialState(cpu=True)
    state._shared_state["distributed_type"] = DistributedType.DEEPSPEED
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    os.environ.pop("ACCELERATE_USE_CPU", None)
    plugin = DeepSpeedPlugin(
        zero_stage=stage,
        gradient_accumulation_steps=steps,
        gradient_clipping=SETTINGS.clip,
        zero3_init_flag=False,
        offload_optimizer_device="none",
        offload_param_device="none",
    )
    return Accelerator(deepspeed_plugin=plugin, gradient_accumulation_steps=steps, mixed_precision="no")


def run_plain_loop(
    name: str, processes: int, micro: int, epochs: int, samples: int, zero_stage: int | None = None
) -> LayoutResult:
    """Train one layout with the loop of Accelerate's gradient accumulation guide and example, under a stage of ZeRO if
    one is given."""
    training, evaluation = sources(name, samples)
    steps = GLOBAL_BATCH // (micro * processes)
    if zero_stage is None:
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=steps)
    else:
        accelerator = with_deepspeed(zero_stage, steps)
    model = build(name)
    pad = partial(collate, MODELS[name].kind)
    shuffle = torch.Generator().manual_seed(0)
    train_loader = DataLoader(as_list(training), micro, shuffle=True, generator=shuffle, collate_fn=pad)
    evaluation_loader = DataLoader(as_list(evaluation), micro, collate_fn=pad)
    optimizer = torch.optim.AdamW(
        model.parameters(), SETTINGS.lr, SETTINGS.betas, SETTINGS.eps, weight_decay=SETTINGS.weight_decay
    )
    # As in the example: counted before `prepare` cuts the loader, because a prepared scheduler steps once per process.
    total = len(train_loader) * epochs // steps
    schedule = get_linear_schedule_with_warmup(optimizer, round(SETTINGS.warmup * total), total)
    model, optimizer, train_loader, evaluation_loader, schedule = accelerator.prepare(
        model, optimizer, train_loader, evaluation_loader, schedule
    )
    losses: list[float] = []
    norms: list[float] = []
    metrics = []
    for _ in range(epochs):
        model.train()
        waiting: list[torch.Tensor] = []
        for batch in train_loader:
            with accelerator.accumulate(model):
                loss = mean_loss(model(**batch))
                waiting.append(loss.detach())
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    norms.append(float(accelerator.clip_grad_norm_(model.parameters(), SETTINGS.clip)))
                    losses.append(float(accelerator.gather(torch.stack(waiting).mean()).mean()))
                    waiting = []
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        metrics.append(evaluate_plainly(accelerator, model, evaluation_loader, by_token=is_by_token(name)))
    weights = all_weights(accelerator.unwrap_model(model))
    accelerator.free_memory()
    return LayoutResult(weights, losses, norms, metrics, [])


def mean_loss(answer: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the loss as the model averaged it."""
    return answer["loss"]


@torch.no_grad()
def evaluate_plainly(
    accelerator: Accelerator, model: torch.nn.Module, loader: DataLoader[Any], by_token: bool
) -> dict[str, float]:
    """Evaluate as the examples do: the mean of the batches' losses, and the accuracy by `gather_for_metrics`."""
    model.eval()
    losses, right, count = [], 0, 0
    for batch in loader:
        answer = model(**batch)
        losses.append(accelerator.gather(mean_loss(answer)).mean())
        if not by_token:
            decided, labels = accelerator.gather_for_metrics((answer["logits"].argmax(-1), batch["labels"]))
            right += int((decided == labels).sum())
            count += len(labels)
    loss = float(torch.stack(losses).mean())
    return {"loss": loss} if by_token else {"loss": loss, "accuracy": right / count}
