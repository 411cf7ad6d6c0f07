"""The `track` section: the trackers that the curves of a run can be sent to, and how each one is installed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from toolkit.config.fields import execution

TRACKERS = {
    "tensorboard": "pip install -e '.[tensorboard]'",
    "trackio": "pip install -e '.[trackio]'",
    "mlflow": "pip install -e '.[mlflow]'",
    "wandb": "pip install -e '.[wandb]'",
    "comet_ml": "pip install comet_ml",
    "aim": "pip install aim",
    "clearml": "pip install clearml",
    "dvclive": "pip install dvclive",
    "swanlab": "pip install swanlab",
}
"""All that Accelerate has a class for, by its name there (which is the module's too), and the command that installs
it."""
OTHER_NAMES = {"comet": "comet_ml", "tb": "tensorboard", "w&b": "wandb", "weights and biases": "wandb"}


def tracker_names(given: Sequence[str] | str | None) -> tuple[str, ...]:
    """Return the trackers that a list or a text names, each once, in the order in which they are given."""
    entries = given.split(",") if isinstance(given, str) else given or ()
    names = (entry.strip().lower() for entry in entries)
    return tuple(dict.fromkeys(OTHER_NAMES.get(name, name).replace("-", "_") for name in names if name))


def unknown_trackers(given: Sequence[str] | str | None, setting: str) -> Iterator[str]:
    """Yield a sentence for each name that is no tracker; `setting` is what the user gave it by."""
    names = tracker_names(given)
    if given is not None and not names:
        yield f"{setting} names no tracker; give one or several of {', '.join(TRACKERS)}, separated by commas"
    for name in names:
        if name not in TRACKERS:
            near = get_close_matches(name, TRACKERS, 1)
            hint = f"did you mean {near[0]}?" if near else f"give one or several of {', '.join(TRACKERS)}"
            yield f"{setting} is {', '.join(names)}, and there is no tracker {name}; {hint}"


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
