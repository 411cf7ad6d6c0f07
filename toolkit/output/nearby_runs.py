"""What to say of a folder that is no run folder: which run was probably meant."""

import re
from difflib import get_close_matches
from pathlib import Path

SHOWN = 5


def no_run_folder(given: Path, lacks: str) -> str:
    """Return that a folder is none of a run, which file it lacks, and which run folder is meant, or near.

    Args:
        given: as the user gave it.
        lacks: what it has not, such as "it has no run.json that can be read".
    """
    said = f"{given} is no run folder: {lacks}"
    if not given.exists():
        said = f"{given} is no run folder: there is no such folder"
    if (given / "run.json").is_file():
        return f"{given} is a run folder whose run.json is damaged or empty; toolkit verify {given} says what is left"
    if given.suffix == ".py" and given.is_file():
        return f"{said}; it looks like a recipe, and its runs are in runs/ unless --output said otherwise"
    for above in given.parents:
        # Of ../b the parents, as they are written, are .. and this folder, in which it does not lie.
        if is_run_folder(above) and given.resolve().is_relative_to(above.resolve()):
            return f"{said}; did you mean {above}, in which it lies?"
    below = runs_in(given)
    if below:
        return f"{said}; there are {listed(below)} in it: name one of these"
    around = runs_in(given.parent) or runs_in(Path("runs"))
    if (near := nearest(given.name, around)) is not None:
        return f"{said}; did you mean {near}?"
    return f"{said}; there are {listed(around)}" if around else f"{said}; name the folder that --output of a run named"


def nearest(name: str, places: list[Path]) -> Path | None:
    """Return the folder whose own name a mistyped one is near; one that has another number is another run."""
    found = {place.name: place for place in places if place.name == name or not other_number(place.name, name)}
    near = get_close_matches(name, found, 1, 0.7)
    return found[near[0]] if near else None


def other_number(one: str, other: str) -> bool:
    """Return whether two names are alike but for their digits, such as run-2 and run-13."""
    return bool(re.search(r"\d", one)) and re.sub(r"\d+", "0", one) == re.sub(r"\d+", "0", other)


def is_run_folder(place: Path) -> bool:
    """Return whether there is a run's record or its settings in a folder."""
    try:
        return (place / "run.json").is_file() and (place / "config.yaml").is_file()
    except OSError:
        return False


def runs_in(folder: Path) -> list[Path]:
    """Return the run folders in a folder, sorted."""
    try:
        return sorted(place for place in folder.iterdir() if is_run_folder(place))
    except OSError:
        return []


def listed(places: list[Path]) -> str:
    """Return the first of these paths, and how many more there are."""
    shown = ", ".join(map(str, places[:SHOWN]))
    return shown + (f" and {len(places) - SHOWN} more" if len(places) > SHOWN else "")
