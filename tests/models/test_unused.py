"""Parameters without a gradient: what Transformers leaves unused is frozen, what somebody forgot is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sometimes
import torch
from conftest import tiny_bert
from launching import ROOT, launch
from line import Line, TwoHeads
from transformers import (
    BertForSequenceClassification,
    BertModel,
    BertPreTrainedModel,
    SwinConfig,
    SwinModel,
    XLNetConfig,
    XLNetModel,
)
from trial import Outcome, run_here

from toolkit.data.order import ShuffledOrder
from toolkit.errors import UserError
from toolkit.models.parameters import freeze, parameter_names
from toolkit.printed_plan import active_dropout, parts_of
from toolkit.rehearsal.first_batch import forgotten_parameters, unused_parameters

SCRIPT = Path(sometimes.__file__)
IDS = torch.arange(4, 12).view(2, 4)


class Around(torch.nn.Module):
    """Somebody's own network: an encoder of Transformers, a head, and a head that nothing uses."""

    def __init__(self, forgetful: bool = True) -> None:
        super().__init__()
        self.encoder = bert()
        self.head = torch.nn.Linear(16, 2)
        self.other = torch.nn.Linear(16, 2) if forgetful else None

    def forward(self, input_ids: torch.Tensor, **settings: Any) -> torch.Tensor:
        return self.head(self.encoder(input_ids).last_hidden_state)  # type: ignore[no-any-return]


class Subclass(BertPreTrainedModel):
    """The same, as a model like those of Transformers."""

    def __init__(self) -> None:
        super().__init__(tiny_bert())
        self.bert = BertModel(tiny_bert())
        self.head, self.other = torch.nn.Linear(16, 2), torch.nn.Linear(16, 2)

    forward = Around.forward

    @property
    def encoder(self) -> BertModel:
        return self.bert  # type: ignore[no-any-return]


def bert(kind: Any = BertModel, **sizes: int) -> Any:
    return kind(tiny_bert(num_hidden_layers=3, **sizes))


def xlnet() -> Any:
    return XLNetModel(XLNetConfig(vocab_size=14, d_model=16, n_layer=2, n_head=2, d_inner=16))


def adapted(model: Any) -> Any:
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules="all-linear"))


def without_gradient(model: torch.nn.Module, look_at: Callable[[Any], torch.Tensor]) -> list[str]:
    """Return the trainable parameters without a gradient from what a loss looks at."""
    given = {"x": torch.ones(2, 1)} if isinstance(model, TwoHeads) else {"input_ids": IDS, "output_hidden_states": True}
    look_at(model(**given)).sum().backward()
    return [name for p, name in parameter_names(model).items() if p.requires_grad and p.grad is None]


def last_state(output: Any) -> torch.Tensor:
    return output.last_hidden_state  # type: ignore[no-any-return]


def itself(output: torch.Tensor) -> torch.Tensor:
    return output


@pytest.mark.parametrize(
    ("build", "look_at", "parts"),
    [
        (bert, last_state, ["pooler"]),
        (xlnet, last_state, ["mask_emb", "layer.*.rel_attn.r_s_bias", "layer.*.rel_attn.seg_embed"]),
        (lambda: Around(forgetful=False), itself, ["encoder.pooler"]),
        (
            lambda: adapted(bert()),
            last_state,
            [f"base_model.model.pooler.dense.lora_{side}" for side in "AB"],
        ),
    ],
    ids=["a pooler", "tables for other uses", "in a network of one's own", "adapters of a pooler"],
)
def test_what_transformers_leaves_unused_is_frozen(
    build: Callable[[], Any], look_at: Callable[[Any], torch.Tensor], parts: list[str]
) -> None:
    model = build()
    without = without_gradient(model, look_at)
    assert unused_parameters(model, without, []) == without
    assert parts_of(model, without) == parts
    trained = sum(p.requires_grad for p in model.parameters())
    freeze(model, without)
    assert sum(p.requires_grad for p in model.parameters()) == trained - len(without)
    assert without_gradient(model, look_at) == []


@pytest.mark.parametrize(
    ("build", "look_at", "named"),
    [
        (TwoHeads, itself, "2 trainable parameter(s) get no gradient from the loss: forgotten.weight, forgotten.bias."),
        (Around, itself, "2 trainable parameter(s) get no gradient from the loss: other.weight, other.bias."),
        (Subclass, itself, "2 trainable parameter(s) get no gradient from the loss: other.weight, other.bias."),
        (
            lambda: bert(BertForSequenceClassification),
            lambda output: output.hidden_states[-1],
            "2 trainable parameter(s) get no gradient from the loss: classifier.weight, classifier.bias.",
        ),
        (
            bert,
            lambda output: output.hidden_states[2],
            "16 trainable parameter(s) get no gradient from the loss: encoder.la",
        ),
        (
            # The embeddings are larger than all layers, and do get a gradient.
            lambda: bert(vocab_size=5000),
            lambda output: output.hidden_states[0],
            "50 trainable parameter(s) get no gradient from the loss: encoder.layer.0.",
        ),
    ],
    ids=["a plain network", "beside an encoder", "in a subclass", "a head", "the last layer", "all layers"],
)
def test_what_was_forgotten_is_refused(
    build: Callable[[], Any], look_at: Callable[[Any], torch.Tensor], named: str
) -> None:
    model = build()
    without = without_gradient(model, look_at)
    assert forgotten_parameters(model, without)
    with pytest.raises(UserError, match="freeze them") as refused:
        unused_parameters(model, without, [])
    assert refused.value.problems[0].startswith(named)


SOMETIMES = "2 trainable parameter(s) get a gradient from some micro-batches and none from others: encoder.pooler.dense"


@pytest.mark.parametrize("launch_file", ["cpu", "cpu_fsdp2"])
def test_a_gradient_in_some_processes_alone_is_refused(launch_file: str, tmp_path: Path) -> None:
    """Sharded too, where they would reduce what does not belong together."""
    one_above = (
        seed for seed in range(99) if len({point > 7 for point in ShuffledOrder(16, 2, seed).global_batch(0)}) > 1
    )
    flags = ["--output", str(tmp_path / "run"), "--threads", "1", "--batch.size", "2", "--seed", str(next(one_above))]
    done = launch(SCRIPT, *flags, config=ROOT / "accelerate_configs" / f"{launch_file}.yaml")
    assert done.returncode == 1
    assert SOMETIMES in done.stderr.partition("Traceback")[0]


def numbers(folder: Path) -> list[float]:
    """Return loss and gradient norm of each step."""
    rows = map(json.loads, (folder / "ledger.jsonl").read_text().splitlines())
    return [row[name] for row in rows for name in ("loss", "gradient_norm")]


def test_how_a_batch_is_cut_does_not_decide_what_is_trained(tmp_path: Path) -> None:
    flags = ["--threads", "1", "--optim.schedule", "constant", "--optim.warmup", "0", "--optim.lr", "0.1"]

    def run(name: str, *words: str) -> Outcome:
        return run_here(Line, sometimes.task, [*flags, *words], tmp_path / name).done()

    whole, cut = run("whole", "--steps", "6"), run("cut", "--steps", "6", "--batch.micro", "1")
    for outcome in (whole, cut):
        (frozen,) = (line for line in outcome.output.splitlines() if line.startswith("  frozen"))
        assert frozen.endswith("leaves unused: encoder.embeddings.word_embeddings")
    assert numbers(cut.folder) == pytest.approx(numbers(whole.folder), rel=1e-12)
    # Whatever the first micro-batch of a start is, what it has no gradient for is not frozen then.
    for steps in range(1, 7):
        run("on", "--steps", str(steps), "--batch.micro", "1")
    assert numbers(tmp_path / "on") == numbers(cut.folder)


def test_branches_that_are_left_out_at_random_count_as_dropout() -> None:
    sizes = {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}
    assert active_dropout(SwinModel(SwinConfig(**sizes, drop_path_rate=0.25))) == 0.25
    assert active_dropout(SwinModel(SwinConfig(**sizes, drop_path_rate=0.0))) == 0.0
    assert active_dropout(bert()) == 0.1
