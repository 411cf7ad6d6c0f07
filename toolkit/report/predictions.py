"""What the page of a run shows of its predictions."""

from collections.abc import Iterator, Mapping
from typing import Any

from toolkit.report import pictures
from toolkit.report.charts import number
from toolkit.report.entities import entity_errors
from toolkit.report.parts import Item, Samples, Table
from toolkit.report.saved import SavedRun

LONG = 600
"""Characters of a text on the page; a longer one is cut in the middle."""


def predictions(run: SavedRun) -> Iterator[Item]:
    """Yield the task's own picture, and samples with what the model made of them."""
    details, quality = run.evaluation.get("details") or {}, run.evaluation.get("quality") or {}
    if other := other_data(run):
        yield Table("These predictions are of other data than the run's own", [""], [[other]])
    if details.get("entities"):
        yield entity_errors(details["entities"])
    if details.get("confusion"):
        yield from pictures.confusion(details["confusion"])
    if details.get("labels"):
        yield pictures.counted_labels(details["labels"])
    if details.get("points"):
        yield pictures.points(details["points"])
    if quality:
        yield pictures.histogram(quality["name"], quality["histogram"])
        if quality.get("by_length"):
            yield pictures.by_length(quality["name"], quality["by_length"])
        for title, rows in (
            ("The worst predictions", quality.get("worst")),
            ("The best predictions", quality.get("best")),
        ):
            if rows:
                yield Samples(title, [sample_text(row) for row in rows], folded=title.endswith("best predictions"))
    if run.examples:
        yield Samples("Some predictions, evenly spread", [sample_text(row) for row in run.examples], folded=True)


def other_data(run: SavedRun) -> str | None:
    """Return which data the predictions are of, where evaluation.json is not of the run's own evaluation."""
    data, own = run.evaluation.get("data") or {}, (run.record.get("data") or {}).get("evaluate")
    if not data or data.get("digest") == own:
        return None
    metrics = ", ".join(f"{name} {number(value)}" for name, value in (run.evaluation.get("metrics") or {}).items())
    return (
        f"{number(data.get('samples'))} samples of {data.get('told', 'another evaluation')}, which the saved model was "
        f"evaluated on later: {metrics}; `toolkit export {run.folder}` evaluates it on the run's own data again"
    )


def sample_text(row: Mapping[str, Any]) -> dict[str, str]:
    """Return a sample for a reader."""

    def text(value: Any) -> str:
        if isinstance(value, float):
            return number(value)
        if isinstance(value, Mapping):
            return ", ".join(f"{name} {text(entry)}" for name, entry in value.items())
        if isinstance(value, list):
            return "; ".join(map(text, value))
        shown = str(value)
        return shown if len(shown) <= LONG else f"{shown[: LONG * 2 // 3]} […] {shown[-LONG // 3 :]}"

    return {name: text(value) for name, value in row.items() if name != "sample" and value not in (None, [], {})}
