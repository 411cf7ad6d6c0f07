"""A folder imports only from those below it, no module in a circle, no task from another (docs/architecture.md)."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# From the top to the bottom; modules of a line may import each other.
ORDER = """
    __main__ cli
    commands
    notebook
    report
    verify
    push
    predict
    recipe_command
    run export_command
    finish
    run_folder_claim run_record evaluate_only recipe_file
    best_weights
    loop out_of_memory
    prepare
    rehearsal
    printed_plan
    evaluation evaluation_scores evaluation_order evaluation_metrics evaluation_quality
    pipelined_step
    grad_cache
    train_state step_log best_evaluation flop_count
    tasks
    predictor metric_choice
    checkpoint
    optimizer schedules
    models
    distributed
    tracking
    sample_data
    data
    output
    config
    class_metrics label_metrics text_metrics details
    task losses metrics vocabulary_loss attention
    row_attention dropout batch_layout randomness signals errors environment
"""
HEIGHT = {name: -height for height, line in enumerate(ORDER.strip().splitlines()) for name in line.split()}
SHARED_BY_TASKS = {"conversations"}
# What `--help` loads, and so what may not load any of these when it is imported.
QUICK = (
    *(
        "toolkit.config.",
        "toolkit.errors",
        "toolkit.environment",
        "toolkit.recipe_command",
        "toolkit.randomness",
    ),
    *("toolkit.signals", "toolkit.schedules", "toolkit.output.pipes"),
    *(f"toolkit.data.{name}" for name in ("cache", "columns", "held_out", "order", "micro_batches")),
    *(f"toolkit.distributed.{name}" for name in ("memory", "shared_outcome", "phase")),
)
HEAVY = {"torch", "transformers", "datasets", "accelerate", "evaluate", "sklearn", "scipy", "pandas", "pyarrow"}


def modules() -> dict[str, Path]:
    places = {path.relative_to(ROOT).with_suffix(""): path for path in (ROOT / "toolkit").rglob("*.py")}
    return {".".join(place.parts): path for place, path in places.items() if place.name != "__init__"}


MODULES = modules()


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


def height(name: str) -> int:
    """Return how high the folder or the module stands."""
    return HEIGHT[name.split(".")[1]]


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_module_imports_only_from_its_folder_and_below(name: str) -> None:
    assert not {other for other in imported(MODULES[name], late=True) & set(MODULES) if height(other) > height(name)}


def test_no_task_imports_another() -> None:
    for name, path in MODULES.items():
        _, _, task, *_ = [*name.split("."), ""]
        if name.startswith("toolkit.tasks."):
            others = {other.split(".")[2] for other in imported(path, late=True) if other.startswith("toolkit.tasks.")}
            assert others <= {task, *SHARED_BY_TASKS}, name


def test_there_is_no_import_cycle() -> None:
    graph = {name: imported(path, late=True) & set(MODULES) for name, path in MODULES.items()}
    tuple(TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("name", sorted(name for name in MODULES if name.startswith(QUICK)))
def test_what_help_loads_loads_nothing_heavy(name: str) -> None:
    assert not {other.split(".")[0] for other in imported(MODULES[name], late=False)} & HEAVY


def test_the_toolkit_imports_no_recipe_and_recipes_not_each_other() -> None:
    recipes = {path.stem for path in (ROOT / "recipes").glob("*.py")}
    for path in [*(ROOT / "toolkit").rglob("*.py"), *(ROOT / "recipes").glob("*.py")]:
        assert not {name.split(".")[0] for name in imported(path, late=True)} & (recipes | {"recipes"})
