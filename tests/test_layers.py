"""A module imports only from its own layer and those below it, and never in a circle (docs/architecture.md)."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

LAYERS = {
    0: (
        "activity cache columns command_line config cut diagnosis environment errors extras held_out learning_rates memory "
        "model_config order outcome pipes randomness reading schedules settings_file stopping"
    ),
    1: (
        "attention_masks loading losses metric_classes metrics optimizer optimizer_state pieces provenance sample_scores scoring "
        "snapshot stored tally task weights "
        "answering.metric_classes answering.metrics answering.rules answering.spans chat.metrics embedding.losses embedding.metric_classes "
        "embedding.metrics language.metric_classes language.metrics preferences.metrics rewriting.generation "
        "rewriting.metrics tagging.metric_classes tagging.metrics"
    ),
    2: (
        "agreement checkpoint console exchange last_word launch ledger lockstep meeting model_from_main progress "
        "run_folder runtime saving sharding spreading strategy tensor_parallel watch"
    ),
    3: (
        "boundaries evaluate_only evaluation evaluation_file first_batch former joint loop loss_rule overlap plan_warnings "
        "preparation rehearsal restoring resume rows run saved_run session training training_run "
        "adapters data_config embedded_models export heads label_reading labelled_rows labelled_texts labels "
        "model_card model_changes model_errors models texts tokenized_texts tokenizer "
        "table_conll table_content table_csv table_files table_folders table_header table_hub table_json table_plain "
        "table_text tables"
    ),
    4: "commands compare evidence findings recipe_file trials verify verify_checkpoints verify_ledger verify_resume",
}
ROOMS = {
    3: ("answering", "chat", "corpora", "embedding", "images", "language", "preferences", "rewriting", "tagging"),
    4: ("notebook",),
}
"""Packages; what is in them and not named above is in this layer."""


def modules() -> dict[str, Path]:
    places = {path.relative_to(ROOT).with_suffix(""): path for path in (ROOT / "toolkit").rglob("*.py")}
    return {".".join(place.parts): path for place, path in places.items() if place.name != "__init__"}


LAYER_OF = {f"toolkit.{name}": layer for layer, names in LAYERS.items() for name in names.split()}
LAYER_OF |= {
    name: layer
    for layer, rooms in ROOMS.items()
    for name in modules()
    if name.split(".")[1] in rooms and name not in LAYER_OF
}

# What the lowest layer may not load, so that `--help` answers at once.
HEAVY = {"torch", "transformers", "datasets", "accelerate", "evaluate", "sklearn", "scipy", "pandas", "pyarrow"}


def imported(path: Path, late: bool) -> set[str]:
    """Return the modules that a file imports when it is loaded, or, with `late`, also inside functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = set()
    nodes = list(ast.walk(tree)) if late else [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            if node.module.startswith("toolkit"):
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_every_module_has_a_layer() -> None:
    assert set(modules()) == set(LAYER_OF)


@pytest.mark.parametrize("name", sorted(LAYER_OF))
def test_a_module_imports_only_from_its_layer_and_below(name: str) -> None:
    above = {other for other in imported(modules()[name], late=True) if LAYER_OF.get(other, -1) > LAYER_OF[name]}
    # `run` answers for a whole command and is entered first: it loads what it starts late, and only from its own layer.
    assert not above


def test_there_is_no_import_cycle() -> None:
    graph = {name: imported(path, late=True) & set(LAYER_OF) for name, path in modules().items()}
    tuple(TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("name", sorted(name for name, layer in LAYER_OF.items() if layer == 0))
def test_the_lowest_layer_loads_nothing_heavy(name: str) -> None:
    assert not {other.split(".")[0] for other in imported(modules()[name], late=False)} & HEAVY


def test_the_toolkit_imports_no_recipe_and_recipes_not_each_other() -> None:
    recipes = {path.stem for path in (ROOT / "recipes").glob("*.py")}
    for path in [*(ROOT / "toolkit").rglob("*.py"), *(ROOT / "recipes").glob("*.py")]:
        assert not {name.split(".")[0] for name in imported(path, late=True)} & (recipes | {"recipes"})
