"""Draws the folders of the toolkit in the order of import.

    python docs/draw_house.py > docs/house.svg

A box is a folder, or a module at the root of `toolkit/`; the names in it are its modules. Each line imports only from
the lines below it: `tests/test_layers.py` has the order, and holds it.
"""

import re
import sys
from pathlib import Path
from textwrap import wrap
from xml.sax.saxutils import escape

ROOT = Path(__file__).parent.parent
WIDTH, MARGIN, GAP, LINE, LETTER = 1180, 20, 10, 17, 7.3
IN_A_ROW = 5
STYLE = """
  text { font: 12px ui-monospace, monospace; fill: #24292f }
  .name { font-weight: bold; font-size: 13px }
  rect { fill: #eef4fb; stroke: #8aa4c0; rx: 5 }
  .folder { fill: #e3efe0; stroke: #8fb085 }
  .page { fill: #ffffff; stroke: none }
"""


def order() -> list[list[str]]:
    """Return the lines of the order of import, from the top to the bottom, with the recipes above all."""
    text = (ROOT / "tests" / "test_layers.py").read_text(encoding="utf-8")
    found = re.search(r'ORDER = """\n(.*?)"""', text, re.DOTALL)
    assert found is not None
    lines = [line.split() for line in found[1].strip().splitlines()]
    return [["recipes"], *(line[start : start + IN_A_ROW] for line in lines for start in range(0, len(line), IN_A_ROW))]


def modules(name: str) -> list[str] | None:
    """Return the modules and folders inside a folder; None of a module."""
    folder = ROOT / "recipes" if name == "recipes" else ROOT / "toolkit" / name
    if not folder.is_dir():
        return None
    inside = (path for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file())
    return sorted(path.stem + "/" * path.is_dir() for path in inside if path.stem != "__init__")


def draw() -> str:
    """Return the picture as SVG."""
    parts: list[str] = []
    top = MARGIN
    for line in order():
        width = (WIDTH - 2 * MARGIN - GAP * (len(line) - 1)) / len(line)
        boxes = []
        for name in line:
            inside = modules(name)
            letters = int((width - 16) / LETTER)
            boxes.append((name, inside is not None, wrap("  ".join(inside or ()), letters)))
        height = max(26 + LINE * len(texts) for _, _, texts in boxes)
        for place, (name, is_folder, texts) in enumerate(boxes):
            left = MARGIN + place * (width + GAP)
            kind = "folder" if is_folder else "module"
            parts.append(f'<rect class="{kind}" x="{left:.0f}" y="{top}" width="{width:.0f}" height="{height}"/>')
            title = name + "/" * is_folder
            parts.append(f'<text class="name" x="{left + 8:.0f}" y="{top + 18}">{escape(title)}</text>')
            for row, text in enumerate(texts, start=1):
                parts.append(f'<text x="{left + 8:.0f}" y="{top + 18 + LINE * row}">{escape(text)}</text>')
        top += height + GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + MARGIN - GAP}" role="img">'
    title = "<title>The folders of the toolkit, from the top to the bottom: each imports from those below it</title>"
    page = f'<rect class="page" x="0" y="0" width="{WIDTH}" height="{top + MARGIN - GAP}"/>'
    return "\n".join([head, title, f"<style>{STYLE}</style>", page, *parts, "</svg>", ""])


if __name__ == "__main__":
    sys.stdout.write(draw())
