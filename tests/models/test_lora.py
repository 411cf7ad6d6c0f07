"""Adapters on frozen weights: what is trained, what is saved, and that merged and unmerged answer the same."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from launching import ROOT
from recipe_layouts import load_recipe
from small_chat import chat_tokenizer, conversations, save_llama, write_rows
from trial import Outcome, run_here, run_outside

from toolkit.config.model import LoraConfig, ModelConfig
from toolkit.errors import UserError
from toolkit.models.lora import linear_layers, save_adapters
from toolkit.output.ledger import read_ledger
from toolkit.tasks.conversations.models import chat_model

TRAINED = "--epochs null --steps 3 --optim.lr 1e-2"
ASKED = "--batch.size 8 --generate.tokens 6 --generate.samples 3"
LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LORA = ["--model.lora.rank", "4"]

pytest.importorskip("peft")


@pytest.fixture(scope="module")
def chat() -> ModuleType:
    return load_recipe("chat")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("data") / "rows.jsonl", conversations(30, 0))


@pytest.fixture(scope="module")
def train(chat: ModuleType, llama: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs the recipe on the small model in a run folder of its own."""

    def train(*words: str | Path, model: Path = llama, dtype: str = "float64") -> Outcome:
        given = [
            "--threads",
            "1",
            "--model.name",
            str(model),
            "--model.dtype",
            dtype,
            "--data.train",
            str(data),
            *ASKED.split(),
            *([] if "--evaluate.only" in words else TRAINED.split()),
        ]
        return run_here(chat.Chat, chat.task, [*given, *map(str, words)], tmp_path_factory.mktemp("runs") / "run")

    return train


@pytest.fixture(scope="module")
def adapted(train: Any) -> Outcome:
    """A run that trained adapters and saved them alone."""
    outcome: Outcome = train(*LORA).done()
    return outcome


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.double().eval()(input_ids=torch.arange(3, 60).view(3, 19)).logits


def losses(outcome: Outcome) -> Sequence[float]:
    return [row["loss"] for row in read_ledger(outcome.folder / "ledger.jsonl")]


def test_only_the_adapters_are_trained(llama: Path) -> None:
    from toolkit.config.optim import OptimConfig
    from toolkit.optimizer import build_optimizer

    config = ModelConfig(name=str(llama), dtype="float64", lora=LoraConfig(rank=4))
    model = chat_model(config, 320, [2], only=False)
    before = {name: values.clone() for name, values in model.named_parameters()}
    adapters = {name for name in before if ".lora_" in name}
    assert {name for name, values in model.named_parameters() if values.requires_grad} == adapters
    assert len(adapters) == 2 * 2 * len(LAYERS)
    optimizer = build_optimizer(OptimConfig(lr=0.01), model)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(adapters)
    for _ in range(2):  # at first one of each two is zero, and so is the gradient of the other
        model(input_ids=torch.arange(3, 60).view(3, 19)).logits.square().mean().backward()
        optimizer.step()
    changed = {name for name, values in model.named_parameters() if not torch.equal(values, before[name])}
    assert changed == adapters


def test_the_folder_of_adapters_is_small_and_peft_loads_it(adapted: Outcome, llama: Path) -> None:
    from peft import AutoPeftModelForCausalLM, PeftModel
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

    folder = adapted.folder / "model"
    saved = load_file(folder / "adapter_model.safetensors")
    assert all("lora_" in name for name in saved)
    assert len(saved) == 2 * 2 * len(LAYERS)
    assert not (folder / "model.safetensors").exists()
    assert "in adapters were trained" in (folder / "README.md").read_text(encoding="utf-8")
    base = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float64)
    plain = logits(base)
    one = logits(PeftModel.from_pretrained(base, folder, autocast_adapter_dtype=False))
    other = logits(AutoPeftModelForCausalLM.from_pretrained(folder, dtype=torch.float64))
    assert torch.equal(one, other)
    assert (one - plain).abs().max() > 1e-3
    assert AutoTokenizer.from_pretrained(folder).chat_template
    # Transformers finds base and adapters by itself.
    shown = [
        json.loads(line) for line in (adapted.folder / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    asked = pipeline("text-generation", str(folder), dtype=torch.float64)
    for line in shown:
        answer = asked(line["prompt"], do_sample=False, max_new_tokens=6, return_full_text=False)[0]["generated_text"]
        assert answer.strip() == line["reply"]


def test_merged_and_unmerged_answer_the_same(adapted: Outcome, train: Any) -> None:
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM

    merged: Outcome = train(*LORA, "--model.lora.merge", "true").done()
    folder = merged.folder / "model"
    assert {"model.safetensors", "config.json", "tokenizer.json", "README.md", "adapter"} <= {
        p.name for p in folder.iterdir()
    }
    whole = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    assert not [name for name in whole.state_dict() if "lora" in name]
    for place in (folder / "adapter", adapted.folder / "model"):
        apart = AutoPeftModelForCausalLM.from_pretrained(place, dtype=torch.float64)
        assert (logits(whole) - logits(apart)).abs().max() < 1e-9
        prompt = {
            "input_ids": torch.arange(3, 60).view(3, 19),
            "do_sample": False,
            "max_new_tokens": 20,
            "pad_token_id": 0,
        }
        assert torch.equal(whole.generate(**prompt), apart.generate(**prompt))
    # What was merged is evaluated as it is, whatever the settings of the training say.
    train(*LORA, "--model.lora.merge", "true", "--evaluate.only", model=folder).done().says(
        f"{adapted.record['metrics']['loss']:.4f}"
    )


def test_saving_alone_and_merged_without_a_run(llama: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    config = ModelConfig(name=str(llama), dtype="float64", lora=LoraConfig(rank=2, targets=("q_proj",)))
    model: Any = chat_model(config, 320, [2], only=False)
    with torch.no_grad():
        for name, values in model.named_parameters():
            if "lora_B" in name:
                values.normal_(generator=torch.Generator().manual_seed(1))
    before = logits(model)
    save_adapters(model, tmp_path / "alone", merge=False)
    assert {path.name for path in (tmp_path / "alone").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    save_adapters(model, tmp_path / "merged", merge=True)
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float64)
    assert 0 < (logits(whole) - before).abs().max() < 1e-9 or torch.equal(logits(whole), before)


def test_saved_adapters_are_evaluated_and_trained_further(adapted: Outcome, train: Any, llama: Path) -> None:
    folder = adapted.folder / "model"
    loss = adapted.record["metrics"]["loss"]
    train("--evaluate.only", model=folder).done().says(f"{loss:.4f}")
    further: Outcome = train(*LORA, model=folder).done()
    assert further.record["metrics"]["loss"] < loss
    assert (further.folder / "model" / "adapter_config.json").is_file()
    train("--model.lora.rank", "8", model=folder).refused("have rank 4 on", "model.lora asks for others")
    train(*LORA, "--evaluate.only").told("new ones change nothing", "<output>/model")


def test_targets_that_no_layer_is_called(train: Any) -> None:
    train(*LORA, "--model.lora.targets", "[q_proj, query]").refused(
        "'query'", f"there are {', '.join(LAYERS)}, lm_head"
    )


def test_layers_of_a_gpt2_are_linear_and_a_tied_head_is_not_merged_into() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    from toolkit.models.lora import add_adapters

    model = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2))
    assert linear_layers(model) == ["c_attn", "c_proj", "c_fc", "lm_head"]
    lora = LoraConfig(rank=2, targets=("c_attn", "lm_head"), merge=True)
    with pytest.raises(UserError, match="names 'lm_head', whose weights are those of the embeddings too"):
        add_adapters(model, ModelConfig(name="any", lora=lora))
    with pytest.raises(UserError, match="any comes without lm_head, which shares weights with the embeddings"):
        add_adapters(model, ModelConfig(name="any", lora=LoraConfig(rank=2)), ["lm_head.bias"])
    adapted = add_adapters(model, ModelConfig(name="any", lora=LoraConfig(rank=2, targets=("c_attn",))))
    assert [name for name, values in adapted.named_parameters() if values.requires_grad and "c_attn" in name]


def test_linear_layers_are_named_once(llama: Path) -> None:
    from transformers import AutoModelForCausalLM

    assert linear_layers(AutoModelForCausalLM.from_pretrained(llama)) == [*LAYERS, "lm_head"]


@pytest.mark.parametrize("flags", [[], LORA], ids=["all weights", "adapters"])
def test_activation_checkpointing_changes_no_loss(train: Any, adapted: Outcome, flags: list[str]) -> None:
    from transformers.models.llama import modeling_llama

    kept = adapted if flags else train(*flags).done()
    calls: list[int] = []
    forward = modeling_llama.LlamaMLP.forward

    def counted(self: Any, values: Any) -> Any:
        calls.append(int(torch.is_grad_enabled()))
        return forward(self, values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modeling_llama.LlamaMLP, "forward", counted)
        again: Outcome = train(*flags, "--model.checkpoint_activations", "true").done()
    assert losses(again) == pytest.approx(losses(kept), rel=1e-12)
    assert again.record["metrics"] == pytest.approx(kept.record["metrics"], rel=1e-12)
    # Each of two layers, in the first try and three steps, twice: it was really computed again.
    assert sum(calls) >= 2 * 2 * 4


@pytest.mark.parametrize("bits", ["4", "8"])
def test_quantised_weights_under_adapters(train: Any, bits: str, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    # On a CPU rows of 4 bits have to be whole blocks of 64.
    llama = save_llama(tmp_path / "llama", width=64)
    flags = [*LORA, "--model.lora.bits", bits, "--evaluate.every", "2"]
    outcome: Outcome = train(*flags, model=llama, dtype="float32").done()
    assert losses(outcome)[-1] < losses(outcome)[0]
    folder = outcome.folder / "model"
    assert sum(path.stat().st_size for path in folder.glob("*.safetensors")) < 200_000
    # What was trained beside rounded weights fits the whole ones too, about.
    base = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
    trained = PeftModel.from_pretrained(base, folder)
    assert torch.isfinite(logits(trained)).all()
    train("--model.lora.bits", bits, "--model.lora.rank", "4", "--model.lora.merge", "true").told(
        "can't be had with model.lora.bits"
    )


def test_rows_of_4_bits_that_are_no_whole_blocks_are_refused_on_a_cpu(train: Any) -> None:
    pytest.importorskip("bitsandbytes")
    if torch.cuda.is_available():
        pytest.skip("the model would lie on the GPU")
    flags = ["--model.lora.rank", "2", "--model.lora.bits", "4"]
    train(*flags, dtype="float32").refused("inputs are a multiple of 64", "has 32)", "model.lora.bits 8")


def test_a_new_head_is_trained_beside_the_adapters_and_saved_with_the_whole_model(tmp_path: Path) -> None:
    from safetensors.torch import load_file
    from transformers import BertConfig, BertModel, pipeline

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=320, **sizes)).double().save_pretrained(tmp_path / "bert")
    chat_tokenizer(None).save_pretrained(tmp_path / "bert")
    rows = [
        {"text": f"it is {colour} {row}", "label": colour} for row in range(16) for colour in ("red", "blue", "green")
    ]
    data = str(write_rows(tmp_path / "rows.jsonl", rows))
    classify = load_recipe("classify")

    def run(*words: str | Path, folder: str = "run", model: str = "bert") -> Outcome:
        given = [
            "--threads",
            "1",
            "--data.train",
            data,
            "--epochs",
            "2",
            "--optim.lr",
            "1e-2",
            "--model.dtype",
            "float64",
        ]
        return run_here(
            classify.Classify,
            classify.task,
            [*given, "--model.name", str(tmp_path / model), *map(str, words)],
            tmp_path / folder,
        )

    run(*LORA).refused("gets a new head (classifier.bias, classifier.weight)", "--model.lora.merge true")
    run(*LORA, "--model.lora.bits", "8").refused("a new head", "leave model.lora.bits out")
    merge = [*LORA, "--model.lora.merge", "true"]
    trained = run(*merge).done()
    saved = pipeline("text-classification", str(trained.folder / "model"), dtype=torch.float64)
    lines = (trained.folder / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    for line in map(json.loads, lines):
        assert saved(line["text"])[0]["label"] == line["prediction"]
    assert "in adapters and a new head were trained" in (trained.folder / "model" / "README.md").read_text()
    extra = load_file(trained.folder / "model" / "adapter" / "adapter_model.safetensors")
    whole = load_file(trained.folder / "model" / "model.safetensors")
    head = [name for name in extra if "classifier" in name]
    assert len(head) == 2
    assert all(torch.equal(extra[name], whole[name.removeprefix("base_model.model.")]) for name in head)
    loss = f"{trained.record['metrics']['loss']:.4f}"
    run(*merge, "--evaluate.only", model="run/model").done().says(loss)
    # A head that was trained is part of the model; its adapters can be saved alone, and come with their base.
    further = run(*LORA, folder="further", model="run/model").done()
    assert (further.folder / "model" / "adapter_config.json").is_file()
    run("--evaluate.only", model="further/model").done().says(f"{further.record['metrics']['loss']:.4f}")
    # Unless it gets labels of other names, of which the base knows nothing.
    config = ModelConfig(name=str(tmp_path / "run" / "model"), dtype="float64", lora=LoraConfig(rank=2))
    with pytest.raises(UserError, match="labels have other names here"):
        classify.sequence_classifier(config, ["x", "y", "z"], "single", 320)


def test_adapters_of_weights_in_16_bits_are_kept_and_trained_in_float32(llama: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    from toolkit.config.optim import OptimConfig
    from toolkit.optimizer import build_optimizer

    config = ModelConfig(name=str(llama), dtype="bfloat16", lora=LoraConfig(rank=4))
    model: Any = chat_model(config, 320, [2], only=False)
    before = {name: values.detach().clone() for name, values in model.named_parameters()}
    kinds = {name: values.dtype for name, values in model.named_parameters()}
    assert {kinds[name] for name in kinds if ".lora_" in name} == {torch.float32}
    assert {kinds[name] for name in kinds if ".lora_" not in name} == {torch.bfloat16}
    # In bfloat16 steps of this size would leave every weight above 0.0003 as it was.
    optimizer = build_optimizer(OptimConfig(lr=1e-6, weight_decay=0.0, eps=1e-30), model)
    for _ in range(2):  # at first one of each two is zero, and so is the gradient of the other
        model(input_ids=torch.arange(3, 60).view(3, 19)).logits.float().square().mean().backward()
        optimizer.step()
    for name, values in model.named_parameters():
        moved = (values - before[name]).abs()
        if ".lora_" not in name:
            assert torch.equal(values, before[name])
        else:
            assert (moved > 5e-7).float().mean() > 0.9
            assert moved.max() < 2.2e-6
    save_adapters(model, tmp_path, merge=False)
    saved = load_file(tmp_path / "adapter_model.safetensors")
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32}
    # They come back as they were.
    again = chat_model(ModelConfig(name=str(tmp_path), dtype="bfloat16"), 320, [2], only=False)
    found = {name: values for name, values in again.named_parameters() if values.requires_grad}
    assert len(found) == len(saved)
    assert all(torch.equal(values, dict(model.named_parameters())[name]) for name, values in found.items())


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_weights_in_16_bits_train_under_adapters_as_those_in_32_do(
    train: Any, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole: Outcome = train(*LORA, dtype="float32").done()
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", precision)
    half: Outcome = train(*LORA, dtype="bfloat16").done()
    half.says("bfloat16, float32", f"mixed precision {precision}")
    assert losses(half) == pytest.approx(losses(whole), rel=2e-3)
    assert losses(half)[-1] < losses(half)[0]
    # What is trained itself has to be in float32 where the precision is mixed.
    if precision == "bf16":
        train(dtype="bfloat16").refused("mixed precision bf16, and the weights are bfloat16")


def test_a_new_head_beside_adapters_is_trained_in_float32(tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel

    from toolkit.models.heads import sequence_classifier

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=320, **sizes)).save_pretrained(tmp_path / "bert")
    config = ModelConfig(name=str(tmp_path / "bert"), dtype="bfloat16", lora=LoraConfig(rank=2, merge=True))
    model: Any = sequence_classifier(config, ["a", "b"], "single", 320).train()
    trained = {name: values for name, values in model.named_parameters() if values.requires_grad}
    assert any("classifier.modules_to_save" in name for name in trained)
    assert {values.dtype for values in trained.values()} == {torch.float32}
    output = model(input_ids=torch.arange(3, 60).view(3, 19)).logits
    output.float().sum().backward()
    assert all(values.grad is not None for values in trained.values())
    save_adapters(model, tmp_path / "merged", merge=True)
    whole = sequence_classifier(ModelConfig(name=str(tmp_path / "merged"), dtype="bfloat16"), ["a", "b"], "single", 320)
    with torch.no_grad():
        assert torch.allclose(
            whole.eval()(input_ids=torch.arange(3, 60).view(3, 19)).logits.float(),
            model.eval()(input_ids=torch.arange(3, 60).view(3, 19)).logits.float(),
            atol=0.05,
        )


def test_saved_adapters_name_their_base_by_its_full_path_and_nobody_warns(
    llama: Path, data: Path, tmp_path: Path
) -> None:
    cores = len(os.sched_getaffinity(0))
    words = f"--model.name {llama.name} --data.train {data} --data.workers {cores + 1} --threads 1 --model.lora.rank 2"
    (tmp_path / llama.name).symlink_to(llama)
    command = ["python", ROOT / "recipes" / "chat.py", *words.split(), *TRAINED.split(), *ASKED.split()]
    outcome = run_outside(command, tmp_path / "run").done()
    settings = json.loads((outcome.folder / "model" / "adapter_config.json").read_text(encoding="utf-8"))
    assert settings["base_model_name_or_path"] == str(llama.resolve())
    # peft, Transformers and torch have nothing to say of it; what torch had, the plan says once.
    assert outcome.errors == ""
    outcome.says(f"warning: data.workers is {cores + 1}", f"share {cores} usable core(s)")
