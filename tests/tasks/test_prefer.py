"""Direct preference optimisation: the loss by its formula, the reference that stays what it was, and what pairs may
look like."""

import copy
import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from launching import ROOT
from resuming import rows_of
from small_prefer import WORDS, arguments, pairs, write_rows
from trial import Outcome, run_here

from toolkit.config.model import ModelConfig
from toolkit.errors import UserError
from toolkit.tasks.dpo.data import PreferenceData

TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'user' and loop.previtem and loop.previtem.role == 'user' %}"
    "{{ raise_exception('two turns of the user') }}{% endif %}"
    "<{{ message.role }}>{{ message.content }}<end>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
Capture = Callable[..., tuple[Outcome, Any]]


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prefer", ROOT / "recipes" / "prefer.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["prefer"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved Llama of one layer, with a tokenizer that has a chat template."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from toolkit.models.tokenizer import CAUSAL, train_tokenizer

    folder = tmp_path_factory.mktemp("models") / "llama"
    folder.mkdir()
    texts = [text for row in pairs(20) for text in row.values()]
    marks = ("<user>", "<assistant>", "<system>")
    train_tokenizer(texts, folder, replace(CAUSAL, vocabulary=320, more_tokens=marks, chat_template=TEMPLATE))
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    torch.manual_seed(0)
    settings = LlamaConfig(vocab_size=320, pad_token_id=0, eos_token_id=1, bos_token_id=None, **sizes)
    LlamaForCausalLM(settings).save_pretrained(folder)
    return folder


@pytest.fixture
def train(recipe: ModuleType, tmp_path: Path) -> Capture:
    """Runs the recipe in this process; returns what it came to, and its module."""

    def run(*words: str | Path, folder: str = "run") -> tuple[Outcome, Any]:
        modules = []

        def task(config: Any) -> Any:
            made = recipe.task(config)
            return replace(made, model=lambda context: modules.append(made.model(context)) or modules[-1])

        outcome = run_here(recipe.Prefer, task, ["--threads", "1", *map(str, words)], tmp_path / folder)
        return outcome, modules[-1] if modules else None

    return run


def tokens_of(llama: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(llama)


def model_of(llama: Path, **adapters: Any) -> Any:
    """Return the policy and its reference in float64, the policy a little away from where it began."""
    from toolkit.config.model import LoraConfig
    from toolkit.tasks.dpo.models import policy_and_reference

    config = ModelConfig(name=str(llama), dtype="float64", lora=LoraConfig(**adapters))
    model = policy_and_reference(config, None, 320)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.policy.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype), alpha=0.2)
    return model


def batch_of(llama: Path, count: int = 5) -> tuple[list[Any], dict[str, torch.Tensor]]:
    from toolkit.tasks.dpo.rows import Pair
    from toolkit.tasks.dpo.tokens import encode, pad_pairs

    tokens = tokens_of(llama)
    samples = encode([Pair(row["prompt"], row["chosen"], row["rejected"]) for row in pairs(count)], tokens)
    return samples, pad_pairs(tokens)(samples)


def alone(model: Any, prompt: list[int], completion: list[int]) -> torch.Tensor:
    """Return the log-probability of a completion from the definition: token by token, without padding."""
    probabilities = model(torch.tensor([prompt + completion])).logits[0].log_softmax(-1)
    return torch.stack([probabilities[len(prompt) - 1 + k, token] for k, token in enumerate(completion)]).sum()


def test_loss_and_gradient_are_those_of_the_formula(recipe: ModuleType, llama: Path) -> None:
    """The gradient by formula: -beta (1 - smooth - sigmoid(margin)) (gradient of chosen - gradient of rejected)."""
    model = model_of(llama)
    samples, batch = batch_of(llama)
    config = recipe.DpoConfig(beta=0.3, label_smoothing=0.1, likelihood=0.7)
    loss = recipe.dpo_loss(*recipe.rewards(model, batch, config.beta), config)
    loss.backward()
    expected_loss = 0.0
    expected = {name: torch.zeros_like(p) for name, p in model.policy.named_parameters()}
    for prompt, chosen, rejected in samples:
        gradients = []
        values = []
        for side in (chosen, rejected):
            value = alone(model.policy, prompt, side)
            gradients.append(torch.autograd.grad(value, list(model.policy.parameters())))
            values.append(float(value.detach()))
        before = [float(alone(model.reference, prompt, side).detach()) for side in (chosen, rejected)]
        margin = 0.3 * ((values[0] - before[0]) - (values[1] - before[1]))
        right = 1 / (1 + np.exp(-margin))
        expected_loss += -0.9 * np.log(right) - 0.1 * np.log(1 - right) - 0.7 * values[0] / len(chosen)
        for name, of_chosen, of_rejected in zip(expected, *gradients, strict=True):
            expected[name] -= 0.3 * (0.9 - right) * (of_chosen - of_rejected) + 0.7 / len(chosen) * of_chosen
    assert float(loss.detach()) == pytest.approx(expected_loss, rel=1e-9)
    for name, parameter in model.policy.named_parameters():
        # A Llama's norms are computed in float32, whatever its weights are.
        assert (parameter.grad - expected[name]).norm() < 1e-6 * expected[name].norm(), name
    assert all(parameter.grad is None for parameter in model.reference.parameters())


def test_before_training_there_is_no_margin(recipe: ModuleType, llama: Path) -> None:
    from toolkit.tasks.dpo.models import policy_and_reference

    for config in (ModelConfig(name=str(llama)), ModelConfig(name=str(llama), lora=recipe_lora(dropout=0.5))):
        rewards, _ = recipe.rewards(policy_and_reference(config, None, 320).train(), batch_of(llama)[1], 0.1)
        # Adapters begin at nothing, with dropout or without.
        assert (rewards == 0).all()


def recipe_lora(**settings: Any) -> Any:
    from toolkit.config.model import LoraConfig

    return LoraConfig(rank=2, **settings)


def test_a_frozen_copy_and_adapters_switched_off_are_the_same_reference(llama: Path) -> None:
    _, batch = batch_of(llama)
    inputs = (batch["input_ids"], batch["attention_mask"], batch["carrying"], batch["targets"])
    copied, adapted = model_of(llama), model_of(llama, rank=2, dropout=0.5).train()
    assert adapted.reference is None
    trained = [name for name, p in adapted.named_parameters() if p.requires_grad]
    modes = [module.training for module in adapted.modules()]
    first, second = copied(*inputs), adapted(*inputs)
    assert torch.equal(first.reference, second.reference)
    assert not torch.allclose(second.policy, second.reference)
    assert second.policy.requires_grad
    assert not second.reference.requires_grad
    # Adapters and dropout are on again.
    assert trained == [name for name, p in adapted.named_parameters() if p.requires_grad] != []
    assert modes == [module.training for module in adapted.modules()]
    assert not torch.equal(adapted(*inputs).policy, second.policy)


@pytest.mark.parametrize("adapters", [{}, {"rank": 2}])
def test_the_reference_has_no_dropout_and_does_not_change_that_of_the_policy(
    llama: Path, adapters: dict[str, Any]
) -> None:
    _, batch = batch_of(llama)
    inputs = (batch["input_ids"], batch["attention_mask"], batch["carrying"], batch["targets"])
    model = model_of(llama, **adapters).train()
    layers = [module for module in model.modules() if hasattr(module, "attention_dropout")]
    assert layers
    for layer in layers:
        layer.attention_dropout = 0.5
    torch.manual_seed(0)
    one = model(*inputs)
    torch.manual_seed(0)
    other = model(*inputs)
    third = model(*inputs)
    assert torch.equal(one.policy, other.policy)
    assert not torch.equal(one.policy, third.policy)
    assert torch.equal(one.reference, third.reference)


def test_training_leaves_the_reference_as_it_began_and_so_does_a_resume(train: Capture, tmp_path: Path) -> None:
    words = [*arguments(tmp_path), "--checkpoint.every", "3"]
    whole, module = train(*words)
    whole.done()
    start = {name: tensor.clone() for name, tensor in module.reference.state_dict().items()}
    again, resumed = train(*words, "--resume", whole.folder / "checkpoints" / "step-000003", folder="again")
    again.done().says("going on after step 3")
    assert all(torch.equal(tensor, start[name]) for name, tensor in resumed.reference.state_dict().items())
    for name, tensor in module.policy.state_dict().items():
        assert torch.equal(tensor, resumed.policy.state_dict()[name])
    assert not torch.equal(module.policy.lm_head.weight, start["lm_head.weight"])
    assert rows_of(again.folder / "ledger.jsonl") == rows_of(whole.folder / "ledger.jsonl")
    # What it began with is what the seed alone makes of the embedded model.
    from toolkit.tasks.dpo.models import read_record, recorded_reference

    record = read_record(str(whole.folder / "model"))
    assert record is not None

    vocabulary = len(start["lm_head.weight"])
    made = recorded_reference(ModelConfig(dtype="float64"), record, vocabulary)
    assert all(torch.equal(tensor, start[name]) for name, tensor in made.state_dict().items())
    assert whole.record["metrics"]["preference_accuracy"] > 0.5
    assert whole.record["baseline"] == {
        "preference_accuracy": 0.5, "margin": 0.0, "reward_chosen": 0.0, "reward_rejected": 0.0
    }  # fmt: skip


def test_only_the_policy_is_saved_and_others_load_it(train: Capture, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, pipeline

    words = arguments(tmp_path)
    outcome, module = train(*words)
    folder = outcome.done().folder / "model"
    saved = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    assert all(torch.equal(t, module.policy.state_dict()[name]) for name, t in saved.state_dict().items())
    tokens = tokens_of(folder)
    prompt = "say red green: "
    asked = tokens(prompt, return_tensors="pt")
    wanted = module.policy.eval().generate(**asked, max_new_tokens=5, do_sample=False)[0]
    said = pipeline("text-generation", str(folder), dtype=torch.float64)(prompt, max_new_tokens=5, do_sample=False)
    assert said[0]["generated_text"] == tokens.decode(wanted, skip_special_tokens=True)
    evaluated, _ = train(*words, "--evaluate.only")
    evaluated.done().says(*(f"{value:.4f}" for value in outcome.record["metrics"].values()))
    (folder / "reference.json").unlink()
    train(*words, "--evaluate.only")[0].told("which model it was trained against", "--dpo.reference")
    shown = [json.loads(line) for line in (outcome.folder / "predictions.jsonl").read_text().splitlines()]
    assert [row["row"] for row in shown] == list(range(1, len(shown) + 1))
    assert shown[0]["prompt"] == pairs(1)[0]["prompt"]
    assert shown[0]["chosen"] == pairs(1)[0]["chosen"] + "<end>"


def test_adapters_are_trained_against_themselves_switched_off(train: Capture, llama: Path, tmp_path: Path) -> None:
    words = [*arguments(tmp_path), "--optim.lr", "1e-2"]
    outcome, module = train(*words, "--model.name", llama, "--model.lora.rank", "2")
    outcome.done()
    assert module.reference is None
    assert outcome.record["metrics"]["margin"] > 0
    model = outcome.folder / "model"
    assert (model / "adapter_config.json").is_file()
    evaluated, _ = train(*words, "--model.name", model, "--evaluate.only")
    evaluated.done().says(*(f"{value:.4f}" for value in outcome.record["metrics"].values()))
    # Trained further, they are held against what they are now, not against the model without them.
    further, module = train(*words, "--model.name", model, folder="further")
    further.done()
    assert module.reference is not None


def test_scores_of_fixed_rewards() -> None:
    from toolkit.tasks.dpo.models import preference_scores

    assert preference_scores([[2.0, 1.0], [0.0, 0.0], [-1.0, 1.0], [0.0, 4.0]], np.array([0, 0, 0, 1])) == {
        "preference_accuracy": 2.5 / 4, "margin": (1 + 0 - 2 + 4) / 4, "reward_chosen": 5 / 4, "reward_rejected": 2 / 4
    }  # fmt: skip


USER, GOOD, BAD = (
    {"role": role, "content": text} for role, text in (("user", "say red"), ("assistant", "red"), ("assistant", "blue"))
)
SYSTEM = {"role": "system", "content": "be brief"}
LAYOUTS = {
    "texts": (
        {"prompt": "<user>say red<end><assistant>", "chosen": "red", "rejected": "blue"}, "red<end>", "blue<end>"
    ),
    "whole": ({"chosen": "say it: red", "rejected": "say it: blue"}, " red<end>", " blue<end>"),
    "inside": ({"chosen": [USER, GOOD], "rejected": [USER, BAD]}, "red<end>", "blue<end>"),
    "repeated": (
        {"prompt": "say red", "chosen": [SYSTEM, USER, GOOD], "rejected": [SYSTEM, USER, BAD]}, "red<end>", "blue<end>"
    ),
    "beside": ({"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]}, "red<end>", "blue<end>"),
    "other roles": (
        {
            side: [{"from": "human", "value": "say red"}, {"from": "gpt", "value": text}]
            for side, text in (("chosen", "red"), ("rejected", "blue"))
        },
        "red<end>", "blue<end>",
    ),
    "text beside": ({"prompt": "say red", "chosen": [GOOD], "rejected": [BAD]}, "red<end>", "blue<end>"),
}  # fmt: skip
PROMPTS = {"whole": "say it:", "repeated": "<system>be brief<end><user>say red<end><assistant>"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_exactly_the_completion_carries_loss(layout: str, llama: Path, tmp_path: Path) -> None:
    from toolkit.tasks.dpo.tokens import pad_pairs

    row, chosen, rejected = LAYOUTS[layout]
    data = write_rows(tmp_path / "data.jsonl", [row])
    read = PreferenceData(train=str(data), eval=str(data)).read()
    tokens = tokens_of(llama)
    source = read.tokenize(tokens, ModelConfig(name=str(llama)), 64).train
    samples = source.fetch([0])
    assert tokens.decode(samples[0].prompt) == PROMPTS.get(layout, "<user>say red<end><assistant>")
    batch = pad_pairs(tokens)(samples)
    said = [tokens.decode(labels[labels >= 0]) for labels in batch["labels"]]
    assert said == [chosen, rejected]
    # Each label is the token behind its position.
    for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True):
        counted = labels >= 0
        assert torch.equal(ids[1:][counted[:-1]], labels[counted])
    assert source.lengths(np.array([0])).tolist() == [batch["input_ids"].shape[1]]


def refusal(tmp_path: Path, rows: list[dict[str, Any]], llama: Path | None = None, **settings: Any) -> str:
    """Return what is said of data that can't be used."""

    data = write_rows(tmp_path / "data.jsonl", rows)
    try:
        read = PreferenceData(train=str(data), **settings).read()
        assert llama is not None
        read.tokenize(tokens_of(llama), ModelConfig(name=str(llama)), 64)
    except UserError as error:
        return str(error)
    raise AssertionError("nothing was refused")


def test_rows_that_are_no_pair_are_told_together(tmp_path: Path) -> None:
    good = pairs(4)
    changes = [{"rejected": good[0]["chosen"]}, {"chosen": " "}, {"rejected": None}, {"prompt": ""}]
    rows = [*good, *({**row, **change} for row, change in zip(good, changes, strict=True))]
    said = refusal(tmp_path, rows).splitlines()
    assert len(said) == 4
    for line, row, word in zip(said, (5, 6, 7, 8), ("equal", "chosen side", "rejected side", "prompt"), strict=True):
        assert f"1 row (number {row}," in line
        assert word in line

    data = str(tmp_path / "data.jsonl")
    read = PreferenceData(train=data, eval=data, drop_invalid=True).read()
    assert len(read.train.rows) == 4
    assert "4 of the training data" in read.summary["dropped"]


def test_conversations_that_are_no_pair_are_told_together(tmp_path: Path, llama: Path) -> None:
    other = {"role": "user", "content": "say blue"}
    rows: list[dict[str, Any]] = [
        {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"chosen": [USER, GOOD], "rejected": [other, BAD]},
        {"chosen": [USER, GOOD, USER], "rejected": [USER, BAD]},
        {"chosen": [USER, GOOD], "rejected": [USER, GOOD]},
        {"chosen": [GOOD], "rejected": [BAD]},
        {"chosen": [USER, {"role": "assistant"}], "rejected": [USER, BAD]},
        {"chosen": [], "rejected": [USER, BAD]},
        {"chosen": [USER, {"role": "wizard", "content": "red"}], "rejected": [USER, BAD]},
    ]
    said = refusal(tmp_path, rows).splitlines()
    words = (
        "differ before",
        "does not end",
        "are equal",
        "nothing before",
        "assistant is empty",
        "chosen side is empty",
        "role 'wizard'",
    )
    for line, row, word in zip(said, range(2, 9), words, strict=True):
        assert f"1 row (number {row}," in line
        assert word in line
    twice = [USER, USER]
    rows = [rows[0], {"chosen": [*twice, GOOD], "rejected": [*twice, BAD]}]
    eval_data = str(write_rows(tmp_path / "eval.jsonl", rows[:1]))
    said_by_template = refusal(tmp_path, rows, llama, eval=eval_data)
    assert "1 row (number 2," in said_by_template
    assert "two turns of the user" in said_by_template


def test_what_else_can_be_wrong(tmp_path: Path, llama: Path, train: Capture) -> None:
    row = pairs(1)[0]
    assert "chosen side" in refusal(tmp_path, [{"prompt": "a", "good": "b", "bad": "c"}])
    assert "rejected side" in refusal(tmp_path, [{"prompt": "a", "good": "b", "bad": "c"}])
    assert "lists of messages" in refusal(tmp_path, [{**row, "chosen": [GOOD]}])
    assert "without a list of messages" in refusal(tmp_path, [{"prompt": "a", "chosen": ["b", "c"], "rejected": ["d"]}])
    assert "given twice" in refusal(tmp_path, [row], chosen="rejected")
    long = {**row, "chosen": "red " * 80}
    said = refusal(tmp_path, [row, row, long], llama, eval=str(write_rows(tmp_path / "eval.jsonl", [row])))
    assert "1 row (number 3," in said
    assert "--data.max_length 64" in said
    late = {**row, "chosen": "one two three four red", "rejected": "one two three four blue"}
    said = refusal(tmp_path, [row, late], llama, eval=str(tmp_path / "eval.jsonl"), max_length=4)
    assert "1 row (number 2," in said
    assert "equal once they are tokenized and truncated" in said
    messages = str(write_rows(tmp_path / "messages.jsonl", [{"chosen": [USER, GOOD], "rejected": [USER, BAD]}] * 9))
    bare = copy.deepcopy(tokens_of(llama))
    bare.chat_template = None
    read = PreferenceData(train=messages, eval=messages).read()
    with pytest.raises(UserError, match=r"has no chat template.*--data\.chat_template"):
        read.tokenize(bare, ModelConfig(name=str(llama)), 64)
    broken = tmp_path / "chat.jinja"
    broken.write_text("{% for")
    with pytest.raises(UserError, match="is no template that can be used"):
        replace(read, config=replace(read.config, chat_template=str(broken))).tokenize(
            bare, ModelConfig(name=str(llama)), 64
        )
    assert "which no template writes" in refusal(tmp_path, [row], chat_template=str(broken))
    train("--data.train", messages, "--data.chat_template", "nowhere")[0].told("'nowhere', but there is no such file")
    wrong = ["--dpo.beta", "0", "--dpo.label_smoothing", "0.5", "--dpo.likelihood", "-1", "--data.max_length", "1"]
    train(*wrong)[0].told("dpo.beta is 0", "dpo.label_smoothing is 0.5", "dpo.likelihood is -1", "data.max_length is 1")


def test_messages_for_the_embedded_model_and_a_template_from_a_file(
    train: Capture, llama: Path, tmp_path: Path
) -> None:
    """Also a template with generation tags, which leave the mark that ends the turn outside."""
    rows = [
        {"prompt": None if row % 2 else [USER], "chosen": [USER, GOOD], "rejected": [USER, BAD]} for row in range(9)
    ]
    messages = str(write_rows(tmp_path / "messages.jsonl", rows))
    outcome, _ = train("--data.train", messages, "--epochs", "null", "--steps", "1")
    tokens = tokens_of(outcome.done().folder / "model")
    assert tokens.chat_template
    shown = json.loads((outcome.folder / "predictions.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert shown["prompt"] == "<|user|>say red<|assistant|>"
    assert (shown["chosen"], shown["rejected"]) == ("red<end>", "blue<end>")
    template = tmp_path / "chat.jinja"
    template.write_text(
        "{% for message in messages %}<{{ message.role }}>{% if message.role == 'assistant' %}{% generation %}"
        "{{ message.content }}{% endgeneration %}{% else %}{{ message.content }}{% endif %}<end>{% endfor %}"
    )
    read = PreferenceData(train=messages, eval=messages, chat_template=str(template)).read()
    tokens = tokens_of(llama)
    source = read.tokenize(tokens, ModelConfig(name=str(llama)), 64).train
    assert [tokens.decode(ids) for ids in source.fetch([0])[0]] == [
        "<user>say red<end><assistant>",
        "red<end>",
        "blue<end>",
    ]
    assert tokens.chat_template == template.read_text()


def test_the_vocabulary_has_to_fit(llama: Path) -> None:
    from toolkit.tasks.dpo.models import policy_and_reference

    with pytest.raises(UserError, match=r"dpo\.reference is '/nowhere', which is no folder"):
        policy_and_reference(ModelConfig(name=str(llama)), "/nowhere", 320)
    with pytest.raises(UserError, match="knows 321 tokens, but the model only 320"):
        policy_and_reference(ModelConfig(name=str(llama)), None, 321)


def test_a_reference_with_other_tokens_is_refused(train: Capture, llama: Path, tmp_path: Path) -> None:
    train(*arguments(tmp_path), "--dpo.reference", llama)[0].refused(
        f"dpo.reference is '{llama}', whose tokenizer has another vocabulary than that of the embedded model"
    )


@pytest.mark.parametrize(
    ("one", "other", "shared"), [([1, 2, 3], [1, 2, 4], 2), ([1, 2], [1, 2, 3], 1), ([1], [2], 0), ([1], [1, 2], 0)]
)
def test_each_side_keeps_a_token_behind_what_both_begin_with(one: list[int], other: list[int], shared: int) -> None:
    from toolkit.tasks.dpo.tokens import shared_beginning

    assert shared_beginning(one, other) == shared_beginning(other, one) == shared


@pytest.mark.parametrize("limit", [2, 3, 8, 20])
@pytest.mark.parametrize("lengths", [(1, 1, 1), (30, 3, 9), (3, 30, 2), (30, 40, 50), (1, 40, 1)])
def test_truncation_takes_of_the_prompt_first_and_never_a_whole_completion(
    limit: int, lengths: tuple[int, int, int]
) -> None:
    from toolkit.tasks.dpo.tokens import PairIds, truncated

    whole = PairIds(*(list(range(100 * k, 100 * k + length)) for k, length in enumerate(lengths, 1)))
    short = truncated(whole, limit, begin=100)
    assert short.length == min(limit, whole.length)
    assert short.prompt[0] == 100
    assert short.prompt[1:] == whole.prompt[len(whole.prompt) - len(short.prompt) + 1 :]
    assert short.chosen == whole.chosen[: len(short.chosen)] != []
    assert short.rejected == whole.rejected[: len(short.rejected)] != []
    if short.chosen != whole.chosen or short.rejected != whole.rejected:
        assert len(short.prompt) <= max(1, limit // 2)


def test_no_prompt_is_on_both_sides_of_the_split(tmp_path: Path) -> None:

    rows = [{**row, "prompt": f"say {number // 3}: "} for number, row in enumerate(pairs(60))]
    read = PreferenceData(train=str(write_rows(tmp_path / "data.jsonl", rows)), held_out=0.2).read()
    sides = [set(split.table["prompt"]) for split in (read.train, read.evaluate)]
    assert not sides[0] & sides[1]
    assert [len(side) for side in sides] == [16, 4]
    assert len(read.evaluate.rows) == 12
    assert sorted([*read.train.rows, *read.evaluate.rows]) == list(range(60))


def test_the_embedded_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from toolkit.sample_data.preferences import first_sentence, shuffled, shuffled_sentences

    for number in range(20):
        lines = [f'"""Count from {number} to {word} and back again."""' for word in WORDS]
        functions = [f"def {word}():\n    {line}\n" for word, line in zip(WORDS, lines, strict=True)]
        # The same sentence in every file is there once.
        (tmp_path / f"module{number}.py").write_text('"""Hold what has no other place."""\n' + "".join(functions))
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(tmp_path)})
    train, held_out = shuffled_sentences(0.1)
    assert (len(train) + len(held_out), len(held_out)) == (20 * len(WORDS) + 1, 2 * len(WORDS))
    for key in ("prompt", "chosen"):
        assert not {row[key] for row in train} & {row[key] for row in held_out}
    assert held_out[0]["prompt"].startswith("module")
    for row in train + held_out:
        assert sorted(row["chosen"].split()) == sorted(row["rejected"].split())
        assert row["chosen"] != row["rejected"] == shuffled(row["chosen"])
    # Of the content alone: the same on every machine.
    assert shuffled("read a line of the file") == "a read line of file the"
    assert first_sentence("Return a line of the file. Or not.") == "return a line of the file"
    assert first_sentence("Return self[key] or a default value.") is None
    with pytest.raises(ValueError, match="one order only"):
        shuffled("no no no")
