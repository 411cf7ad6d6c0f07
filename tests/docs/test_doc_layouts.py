"""The layouts of data that a recipe's page shows are read by that recipe."""

import csv
import io
import json
from pathlib import Path

import pytest
from doc_pages import Block, blocks
from launching import ROOT
from recipe_layouts import config_class, load_recipe
from test_snippets import objects

from toolkit.config.parser import parse

MORE = {"translate": ["--data.source_language", "en", "--data.target_language", "de"]}
"""What a page says has to be given for its layout."""
# Images are files, whose layouts the tests of that recipe make.
RECIPES = ("answer", "chat", "classify", "embed", "language", "prefer", "summarize", "tag", "translate")


def files_of(block: Block) -> dict[str, str]:
    """Return the files that a block stands for by their endings, or none if it shows no data."""
    lines = block.text.splitlines()
    if block.language == "json":
        if block.text.startswith('{"data"'):
            return {"json": block.text}
        rows = [json.loads(row) for row in objects(block.text)]
        # Rows with other types are alternatives: each is a file.
        alike = len({tuple(map(type, row.values())) for row in rows if None not in row.values()}) == 1
        together = [rows] if alike else [[row] for row in rows]
        return {f"{n}.jsonl": "\n".join(map(json.dumps, part)) + "\n" for n, part in enumerate(together)}
    if block.language == "" and "\t" in lines[0]:
        return {"conll": block.text}
    if block.language == "" and len(lines) > 1 and all("," in line for line in lines):
        return {"csv": with_more_rows(block.text)}
    return {}


def with_more_rows(text: str) -> str:
    """Return a table with more rows, some with another last cell: a single text, or a single label, teaches nothing."""
    header, *found = list(csv.reader(text.splitlines()))
    *texts, last = found[-1]
    other = str(float(last) + 1) if last.replace(".", "").isdigit() else f"Another {last}"
    more = [[*(f"{word} {cell}" for cell in texts), cell] for cell in (last, other) for word in ("Again", "Once more")]
    written = io.StringIO()
    csv.writer(written).writerows([header, *found, *more])
    return written.getvalue()


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_reads_what_its_page_shows(name: str, tmp_path: Path) -> None:
    recipe, read = load_recipe(name), 0
    for number, block in enumerate(blocks(ROOT / "docs" / f"{name}.md")):
        for ending, text in files_of(block).items():
            file = tmp_path / f"{number}.{ending}"
            file.write_text(text, encoding="utf-8")
            words = ["--data.train", str(file), "--data.eval", str(file), *MORE.get(name, [])]
            made = recipe.task(parse(config_class(recipe), "", words))
            assert len(made.data.train) > 0
            read += 1
    assert read or name == "chat", "a page without a layout; chat has its own in a table"


def test_chat_reads_the_rows_of_its_table(tmp_path: Path) -> None:
    from doc_pages import rows

    recipe, read = load_recipe("chat"), 0
    for cells in rows(ROOT / "docs" / "chat.md"):
        row = cells[-1].partition("`{")[2].partition("}`")[0]
        if row:
            file = tmp_path / f"{read}.jsonl"
            file.write_text("{" + row + "}\n", encoding="utf-8")
            words = ["--data.train", str(file), "--data.eval", str(file)]
            assert len(recipe.task(parse(config_class(recipe), "", words)).data.train) == 1
            read += 1
    assert read == 5
