"""Whether the settings fit the data and the processes, before a model is built."""

from collections.abc import Iterator

from toolkit.config.schema import Config
from toolkit.data.loader import longest_samples
from toolkit.data.micro_batches import accumulation
from toolkit.distributed.compression import unfit_for
from toolkit.distributed.runtime import Runtime
from toolkit.distributed.zero_launch import problems_with_zero
from toolkit.errors import UserError
from toolkit.task import GlobalBatchLoss, Task


def check_fit(task: Task, config: Config, runtime: Runtime) -> None:
    """Hold the configuration against the data and the processes.

    Raises:
        UserError: they do not fit.
    """
    problems = []
    size, processes = config.batch.size, runtime.data_parallel_size
    if len(task.data.train) == 0:
        problems.append("there is no training sample")
    if processes > size:
        apart = "" if runtime.strategy.together == 1 else f" in {processes} groups that see different samples"
        problems.append(
            f"{runtime.size} processes were started{apart}, but the global batch has only {size} sample(s) "
            "(batch.size); start at most that many processes or enlarge the batch"
        )
    problems += problems_of_tokens(task, config, runtime)
    problems += unfit_for(config.batch.compress, runtime.strategy, runtime.precision)
    derived = accumulation(size, processes, config.batch.samples)
    asked = runtime.launch.accumulation
    if asked is not None and (config.batch.micro == "auto" or config.batch.micro_tokens is not None):
        given = f"batch.micro {config.batch.micro}, batch.micro_tokens {config.batch.micro_tokens or 'not set'}"
        problems.append(
            f"the launch configuration sets gradient_accumulation_steps to {asked}, but with {given} their number is "
            "found by the toolkit and changes from step to step; remove it there"
        )
    elif asked not in (None, derived):
        problems.append(
            f"the launch configuration sets gradient_accumulation_steps to {asked}, but a global batch of {size} over "
            f"{processes} process(es) with batch.micro {config.batch.micro or 'not set'} takes {derived}; remove it "
            "there, the toolkit derives it"
        )
    if runtime.strategy.zero is not None:
        problems += problems_with_zero(runtime.strategy.zero, config)
    elif runtime.strategy.offloaded and config.optim.name in ("adafactor", "muon"):
        problems.append(
            f"optim.name is {config.optim.name}, which gathers whole matrices on the device, and the launch "
            "configuration offloads the weights to the host (fsdp_offload_params); set that to false, or take adamw"
        )
    if runtime.strategy.stages > 1 and isinstance(task.loss, GlobalBatchLoss):
        problems.append(
            f"batch.stages is {config.batch.stages}, and this task's loss couples all samples of a step, which a "
            "pipeline can't run; leave it out, and use fsdp2_one_node.yaml of accelerate_configs/"
        )
    if problems:
        raise UserError(*problems)


def problems_of_tokens(task: Task, config: Config, runtime: Runtime) -> Iterator[str]:
    """Yield why micro-batches can't be bounded as they are asked to be."""
    batch = config.batch
    alone = runtime.size == 1
    if batch.micro == "auto" and runtime.strategy.zero is not None:
        yield (
            "batch.micro is auto, and the launch configuration asks for DeepSpeed: a pass in which memory runs out "
            "leaves its engine in the middle of a step; give a number, or batch.micro_tokens"
        )
    elif batch.micro == "auto" and not alone and runtime.strategy.is_sharded:
        yield (
            f"batch.micro is auto, and the launch configuration asks for {runtime.strategy.description}: its processes "
            "exchange weights in each layer, so that none could try alone what fits; give a number, or "
            "batch.micro_tokens"
        )
    if batch.micro_tokens is None or len(task.data.train) == 0:
        return
    ids, lengths = longest_samples(task.data.train, 1)
    if lengths is None:
        yield (
            f"batch.micro_tokens is {batch.micro_tokens}, but the samples of this task have no length; give batch.micro"
        )
    elif lengths[0] > batch.micro_tokens:
        shorter = ", or ".join(
            f"a smaller data.{name}"
            for name in ("max_length", "max_target_length", "block")
            if getattr(getattr(config, "data", None), name, None) is not None
        )
        yield (
            f"batch.micro_tokens is {batch.micro_tokens:,}, but the longest training sample (id {ids[0]}) has "
            f"{lengths[0]:,} tokens; give --batch.micro_tokens {lengths[0]} or more"
            + (f", or {shorter}" if shorter else "")
        )
