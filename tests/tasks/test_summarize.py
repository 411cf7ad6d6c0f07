"""Texts from texts: data, loss and generation that depend on no padding, metrics, the saved model, and bad input."""

import ast
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from changed_flags import changed, without_training
from recipe_layouts import load_recipe
from small_summarize import arguments, rows, write
from trial import Outcome, run_here

from toolkit.config.model import ModelConfig
from toolkit.losses import NOT_COUNTED, counted, summed_cross_entropy
from toolkit.sample_data.functions import describe, described_in, split_by_module
from toolkit.tasks.seq2seq.data import TextPairs
from toolkit.tasks.seq2seq.generation import GenerateConfig, generated_texts
from toolkit.tasks.seq2seq.models import decoder_inputs, seq2seq_model, target_logits
from toolkit.tasks.seq2seq.pairs import pad_pairs
from toolkit.text_metrics import exact_match, rouge

PREDICTED = ["the cat sat on a mat", "nothing alike", "dogs bark", "four words are here"]
SEVERAL = [
    ["a cat sat on the mat", "the cat lay on a mat", "cats"],
    ["something else"],
    ["dogs bark", "a dog barks"],
    ["four words", "there are four words"],
]


@pytest.fixture(scope="module")
def summarize() -> ModuleType:
    return load_recipe("summarize")


def run(summarize: ModuleType, folder: Path, *words: str) -> Outcome:
    folder.mkdir(exist_ok=True)
    flags = changed(arguments(folder), "--threads", "1", *words)
    return run_here(summarize.Summarize, summarize.task, flags, folder / "run")


@pytest.fixture(scope="module")
def trained(summarize: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    # Thirty steps: enough for the model to have something of its own to say to each text.
    words = ["--optim.lr", "3e-3", "--steps", "30", "--evaluate.every", "30", "--model.dtype", "float32"]
    return run(summarize, tmp_path_factory.mktemp("summarize"), *words).done()


def test_the_saved_model_writes_the_same_texts_by_itself(trained: Outcome) -> None:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    folder = trained.folder / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert (model.generation_config.num_beams, model.generation_config.max_new_tokens) == (1, 8)
    shown = [json.loads(line) for line in (trained.folder / "predictions.jsonl").read_text().splitlines()]
    assert len(shown) == 11
    inputs = tokenizer(["summarize: " + row["source"] for row in shown], padding=True, return_tensors="pt")
    texts = tokenizer.batch_decode(model.generate(**inputs), skip_special_tokens=True)
    assert [text.strip() for text in texts] == [row["prediction"] for row in shown]
    assert len(set(texts)) > 3
    assert [row["row"] for row in shown] == list(range(1, 12))
    for row, text in zip(shown, inputs["input_ids"], strict=True):
        wanted = tokenizer(text_target=row["references"][0], return_tensors="pt")["input_ids"]
        mask = (text != tokenizer.pad_token_id).long()
        loss = model(input_ids=text[None], attention_mask=mask[None], labels=wanted).loss
        assert row["scores"]["loss"] == pytest.approx(float(loss), rel=1e-4)
    assert [row["references"] for row in shown] == [row["summary"] for row in rows(11, first=37)]
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "['summarize: ' + text for text in texts]" in card
    assert "transformers.pipeline" not in card
    metrics = exact_match([row["prediction"] for row in shown], [row["references"] for row in shown])
    assert trained.record["metrics"]["exact_match"] == metrics["exact_match"]


def test_a_saved_model_is_evaluated_alone(summarize: ModuleType, trained: Outcome) -> None:
    own = without_training(arguments(trained.folder.parent))
    flags = changed(own, "--threads", "1", "--model.dtype", "float32", "--evaluate.only")
    again = run_here(summarize.Summarize, summarize.task, flags, trained.folder).done()
    again.says(*(f"{trained.record['metrics'][name]:.4f}" for name in ("loss", "rougeL", "exact_match")))


def test_adapters_lie_beside_how_they_generate(summarize: ModuleType, trained: Outcome, tmp_path: Path) -> None:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig

    pytest.importorskip("peft")
    own = ["--generate.max_length", "5", "--generate.beams", "2", "--model.dtype", "float32", "--optim.lr", "0.1"]
    lora = ["--model.name", str(trained.folder / "model"), "--model.lora.rank", "2"]
    adapted = run(summarize, tmp_path, *own, *lora).done()
    folder = adapted.folder / "model"
    assert not (folder / "model.safetensors").exists()
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForSeq2SeqLM.from_pretrained(folder)
    settings = GenerationConfig.from_pretrained(folder)
    assert (settings.num_beams, settings.max_new_tokens) == (2, 5)
    shown = [json.loads(line) for line in (adapted.folder / "predictions.jsonl").read_text().splitlines()]
    inputs = tokenizer(["summarize: " + row["source"] for row in shown], padding=True, return_tensors="pt")
    texts = tokenizer.batch_decode(model.generate(**inputs, generation_config=settings), skip_special_tokens=True)
    assert [text.strip() for text in texts] == [row["prediction"] for row in shown]
    assert 'GenerationConfig.from_pretrained("<this folder>")' in (folder / "README.md").read_text()
    again = run(summarize, tmp_path, *own, "--evaluate.only").done()
    again.says(*(f"{adapted.record['metrics'][name]:.4f}" for name in ("loss", "rougeL")))


@pytest.mark.parametrize("beams", [1, 3])
def test_texts_and_loss_depend_on_no_padding(trained: Outcome, beams: int) -> None:
    from transformers import AutoTokenizer

    folder = trained.folder / "model"
    tokens = AutoTokenizer.from_pretrained(folder)
    config = ModelConfig(name=str(folder), dtype="float64")
    model: Any = seq2seq_model(config, GenerateConfig(beams=beams), len(tokens), longest_target=6).eval()
    texts_in = [(f"summarize: {row['document']}", row["summary"][0]) for row in rows(12, first=30)]
    samples = [{"source": tokens(one), "target": tokens(other)} for one, other in texts_in]
    collate = pad_pairs(tokens)
    whole, alone = collate(samples), [collate([sample]) for sample in samples]
    assert len({batch["input_ids"].shape[1] for batch in alone}) > 3
    texts = generated_texts(model, whole, tokens)
    assert texts == [text for batch in alone for text in generated_texts(model, batch, tokens)]
    assert len(set(texts)) > 3

    def loss(batch: Any) -> float:
        return float(summed_cross_entropy(target_logits(model, batch), batch["labels"]).detach())

    total, units = loss(whole), counted(whole["labels"])
    assert sum(map(loss, alone)) == pytest.approx(total, rel=1e-6)
    assert units == sum(len(sample["target"]["input_ids"]) for sample in samples)
    assert total == pytest.approx(float(model(**whole).loss.detach()) * units, rel=1e-6)


def test_decoders_begin_as_their_models_do() -> None:
    """For four families the logits are those that the model finds when it is given the labels itself."""
    from transformers import AutoModelForSeq2SeqLM, BartConfig, M2M100Config, MBartConfig, T5Config

    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "vocab_size": 50, "pad_token_id": 1}
    begin = {"decoder_start_token_id": 2, "bos_token_id": 0, "eos_token_id": 2}
    families = [
        *(kind(**sizes, **heads, **begin) for kind in (BartConfig, MBartConfig, M2M100Config)),
        T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0),
    ]
    labels = torch.tensor([[11, 12, 13, 2], [14, 2, NOT_COUNTED, NOT_COUNTED]])
    words = torch.tensor([[21, 22, 2], [23, 2, 1]])
    for settings in families:
        model = AutoModelForSeq2SeqLM.from_config(settings).eval()
        given = {"input_ids": words, "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}
        ours = model(**given, decoder_input_ids=decoder_inputs(model, labels)).logits
        assert torch.equal(ours[labels >= 0], model(**given, labels=labels).logits[labels >= 0])


def test_rouge_is_that_of_rouge_score_with_the_best_reference() -> None:
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"])
    found = rouge(PREDICTED, SEVERAL)
    for kind in ("rouge1", "rouge2", "rougeL"):
        best = [
            max(scorer.score(reference, text)[kind].fmeasure for reference in references)
            for text, references in zip(PREDICTED, SEVERAL, strict=True)
        ]
        assert found[kind] == pytest.approx(sum(best) / 4, abs=1e-12)
        assert found[kind] != pytest.approx(rouge(PREDICTED, [several[:1] for several in SEVERAL])[kind])
    # By hand: of six words five agree in "the cat lay on a mat", six of six in "a cat sat on the mat".
    assert rouge(PREDICTED[:1], SEVERAL[:1])["rouge1"] == 1.0
    assert rouge(PREDICTED[:1], [SEVERAL[0][1:]])["rouge1"] == pytest.approx(5 / 6)
    assert exact_match([*PREDICTED[:3], " four words "], SEVERAL) == {"exact_match": 0.5}


def test_sentences_are_joined_and_all_references_kept(summarize: ModuleType, tmp_path: Path) -> None:
    made = [{"source": ["First one.", " ", "Second."], "target": ["", "one", f"number {n}"]} for n in range(20)]
    pairs = TextPairs(train=write(tmp_path / "sentences.jsonl", made), prefix="tldr: ").read(summarize.corpus)
    assert pairs.train.table[0]["source"] == "tldr: First one. Second."
    assert pairs.train.table[0]["target"] == "one"
    assert pairs.source(0) == "First one. Second."
    assert all(references[0] == "one" and references[1].startswith("number") for references in pairs.references)
    assert (len(pairs.train), len(pairs.evaluate)) == (18, 2)
    assert pairs.trivial_summaries() == ["one", "one"]
    other = [{"source": f"Two words {n} and more", "target": f"{n} words"} for n in range(20)]
    pairs = TextPairs(train=write(tmp_path / "other.jsonl", other)).read(summarize.corpus)
    assert pairs.trivial_summaries() == ["Two words"] * 2


def test_bad_rows_and_columns_are_told(summarize: ModuleType, tmp_path: Path) -> None:
    made: list[dict[str, Any]] = rows(37)
    made[4]["document"], made[9]["summary"], made[11]["summary"] = "  ", [], [""]
    (tmp_path / "bad").mkdir()
    path = write(tmp_path / "bad" / "rows.jsonl", made)
    folder = tmp_path / "one"
    run(summarize, folder, "--data.train", path).refused("training data", "3 rows (numbers 5, 10, 12", "drop_invalid")
    run(summarize, tmp_path / "two", "--data.train", path, "--data.drop_invalid").done().says("3 of the training data")
    missing = run(summarize, tmp_path / "three", "--data.source", "documents", "--data.target", "abstract")
    missing.refused("data.source is 'documents'", "did you mean 'document'", "data.target is 'abstract'")
    numbers = write(tmp_path / "numbers.jsonl", [{"source": "text", "target": 5}] * 4)
    run(summarize, tmp_path / "four", "--data.train", numbers, "--data.eval", numbers).refused("'target' holds int64")


def test_long_texts_are_refused_and_truncated_only_when_asked(summarize: ModuleType, tmp_path: Path) -> None:
    made: list[dict[str, Any]] = rows(37)
    made[6]["document"] = "word " * 600
    made[7]["summary"] = ["word " * 600]
    path = write(tmp_path / "long.jsonl", made)
    told = run(summarize, tmp_path / "one", "--data.train", path)
    told.refused(
        "data, source: 1 row (number 7",
        "--data.max_length 512",
        "data, target: 1 row (number 8",
        "max_target_length 512",
    )
    cut = run(
        summarize, tmp_path / "two", "--data.train", path, "--data.max_length", "9", "--data.max_target_length", "6"
    )
    cut.done().says("sources truncated to 9", "targets truncated to 6")
    # The metrics know nothing of the cut.
    shown = [json.loads(line) for line in (cut.folder / "predictions.jsonl").read_text().splitlines()]
    assert [row["references"] for row in shown] == [row["summary"] for row in rows(11, first=37)]
    for flag, value in (("max_length", "1"), ("max_target_length", "1"), ("max_length", "600")):
        run(summarize, tmp_path / "three", f"--data.{flag}", value).refused(f"data.{flag} is {value}")
    settings = ["--generate.beams", "0", "--generate.max_length", "0", "--data.max_length", "0"]
    run(summarize, tmp_path / "four", *settings).told(
        "generate.beams is 0", "generate.max_length is 0", "data.max_length is 0"
    )


def test_models_without_a_decoder_or_an_encoder_are_refused(
    summarize: ModuleType, encoder: Path, tmp_path: Path
) -> None:
    from transformers import LlamaConfig

    run(summarize, tmp_path / "one", "--model.name", str(encoder)).refused(
        "a model of type bert", "an encoder and a decoder"
    )
    LlamaConfig().save_pretrained(tmp_path / "causal")
    causal = run(summarize, tmp_path / "two", "--model.name", str(tmp_path / "causal"))
    causal.refused("a model of type llama", "turn one text into another")


def test_facts_follow_from_the_source(tmp_path: Path) -> None:
    told = {
        "def f(): return 1": "A function with no parameters that returns a value.",
        "def f(self, a, *b, **c): pass": "A method with three parameters that returns nothing.",
        "def f(a, b, c, d, *, e):\n for x in a:\n  if x: raise b": (
            "A function with many parameters that decides between cases, loops, raises errors and returns nothing."
        ),
        "async def f(cls):\n try:\n  yield 1\n except E:\n  return": (
            "A method with no parameters that catches errors and yields values."
        ),
        "def f(a):\n def g():\n  return 1\n g()": "A function with one parameter that returns nothing.",
        "def f(a, /):\n return [x for x in a]": "A function with one parameter that loops and returns a value.",
    }
    for source, sentence in told.items():
        node = ast.parse(source).body[0]
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        assert describe(node) == sentence
    body = "class A:\n    def f(self):\n        '''Say\n        it.'''\n\n        return " + "1 + " * 12 + "1\n"
    (tmp_path / "module.py").write_text(body)
    [(source, _)] = described_in(tmp_path / "module.py")
    assert source == "def f(self):\n    return " + "1 + " * 12 + "1"
    functions = [{"source": str(n), "description": "", "module": f"m{n % 24:02}"} for n in range(48)]
    train, held = split_by_module(functions)
    assert {row["module"] for row in held} == {"m11", "m23"}
    assert {row["module"] for row in train} | {"m11", "m23"} == {row["module"] for row in functions}
