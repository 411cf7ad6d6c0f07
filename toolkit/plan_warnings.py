"""What looks like a mistake in a plan, and at the end in a result: it is said, and the run goes on."""

import os
import re
from collections.abc import Mapping

from toolkit.config.learning_rates import trained, unusual_rate
from toolkit.distributed.runtime import usable_cores
from toolkit.schedules import warmup_steps
from toolkit.train_state import TrainState

LOWER_IS_BETTER = {
    "loss",
    "perplexity",
    "bits_per_byte",
    "rmse",
    "mse",
    "mae",
    "wer",
    "cer",
    "ter",
    "log_loss",
    "brier",
}
HIGHER_IS_BETTER = re.compile(
    r"(?:^|_)(?:accuracy|f1|precision|recall|exact_match|bleu|chrf|meteor|rouge\w*|mrr|ndcg|map|auc|triplets|pearson|"
    r"spearman|matthews\w*)(?:$|[_@])"
)
"""The names of metrics whose direction is known. Of others, a task's own or a reward, nothing is said."""


def warnings_of(state: TrainState) -> list[str]:
    """Return what looks like a mistake before the first step, a sentence each."""
    config, samples = state.config, len(state.task.data.train)
    warmup, found = warmup_steps(config.optim, state.total_steps), []
    if config.batch.size > samples:
        found.append(
            f"the global batch ({config.batch.size:,} samples, batch.size) is larger than the training data ({samples:,}), so that each "
            "step sees all of it; give a smaller one for more steps"
        )
    if warmup >= state.total_steps > 1:
        found.append(
            f"the warm-up takes {warmup:,} steps (optim.warmup) and the run {state.total_steps:,}, so that the learning rate never "
            f"reaches {config.optim.rate:g}; give a shorter warm-up, or more epochs"
        )
    if unusual := unusual_rate(config.optim.rate, trained(config), config.optim.name):
        found.append(unusual)
    cores, local = usable_cores(), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if state.task.data.workers * local > cores:
        found.append(
            f"data.workers is {state.task.data.workers}, and {local} process(es) with so many each share {cores} usable "
            f"core(s) of this machine, so that they wait for each other; give {cores // local}"
        )
    if state.runtime.device.type == "cpu" and local * state.runtime.threads > cores:
        found.append(
            f"{local} process(es) with {state.runtime.threads} thread(s) each share {cores} usable core(s) of this machine and will wait "
            f"for each other; start at most {cores}, with one thread each"
        )
    return found


def worse_than(baseline: Mapping[str, float], metrics: Mapping[str, float]) -> str | None:
    """Say in which metrics a model is worse than the trivial baseline, as far as it is known what is better."""
    worse = []
    for name, trivial in baseline.items():
        ahead = metrics.get(name, trivial) - trivial
        if ahead > 0 if name in LOWER_IS_BETTER else ahead < 0 and HIGHER_IS_BETTER.search(name):
            worse.append(f"{name} ({metrics[name]:.4f} against {trivial:.4f})")
    if not worse:
        return None
    return (
        f"the model is worse than the trivial baseline in {', '.join(worse)}; look at the loss in ledger.jsonl and at some predictions, and "
        "try another optim.lr or more epochs"
    )
