"""The recipe that makes texts into vectors: its losses, its pairs, its search, and the model as others load it."""

import csv
import json
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recipe_layouts import load_recipe
from small_embed import arguments
from trial import Outcome, run_here

from toolkit.data.tokenized import text_digest
from toolkit.errors import UserError
from toolkit.models.tokenizer import tokenizer
from toolkit.tasks.sentence_embedding.data import EmbeddingData
from toolkit.tasks.sentence_embedding.losses import cosine_error, in_batch_loss
from toolkit.tasks.sentence_embedding.metrics import search_quality
from toolkit.tasks.sentence_embedding.models import EmbeddingModelConfig, embed, embedding_model, pooled, pooling_of
from toolkit.tasks.sentence_embedding.rows import text_identities
from toolkit.tasks.sentence_embedding.search import Search, search
from toolkit.tasks.sentence_embedding.texts import EmbeddingTexts, Partners, all_related, all_right, pad_sides

WORDS = ["red", "green", "blue", "one", "two", "three", "four", "five", "six", "seven"]


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    return load_recipe("embed")


@pytest.fixture
def run(recipe: ModuleType, tmp_path: Path) -> Callable[..., Outcome]:
    return lambda *words: run_here(recipe.Embed, recipe.task, ["--threads", "1", *map(str, words)], tmp_path / "run")


def write(path: Path, head: str, rows: list[list[Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(head.split(","))
        writer.writerows(rows)
    return path


def unit_vectors(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    vectors = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return torch.nn.functional.normalize(vectors, dim=-1)


def scored_rows(count: int) -> list[list[Any]]:
    """Return pairs whose score is how many of the words they share, from 0 to 5."""
    generator = random.Random(0)
    rows = []
    for number in range(count):
        words, kept = generator.sample(WORDS, 5), number % 5
        others = [word for word in WORDS if word not in words]
        rows.append([" ".join(words), " ".join(words[:kept] + others[: 5 - kept]), kept])
    return rows


# --- losses


def in_batch_loss_by_hand(vectors: torch.Tensor, identities: torch.Tensor, scale: float, symmetric: bool) -> float:
    """The same sum, a term at a time."""
    total = 0.0
    count, sides = identities.shape
    known = [set(row[:2].tolist()) for row in identities]
    for own in range(count):
        candidates = [(1, own)]
        candidates += [(1, other) for other in range(count) if other != own and not known[own] & known[other]]
        if sides > 2:
            candidates += [(2, other) for other in range(count) if int(identities[other, 2]) not in known[own]]
        scores = [scale * float(vectors[own, 0] @ vectors[other, side]) for side, other in candidates]
        one_way = float(np.logaddexp.reduce(scores)) - scores[0]
        scores = [scale * float(vectors[own, 1] @ vectors[other, 0]) for side, other in candidates if side == 1]
        back = float(np.logaddexp.reduce(scores)) - scores[0]
        total += (one_way + back) / 2 if symmetric else one_way
    return total


@pytest.mark.parametrize("sides", [2, 3])
@pytest.mark.parametrize("symmetric", [False, True])
def test_the_loss_of_positives_is_the_sum_that_its_definition_says(sides: int, symmetric: bool) -> None:
    vectors = unit_vectors(6, sides, 4)
    # Samples 0 and 3 have one anchor, 1 and 2 one positive, the negative of 4 is the positive of 5.
    identities = torch.tensor([[1, 11, 21], [2, 12, 22], [3, 12, 23], [1, 14, 24], [5, 15, 16], [6, 16, 26]])[:, :sides]
    found = in_batch_loss(vectors, identities, 7.0, symmetric)
    assert float(found) == pytest.approx(in_batch_loss_by_hand(vectors, identities, 7.0, symmetric), rel=1e-12)
    # What is masked matters: with all texts different the loss is another one.
    assert float(in_batch_loss(vectors, torch.arange(6 * sides).view(6, sides), 7.0, symmetric)) > float(found) + 0.1


def test_the_gradient_of_the_global_batch_loss_in_parts_is_that_of_the_whole() -> None:
    """Gradient caching: the gradient at the vectors of the whole batch, carried on for each part by itself."""
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 4).double()
    inputs, identities = torch.randn(7, 2, 5, dtype=torch.float64), torch.arange(14).view(7, 2) // 3
    embed = lambda part: torch.nn.functional.normalize(model(part), dim=-1)  # noqa: E731
    in_batch_loss(embed(inputs), identities).backward()
    whole = model.weight.grad.clone()  # type: ignore[union-attr]
    vectors = embed(inputs).detach().requires_grad_()
    (cached,) = torch.autograd.grad(in_batch_loss(vectors, identities), vectors)
    model.zero_grad()
    for part in ([0, 1, 2], [3], [4, 5, 6]):
        (embed(inputs[part]) * cached[part]).sum().backward()
    assert torch.allclose(model.weight.grad, whole, rtol=1e-12, atol=1e-13)  # type: ignore[arg-type]
    # The parts by themselves have fewer negatives, and so another gradient.
    model.zero_grad()
    for part in ([0, 1, 2], [3], [4, 5, 6]):
        in_batch_loss(embed(inputs[part]), identities[part]).backward()
    assert not torch.allclose(model.weight.grad, whole, rtol=0.1)  # type: ignore[arg-type]


def test_the_loss_of_scores_is_the_squared_error_of_the_cosine() -> None:
    vectors, scores = unit_vectors(3, 2, 4), torch.tensor([0.0, 0.5, 1.0])
    errors = [(float(pair[0] @ pair[1]) - float(score)) ** 2 for pair, score in zip(vectors, scores, strict=True)]
    assert float(cosine_error(vectors, scores)) == pytest.approx(sum(errors), rel=1e-12)


# --- the search and its metric


def test_the_search_agrees_with_scikit_learn() -> None:
    from sklearn.metrics import label_ranking_average_precision_score, roc_auc_score, top_k_accuracy_score

    queries, candidates = unit_vectors(80, 8).numpy(), unit_vectors(40, 8, 1)[..., 0].numpy()
    candidates = candidates + np.random.default_rng(0).normal(size=candidates.shape)
    wanted = np.arange(80) % 40
    right = lambda at: wanted[at, None] == np.arange(40)  # noqa: E731
    found = search(queries, candidates, right, lambda at: np.zeros((len(at), 40), dtype=bool))
    nearest = [one.pop("cosine") for one in found]
    scores = search_quality(found, list(range(80)))
    cosines, truth = queries @ candidates.T, right(np.arange(80))
    for depth in (1, 5, 10):
        expected = top_k_accuracy_score(wanted, cosines, k=depth, labels=np.arange(40))
        assert scores[f"recall@{depth}"] == pytest.approx(expected, abs=1e-12)
    assert scores["mrr"] == pytest.approx(label_ranking_average_precision_score(truth, cosines), rel=1e-12)
    areas = [roc_auc_score(one, row) for one, row in zip(truth, cosines, strict=True)]
    assert scores["triplets"] == pytest.approx(np.mean(areas), rel=1e-12)
    assert [one["nearest"] for one in found] == cosines.argmax(axis=1).tolist()
    assert nearest == cosines.max(axis=1).tolist()


def test_vectors_that_are_all_alike_find_nothing() -> None:
    same = np.ones((6, 1))
    right = lambda at: (at[:, None] % 2) == np.arange(6) % 2  # noqa: E731
    found = search(same, same, right, lambda at: at[:, None] == np.arange(6))
    assert {(one["rank"], one["ordered"]) for one in found} == {(4, 0.5)}


def test_an_anchor_with_several_positives_is_asked_once_and_never_finds_itself(tmp_path: Path) -> None:
    rows = [["a", "b"], ["a", "c"], ["b", "d"], ["e", "c"]]
    path = write(tmp_path / "pairs.csv", "anchor,positive", rows)
    texts = EmbeddingData(train=str(path), eval=str(path)).read()
    names = [[texts.text(row, side) for row in range(4)] for side in (0, 1)]
    vector = {"a": [1.0, 0.0], "b": [0.8, 0.6], "c": [0.6, 0.8], "d": [0.0, 1.0], "e": [-1.0, 0.0]}
    sides = [np.array([vector[name] for name in side]) for side in names]
    finished = Search(texts).of_vectors(sides)
    found = {texts.text(row, 0): one for row, one in zip(finished.references, finished.predictions, strict=True)}
    ranks = {name: (one["rank"], texts.text(one["nearest"], 1)) for name, one in found.items()}
    # b is its own nearest text, which does not count: c comes before d. For e, d is nearer than c.
    assert ranks == {"a": (1, "b"), "b": (2, "c"), "e": (2, "d")}


# --- texts with labels


def labelled(tmp_path: Path) -> EmbeddingTexts:
    rows = [[f"{WORDS[i % 10]} {WORDS[i // 10]}", "xyz"[i % 3]] for i in range(30)]
    return EmbeddingData(train=str(write(tmp_path / "texts.csv", "text,label", rows))).read()


def test_a_partner_is_another_text_of_the_label_and_each_of_them_comes(tmp_path: Path) -> None:
    texts = labelled(tmp_path)
    assert texts.kind == "labels"

    labels = texts.train.identities[:, 0]

    class Train:
        def fetch(self, ids: list[int]) -> list[dict[str, Any]]:
            return [{"row": row, "anchor": {"number": row}, "identities": [int(labels[row])]} for row in ids]

    train = Train()
    partners = Partners(train, labels)  # type: ignore[arg-type]
    for row in (0, 1, 2, len(labels) - 1):
        (sample,) = train.fetch([row])
        drawn = [partners.of_the_others(sample, np.random.default_rng(seed)) for seed in range(200)]
        assert all(one["anchor"] is sample["anchor"] and one["identities"] == [labels[row]] * 2 for one in drawn)
        like = set(np.flatnonzero(labels == labels[row]).tolist())
        assert {one["positive"]["number"] for one in drawn} == like - {row}
        everyone = [partners.of_all(sample, np.random.default_rng(seed)) for seed in range(200)]
        assert {one["positive"]["number"] for one in everyone} == like
    again = [partners.of_the_others(sample, np.random.default_rng(5))["positive"] for _ in range(2)]
    assert again[0] == again[1]


def test_a_label_with_one_text_is_left_out_and_counted(tmp_path: Path) -> None:
    rows = [[f"{WORDS[i]} text", "ab"[i % 2]] for i in range(10)] + [["lonely", "c"]]
    train = write(tmp_path / "train.csv", "text,label", rows)
    texts = EmbeddingData(train=str(train), eval=str(write(tmp_path / "eval.csv", "text,label", rows))).read()
    assert "1 texts to train on and 1 to evaluate on" in texts.summary["left out"]
    assert (len(texts.train), len(texts.evaluate)) == (10, 10)


# --- the model


def test_pooling_takes_no_padding() -> None:
    states = torch.arange(24.0).view(2, 3, 4)
    mask = torch.tensor([[1, 1, 0], [0, 1, 1]])
    assert torch.equal(pooled(states, mask, "mean"), torch.stack([states[0, :2].mean(0), states[1, 1:].mean(0)]))
    assert torch.equal(pooled(states, mask, "cls"), torch.stack([states[0, 0], states[1, 1]]))


def test_every_parameter_but_an_unused_pooler_gets_a_gradient(encoder: Path) -> None:
    pooler = ["pooler.dense.weight", "pooler.dense.bias"]
    for name, vocabulary, unused in ((str(encoder), 14, pooler), (None, 300, [])):
        model = embedding_model(EmbeddingModelConfig(name=name), vocabulary)
        ids = torch.tensor([[2, 5, 6, 3], [2, 7, 8, 3], [2, 9, 3, 0], [2, 5, 3, 0]])
        batch = {"input_ids": ids, "attention_mask": (ids > 0).long(), "identities": torch.arange(4).view(2, 2)}
        in_batch_loss(embed(model, batch, "mean"), batch["identities"]).backward()
        idle = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
        assert idle == unused
        assert sum(p.requires_grad for p in model.parameters()) > 10


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, "mean"),
        ({"1_Pooling/config.json": {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}}, "cls"),
        ({"1_Pooling/config.json": {"pooling_mode": "mean", "embedding_dimension": 16}}, "mean"),
        ({"1_Pooling/config.json": {"pooling_mode_max_tokens": True}}, "by max, which is not done here"),
        ({"1_Pooling/config.json": {"pooling_mode": ["mean", "cls"]}}, "by mean, cls, which is not done here"),
        ({"modules.json": [{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}]}, "models.Dense"),
    ],
)
def test_pooling_is_what_the_folder_says(files: dict[str, Any], expected: str, tmp_path: Path, encoder: Path) -> None:
    (tmp_path / "config.json").write_text((encoder / "config.json").read_text())
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(content))
    config = EmbeddingModelConfig(name=str(tmp_path))
    if expected in ("mean", "cls"):
        assert pooling_of(config) == expected
    else:
        with pytest.raises(UserError, match=expected):
            pooling_of(config)
    assert pooling_of(EmbeddingModelConfig(name=str(tmp_path), pooling="cls")) == "cls"


# --- whole runs


def test_the_saved_model_gives_others_the_vectors_that_were_evaluated(
    run: Callable[..., Outcome], tmp_path: Path
) -> None:
    """Positives with negatives: loss and search of the evaluation, from the vectors of sentence-transformers."""
    words = [word for word in arguments(tmp_path) if word not in ("--model.dtype", "float64")]
    outcome = run(*words, "--model.pooling", "cls").done()
    record = outcome.record
    texts = EmbeddingData(train=str(tmp_path / "train.csv"), eval=str(tmp_path / "eval.csv")).read()
    rows = range(len(texts.evaluate))
    names = [[texts.text(row, side) for row in rows] for side in range(3)]
    vectors = torch.from_numpy(sentence_vectors(outcome.folder / "model", names)).double()
    identities = torch.from_numpy(texts.evaluate.identities)
    blocks = [slice(start, start + 8) for start in range(0, len(rows), 8)]
    loss = sum(float(in_batch_loss(vectors[block], identities[block], symmetric=True)) for block in blocks) / len(rows)
    assert record["metrics"]["loss"] == pytest.approx(loss, rel=1e-5)
    finished = Search(texts).postprocess(dict(enumerate(vectors[:, :2].numpy())))
    scores = search_quality(finished.predictions, finished.references)
    assert {name: record["metrics"][name] for name in scores} == pytest.approx(scores, rel=1e-9)
    assert set(record["baseline"]) == set(scores)
    shown = [json.loads(line) for line in (outcome.folder / "predictions.jsonl").read_text().splitlines()]
    assert shown[0].keys() >= {"row", "text", "wanted", "nearest", "nearest_row", "rank_of_right"}
    assert 0 < shown[0]["scores"]["cosine"] <= 1.000001
    before = (outcome.folder / "model" / "model.safetensors").read_bytes()
    again = run(*words, "--evaluate.only").done()
    assert f"{record['metrics']['loss']:.4f}" in again.output
    assert (outcome.folder / "model" / "model.safetensors").read_bytes() == before


def sentence_vectors(folder: Path, texts: list[list[str]]) -> np.ndarray[Any, Any]:
    """Return vectors of `sentence_transformers`, (samples, sides, dimension), checked against `transformers`."""
    from sentence_transformers import SentenceTransformer
    from transformers import AutoModel, AutoTokenizer

    library = SentenceTransformer(str(folder), device="cpu")
    found = np.stack([library.encode(side) for side in texts], axis=1)
    model, tokens = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    pool = json.loads((folder / "1_Pooling" / "config.json").read_text())
    inputs = tokens(texts[0], padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        states = model(**inputs).last_hidden_state
    vectors = pooled(states, inputs["attention_mask"], "cls" if pool["pooling_mode_cls_token"] else "mean")
    np.testing.assert_allclose(torch.nn.functional.normalize(vectors, dim=-1).numpy(), found[:, 0], atol=1e-6)
    return found


def test_pairs_with_scores_are_learned(run: Callable[..., Outcome], tmp_path: Path, encoder: Path) -> None:
    path = write(tmp_path / "pairs.csv", "sentence1,sentence2,score", scored_rows(120))
    words = ["--data.train", path, "--model.name", encoder, "--optim.lr", "1e-2", "--epochs", "8", "--batch.size", "16"]
    outcome = run(*words, "--data.score_range", "[0,5]", "--evaluate.every", "100", "--data.max_length", "6").done()
    metrics = outcome.record["metrics"]
    assert metrics["spearman"] > 0.8
    outcome.says("0 is learned as cosine 0, 5 as cosine 1", "120 of 120 texts truncated to 6")
    texts = EmbeddingData(train=str(path), held_out=0.15, score_range=(0, 5), max_length=6).read()
    assert texts.evaluate.scores is not None
    rows = range(len(texts.evaluate))
    vectors = sentence_vectors(outcome.folder / "model", [[texts.text(row, side) for row in rows] for side in (0, 1)])
    errors = ((vectors[:, 0] * vectors[:, 1]).sum(-1) - texts.evaluate.scores) ** 2
    assert metrics["loss"] == pytest.approx(errors.mean(), rel=1e-4)


def test_texts_with_labels_are_learned(run: Callable[..., Outcome], tmp_path: Path, encoder: Path) -> None:
    generator = random.Random(1)
    rows = []
    for number in range(90):
        words = [WORDS[number % 3], *generator.choices(WORDS[3:], k=generator.randint(2, 5))]
        rows.append([" ".join(words), "rgb"[number % 3]])
    path = write(tmp_path / "texts.csv", "text,label", rows)
    outcome = run("--data.train", path, "--model.name", encoder, "--optim.lr", "1e-2", "--batch.size", "16").done()
    record = outcome.record
    assert record["metrics"]["recall@1"] > 0.9
    assert record["metrics"]["triplets"] > 0.9 > record["baseline"]["triplets"]
    outcome.says("each text and another one of its label")


def test_adapters_are_what_others_load_and_what_is_evaluated(
    run: Callable[..., Outcome], tmp_path: Path, encoder: Path
) -> None:
    pytest.importorskip("peft")
    path = write(tmp_path / "rows.csv", "sentence1,sentence2,score", scored_rows(30))
    words = ["--data.train", path, "--steps", "4", "--epochs", "null", "--batch.size", "8", "--optim.lr", "0.1"]
    lora = ["--model.name", encoder, "--model.lora.rank", "2"]
    outcome = run(*words, *lora).done()
    model = outcome.folder / "model"
    assert not (model / "model.safetensors").exists()
    texts = EmbeddingData(train=str(path), held_out=0.15).read()
    assert texts.evaluate.scores is not None
    rows = range(len(texts.evaluate))
    vectors = sentence_vectors(model, [[texts.text(row, side) for row in rows] for side in (0, 1)])
    errors = ((vectors[:, 0] * vectors[:, 1]).sum(-1) - texts.evaluate.scores) ** 2
    assert outcome.record["metrics"]["loss"] == pytest.approx(errors.mean(), rel=1e-4)
    run(*words, "--evaluate.only").done().says(f"{outcome.record['metrics']['loss']:.4f}")
    # The command of the training would evaluate the encoder without its adapters.
    run(*words, *lora, "--evaluate.only").told("nothing to evaluate; name the folder with the adapters")


# --- bad input

PAIRS = [[f"{one} {two}", f"{two} {one}"] for one, two in pairwise(WORDS)]
# Two anchors with the same two positives: each is right for both, wherever it stands.
CROSSED = [[one, other] for one in ("red", "green") for other in ("one", "two") for _ in range(4)]
SCORED = [[*pair, 0.1 * number] for number, pair in enumerate(PAIRS)]


@pytest.mark.parametrize(
    ("head", "rows", "settings", "parts"),
    [
        (
            "anchor,positive",
            [*PAIRS, ["same", " same "], ["", "x"]],
            {},
            ["hold the same text", "(number 10,", "empty text in column 'anchor' in 1 row (number 11,", "drop_invalid"],
        ),
        ("anchor,positive,negative", [[*pair, pair[1]] for pair in PAIRS], {}, ["'positive' and 'negative'", "9 rows"]),
        (
            "sentence1,sentence2,score",
            [*SCORED, ["a", "b", "much"]],
            {},
            ["is not a finite number in 1 row (number 10,"],
        ),
        (
            "sentence1,sentence2,score",
            SCORED,
            {"score_range": (0, 0.5)},
            ["outside 0 to 0.5 in 3 rows (numbers 7, 8, 9"],
        ),
        ("sentence1,sentence2,score", [[*pair, 1] for pair in PAIRS], {}, ["every score is 1"]),
        (
            "sentence1,sentence2,label",
            [[*pair, "yes"] for pair in PAIRS],
            {},
            ["--data.score label", "--data.kind pos"],
        ),
        ("text,label", [[pair[0], "a"] for pair in PAIRS], {}, ["every row has the label 'a'"]),
        (
            "text,label",
            [[p[0], "ab"[n % 2]] for n, p in enumerate(PAIRS)],
            {"held_out": 0.1},
            ["no text has both another"],
        ),
        ("text,label", [*([p[0], "ab"[n % 2]] for n, p in enumerate(PAIRS)), ["  ", "a"]], {}, ["empty text"]),
        ("one,two", PAIRS, {}, ["--data.text COLUMN"]),
        ("anchor,positive", PAIRS, {"text": "ancor"}, ["did you mean 'anchor'"]),
        ("anchor,positive", PAIRS, {"score": "x", "label": "y"}, ["data.score and data.label are both given"]),
        ("anchor,positive", PAIRS[:1], {}, ["of a single training row none can be held out"]),
        ("anchor,positive", PAIRS[:2], {}, ["no negative among them; give more rows or data.eval"]),
        ("anchor,positive", CROSSED, {}, ["training data", "held-out rows", "no negative among them"]),
        ("anchor,positive", [["one", pair[0]] for pair in PAIRS[2:]], {}, ["none of the 7 training", "one first text"]),
        ("anchor,positive", PAIRS, {"score": "positive"}, ["taken for something else", "'anchor', 'positive'"]),
        ("text,label", [["a", "b"]], {"kind": "scores"}, ["the data has the columns 'text', 'label'"]),
    ],
)
def test_bad_rows_are_refused(
    head: str, rows: list[list[Any]], settings: dict[str, Any], parts: list[str], tmp_path: Path
) -> None:
    path = write(tmp_path / "rows.csv", head, rows)
    with pytest.raises(UserError) as caught:
        EmbeddingData(train=str(path), **settings).read()
    for part in parts:
        assert part in str(caught.value)


def test_rows_that_cannot_be_used_are_left_out_when_asked(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", "anchor,positive", [*PAIRS, ["same", "same"], ["", "x"]])
    texts = EmbeddingData(train=str(path), drop_invalid=True, held_out=0.2).read()
    assert texts.summary["dropped"] == "rows without a valid pair: 2 of the training data"
    assert len(texts.train) + len(texts.evaluate) == len(PAIRS)


def test_rows_of_one_anchor_are_held_out_together(tmp_path: Path) -> None:
    rows = [[f"{WORDS[i % 5]}", f"text {i}"] for i in range(50)]
    texts = EmbeddingData(train=str(write(tmp_path / "rows.csv", "anchor,positive", rows)), held_out=0.4).read()
    assert (len(texts.train), len(texts.evaluate)) == (30, 20)
    assert not set(texts.train.table["anchor"]) & set(texts.evaluate.table["anchor"])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)).filter(lambda pair: pair[0] != pair[1]), min_size=1))
def test_what_has_no_negative_is_known(pairs: list[tuple[int, int]]) -> None:
    anchors, positives = np.array(pairs).T
    related = all(set(one) & set(other) for one in pairs for other in pairs)
    assert all_related(anchors, positives) == related
    wrong = [other for one in anchors for other in positives if (one, other) not in pairs and one != other]
    assert all_right(anchors, positives) == (not wrong)


def test_columns_that_are_missing_from_the_evaluation_data_are_named_once(tmp_path: Path) -> None:
    train = write(tmp_path / "train.csv", "anchor,positive,negative", [[*pair, "x"] for pair in PAIRS])
    evaluate = write(tmp_path / "eval.csv", "anchor,positive", PAIRS)
    with pytest.raises(UserError, match="evaluation data: no column 'negative', which the training data has"):
        EmbeddingData(train=str(train), eval=str(evaluate)).read()


def test_a_text_with_several_labels_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": word, "label": [word[0]]}) + "\n" for word in WORDS))
    with pytest.raises(UserError, match="the label column 'label' holds several labels for a text"):
        EmbeddingData(train=str(path)).read()


def test_contrast_is_refused_where_it_would_change_nothing(run: Callable[..., Outcome], tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", "sentence1,sentence2,score", SCORED)
    run("--data.train", path, "--contrast.scale", "5", "--contrast.symmetric", "true").refused(
        "contrast.scale is 5.0, but pairs with scores are learned one by one", "contrast.symmetric is true"
    )


def test_one_sample_in_a_step_has_no_negatives(run: Callable[..., Outcome], tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", "anchor,positive", PAIRS)
    run("--data.train", path, "--data.eval", path, "--batch.size", "1").refused("batch.size is 1", "negatives")


def test_long_texts_are_refused_with_their_column_and_cut_when_asked(
    run: Callable[..., Outcome], tmp_path: Path, encoder: Path
) -> None:
    rows = [*PAIRS, ["one " * 200, "two"], ["three", "four " * 300]]
    path = write(tmp_path / "rows.csv", "anchor,positive", rows)
    words = ["--data.train", path, "--data.eval", path, "--model.name", encoder, "--steps", "1", "--epochs", "null"]
    run(*words, "--data.max_length", "null").refused(
        "training data, column 'anchor': 1 row (number 10,",
        "training data, column 'positive': 1 row (number 11,",
        "longer than the 128 tokens",
    )


def test_identities_tell_texts_apart_but_for_white_space() -> None:
    from datasets import Dataset

    found = text_identities(Dataset.from_dict({"a": ["x", " x\n", "y"], "b": ["y", None, ""]}))
    assert found[0, 0] == found[1, 0] != found[2, 0] == found[0, 1]
    assert found[1, 1] == found[2, 1]
    assert (found >= 0).all()


def test_a_batch_holds_the_texts_of_a_sample_side_by_side(encoder: Path) -> None:
    from transformers import AutoTokenizer

    text = lambda *ids: {"input_ids": list(ids)}  # noqa: E731
    samples = [
        {"row": 0, "anchor": text(2, 5, 3), "positive": text(2, 3), "identities": [7, 8], "score": 0.25},
        {"row": 1, "anchor": text(2, 6, 7, 3), "positive": text(2, 4, 3), "identities": [9, 7], "score": 1.0},
    ]
    batch = pad_sides(AutoTokenizer.from_pretrained(encoder))(samples)
    assert batch["input_ids"].tolist() == [[2, 5, 3, 0], [2, 3, 0, 0], [2, 6, 7, 3], [2, 4, 3, 0]]
    assert batch["identities"].tolist() == [[7, 8], [9, 7]]
    assert batch["scores"].tolist() == [0.25, 1.0]


def test_the_texts_of_a_column_are_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the tokenizer that is trained on them, and for the token ids that are kept: a second for a million rows."""
    hashed: list[tuple[str, ...]] = []

    def counting(table: Any) -> str:
        hashed.append((*table.column_names, str(len(table))))
        return text_digest(table)

    monkeypatch.setattr("toolkit.data.reading.text_digest", counting)
    path = write(tmp_path / "pairs.csv", "anchor,positive", [[f"text {row}", f"other {row}"] for row in range(20)])
    texts = EmbeddingData(train=str(path), held_out=0.2).read()
    texts.tokenize(tokenizer(EmbeddingModelConfig(), texts.training_texts(), texts.training_digest))
    assert sorted(hashed) == [("anchor", "16"), ("anchor", "4"), ("positive", "16"), ("positive", "4")]
