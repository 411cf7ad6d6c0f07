"""evaluate.metrics: names that a task has, in every recipe, and what is said of others before anything is trained."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recipe_layouts import config_class, load_recipe, small_arguments
from resuming import run
from test_metrics import SCRIPT
from tiny_recipe import Tiny, task
from trial import Outcome, run_here

from toolkit import CheckpointConfig
from toolkit.errors import UserError
from toolkit.metric_choice import check_best, nearest_metric
from toolkit.metrics import accuracy

MORE = {
    "classify_images": "accuracy, top_2_accuracy, auroc, log_loss, cohen_kappa",
    "tag": "strict_f1, entity_f1, weighted_f1",
    "answer": "f1, exact_match",
    "translate": "ter, chrf++, rougeLsum, exact_match, length_ratio",
    "chat": "bleu, exact_match",
    "embed": "mrr@10, recall@3, median_rank",
    "prefer": "margin, preference_accuracy",
    "language": "accuracy",
}


def small(name: str, folder: Path, *more: str) -> Outcome:
    recipe = load_recipe(name)
    words = [*small_arguments(name, folder / "data"), "--threads", "1", *more]
    return run_here(config_class(recipe), recipe.task, words, folder / "run")


@pytest.mark.parametrize("name", MORE)
def test_every_recipe_has_metrics_by_name(name: str, tmp_path: Path) -> None:
    outcome = small(name, tmp_path, "--evaluate.metrics", MORE[name]).done()
    metrics = outcome.record["metrics"]
    others = {"loss", "perplexity", "bits_per_byte"} & set(metrics)
    assert set(metrics) - others == set(MORE[name].split(", "))
    refusal = small(name, tmp_path / "other", "--evaluate.metrics", "acuracy_of_it")
    refusal.refused("evaluate.metrics names 'acuracy_of_it'", "name some of", MORE[name].split(", ")[0])


def test_names_that_a_task_does_not_have(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    words = ["--evaluate.metrics", "[Acuracy, f1, owner/metric, rmse]", "--checkpoint.best", "highest x"]
    told = small("classify", folder, *words).refused(
        "names 'Acuracy' (did you mean accuracy?) and 'rmse'", "f1_a, f1_b", "no metric script 'owner/metric'"
    )
    assert told.errors.count("balanced_accuracy") == 1, "the names are listed once"
    small("classify", tmp_path / "b", "--evaluate.metrics", "f1,,accuracy").refused("give names with commas between")
    small("classify", tmp_path / "c", "--evaluate.metrics", "f1, f1").refused("names f1 more than once")


def test_the_best_one_has_to_be_among_them(tmp_path: Path) -> None:
    words = ["--evaluate.metrics", "accuracy", "--checkpoint.best", "highest matthews_correlation"]
    hint = 'matthews_correlation out; add it: --evaluate.metrics "accuracy, matthews_correlation"'
    small("classify", tmp_path / "a", *words).refused(hint)
    hint = 'or have it computed: --evaluate.metrics "accuracy, macro_f1, f1, matthews_correlation, auroc"'
    small("classify", tmp_path / "c", "--checkpoint.best", "highest auroc").told("the evaluation gives loss", hint)
    small("classify", tmp_path / "b", *words[2:], "--evaluate.metrics", "matthews_correlation, accuracy").done()


@pytest.mark.parametrize(
    ("best", "groups", "parts"),
    [
        (
            "highest nosuch/accuracy",
            "",
            ["there is no group 'nosuch': the evaluation data has no groups", "highest acc"],
        ),
        ("highest dve/accuracy", "dev hard", ["the groups are dev, hard; did you mean highest dev/accuracy?"]),
        ("highest nosuch/auroc", "dev", ["no group 'nosuch'", '--evaluate.metrics "accuracy, auroc"']),
        ("highest acuracy", "", ["gives loss, accuracy; name one of these (did you mean accuracy?)"]),
        ("highest dev/roc_auc", "dev", ["(did you mean auroc?), or have auroc computed", '"accuracy, auroc"']),
        ("lowest zzz", "dev", ["the evaluation gives loss, accuracy; name one of these"]),
    ],
)
def test_what_is_said_of_another_best(best: str, groups: str, parts: list[str]) -> None:
    config = Tiny(checkpoint=CheckpointConfig(best=best))
    made = task(config)
    data = replace(made.data, groups={group: np.arange(3) for group in groups.split()})
    made = replace(made, data=data, named_metrics={"accuracy": accuracy, "auroc": accuracy})
    with pytest.raises(UserError) as caught:
        check_best(made, config, ["loss", "accuracy", *(f"{group}/accuracy" for group in groups.split())])
    message = "; ".join(caught.value.problems)
    for part in parts:
        assert part in message
    if "/accuracy" in best:
        assert "--evaluate.metrics" not in message
    for good in ("lowest loss", *(f"highest {group}/accuracy" for group in groups.split())):
        check_best(made, replace(config, checkpoint=CheckpointConfig(best=good)), ["loss", "accuracy"])


@pytest.mark.parametrize(("given", "meant"), [("mcc", "matthews_correlation"), ("roc-auc", "auroc"), ("ECE", None)])
def test_the_names_of_others(given: str, meant: str | None) -> None:
    assert nearest_metric(given, ["accuracy", "matthews_correlation", "auroc"]) == meant


def test_a_recipe_without_names_has_those_of_its_functions(tmp_path: Path) -> None:
    run(tmp_path / "a", "--evaluate.metrics", "accuracy").done()
    run(tmp_path / "b", "--evaluate.metrics", "f1").told("names 'f1'", "name some of accuracy")
    run(tmp_path / "c", "--evaluate.metrics", "accuracy", "--data.held_out", "0").told("there is no evaluation data")


def test_a_script_beside_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file, or a folder with a script of its name, as the hub has them."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "hits"
    folder.mkdir()
    (folder / "hits.py").write_text(SCRIPT.replace(", weight)", ", weight=1)"))
    for place in (folder, folder / "hits.py"):
        outcome = run(tmp_path / f"run {place.name}", "--evaluate.metrics", f"accuracy, {place}").done()
        metrics = outcome.record["metrics"]
        assert metrics["hits"] == pytest.approx(23 * metrics["accuracy"])


def test_a_score_without_a_value_is_null_and_explained(tmp_path: Path) -> None:
    """A group with one class: no area under a curve, and everything else goes on."""
    words = ["--data.group", "label", "--evaluate.metrics", "auroc, accuracy", "--checkpoint.best", "highest a/auroc"]
    outcome = small("classify", tmp_path, *words).done()
    why = "not every class is in the evaluation data"
    assert outcome.record["metrics"]["a/auroc"] is None
    assert outcome.record["metrics"]["auroc"] is not None
    assert outcome.record["undefined"] == {"a/auroc": why, "b/auroc": why}
    outcome.says("undefined: a/auroc, b/auroc", why)
    found: dict[str, Any] = json.loads((outcome.folder / "evaluation.json").read_text(encoding="utf-8"))
    assert found["undefined"] == outcome.record["undefined"]
    small("classify", tmp_path, *words).done().says("this run is finished", f"undefined: a/auroc, b/auroc ({why})")
