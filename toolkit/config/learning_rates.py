"""Which learning rate a run has where none is given, and which rates are usual."""

from dataclasses import replace

from toolkit.config.model import ModelConfig, Trained
from toolkit.config.schema import AnyConfig, Config

IN_WORDS: dict[Trained, str] = {"new": "new weights", "pretrained": "pre-trained weights", "adapters": "adapters"}
Range = tuple[float, float]
OF_ADAMW: dict[Trained, Range] = {"new": (1e-5, 0.1), "pretrained": (1e-7, 5e-4), "adapters": (1e-6, 1e-2)}
USUAL: dict[str, dict[Trained, Range]] = {
    "adamw": OF_ADAMW,
    "sgd": {"new": (1e-3, 10.0), "pretrained": (1e-4, 1.0), "adapters": (1e-3, 10.0)},
    # A part of the size of each weight.
    "adafactor": {"new": (1e-3, 1.0), "pretrained": (1e-4, 0.1), "adapters": (1e-3, 1.0)},
    # Its steps are scaled to those of AdamW.
    "muon": OF_ADAMW,
}
"""The lowest and the highest rate that is usual: those of published recipes lie well within."""


def with_learning_rate(config: AnyConfig, begun_with: float | None = None) -> AnyConfig:
    """Return the configuration with a number for its learning rate.

    That is its own, or the one that the run was `begun_with`, or the recipe's for what is trained.
    """
    if config.optim.lr is not None:
        return config
    rate = getattr(config.rates, trained(config)) if begun_with is None else begun_with
    return replace(config, optim=replace(config.optim, lr=rate))


def trained(config: Config) -> Trained:
    """Return what a run trains: without a model of Transformers new weights, as far as anybody knows."""
    section = getattr(config, "model", None)
    return section.trains if isinstance(section, ModelConfig) else "new"


def about_rate(config: Config) -> str:
    """Return what the plan says of the learning rate: the number, and whether it is the recipe's own."""
    what = trained(config)
    own = config.optim.rate == getattr(config.rates, what)
    return f"lr {config.optim.rate:g}" + (f" (the default for {IN_WORDS[what]})" if own else "")


def unusual_rate(rate: float, what: Trained, optimizer: str) -> str | None:
    """Return a warning if a learning rate is far from those that are usual for what is trained, or None."""
    lowest, highest = USUAL[optimizer][what]
    if lowest <= rate <= highest:
        return None
    effect = "little will be learned" if rate < lowest else "training will hardly be stable"
    if rate > highest and what != "new":
        effect = "what the model knows may be lost"
    usual = f"{lowest:g} to {highest:g} with {optimizer}"
    return f"optim.lr is {rate:g}, where {IN_WORDS[what]} usually take {usual}: {effect}"
