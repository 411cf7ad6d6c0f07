"""Language modelling: every token is predicted exactly once, its bits are those of the text, the saved model agrees."""

import importlib.util
import json
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from math import exp, log
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from changed_flags import without_training
from hypothesis import given, settings
from hypothesis import strategies as st
from small_language import arguments, lines
from trial import Outcome, run_here

from toolkit.errors import UserError
from toolkit.losses import NOT_COUNTED, summed_cross_entropy
from toolkit.output.ledger import read_ledger
from toolkit.tasks.language_modeling import masks
from toolkit.tasks.language_modeling import stream as block_stream
from toolkit.tasks.language_modeling.blocks import CausalBlocks, WholeBlocks, pad_blocks
from toolkit.tasks.language_modeling.data import divide_at_line
from toolkit.tasks.language_modeling.masks import Masking
from toolkit.tasks.language_modeling.metrics import guesses, scores_of, truths, unigram_scores
from toolkit.tasks.language_modeling.stream import Stream, parts_of, tokenize_documents

RECIPE = Path(__file__).parents[2] / "recipes" / "language.py"


@pytest.fixture(scope="module")
def language() -> ModuleType:
    specification = importlib.util.spec_from_file_location("language", RECIPE)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["language"] = module
    specification.loader.exec_module(module)
    return module


def run(language: ModuleType, words: Sequence[str], folder: Path) -> Outcome:
    return run_here(language.Language, language.task, words, folder)


@pytest.fixture(scope="module")
def causal(language: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A causal run; its files lie next to its folder."""
    place = tmp_path_factory.mktemp("causal")
    return run(language, arguments(place), place / "run").done()


@pytest.fixture(scope="module")
def masked(language: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A masked run in which every chosen token becomes the mask token: its predictions can be repeated from outside."""
    place = tmp_path_factory.mktemp("masked")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masks, "HIDDEN", 1.0)
        return run(language, arguments(place, "masked"), place / "run").done()


def changed(words: Sequence[str], values: dict[str, str]) -> list[str]:
    """Return flags with other values."""
    pairs = dict(zip(words[::2], words[1::2], strict=True)) | values
    return [word for pair in pairs.items() for word in pair]


def shown(outcome: Outcome) -> list[dict[str, Any]]:
    """Return what predictions.jsonl says, sample by sample."""
    return [json.loads(row) for row in (outcome.folder / "predictions.jsonl").read_text().splitlines()]


def stream_of(folder: Path, tokens: Sequence[int], size: int = 1, ends: Sequence[int] | None = None) -> Stream:
    """Return a stream of these tokens, of documents that end at these places, or of a single one."""
    folder.mkdir(parents=True, exist_ok=True)
    np.array(tokens, dtype=np.int32).tofile(folder / "tokens.bin")
    np.save(folder / "ends.npy", np.array([len(tokens) - 1] if ends is None else ends))
    (folder / "content.json").write_text(json.dumps({"digest": "", "bytes": size}))
    return Stream(folder)


class Letters:
    """A tokenizer whose tokens are letters: a to z, and four special ones before."""

    eos_token_id, pad_token_id, mask_token_id, sep_token_id = 0, 1, 2, None
    all_special_ids = (0, 1, 2, 3)

    def __len__(self) -> int:
        return 30


@given(length=st.integers(1, 60), block=st.integers(2, 20))
@settings(max_examples=60, deadline=None)
def test_every_token_is_in_exactly_one_block(tmp_path_factory: pytest.TempPathFactory, length: int, block: int) -> None:
    stream = stream_of(tmp_path_factory.mktemp("stream"), range(length + 1))
    source = CausalBlocks(stream, block)
    samples = source.fetch(range(len(source)))
    assert np.concatenate([sample["labels"] for sample in samples]).tolist() == list(range(1, length + 1))
    assert np.concatenate([sample["input_ids"] for sample in samples]).tolist() == list(range(length))
    assert source.lengths(np.arange(len(source))).tolist() == [len(sample["labels"]) for sample in samples]
    whole = WholeBlocks(stream, block + 3, [101], [102, 102])
    framed = [sample["input_ids"] for sample in whole.fetch(range(len(whole)))]
    assert all(part[0] == 101 and part[-2:].tolist() == [102, 102] for part in framed)
    assert np.concatenate([part[1:-2] for part in framed]).tolist() == list(range(1, length + 1))
    assert whole.lengths(np.arange(len(whole))).tolist() == list(map(len, framed))


@given(documents=st.lists(st.integers(0, 30), min_size=1, max_size=9), block=st.integers(2, 12))
@settings(max_examples=60, deadline=None)
def test_documents_that_are_apart_share_no_block(
    tmp_path_factory: pytest.TempPathFactory, documents: list[int], block: int
) -> None:
    """Tokens of document d are d * 100 + 1 and on; 0 ends each of them."""
    texts = [[100 * d + place for place in range(1, count + 1)] for d, count in enumerate(documents)]
    tokens = [0, *(token for text in texts for token in [*text, 0])]
    ends = np.cumsum([count + 1 for count in documents]).tolist()
    stream = stream_of(tmp_path_factory.mktemp("stream"), tokens, ends=ends)
    causal = CausalBlocks(stream, block, apart=True)
    samples = causal.fetch(range(len(causal)))
    assert np.concatenate([sample["labels"] for sample in samples]).tolist() == tokens[1:]
    for sample in samples:
        assert len({token // 100 for token in [*sample["input_ids"], *sample["labels"]] if token}) <= 1
        assert not sample["input_ids"][1:].tolist().count(0)  # a document begins a block
    assert causal.lengths(np.arange(len(causal))).tolist() == [len(sample["labels"]) for sample in samples]
    whole = WholeBlocks(stream, block + 2, [101], [102], apart=True)
    framed = [sample["input_ids"][1:-1].tolist() for sample in whole.fetch(range(len(whole)))]
    assert [token for part in framed for token in part] == [token for text in texts for token in text]
    assert all(len({token // 100 for token in part}) == 1 for part in framed)
    assert causal.digest() != CausalBlocks(stream, block).digest()


def test_a_long_document_is_tokenized_in_parts_as_it_would_be_whole(
    causal: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(causal.folder / "model")
    # Most lines are followed by empty ones, which tokenizers join: between those no part may end.
    spaced = "".join(line + "\n" * (3 if number % 4 else 1) for number, line in enumerate(lines(60, 1).split("\n")))
    texts = [spaced, "a word without end" * 30, "x"]
    monkeypatch.setattr(block_stream, "PART", 200)
    parts = [list(parts_of(text)) for text in texts]
    assert len(parts[0]) > 10
    assert ["".join(part for part, _ in found) for found in parts] == texts
    assert [[ends for _, ends in found].index(True) for found in parts] == [len(found) - 1 for found in parts]
    assert not any(part[-2].isspace() for part, _ in parts[0][:-1])
    assert not any(part[0].isspace() for part, _ in parts[0])
    stream = tokenize_documents([texts[0], texts[2]], "parts", tokenizer)
    whole = [tokenizer(text)["input_ids"] for text in (texts[0], texts[2])]
    end = tokenizer.eos_token_id
    assert stream.tokens.tolist() == [end, *whole[0], end, *whole[1], end]
    assert stream.bytes == len((texts[0] + texts[2]).encode())


def test_bits_per_byte_are_those_of_the_text(language: ModuleType, causal: Outcome) -> None:
    """The saved model asked directly, token by token of the text, without the toolkit's blocks."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = causal.folder / "model"
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    text = (causal.folder.parent / "held-out.txt").read_text()
    end = tokenizer.eos_token_id
    tokens = torch.tensor([end, *tokenizer(text)["input_ids"], end])
    nats = right = 0.0
    for start in range(0, len(tokens) - 1, 17):
        part = tokens[start : start + 18]
        with torch.no_grad():
            scores = model(part[None, :-1]).logits[0].log_softmax(-1)
        nats -= float(scores.gather(1, part[1:, None]).sum())
        right += int((scores.argmax(-1) == part[1:]).sum())
    metrics, units = causal.record["metrics"], len(tokens) - 1
    assert metrics["loss"] == pytest.approx(nats / units, rel=1e-12)
    assert metrics["perplexity"] == pytest.approx(exp(nats / units), rel=1e-12)
    assert metrics["bits_per_byte"] == pytest.approx(nats / log(2) / len(text.encode()), rel=1e-12)
    assert metrics["accuracy"] == right / units
    losses = [row["loss"] for row in read_ledger(causal.folder / "ledger.jsonl")]
    assert losses[-1] < losses[0]


def test_the_saved_models_alone_give_the_same_metrics_in_batches_of_any_size(
    language: ModuleType, causal: Outcome, masked: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masks, "HIDDEN", 1.0)
    for outcome, objective in ((causal, "causal"), (masked, "masked")):
        model = str(outcome.folder / "model")
        values = {"--objective": "auto", "--batch.eval": "7", "--model.name": model, "--evaluate.only": "true"}
        words = changed(arguments(outcome.folder.parent, objective), values)
        again = run(language, without_training(words), outcome.folder.parent / "alone").done()
        for name, value in outcome.record["metrics"].items():
            assert f"{value:.4f}" in again.output, name


def test_the_pipeline_continues_as_the_run_predicted(causal: Outcome) -> None:
    from transformers import pipeline

    first = shown(causal)[0]
    generate = pipeline("text-generation", str(causal.folder / "model"))
    tokenizer = generate.tokenizer
    tokens = [tokenizer.eos_token_id, *tokenizer((causal.folder.parent / "held-out.txt").read_text())["input_ids"]]
    answers = []
    for length in range(1, 18):
        prompt = tokenizer.decode(tokens[:length])
        assert tokenizer(prompt)["input_ids"] == tokens[:length]
        made = generate(prompt, max_new_tokens=1, do_sample=False, return_full_text=False, skip_special_tokens=False)
        answers.append(made[0]["generated_text"])
    assert first["sample"] == 0
    assert first["guessed"] == "".join(answers)
    assert first["actual"] == tokenizer.decode(tokens[1:18])
    assert first["text"] == "<end>"


def test_the_pipeline_fills_masks_as_the_run_did(masked: Outcome) -> None:
    from transformers import pipeline

    fill = pipeline("fill-mask", str(masked.folder / "model"), top_k=1)
    samples = [sample for sample in shown(masked) if sample["guessed"]]
    assert len(samples) > 5
    for sample in samples:
        text = sample["text"].removeprefix("[CLS]").removesuffix("[SEP]")
        answers = fill(text)
        answers = [answers] if len(sample["guessed"]) == 1 else answers
        assert [answer[0]["token_str"] for answer in answers] == sample["guessed"]


def test_unigram_scores_against_counting(tmp_path: Path) -> None:
    train, evaluate = [0, 5, 5, 5, 6, 0, 7, 0], [0, 5, 6, 9, 0]
    streams = [stream_of(tmp_path / str(number), tokens, 11) for number, tokens in enumerate((train, evaluate))]
    counts = Counter(train[1:])
    nats = -sum(log((counts[token] + 1) / (7 + 30)) for token in evaluate[1:])
    scores = unigram_scores(*streams, Letters(), "causal")
    assert scores == pytest.approx(
        {"loss": nats / 4, "perplexity": exp(nats / 4), "bits_per_byte": nats / log(2) / 11, "accuracy": 0.25}
    )
    # Ends of documents are never hidden: three tokens are asked for, among 26 letters, of which five were seen.
    nats = -sum(log((counts[token] + 1) / (5 + 30)) for token in (5, 6, 9))
    scores = unigram_scores(*streams, Letters(), "masked")
    assert scores == pytest.approx({"loss": nats / 3, "perplexity": exp(nats / 3), "accuracy": 1 / 3})
    assert scores_of(10_000.0, 1, None) == {"perplexity": float("inf")}


def test_masks_are_drawn_as_they_should_be() -> None:
    masking = Masking(Letters(), 0.15)
    tokens = np.random.default_rng(0).integers(0, 30, 200_000)
    sample = masking({"input_ids": tokens}, np.random.default_rng(1))
    inputs, labels = sample["input_ids"], sample["labels"]
    chosen = labels != NOT_COUNTED
    assert not chosen[tokens < 4].any()
    assert (labels[chosen] == tokens[chosen]).all()
    assert (inputs[~chosen] == tokens[~chosen]).all()
    assert chosen[tokens >= 4].mean() == pytest.approx(0.15, abs=0.003)
    assert (inputs[chosen] == 2).mean() == pytest.approx(0.8, abs=0.01)
    # One in 26 of those that are replaced stays what it is by chance.
    assert (inputs[chosen] == tokens[chosen]).mean() == pytest.approx(0.1 + 0.1 / 26, abs=0.01)
    others = inputs[chosen & (inputs != 2) & (inputs != tokens)]
    assert others.min() >= 4
    again = masking({"input_ids": tokens}, np.random.default_rng(1))
    assert all((sample[name] == again[name]).all() for name in sample)
    with pytest.raises(UserError, match="no mask token"):
        Masking(type("Without", (Letters,), {"mask_token_id": None})(), 0.15)


def test_a_batch_in_which_nothing_is_hidden_counts_nothing() -> None:
    samples = [{"input_ids": np.arange(length), "labels": np.full(length, NOT_COUNTED)} for length in (3, 5)]
    batch = pad_blocks(Letters())(samples)
    assert batch["attention_mask"].sum() == 8
    logits = torch.randn(2, 5, 30, requires_grad=True)
    loss = summed_cross_entropy(logits, batch["labels"])
    loss.backward()
    assert float(loss.detach()) == 0
    assert logits.grad is not None
    assert not logits.grad.any()
    assert guesses(logits.argmax(-1), batch["labels"]).tolist() == [[0] + [NOT_COUNTED] * 24] * 2
    assert truths(batch["labels"])[:, :25].tolist() == [[0] + [-1] * 24] * 2


def test_masked_numbers_do_not_depend_on_the_cut(language: ModuleType, masked: Outcome, tmp_path: Path) -> None:
    ledgers = []
    # One by one, no block is padded; together, the shorter last one is.
    for micro in ("8", "1"):
        folder = tmp_path / micro
        values = {"--batch.micro": micro, "--batch.eval": micro, "--batch.balance": "false", "--data.mask": "0.4"}
        words = changed(arguments(tmp_path, "masked"), values)
        run(language, words, folder).done()
        ledgers.append(list(read_ledger(folder / "ledger.jsonl")))
    one, other = ledgers
    assert [row["loss"] for row in one] == pytest.approx([row["loss"] for row in other], rel=1e-12)
    assert one[-1]["evaluation"] == pytest.approx(other[-1]["evaluation"], rel=1e-12)
    # Another share hides other tokens, and the baseline is the same: it is that of all tokens.
    assert one[-1]["evaluation"]["loss"] != masked.record["metrics"]["loss"]
    assert set(one[-1]["evaluation"]) == {"loss", "perplexity", "accuracy"}


def test_the_only_document_is_divided_at_a_line(language: ModuleType, tmp_path: Path) -> None:
    text = lines(100, 3)
    (tmp_path / "one.txt").write_text(text)
    read = language.Documents(train=str(tmp_path / "one.txt")).read()
    (train,), (held_out,) = read.train.texts(), read.evaluate.texts()
    assert train + held_out == text
    assert train.endswith("\n")
    assert len(held_out) == pytest.approx(len(text) * 0.1, abs=80)
    assert divide_at_line("x" * 100, 0.1) == 90
    assert divide_at_line("x" * 20 + "\n" + "y" * 79, 0.1) == 90
    assert divide_at_line("x" * 90 + "\n" + "y" * 9, 0.1) == 91


def test_columns_and_whole_documents_held_out(language: ModuleType, tmp_path: Path) -> None:
    rows = [{"content": lines(1, number), "n": number} for number in range(20)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    read = language.Documents(train=str(tmp_path / "rows.jsonl")).read()
    assert len(read.train) == 18
    assert sorted([*read.train.texts(), *read.evaluate.texts()]) == sorted(row["content"] for row in rows)


def with_rows(folder: Path, rows: list[dict[str, Any]]) -> list[str]:
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return ["--data.train", str(folder / "rows.jsonl")]


def test_bad_documents_are_refused(language: ModuleType, tmp_path: Path) -> None:
    rows = [{"text": "some words"}, {"text": " \n"}, {"text": "more words"}, {"text": None}]
    words = with_rows(tmp_path, rows)
    run(language, words, tmp_path / "a").refused("no text in 2 rows (numbers 2, 4", "--data.drop_invalid true")
    read = language.Documents(train=str(tmp_path / "rows.jsonl"), drop_invalid=True).read()
    assert read.summary["dropped"] == "empty documents: 2 of the training data"

    (tmp_path / "texts").mkdir()
    for name, text in (("full.txt", "words"), ("hollow.txt", "\n\n")):
        (tmp_path / "texts" / name).write_text(text)
    run(language, ["--data.train", str(tmp_path / "texts")], tmp_path / "b").refused("1 file (hollow.txt)")
    (tmp_path / "one.txt").write_text("ab")
    short = ["--data.train", str(tmp_path / "one.txt")]
    run(language, short, tmp_path / "c").refused("nothing to evaluate on", "data.eval")
    numbers = with_rows(tmp_path, [{"text": 1}, {"text": 2}])
    run(language, numbers, tmp_path / "d").refused("'text' holds int64, not text")
    run(language, [*words, "--data.block", "1", "--data.mask", "1"], tmp_path / "e").refused("data.block", "data.mask")


def test_models_that_do_not_fit_are_refused(
    language: ModuleType, causal: Outcome, masked: Outcome, tmp_path: Path
) -> None:
    forwards, both = (str(outcome.folder / "model") for outcome in (causal, masked))
    words = arguments(tmp_path)
    run(language, [*words, "--model.name", both], tmp_path / "a").refused("objective is causal", "--objective masked")
    wrong = [*arguments(tmp_path, "masked"), "--model.name", forwards]
    run(language, wrong, tmp_path / "b").refused("objective is masked", "a model of type llama", "--objective causal")
    run(language, changed(words, {"--data.block": "600"}), tmp_path / "c").refused(
        "data.block is 600", "at most 512 tokens"
    )
    small = changed(arguments(tmp_path, "masked"), {"--data.block": "2"})
    run(language, small, tmp_path / "d").refused("adds 2 tokens", "at least 3")
    mixed = tmp_path / "mixed"
    shutil.copytree(forwards, mixed)
    settings_ = json.loads((mixed / "config.json").read_text())
    (mixed / "config.json").write_text(json.dumps({**settings_, "vocab_size": 100}))
    run(language, [*words, "--model.name", str(mixed)], tmp_path / "e").refused("tokens, but the model only 100")
