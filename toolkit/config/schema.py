"""What a run is: the configuration that every recipe shares.

A recipe subclasses `Config` and adds its own sections. The sentence under a field is also its `--help`. What describes
the machines (process count, precision, how a model is spread) is not here: it belongs to the launch configuration of
Accelerate, and the same fact never stands in both.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import ClassVar, Literal, TypeVar

from toolkit.config.batch import BatchConfig
from toolkit.config.fields import at_least, execution
from toolkit.config.optim import OptimConfig, Rates
from toolkit.config.trackers import TrackConfig

# Far beyond any gain, and still far from what makes the OpenMP library crash.
MOST_THREADS = 1024


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
