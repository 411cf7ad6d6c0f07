"""What to say of a folder that is no run folder: which run was probably meant."""

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
        if is_run_folder(above):
            return f"{said}; did you mean {above}, in which it lies?"
    below = runs_in(given)
    if below:
        return f"{said}; there are {listed(below)} in it: name one of these"
    around = runs_in(given.parent) or runs_in(Path("runs"))
    places = {str(place): place for place in around}
    near = get_close_matches(str(given), places, 1, 0.7) or [
        str(place) for place in around if get_close_matches(given.name, [place.name], 1, 0.7)
    ]
    if near:
        return f"{said}; did you mean {near[0]}?"
    return f"{said}; there are {listed(around)}" if around else f"{said}; name the folder that --output of a run named"


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
