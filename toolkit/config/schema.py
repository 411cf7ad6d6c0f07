"""What a run is: the configuration that every recipe shares.

A recipe subclasses `Config` and adds its own sections. The sentence under a field is also its `--help`. What describes
the machines (process count, precision, how a model is spread) is not here: it belongs to the launch configuration of
Accelerate, and the same fact never stands in both.
"""

from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, Literal, TypeVar, get_type_hints

from toolkit.config.trackers import tracker_names, unknown_trackers

# Far beyond any gain, and still far from what makes the OpenMP library crash.
MOST_THREADS = 1024


def execution(default: Any) -> Any:
    """Declare a field that changes the speed or the cadence of a run, but none of its numbers."""
    return field(default=default, metadata={"execution": True})


def locates(default: Any) -> Any:
    """Declare a field that says where data is found: with another value it is the same run if the data is the same."""
    return field(default=default, metadata={"locates": True})


def changes_numbers(config: Any, key: str) -> bool:
    """Return whether the setting of a dotted key decides the numbers of the run; so does one that is not known."""
    return not is_declared(config, key, "execution")


def is_declared(config: Any, key: str, what: str) -> bool:
    """Return whether a field was declared by `execution` or `locates`; the key is its own, or one in its mapping."""
    return any(entry.metadata.get(what) for name, _, entry in leaves(config) if f"{key}.".startswith(f"{name}."))


def leaves(config: Any, prefix: str = "") -> Iterator[tuple[str, Any, Field[Any]]]:
    """Yield every field that is not a section, in order: its dotted key, its type and the field."""
    hints = get_type_hints(type(config))
    for entry in fields(config):
        value = getattr(config, entry.name)
        if is_dataclass(value):
            yield from leaves(value, f"{prefix}{entry.name}.")
        else:
            yield f"{prefix}{entry.name}", hints[entry.name], entry


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
        if self.compress != "none" and self.reduce_each:
            yield (
                f"batch.compress is {self.compress}, and batch.reduce_each sends gradients after each micro-batch, of "
                "sharded models, which are not compressed; leave one of them out"
            )


@dataclass(frozen=True)
class OptimConfig:
    name: Literal["adamw", "sgd", "adafactor", "muon"] = "adamw"
    """The optimizer: adamw; sgd with momentum betas[0]; adafactor, whose rate is relative to the size of each weight;
    or muon with momentum betas[0] for the matrices of the layers (0.2 * sqrt(longer side) times the rate, so that one
    for adamw fits) and adamw for all else."""
    lr: float | None = None
    """Peak learning rate; null takes the recipe's: one for new weights, one for pre-trained ones, one for adapters."""
    layer_decay: float | None = None
    """The rate of each layer as a part of that of the layer above it: highest for the head, lowest for embeddings; null
    gives all layers the same."""
    weight_decay: float = 0.01
    """Weight decay; biases, norms and other parameters of fewer than two dimensions take none."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of the running averages of AdamW; sgd and muon take the first as their momentum."""
    eps: float = 1e-8
    """Added to the denominator of AdamW."""
    average: float | None = None
    """Keep an average of the weights after each step (EMA), in which a step counts so many times what the next one
    counts, such as 0.999; it is kept in checkpoints, and null keeps none."""
    clip: float | None = 1.0
    """Largest norm of the gradient of one step; null does not clip."""
    schedule: Literal["linear", "cosine", "constant", "wsd"] = "linear"
    """How the learning rate goes on after the warm-up: linear or cosine to the floor, constant, or wsd, which is
    constant until it falls in a line to the floor in the last steps (optim.decay)."""
    warmup: float = 0.1
    """Warm-up in optimizer steps, or, below 1, as a part of all steps."""
    decay: float | None = None
    """The fall at the end of wsd in optimizer steps, or, below 1, as a part of all steps; null means 0.2."""
    floor: float | None = None
    """The rate that linear, cosine and wsd fall to, as a part of the peak; null means zero."""
    restarts: int | None = None
    """Return to the peak so many times, at equal distances, and fall again as a cosine; null means never."""
    nonfinite: Literal["stop", "skip"] = execution("stop")
    """A gradient that is not finite never reaches the weights: stop the run there, or skip that step and count it."""

    def problems(self) -> Iterator[str]:
        if self.lr is not None and not self.lr > 0:
            yield f"optim.lr is {self.lr}; it must be greater than 0"
        if self.weight_decay < 0:
            yield f"optim.weight_decay is {self.weight_decay}; it must be 0 or greater"
        if not all(0 <= beta < 1 for beta in self.betas):
            yield f"optim.betas is {list(self.betas)}; both must be at least 0 and below 1"
        if not self.eps > 0:
            yield f"optim.eps is {self.eps}; it must be greater than 0"
        if self.clip is not None and not self.clip > 0:
            yield f"optim.clip is {self.clip}; it must be greater than 0, or null for no clipping"
        for name, steps in (("warmup", self.warmup), ("decay", self.decay)):
            if steps is not None and (steps < 0 or (steps > 1 and steps != int(steps))):
                yield f"optim.{name} is {steps}; give a whole number of steps, or a part of all steps below 1"
        if self.layer_decay is not None and not 0 < self.layer_decay <= 1:
            yield f"optim.layer_decay is {self.layer_decay}; it must be above 0 and at most 1, or null"
        if self.average is not None and not 0 < self.average < 1:
            yield f"optim.average is {self.average}; it must be above 0 and below 1, such as 0.999, or null for none"
        yield from self.schedule_problems()

    def schedule_problems(self) -> Iterator[str]:
        """Yield what is wrong with the schedule: a value, or a setting that this schedule would not look at."""
        if self.floor is not None and not 0 <= self.floor < 1:
            yield f"optim.floor is {self.floor}; it must be at least 0 and below 1, a part of optim.lr"
        yield from at_least(1, "optim.restarts", self.restarts)
        for name, value, takers in (
            ("decay", self.decay, ("wsd",)),
            ("floor", self.floor, ("linear", "cosine", "wsd")),
            ("restarts", self.restarts, ("cosine",)),
        ):
            if value is not None and self.schedule not in takers:
                yield (
                    f"optim.{name} is {value}, and optim.schedule is {self.schedule}, which has none; leave it out, or "
                    f"take the schedule {' or '.join(takers)}"
                )
        if self.schedule == "wsd" and self.warmup < 1 and self.falling < 1 < self.warmup + self.falling:
            yield (
                f"optim.warmup is {self.warmup} and optim.decay {self.falling}, together more than all steps; give "
                "smaller parts"
            )

    @property
    def falling(self) -> float:
        """The fall at the end of wsd, in steps or as a part."""
        return 0.2 if self.decay is None else self.decay

    @property
    def rate(self) -> float:
        """The peak learning rate, which is a number once a run begins (`toolkit.config.learning_rates`)."""
        assert self.lr is not None
        return self.lr


@dataclass(frozen=True)
class Rates:
    """The learning rates of a recipe where none is given, for AdamW."""

    new: float = 1e-3
    """For new weights."""
    pretrained: float = 5e-5
    """For all weights of a model that was trained before."""
    adapters: float = 2e-4
    """For adapters beside such weights."""


@dataclass(frozen=True)
class EvaluateConfig:
    every: int | None = execution(None)
    """Evaluate after every so many optimizer steps; null means at the end of each epoch. The last step is always
    evaluated."""
    patience: int | None = execution(None)
    """End the run after so many evaluations in a row that were not better than the best one (checkpoint.best); null
    takes all steps."""
    only: bool = execution(False)
    """Evaluate a saved model and do nothing else: the one in <output>/model, or the one that model.name names."""
    metrics: tuple[str, ...] | str | None = execution(None)
    """Compute these metrics alone, such as "accuracy, f1, matthews_correlation": names that fit the task (any other
    name lists them), or the path of a script of the library evaluate; null takes the recipe's own."""
    show: int = execution(20)
    """Write so many evaluation samples, with what the model makes of them, to predictions.jsonl in the run folder."""

    def problems(self) -> Iterator[str]:
        yield from at_least(0, "evaluate.show", self.show)
        yield from at_least(1, "evaluate.every", self.every)
        yield from at_least(1, "evaluate.patience", self.patience)
        names = self.metric_names
        if names is not None and (not names or not all(names)):
            yield f"evaluate.metrics is {self.metrics!r}; give names with commas between them, or leave it out"
        elif names is not None and (twice := sorted({name for name in names if names.count(name) > 1})):
            yield f"evaluate.metrics names {', '.join(twice)} more than once; name each metric once"

    @property
    def metric_names(self) -> tuple[str, ...] | None:
        """The names of the metrics that are asked for; None for the recipe's own."""
        if self.metrics is None:
            return None
        names = self.metrics.split(",") if isinstance(self.metrics, str) else self.metrics
        return tuple(name.strip() for name in names)


@dataclass(frozen=True)
class CheckpointConfig:
    every: int | None = execution(None)
    """Write a checkpoint after every so many optimizer steps; null means at the end of each epoch. The last step
    always has one."""
    keep: int = execution(2)
    """Keep so many of the newest checkpoints, and the best one besides; 0 keeps one until the run is finished, and
    then none."""
    best: str = execution("lowest loss")
    """Which evaluation is the best: lowest or highest, and the name of a metric. Its checkpoint is written and kept."""
    grace: float | None = execution(None)
    """Seconds from a request to stop to the end, even without a new checkpoint; null takes as long as a step and a
    checkpoint take."""

    def problems(self) -> Iterator[str]:
        yield from at_least(1, "checkpoint.every", self.every)
        yield from at_least(0, "checkpoint.keep", self.keep)
        direction, _, metric = self.best.partition(" ")
        if direction not in ("lowest", "highest") or not metric.strip():
            word = self.best.split()[-1] if self.best.split() else "highest"
            example = "accuracy" if word in ("lowest", "highest") else word
            way = "lowest" if example in ("loss", "perplexity") else "highest"
            yield f'checkpoint.best is {self.best!r}; give lowest or highest and a metric, such as "{way} {example}"'
        if self.grace is not None and not self.grace > 0:
            yield f"checkpoint.grace is {self.grace}; it must be greater than 0, or null for no limit"


@dataclass(frozen=True)
class TimeoutConfig:
    rendezvous: float = execution(60.0)
    """End the start when for so many seconds no process came that the others wait for: a machine was not started,
    or not reached."""
    silence: float = execution(60.0)
    """End the run when a process has given no sign of life for so many seconds: it died, or its machine froze."""
    progress: float = execution(600.0)
    """End the run when a process has stood at one place of a step for so many seconds while the others wait for it."""

    def problems(self) -> Iterator[str]:
        for name, value in (("rendezvous", self.rendezvous), ("silence", self.silence), ("progress", self.progress)):
            if not value >= 1:
                yield f"timeout.{name} is {value}; it must be 1 second or more"


@dataclass(frozen=True)
class LogConfig:
    every: int | None = execution(None)
    """Print a line after every so many optimizer steps; null means every few seconds, or a bar on a terminal."""
    peak_flops: float | None = execution(None)
    """Floating-point operations that one device (on CPU: one process) can do in a second, which MFU is a share of; null
    takes the vendor's figure, where the GPU is a known one."""

    def problems(self) -> Iterator[str]:
        yield from at_least(1, "log.every", self.every)
        if self.peak_flops is not None and not self.peak_flops > 0:
            yield f"log.peak_flops is {self.peak_flops:g}; it must be greater than 0, such as 312e12, or null"


@dataclass(frozen=True)
class TrackConfig:
    to: tuple[str, ...] | str | None = execution(None)
    """Send the curves to these trackers, separated by commas: tensorboard, trackio, mlflow, wandb, comet_ml, aim,
    clearml, dvclive, swanlab; null sends nothing to anybody."""
    project: str | None = execution(None)
    """The project there, which MLflow calls an experiment; null takes what the tracker's own environment variable
    says, or else the recipe's name."""
    run_name: str | None = execution(None)
    """What the run is called there; null takes the name of the run folder."""

    @property
    def names(self) -> tuple[str, ...]:
        """The trackers, by Accelerate's names."""
        return tracker_names(self.to)

    def problems(self) -> Iterator[str]:
        yield from unknown_trackers(self.to, "track.to")
        for key, value in (("project", self.project), ("run_name", self.run_name)):
            if value is not None and not value.strip():
                yield f"track.{key} is {value!r}; give a name, or null"
            elif value is not None and self.to is None:
                yield f"track.{key} is {value!r}, and no tracker is named; give --track.to too, or leave it out"


@dataclass(frozen=True)
class Config:
    """A run, as far as all recipes agree on what a run is."""

    rates: ClassVar[Rates] = Rates()
    """What `optim.lr` is where it is not given; a recipe may state its own."""
    batch: BatchConfig = BatchConfig()
    """How many samples a step takes and how they are cut."""
    optim: OptimConfig = OptimConfig()
    """How the weights are changed."""
    evaluate: EvaluateConfig = EvaluateConfig()
    """When the model is evaluated."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When the run is written down, so that it can be stopped and go on."""
    timeout: TimeoutConfig = TimeoutConfig()
    """How long the processes of a run wait for one that hangs or died."""
    log: LogConfig = LogConfig()
    """How often a run speaks; its ledger has every step in any case."""
    track: TrackConfig = TrackConfig()
    """Where the curves are sent besides, and under which name."""
    epochs: float | None = 3
    """Passes over the training data; give epochs or steps, not both."""
    steps: int | None = None
    """Optimizer steps; give epochs or steps, not both."""
    seed: int = 0
    """Everything random in the run is drawn from this number."""
    export: Literal["best", "last", "average"] | None = execution(None)
    """Which weights are saved in the end, with their metrics: those of the best evaluation (checkpoint.best), the last
    ones, or their average after the last step (optim.average); null takes the best where there is evaluation data, and
    averages where they are kept."""
    output: str | None = execution(None)
    """The run folder; null means runs/<recipe>."""
    resume: str = execution("auto")
    """auto goes on from the newest valid checkpoint in the run folder; strict does too, unless versions, code or
    machine have changed since; never starts from scratch and sets the folder's run aside; a path goes on from that
    checkpoint."""
    rehearse: bool = execution(True)
    """Before the first step, try what happens at the end (evaluation, metrics, export, room on the disk) on a few
    samples."""
    threads: int | None = execution(None)
    """Threads of torch in each process; null means the usable cores divided by the processes of this machine, or,
    where a GPU computes everything, what the launcher says."""

    @property
    def exports_average(self) -> bool:
        """Whether averages of the weights are evaluated and saved, and not the weights of a step themselves."""
        return self.optim.average is not None and self.export != "last"

    @property
    def exports_best(self) -> bool:
        """Whether the weights of the best evaluation are saved, where there is any, and not those after the last
        step."""
        return self.export in (None, "best")

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the values, a sentence each, from every section and from the run as a whole."""
        for entry in fields(self):
            section = getattr(self, entry.name)
            if is_dataclass(section) and hasattr(section, "problems"):
                yield from section.problems()
        if self.epochs is not None and self.steps is not None:
            yield f"epochs is {self.epochs} and steps is {self.steps}; give one of them and set the other to null"
        if self.epochs is None and self.steps is None:
            yield "neither epochs nor steps is given; give one of them"
        if self.epochs is not None and not self.epochs > 0:
            yield f"epochs is {self.epochs}; it must be greater than 0"
        yield from at_least(1, "steps", self.steps)
        if self.export == "average" and self.optim.average is None:
            yield (
                "export is average, and no average of the weights is kept (optim.average is null); give its decay, "
                "such as --optim.average 0.999, or --export last"
            )
        if self.output is not None and not self.output.strip():
            yield "output is empty; name the run folder, such as --output runs/first, or leave it out"
        if self.seed < 0:
            yield f"seed is {self.seed}; it must be 0 or greater"
        if self.threads is not None and not 1 <= self.threads <= MOST_THREADS:
            yield (
                f"threads is {self.threads}; it must be from 1 to {MOST_THREADS:,}, and more than the machine has "
                "cores only slow a run down"
            )


AnyConfig = TypeVar("AnyConfig", bound=Config)


def at_least(lowest: int, name: str, value: int | None) -> Iterator[str]:
    """Yield a problem if `value` is below `lowest`; null is not."""
    if value is not None and value < lowest:
        yield f"{name} is {value}; it must be {lowest} or greater"
