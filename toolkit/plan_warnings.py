"""Warnings of what looks like a mistake, in the settings before the first step or in the metrics at the end."""

import os
import re
from collections.abc import Mapping

from toolkit.config.learning_rates import trained, unusual_rate
from toolkit.distributed.runtime import usable_cores
from toolkit.schedules import warmup_steps
from toolkit.train_state import Training

LOWER_IS_BETTER = {"loss", "perplexity", "bits_per_byte", "rmse", "mse", "mae"}
LOWER_IS_BETTER |= {"wer", "cer", "ter", "log_loss", "brier"}
HIGHER_IS_BETTER = re.compile(
    r"(?:^|_)(?:accuracy|f1|precision|recall|exact_match|bleu|chrf|meteor|rouge\w*|mrr|ndcg|map|auc|triplets|pearson|"
    r"spearman|matthews\w*)(?:$|[_@])"
)
"""The names of metrics whose direction is known. There is no warning of others, such as a task's own or a reward."""


def warnings_of(training: Training) -> list[str]:
    """Return what looks like a mistake before the first step, a sentence each."""
    config, data, found = training.config, training.task.data, []
    samples, warmup = len(data.train), warmup_steps(config.optim, training.total_steps)
    if config.batch.size > samples:
        found.append(
            f"the global batch ({config.batch.size:,} samples, batch.size) is larger than the training data "
            f"({samples:,}), so that each step sees all of it; give a smaller one for more steps"
        )
    if warmup >= training.total_steps > 1:
        found.append(
            f"the warm-up takes {warmup:,} steps (optim.warmup) and the run {training.total_steps:,}, so that the "
            f"learning rate never reaches {config.optim.rate:g}; give a shorter warm-up, or more epochs"
        )
    if unusual := unusual_rate(config.optim.rate, trained(config), config.optim.name):
        found.append(unusual)
    cores, local, threads = usable_cores(), int(os.environ.get("LOCAL_WORLD_SIZE", "1")), training.runtime.threads
    if data.workers * local > cores:
        found.append(
            f"data.workers is {data.workers}, and {local} process(es) with so many each share {cores} usable core(s) "
            f"of this machine, so that they wait for each other; give {cores // local}"
        )
    if training.runtime.device.type == "cpu" and local * threads > cores:
        found.append(
            f"{local} process(es) with {threads} thread(s) each share {cores} usable core(s) of this machine and will "
            f"wait for each other; start at most {cores}, with one thread each"
        )
    return found


def worse_than(baseline: Mapping[str, float], metrics: Mapping[str, float]) -> str | None:
    """Return a warning of the metrics in which a model is worse than the trivial baseline, if there are any."""
    worse = []
    for name, trivial in baseline.items():
        ahead = metrics.get(name, trivial) - trivial
        if ahead > 0 if name in LOWER_IS_BETTER else ahead < 0 and HIGHER_IS_BETTER.search(name):
            worse.append(f"{name} ({metrics[name]:.4f} against {trivial:.4f})")
    if not worse:
        return None
    return (
        f"the model is worse than the trivial baseline in {', '.join(worse)}; look at the loss in ledger.jsonl and at "
        "some predictions, and try another optim.lr or more epochs"
    )
