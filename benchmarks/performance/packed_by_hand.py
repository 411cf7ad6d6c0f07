"""A training loop with samples end to end, written by hand for one model and one task at a time, to be compared with.

It knows nothing that it does not need: no processes, no accumulation, no checkpoints, no evaluation. Attention is
computed for samples of one length together; dropout is torch's own.
"""

import time
from itertools import groupby
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from toolkit.data.order import ShuffledOrder
from toolkit.distributed.runtime import Runtime
from toolkit.task import Task

RUNS: list[tuple[int, int]] = []
"""Of the batch that is computed: how many samples of which length follow each other."""


def attend(module: Any, query: Any, key: Any, value: Any, mask: Any, dropout: float = 0.0, **options: Any) -> Any:
    """Attend inside each sample."""
    sizes = [count * length for count, length in RUNS]
    groups = getattr(module, "num_key_value_groups", 1)
    causal = bool(getattr(module, "is_causal", False))
    if groups > 1:
        key, value = (t.repeat_interleave(groups, dim=1) for t in (key, value))
    parts = []
    for (count, length), q, k, v in zip(RUNS, *(t.split(sizes, dim=2) for t in (query, key, value)), strict=True):
        rows = (t[0].unflatten(1, (count, length)).transpose(0, 1) for t in (q, k, v))
        out = F.scaled_dot_product_attention(
            *rows, dropout_p=dropout, is_causal=causal and length > 1, scale=options.get("scaling")
        )
        parts.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(parts).unsqueeze(0), None


def train_by_hand(task: Task, config: Any, runtime: Runtime) -> dict[str, Any]:
    """Train and return steps and seconds; nothing is evaluated."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS["by_hand"] = attend
    torch.manual_seed(config.seed)
    model: Any = task.model(runtime).train()
    model.config._attn_implementation = "by_hand"
    source, optim, size = task.data.train, config.optim, config.batch.size
    steps = config.steps or round(config.epochs * -(-len(source) // size))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=optim.lr, betas=optim.betas, eps=optim.eps, weight_decay=optim.weight_decay, fused=True
    )
    # The samples that the toolkit takes, known beforehand.
    batches = list(ShuffledOrder(len(source), size, config.seed).global_batches(0, steps))
    clock = [time.perf_counter()]
    for step in range(steps):
        chosen = batches[step]
        chosen = chosen[np.argsort(-source.lengths(chosen), kind="stable")]
        batch = task.collate(source.fetch(chosen.tolist()))
        real = batch["attention_mask"].bool()
        lengths = real.sum(1).tolist()
        RUNS[:] = [(len(list(equal)), length) for length, equal in groupby(lengths)]
        positions = torch.cat([torch.arange(length) for length in lengths])[None]
        loss = LOSSES[type(config).__name__](model, batch["input_ids"][real][None], positions, batch, lengths)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), optim.clip)
        for group in optimizer.param_groups:
            group["lr"] = optim.lr * (1 - step / steps)
        optimizer.step()
        optimizer.zero_grad()
        clock.append(time.perf_counter())
    seconds, every = np.diff(clock).tolist(), source.lengths(np.arange(len(source)))
    tokens = [int(source.lengths(chosen).sum()) for chosen in batches]
    figures = {"seconds of steps": seconds, "tokens of steps": tokens, "tokens of a sample": float(every.mean())}
    return {"metrics": {}, "seconds": sum(seconds), "steps": steps, **figures}


def ends(lengths: list[int]) -> list[int]:
    """Return where each sample ends."""
    return np.cumsum(lengths).tolist()


def classes(model: Any, ids: Any, positions: Any, batch: Any, lengths: list[int]) -> torch.Tensor:
    """Return the loss of a classifier on BERT."""
    hidden = encoded(model.bert, ids, positions)
    first = hidden[0, [0, *ends(lengths)[:-1]]]
    pooled = model.bert.pooler.activation(model.bert.pooler.dense(first))
    return F.cross_entropy(model.classifier(model.dropout(pooled)), batch["labels"])


def tags(model: Any, ids: Any, positions: Any, batch: Any, lengths: list[int]) -> torch.Tensor:
    """Return the loss of a tagger on BERT."""
    logits = model.classifier(model.dropout(encoded(model.bert, ids, positions)))[0]
    return F.cross_entropy(logits, batch["labels"][batch["attention_mask"].bool()])


def spans(model: Any, ids: Any, positions: Any, batch: Any, lengths: list[int]) -> torch.Tensor:
    """Return the loss of a model on BERT that marks answers."""
    both = model.qa_outputs(encoded(model.bert, ids, positions))[0]
    parts = zip(both.split(lengths), batch["labels"], strict=True)
    return torch.stack([F.cross_entropy(part.T, label) for part, label in parts]).mean()


def tokens(model: Any, ids: Any, positions: Any, batch: Any, lengths: list[int]) -> torch.Tensor:
    """Return the loss of a Llama whose labels stand where the tokens do."""
    labels = F.pad(batch["labels"][:, 1:], (0, 1), value=-100)
    return next_tokens(model, ids, positions, labels[batch["attention_mask"].bool()])


def blocks(model: Any, ids: Any, positions: Any, batch: Any, lengths: list[int]) -> torch.Tensor:
    """Return the loss of a Llama whose labels are the next tokens already."""
    return next_tokens(model, ids, positions, batch["labels"][batch["attention_mask"].bool()])


def next_tokens(model: Any, ids: Any, positions: Any, labels: torch.Tensor) -> torch.Tensor:
    """Return the loss of a Llama on the tokens that carry one."""
    hidden = model.model(input_ids=ids, position_ids=positions, use_cache=False).last_hidden_state[0]
    carrying = (labels != -100).nonzero().flatten()
    return F.cross_entropy(model.lm_head(hidden[carrying]), labels[carrying])


def encoded(bert: Any, ids: Any, positions: Any) -> torch.Tensor:
    """Return the states of all tokens, without the pooler."""
    hidden = bert.embeddings(input_ids=ids, position_ids=positions)
    states: torch.Tensor = bert.encoder(hidden, attention_mask=None).last_hidden_state
    return states


LOSSES = {"Classify": classes, "Tag": tags, "Answer": spans, "Chat": tokens, "Language": blocks}
