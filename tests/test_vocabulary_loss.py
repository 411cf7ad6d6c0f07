"""The loss of a language model in chunks: the numbers of the whole logits, which never exist, under every layout."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from launching import ROOT, python
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from vocabulary_layouts import (
    LAYOUTS,
    MASKED,
    MODELS,
    VOCABULARY,
    batch_of,
    gradients,
    loss_and_gradients,
    loss_of,
    model_of,
)

from toolkit import vocabulary_loss
from toolkit.losses import NOT_COUNTED, causal_logits
from toolkit.vocabulary_loss import causal_scores, laid_out, masked_scores, note_labels

CHUNK = 4
BOUND = 1e-12
LORA = {"llama": ["q_proj", "lm_head"], "gpt2": ["c_attn", "lm_head"]}


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of four tokens, where there are more of them."""
    monkeypatch.setattr(vocabulary_loss, "FEWEST_ON_CPU", CHUNK)
    monkeypatch.setattr(vocabulary_loss, "LOGITS", 1)


class Sizes(TorchDispatchMode):
    """Notes the most rows of all tensors with the vocabulary as their last dimension, weights left out."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.weights = {tuple(parameter.shape) for parameter in model.parameters()}
        self.weights |= {shape[::-1] for shape in self.weights}
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            shape = tuple(getattr(tensor, "shape", ()))
            if shape[-1:] == (VOCABULARY,) and shape not in self.weights:
                self.most = max(self.most, tensor.numel() // VOCABULARY)
        return found


class Unread:
    """Hidden states that are no tensor until somebody looks into them."""

    def __init__(self, states: torch.Tensor) -> None:
        self.states = states

    def __getitem__(self, places: Any) -> torch.Tensor:
        return self.states[places]


def adapted(name: str, dropout: float = 0.0) -> torch.nn.Module:
    """Return a model with adapters, of which none is zero any more."""
    settings = peft.LoraConfig(r=2, target_modules=LORA[name], lora_dropout=dropout, task_type="CAUSAL_LM")
    model: torch.nn.Module = peft.get_peft_model(model_of(name), settings).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("chunks")
def test_chunks_have_the_loss_and_the_gradients_of_whole_logits(name: str) -> None:
    model, batch = model_of(name), batch_of()
    labelled = len(batch["targets"])
    assert labelled > 3 * CHUNK
    expected, wanted = loss_and_gradients(name, model, batch, whole=True)
    with Sizes(model) as sizes:
        found, own = loss_and_gradients(name, model, batch)
    assert float(found) == pytest.approx(float(expected), rel=BOUND)
    assert (own - wanted).abs().max() < BOUND
    # A matrix of as many rows as a chunk has, beside the sums over the vocabulary and the head's own shape.
    assert sizes.most == CHUNK
    assert "forward" not in model.__dict__
    with torch.no_grad(), Sizes(model) as sizes:
        scores = (masked_scores if name in MASKED else causal_scores)(model, batch)
        loss_of(name, model, batch, whole=True)
    assert sizes.most == batch["input_ids"].numel()  # the mode does see whole logits
    assert float(scores.losses.sum()) == pytest.approx(float(expected), rel=BOUND)
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    counted = batch["labels"] != NOT_COUNTED
    assert torch.equal(scores.guesses, logits.argmax(-1)[counted])
    assert torch.equal(laid_out(scores.guesses, batch)[counted], scores.guesses)


@pytest.mark.parametrize("name", ["llama", "bert", "opt"])
def test_few_tokens_are_taken_at_once_and_no_others_get_logits(name: str) -> None:
    model, batch = model_of(name), batch_of()
    expected, wanted = loss_and_gradients(name, model, batch, whole=True)
    with Sizes(model) as sizes:
        found, own = loss_and_gradients(name, model, batch)
    assert float(found) == pytest.approx(float(expected), rel=BOUND)
    assert (own - wanted).abs().max() < BOUND
    assert sizes.most == len(batch["targets"]) < batch["input_ids"].numel() / 2


@pytest.mark.parametrize("name", LORA)
@pytest.mark.usefixtures("chunks")
def test_adapters_on_the_head(name: str) -> None:
    model = adapted(name)
    expected, wanted = loss_and_gradients(name, model, batch_of(), whole=True)
    found, own = loss_and_gradients(name, model, batch_of())
    assert float(found) == pytest.approx(float(expected), rel=BOUND)
    assert (own - wanted).abs().max() < BOUND
    assert wanted.any()


@pytest.mark.usefixtures("chunks")
def test_weights_of_single_tokens() -> None:
    """What a loss makes of the cross-entropy of each token reaches the gradients."""
    model, batch = model_of("gemma2"), batch_of()
    weights = torch.rand(len(batch["targets"]), dtype=torch.float64)
    logits = causal_logits(model, batch)[batch["labels"] != NOT_COUNTED]
    each = torch.nn.functional.cross_entropy(logits, batch["targets"], reduction="none")
    (each.square() * weights).sum().backward()
    wanted = gradients(model)
    model.zero_grad()
    (causal_scores(model, batch).losses.square() * weights).sum().backward()
    assert (gradients(model) - wanted).abs().max() < BOUND * wanted.abs().max()


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.usefixtures("chunks")
def test_sixteen_bits_add_up_no_worse_in_chunks(wrapped: bool) -> None:
    """The head's gradient is a sum over chunks: rounded to bfloat16 after each it would be worse than one product."""
    model = model_of("llama").float()
    labels = torch.randint(VOCABULARY, (8, 60), generator=torch.Generator().manual_seed(2))
    batch = {"input_ids": labels, "attention_mask": torch.ones_like(labels), "labels": labels, **note_labels(labels)}
    head = {}
    for kind, precise, whole in (("exact", True, True), ("whole", False, True), ("chunks", False, False)):
        mixed = torch.autocast("cpu", torch.bfloat16, enabled=not precise)
        if wrapped and not precise:  # as Accelerate does it
            model.forward = mixed(type(model).forward.__get__(model))
        with nullcontext() if wrapped else mixed:
            loss = loss_of("llama", model, batch, whole)
        loss.backward()
        head[kind] = model.lm_head.weight.grad.clone()
        model.zero_grad()
    whole, chunked = ((head[kind] - head["exact"]).norm() / head["exact"].norm() for kind in ("whole", "chunks"))
    assert 0 < chunked < 1.05 * whole < 0.1


@pytest.mark.usefixtures("chunks")
def test_what_can_not_be_made_in_chunks_is_whole_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    # Dropout would be drawn anew in the backward pass, and would not know which samples the tokens are of.
    model = adapted("llama", dropout=0.5)
    inner = model.get_base_model()
    with Sizes(model) as sizes:
        loss_of("llama", model.train(), batch_of()).backward()
    assert sizes.most == batch_of()["input_ids"].numel()
    assert inner.plan_remarks == {"logits": "all at once: a LlamaForCausalLM has dropout in its head"}
    # Without dropout it is in chunks, as in an evaluation.
    with Sizes(model) as sizes, torch.no_grad():
        loss_of("llama", model.eval(), batch_of())
    assert sizes.most == CHUNK
    # A model whose layers are not where they are looked for.
    odd = model_of("llama")
    monkeypatch.setattr(type(odd), "base_model_prefix", "elsewhere")
    expected, wanted = loss_and_gradients("llama", odd, batch_of(), whole=True)
    found, own = loss_and_gradients("llama", odd, batch_of())
    assert float(found) == pytest.approx(float(expected), rel=BOUND)
    assert (own - wanted).abs().max() < BOUND
    silent = {"logits": "all at once: a LlamaForCausalLM does not say what its layers return"}
    assert odd.plan_remarks == silent
    # One whose layers return what nobody here can read, with more labels than a chunk takes.
    del odd.plan_remarks
    monkeypatch.undo()
    monkeypatch.setattr(vocabulary_loss, "FEWEST_ON_CPU", CHUNK)
    monkeypatch.setattr(vocabulary_loss, "LOGITS", 1)
    unread = model_of("llama")
    forward = unread.model.forward

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        output.last_hidden_state = Unread(output.last_hidden_state)
        return output

    monkeypatch.setattr(unread.model, "forward", wrapped)
    assert len(batch_of()["targets"]) > CHUNK
    found, own = loss_and_gradients("llama", unread, batch_of())
    assert float(found) == pytest.approx(float(expected), rel=BOUND)
    assert (own - wanted).abs().max() < BOUND
    assert unread.plan_remarks == silent


@pytest.fixture(scope="module")
def spread(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """How far losses and gradients of two processes are from those of one with whole logits, by layout and model."""
    output = tmp_path_factory.mktemp("spread") / "found.json"
    done = python(ROOT / "tests" / "helpers" / "vocabulary_layouts.py", str(output), timeout=300)
    assert done.returncode == 0, done.stderr
    assert "returned a view" not in done.stderr
    found: dict[str, dict[str, Any]] = json.loads(Path(output).read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("layout", [f"{layout} {name}" for layout, names in LAYOUTS.items() for name in names])
def test_two_processes_have_the_numbers_of_one(spread: dict[str, dict[str, Any]], layout: str) -> None:
    found = spread[layout]
    assert abs(found["loss"]) < BOUND
    assert found["gradient"] < BOUND
    # A head that is gathered by itself would be gathered for every chunk, and its gradient lost.
    alone = "by itself" in layout
    assert found["remarks"].get("logits", "").endswith("gathered by itself (FSDP_MIN_NUM_PARAMS)") == alone
