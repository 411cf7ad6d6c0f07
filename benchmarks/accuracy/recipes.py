"""Every recipe as it is started without any setting: its seconds, its metric and the baseline, and what it predicts.

    python benchmarks/accuracy/recipes.py
        about a quarter of an hour on two cores
    python benchmarks/accuracy/recipes.py --recipes tag chat --output runs/defaults --page runs/predictions.md
        some of them; what was run into the same folder before is not run again, and the page shows five predictions of
        each

The seconds are those of the whole command, imports, evaluation and saving included. Corpora and tokenizers are made
anew for each recipe, as on a fresh machine.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from machine import machine, table

ROOT = Path(__file__).parents[2]
HEADLINES = {
    "answer": ("f1", "exact_match"),
    "chat": ("exact_match", "loss"),
    "classify": ("accuracy", "macro_f1"),
    "classify_images": ("accuracy", "macro_f1"),
    "embed": ("recall@1", "mrr"),
    "language": ("bits_per_byte", "perplexity"),
    "prefer": ("preference_accuracy", "margin"),
    "summarize": ("rougeL", "exact_match"),
    "tag": ("accuracy", "macro_f1"),
    "translate": ("exact_match", "bleu"),
}
"""The metrics that the table shows of each recipe; its run.json has them all."""
SHOWN, LONGEST, SHORT = 5, 600, 110


def main() -> None:
    """Run what is not there yet, print the table, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", choices=HEADLINES, default=list(HEADLINES))
    parser.add_argument("--output", type=Path, default=Path("runs/defaults"))
    parser.add_argument("--page", type=Path, help="write five predictions of each recipe to this file")
    arguments = parser.parse_args()
    rows, beaten = [], True
    for name in arguments.recipes:
        record = record_of(name, arguments.output)
        for number, metric in enumerate(HEADLINES[name]):
            value, trivial = record["metrics"][metric], record["baseline"].get(metric)
            first = [f"`accelerate launch recipes/{name}.py`", f"{record['wall']:.0f}"] if number == 0 else ["", ""]
            rows.append([*first, metric, f"{value:.4f}", "" if trivial is None else f"{trivial:.4f}"])
            better = trivial is None or (value < trivial if metric in LESS_IS_BETTER else value > trivial)
            beaten = beaten and (number > 0 or better)
    print("# Every recipe without a setting\n")
    print(machine() + "\n")
    print(table(["command", "seconds", "metric", "this model", "baseline"], rows))
    if arguments.page is not None:
        pages = [predictions(name, arguments.output) for name in arguments.recipes]
        arguments.page.write_text("\n".join([PREFACE, *pages]), encoding="utf-8")
    if not beaten:
        sys.exit("a recipe does not beat its baseline")


LESS_IS_BETTER = {"bits_per_byte", "perplexity", "loss"}
PREFACE = """# What the recipes predict

Held-out samples of the embedded defaults, evenly spaced over the evaluation data, as each run writes them to
`predictions.jsonl`. Nothing was selected.
"""


def record_of(name: str, output: Path) -> dict[str, Any]:
    """Return the run.json of a recipe's default run, with the seconds of the command under "wall"."""
    folder = output / name
    clock = folder / "wall.json"
    if not clock.is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "FINETUNE_TOOLKIT_CACHE": str(output.resolve() / f"cache-{name}")}
        words = [sys.executable, "-m", "accelerate.commands.launch", str(ROOT / "recipes" / f"{name}.py")]
        begun = time.monotonic()
        subprocess.run([*words, "--output", str(folder)], check=True, stdout=sys.stderr, env=environment)
        clock.write_text(json.dumps(time.monotonic() - begun), encoding="utf-8")
    record: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    return {**record, "wall": json.loads(clock.read_text(encoding="utf-8"))}


def predictions(name: str, output: Path) -> str:
    """Return some samples of a run, each value in a block of its own."""
    lines = (output / name / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    chosen = lines[:: max(1, len(lines) // SHOWN)][:SHOWN]
    parts = [f"\n## {name}\n"]
    for line in chosen:
        sample = json.loads(line)
        parts.append(f"**Sample {sample.pop('sample')}**\n")
        parts.extend(item(key, value) for key, value in sample.items())
        parts.append("")
    return "\n".join(parts)


def item(key: str, value: Any) -> str:
    """Return a named value: a short one on its line, a text of several lines as a block."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if "\n" not in text and "`" not in text and len(text) <= SHORT:
        return f"- {key}: `{text}`"
    return f"- {key}:\n\n{indented(text)}\n"


def indented(text: str) -> str:
    """Return a text as a block within a list."""
    if len(text) > LONGEST:
        text = text[:LONGEST] + " ..."
    return "\n".join(f"      {line}".rstrip() for line in text.splitlines() or [""])


if __name__ == "__main__":
    main()
