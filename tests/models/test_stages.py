"""Which models can be divided among the stages of a pipeline, and why others can't."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from small_families import has_head, small_model
from transformers import (
    AlbertConfig,
    AlbertForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

from toolkit.distributed.pipeline import Stage, StageEndError, one_pass, stage_of
from toolkit.errors import UserError
from toolkit.models.packing import MODELS
from toolkit.models.stages import divide, unfit

SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 30,
}


def llama(tied: bool = True, **more: Any) -> LlamaForCausalLM:
    """Return a small decoder."""
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SMALL, tie_word_embeddings=tied, **more)).double()


def bert() -> BertForSequenceClassification:
    """Return a small encoder without dropout."""
    torch.manual_seed(0)
    config = BertConfig(**SMALL, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return BertForSequenceClassification(config).double()


def stage_runtime(index: int, stages: int) -> Any:
    """Return what `divide` asks of a runtime."""
    return SimpleNamespace(rank=index, strategy=SimpleNamespace(stages=stages), device=torch.device("cpu"))


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("build", [lambda: llama(tied=False), llama, bert])
def test_each_weight_lies_in_one_stage_but_for_an_embedding_that_is_the_head(
    build: Any, stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolkit.distributed.pipeline.new_group", lambda ranks: None)
    whole = build()
    holders: dict[str, list[int]] = {}
    for index in range(stages):
        part = build()
        divide(part, stage_runtime(index, stages))
        assert list(part.state_dict()) == list(whole.state_dict())
        for (name, tensor), (_, expected) in zip(part.named_parameters(), whole.named_parameters(), strict=True):
            assert tensor.shape == expected.shape
            if not tensor.is_meta:
                assert torch.equal(tensor, expected)
                holders.setdefault(name, []).append(index)
    assert holders.keys() == dict(whole.named_parameters()).keys()
    twice = {name: ranks for name, ranks in holders.items() if len(ranks) > 1}
    is_tied = isinstance(whole, LlamaForCausalLM) and whole.config.tie_word_embeddings
    assert twice == ({"model.embed_tokens.weight": [0, stages - 1]} if is_tied else {})


@pytest.mark.parametrize("build", [lambda: llama(tied=False), llama, bert])
def test_what_passes_from_stage_to_stage_gives_the_answer_of_the_whole_model(
    build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolkit.distributed.pipeline.new_group", lambda ranks: None)
    ids = torch.tensor([[3, 4, 5, 6], [7, 8, 9, 0]])
    asked = {"input_ids": ids, "attention_mask": (ids > 0).long()}
    received: torch.Tensor | None = None
    for index in range(3):
        part = build()
        divide(part, stage_runtime(index, 3))
        stage = stage_of(part)
        assert stage is not None
        stage.scheduled, stage.received = True, received
        try:
            found = part(**asked).logits
        except StageEndError as end:
            received = end.hidden.flatten(0, -2)
    assert torch.equal(found, build()(**asked).logits)


HEADS = [
    (kind, auto)
    for kind in sorted(MODELS - {"albert", "gemma3_text"})
    for auto in ("AutoModelForCausalLM", "AutoModelForSequenceClassification")
    if has_head(kind, auto)
]


def both_stages(kind: str, auto: str, monkeypatch: pytest.MonkeyPatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what a model answers in two stages, and whole."""
    monkeypatch.setattr("toolkit.distributed.pipeline.new_group", lambda ranks: None)
    ids = torch.tensor([[3, 4, 5, 2], [7, 8, 9, 2]])
    whole, first, second = (small_model(kind, auto, dropout=0.0, pad_token_id=1) for _ in range(3))
    for index, part in enumerate((first, second)):
        divide(part, stage_runtime(index, 2))
    first.pipeline_stage.scheduled = True
    with pytest.raises(StageEndError) as end:
        first(input_ids=ids)
    second.pipeline_stage.scheduled, second.pipeline_stage.received = True, end.value.hidden.flatten(0, -2)
    return second(input_ids=ids).logits, whole(input_ids=ids).logits


@pytest.mark.parametrize(("kind", "auto"), HEADS)
def test_a_model_is_the_same_in_two_stages(kind: str, auto: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, expected = both_stages(kind, auto, monkeypatch)
    assert torch.equal(found, expected)


def test_what_is_taken_for_a_part_before_the_layers_and_is_none_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code of OPT names its last norm before them."""
    monkeypatch.setattr("toolkit.models.parameters.LAST", "not this")
    found, _ = both_stages("opt", "AutoModelForCausalLM", monkeypatch)
    assert found.isnan().all()


def test_two_embeddings_that_are_one_are_no_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.distributed.pipeline.new_group", lambda ranks: None)
    for index in range(2):
        part = llama(tied=False)
        part.model.second = torch.nn.Embedding(30, 16)
        part.model.second.weight = part.model.embed_tokens.weight
        divide(part, stage_runtime(index, 2))
        stage = stage_of(part)
        assert stage is not None
        assert stage.shared == []
        assert part.model.second.weight.is_meta == (index == 1)


def test_a_model_runs_once_for_a_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.distributed.pipeline.new_group", lambda ranks: None)
    part, ids = llama(), torch.tensor([[3, 4, 5, 6]])
    divide(part, stage_runtime(1, 2))
    stage = stage_of(part)
    assert stage is not None
    stage.scheduled, stage.received = True, torch.zeros(4, 16, dtype=torch.float64)
    with one_pass(part):
        part(ids)
        with pytest.raises(UserError, match="more than once for a micro-batch"):
            part(ids)


def test_layers_that_hand_on_another_type_than_that_of_the_weights_are_refused() -> None:
    stage = Stage(0, 2, 16, torch.float32, torch.device("cpu"))
    with pytest.raises(UserError, match=r"hand on torch\.bfloat16"):
        stage.leave(torch.zeros(1, 4, 16, dtype=torch.bfloat16))


def vit() -> Any:
    """Return a small model of images."""
    sizes = {key: value for key, value in SMALL.items() if key != "vocab_size"}
    return ViTForImageClassification(ViTConfig(**sizes, image_size=8, patch_size=4))


def albert() -> Any:
    """Return a small encoder whose layers are one."""
    return AlbertForSequenceClassification(AlbertConfig(**SMALL, embedding_size=8))


def t5() -> Any:
    """Return a small encoder and decoder."""
    return T5ForConditionalGeneration(T5Config(d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, vocab_size=30))


def adapted() -> Any:
    """Return a decoder with adapters."""
    return get_peft_model(llama(), LoraConfig(target_modules=["q_proj"]))


@pytest.mark.parametrize(
    ("build", "stages", "reason"),
    [
        (llama, 4, "has 3 layers (model.layers): fewer than one for each stage"),
        (vit, 2, "it is not known what vit.embeddings (ViTEmbeddings), "),
        (albert, 2, "do not stand in one list, but in none"),
        (t5, 2, "do not stand in one list, but in encoder.block, decoder.block"),
        (adapted, 2, "a model with adapters (model.lora)"),
        (lambda: torch.nn.Linear(2, 2), 2, "a Linear is no model of Transformers"),
    ],
)
def test_what_can_not_be_divided_is_refused_by_name(build: Any, stages: int, reason: str) -> None:
    model = build()
    assert reason in next(unfit(model, stages))
    with pytest.raises(UserError, match=r"leave batch\.stages out"):
        divide(model, stage_runtime(0, stages))
