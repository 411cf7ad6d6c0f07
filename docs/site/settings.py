"""The lists of settings, made from the dataclasses that a run is configured by."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from toolkit.config.help import field_docstrings
from toolkit.config.schema import Config
from toolkit.config.suggestions import show
from toolkit.config.values import allowed
from toolkit.config.yaml import as_mapping
from toolkit.recipe_file import load_recipe

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.py"))
FRONT = "The run"
"""The section of settings that belong to none."""


@dataclass(frozen=True)
class Setting:
    """A setting as `--help` tells it."""

    key: str
    takes: str
    default: str
    sentence: str
    effect: str
    """What it does to the numbers of a run."""

    @property
    def section(self) -> str:
        return self.key.rpartition(".")[0] or FRONT


def settings_of(config: Config) -> dict[str, Setting]:
    """Return all settings of a configuration by key, in their order."""
    return {setting.key: setting for setting in walk(config)}


def walk(section: Any, prefix: str = "") -> Iterator[Setting]:
    """Yield the settings of a section and of those inside, in their order."""
    hints, sentences = get_type_hints(type(section)), field_docstrings(type(section))
    for entry in fields(section):
        key, value = f"{prefix}{entry.name}", getattr(section, entry.name)
        if is_dataclass(value):
            yield from walk(value, f"{key}.")
        else:
            sentence = sentences.get(entry.name, "")
            default = show(as_mapping(value))
            yield Setting(key, allowed(hints[entry.name]), default, sentence, effect_of(entry))


def effect_of(entry: Field[Any]) -> str:
    """Return what a field does to the numbers of a run, as `schema.execution` and `schema.locates` declare it."""
    if "execution" in entry.metadata:
        return "Changes no number."
    if "locates" in entry.metadata:
        return "Says where data is found: it is the same run if the data is the same."
    return "Decides the numbers of a run."


def sections_of(section: Any, prefix: str = "") -> dict[str, str]:
    """Return the sentence of each section of settings, by its name."""
    sentences = field_docstrings(type(section))
    found: dict[str, str] = {}
    for entry in fields(section):
        if is_dataclass(value := getattr(section, entry.name)):
            found[f"{prefix}{entry.name}"] = sentences.get(entry.name, "")
            found |= sections_of(value, f"{prefix}{entry.name}.")
    return found


def all_recipes() -> Mapping[str, tuple[type[Config], dict[str, Setting]]]:
    """Return the configuration and the settings of each recipe, by its name."""
    found = {}
    for path in RECIPES:
        config = load_recipe(path)[0]
        found[path.stem] = config, settings_of(config())
    return found


def shared_settings() -> dict[str, Setting]:
    """Return what is the same in every recipe: those of `Config`, and those of models and data that all have alike."""
    recipes = [settings for _, settings in all_recipes().values()]
    counts = Counter(setting for settings in recipes for setting in settings.values())
    everywhere = {setting.key: setting for setting, count in counts.items() if count == len(recipes)}
    return settings_of(Config()) | everywhere


def run_settings() -> str:
    """Return the settings that every recipe has, a heading for each section."""
    shared = shared_settings()
    sections: dict[str, list[Setting]] = {FRONT: []}
    for setting in shared.values():
        sections.setdefault(setting.section, []).append(setting)
    # Of the model and the data only what every recipe says of them.
    sentences = {name: text for name, text in sections_of(Config()).items() if name in sections}
    lines: list[str] = []
    for section, settings in sections.items():
        lines += [f"## {section}" if section == FRONT else f"## `{section}`", ""]
        lines += [in_markdown(sentences.get(section, "")), ""]
        for setting in settings:
            lines += entry(setting, shared)
    return "\n".join(lines)


def recipe_settings() -> str:
    """Return what each recipe has beside them, or with another default, and the rates that it takes by itself."""
    shared, lines = shared_settings(), []
    for name, (config, settings) in all_recipes().items():
        own = {key: setting for key, setting in settings.items() if shared.get(key) != setting}
        rates = config.rates
        lines += [f"## {name}.py", "", f"The page of this recipe: [{name}]({name}.md).", ""]
        lines += [
            f"Where {{confval}}`optim.lr` is not given it is {show(rates.new)} for new weights, "
            f"{show(rates.pretrained)} for a model that was trained before, and {show(rates.adapters)} for adapters.",
            "",
        ]
        for setting in own.values():
            lines += entry(setting, {**shared, **settings}, f" ({name})")
    return "\n".join(lines)


def entry(setting: Setting, known: Mapping[str, Setting], of: str = "") -> list[str]:
    """Return the lines of one setting: what it takes, its default, its sentence, and whether it changes numbers."""
    return [
        f"````{{confval}} {setting.key}{of}",
        f":type: {json.dumps(in_markdown(setting.takes))}",
        f":default: {json.dumps(in_markdown(setting.default))}",
        "",
        linked(in_markdown(setting.sentence), {key for key in known if key != setting.key} if not of else set()),
        "",
        f"*{setting.effect}*",
        "````",
        "",
    ]


def in_markdown(text: str) -> str:
    """Return a text of the help as Markdown that shows it as it is; what stands in backticks stays code."""
    parts = text.split("`")
    return "`".join(
        re.sub(r"([\\<>*_\[\]{}|#])", r"\\\1", part) if i % 2 == 0 else part for i, part in enumerate(parts)
    )


def linked(text: str, keys: set[str]) -> str:
    """Return a sentence in which the names of other settings lead to them."""
    names = sorted((key for key in keys if "." in key), key=len, reverse=True)
    for key in names:
        text = re.sub(rf"(?<![\w.`]){re.escape(in_markdown(key))}(?![\w`]|\.\w)", f"{{confval}}`{key}`", text)
    return text
