"""The weights of labels and of rows: how they are found in the data, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Classify
from recipe_layouts import load_recipe, small_arguments
from sklearn.utils.class_weight import compute_class_weight
from trial import run_here

from toolkit.config.loss import LossConfig
from toolkit.config.parser import parse
from toolkit.config.yaml import as_mapping
from toolkit.data.label_loss import balanced
from toolkit.errors import UserError
from toolkit.tasks.text_classification.data import LabelledTexts
from toolkit.tasks.text_classification.texts import Texts
from toolkit.tasks.token_classification.data import TaggedTexts


def rows_of(labels: list[Any]) -> list[dict[str, Any]]:
    return [{"text": "one two three four"[: 3 + number % 15], "label": label} for number, label in enumerate(labels)]


def written(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def weights_of(loss: LossConfig, data: LabelledTexts) -> list[list[float]]:
    """Return the weights that a loss has for the labels of texts."""
    weights = data.read().loss(loss).weights
    assert weights is not None
    return weights.tolist()  # type: ignore[no-any-return]


def test_balanced_weights_are_those_of_scikit_learn(tmp_path: Path) -> None:
    train = written(tmp_path / "train.jsonl", rows_of(["a", "b", "a", "a", "c"] * 8))
    held_out = written(tmp_path / "eval.jsonl", rows_of(["b"] * 30))
    labels = np.array(["a", "b", "a", "a", "c"] * 8)
    expected = compute_class_weight("balanced", classes=np.array(["a", "b", "c"]), y=labels)
    data = LabelledTexts(train=train, eval=held_out)
    assert weights_of(LossConfig(class_weights="balanced"), data) == [pytest.approx(expected, rel=1e-15)]
    texts = data.read()
    texts.loss(LossConfig(class_weights="balanced"))
    assert texts.summary["class weights"] == "from 0.5556 for 'a' to 1.667 for 'c'"


def test_balanced_weights_of_several_labels_are_those_of_each_label_alone(tmp_path: Path) -> None:
    rows = [["a", "b"], ["a"], [], ["b"], ["b"]] * 4
    data = LabelledTexts(train=written(tmp_path / "train.jsonl", rows_of(rows)), eval=None, held_out=0.1)
    texts = data.read()
    loss = texts.loss(LossConfig(class_weights="balanced"))
    assert loss.weights is not None
    for place, found in enumerate(loss.weights.tolist()):
        has = np.array([texts.train.labels.target(row)[place] for row in range(len(texts.train))])  # type: ignore[index]
        assert found == pytest.approx(compute_class_weight("balanced", classes=np.array([0.0, 1.0]), y=has), rel=1e-15)


def test_given_weights_take_the_order_of_the_labels(tmp_path: Path) -> None:
    """Labels may be what YAML does not take for texts."""
    numbers = LabelledTexts(train=written(tmp_path / "numbers.jsonl", rows_of([10, 9, 2] * 8)))
    recipe = load_recipe("classify")
    config = parse(recipe.Classify, "", ["--loss.class_weights", "{10: 1, 2: 0, '9': 0.5}"])
    assert weights_of(config.loss, numbers) == [[0.0, 0.5, 1.0]]
    truths = LabelledTexts(train=written(tmp_path / "truths.jsonl", rows_of([True, False] * 8)))
    config = parse(recipe.Classify, "", ["--loss.class_weights", "{true: 3, false: 1.5}"])
    assert weights_of(config.loss, truths) == [[1.5, 3.0]]
    # As JSON has them, so that a checkpoint knows its own settings.
    assert json.loads(json.dumps(as_mapping(config))) == as_mapping(config)
    several = LabelledTexts(train=written(tmp_path / "several.jsonl", rows_of([["a"], ["b", "a"], []] * 8)))
    assert weights_of(LossConfig(class_weights={"b": 5.0, "a": 2.0}), several) == [[1.0, 2.0], [1.0, 5.0]]


def test_the_inside_of_an_entity_that_training_lacks_counts_as_its_beginning(tmp_path: Path) -> None:
    small_arguments("tag", tmp_path)
    sentences = TaggedTexts(train=str(tmp_path / "train.conll"), eval=str(tmp_path / "eval.conll")).read()
    weights = sentences.loss(LossConfig(class_weights="balanced")).weights
    assert weights is not None
    by_tag = dict(zip(sentences.labels, weights[0].tolist(), strict=True))
    used = [sentences.labels[tag] for tag in sentences.train.tags.tolist()]
    assert "I-place" not in used
    assert by_tag["I-place"] == by_tag["B-place"] == pytest.approx(len(used) / (5 * used.count("B-place")))


# What can't be


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--loss.label_smoothing", "1"], ["loss.label_smoothing is 1.0; it must be at least 0 and below 1"]),
        (["--loss.focal", "-1"], ["loss.focal is -1.0; it must be a number of at least 0"]),
        (
            ["--loss.class_weights", "{a: -1, b: 2}", "--loss.focal", "-2", "--loss.label_smoothing", "-0.1"],
            ["loss.class_weights gives -1.0 to 'a'; a weight must be a number", "loss.focal", "loss.label_smoothing"],
        ),
        (["--loss.class_weights", "{a: .nan, b: 2}"], ["loss.class_weights is {a: .nan, b: 2}", "each value a finite"]),
        (["--loss.class_weights", "{a: many, b: 2}"], ["loss.class_weights is", "each value a number"]),
        (["--loss.class_weights", "balance"], ["loss.class_weights is balance", "did you mean balanced?"]),
        (["--loss.class_weights", "{a: 0, b: 0}"], ["gives no label a weight above 0"]),
        (["--loss.class_weights", "{True: 1, 'true': 2}"], ["loss.class_weights is {True: 1, 'true': 2}; it must be"]),
        (["--loss.class_weights", "{}"], ["gives no label a weight above 0"]),
        (
            ["--loss.class_weights", "{a: 1, c: 2}"],
            ["names 'c', and the labels are 'a', 'b'", "gives no weight to 'b'"],
        ),
        (["--data.weight", "label"], ["cannot tell which column holds the label"]),
        (["--data.weight", "heavy"], ["data.weight is 'heavy', but the data has the columns 'text', 'label'"]),
        (["--label_smoothing_factor", "0.1"], ["did you mean --loss.label_smoothing?"]),
    ],
)
def test_settings_of_a_loss_that_can_not_be(classify: Classify, arguments: list[str], parts: list[str]) -> None:
    classify(*arguments).refused(*parts)


def test_a_class_without_a_sample_can_not_be_balanced() -> None:
    with pytest.raises(UserError, match="no sample with the label 'b', 'd'; add some, or give each label a weight"):
        balanced("single", ["a", "b", "c", "d"], [3, 0, 5, 0], 8)
    with pytest.raises(UserError) as caught:
        balanced("multi", ["a", "b", "c"], [3, 0, 8], 8)
    with_it, without_it = caught.value.problems
    assert "no sample with the label 'b'" in with_it
    assert "no sample without the label 'c'" in without_it


def test_a_named_class_without_a_sample_is_refused_by_the_recipe(tmp_path: Path) -> None:
    """The data set names three classes and has samples of two."""
    from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

    features = Features({"text": Value("string"), "label": ClassLabel(names=["no", "never", "yes"])})
    table = Dataset.from_dict({"text": ["one two", "three"] * 10, "label": [0, 2] * 10}, features=features)
    DatasetDict(train=table).save_to_disk(tmp_path / "saved")
    recipe = load_recipe("classify")
    words = ["--data.name", str(tmp_path / "saved"), "--loss.class_weights", "balanced", "--threads", "1"]
    run_here(recipe.Classify, recipe.task, words, tmp_path / "run").refused(
        "loss.class_weights is balanced, but the training data has no sample with the label 'never'"
    )


def test_numbers_have_no_classes_to_weigh(tmp_path: Path) -> None:
    data = LabelledTexts(train=written(tmp_path / "train.jsonl", rows_of([0.5, 1.25] * 8)))
    with pytest.raises(UserError, match=r"loss.label_smoothing and loss.focal are for labels that are classes"):
        data.read().loss(LossConfig(label_smoothing=0.1, focal=2.0))


def test_weights_of_rows_are_read_and_wrong_ones_named(tmp_path: Path) -> None:
    """A column of texts, as it comes from a csv file with a gap."""
    given = ["0.5", "2", "0", "1e3"] * 4
    path = tmp_path / "train.jsonl"

    def read(weights: list[Any], **settings: Any) -> Texts:
        rows = rows_of(["a", "b"] * 8)
        written(path, [{**row, "w": weight} for row, weight in zip(rows, weights, strict=True)])
        return LabelledTexts(**{"train": str(path), "weight": "w", **settings}).read()

    texts = read(given)
    for part in (texts.train, texts.evaluate):
        assert part.weights is not None
        assert part.weights.tolist() == [float(given[row]) for row in part.rows]
    assert texts.summary["weights"] == "from 0 to 1000 of the training rows, column 'w'"

    wrong = ["-1", "", "nan", "much", "inf", *given[5:]]
    with pytest.raises(UserError) as caught:
        read(wrong)
    said = "the weight in column 'w' is not a finite number of at least 0 in 5 rows (numbers 1, 2, 3, 4, 5, counted"
    assert f"training data: {said}" in str(caught.value)
    dropped = read(wrong, drop_invalid=True)
    assert len(dropped.train) + len(dropped.evaluate) == 11
    assert "weight" in dropped.summary["dropped"]

    with pytest.raises(UserError, match="every weight in column 'w' is 0, so there is nothing to learn"):
        read([0] * 16)
    with pytest.raises(UserError, match=r"data\.weight is 'label', a column that is taken for something else too"):
        read([1] * 16, weight="label", label="label")


def test_data_with_other_weights_is_other_data(tmp_path: Path) -> None:
    recipe = load_recipe("classify")
    digests = []
    for name, words in (("one", []), ("two", ["--data.weight", "weight"])):
        arguments = [*small_arguments("classify", tmp_path / name), *words]
        digests.append(recipe.task(parse(recipe.Classify, "", arguments)).data.train.digest())
    assert digests[0] != digests[1]
