"""Runs whose layers lie on several devices (`model.device_map`), on stand-ins for them, beside the same runs on one.

    python tests/helpers/spread_runs.py OUTPUT FOLDER

It writes down every number. A process of its own, since a stand-in changes torch for as long as a process lives.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from accelerate import dispatch_model
from device_walk import runtime_on
from safetensors.torch import load_file, save_file
from standin_device import NAME, standin_device

from toolkit import Batch, BatchConfig, Config, EvaluateConfig, OptimConfig, Task, TaskData, UserError
from toolkit.batch_layout import note_padding
from toolkit.config.model import LoraConfig, ModelConfig
from toolkit.config.schema import CheckpointConfig
from toolkit.data.cache import digest_of
from toolkit.errors import Preempted
from toolkit.models.load import ready
from toolkit.models.spread import spread_layers
from toolkit.run import run
from toolkit.vocabulary_loss import causal_scores, note_labels

LAYERS, HIDDEN, WORDS, TOKENS = 5, 16, 48, 12
DROPOUT = 0.2


@dataclass(frozen=True)
class Spread(Config):
    batch: BatchConfig = BatchConfig(size=8, micro=3, eval=4)
    optim: OptimConfig = OptimConfig(lr=0.01, warmup=2, clip=0.1)
    evaluate: EvaluateConfig = EvaluateConfig(every=6)
    checkpoint: CheckpointConfig = CheckpointConfig(every=3)
    epochs: float | None = None
    steps: int | None = 6
    rehearse: bool = False
    threads: int | None = 1
    model: ModelConfig = ModelConfig(dropout=DROPOUT)
    flaw: str = "none"


class Rows:
    """Rows of tokens of different lengths; all of it follows from the id."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def lengths(self, ids: np.ndarray) -> np.ndarray:
        return 3 + (np.asarray(ids) * 5) % (TOKENS - 2)

    def fetch(self, ids: Sequence[int]) -> list[list[int]]:
        lengths = self.lengths(np.array(ids)).tolist()
        return [
            [(number * place) % WORDS for place in range(1, length + 1)]
            for number, length in zip(ids, lengths, strict=True)
        ]

    def digest(self) -> str:
        return digest_of(self.count)


def collate(rows: list[list[int]]) -> Batch:
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    following = torch.tensor([row[1:] + [-100] * (longest - len(row) + 1) for row in rows])
    return {"input_ids": ids, "attention_mask": mask, **note_labels(following), **note_padding([*map(len, rows)])}


def network(dropout: float = 0.0) -> torch.nn.Module:
    """Return a GPT-2 in float64, whose head is its embedding."""
    rates = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    settings = transformers.GPT2Config(
        vocab_size=WORDS,
        n_positions=TOKENS,
        n_embd=HIDDEN,
        n_layer=LAYERS,
        n_head=2,
        bos_token_id=1,
        eos_token_id=1,
        **rates,
    )
    return transformers.GPT2LMHeadModel(settings).double()


class Reaching(torch.nn.Module):
    """A network that reaches into one of its layers from outside."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, **inputs: Any) -> Any:
        out = self.inner(**inputs)
        return replace_logits(out, out.logits * self.inner.transformer.h[LAYERS - 1].ln_1.weight.mean())


def replace_logits(out: Any, logits: torch.Tensor) -> Any:
    """Return an output with other logits."""
    out.logits = logits
    return out


def save(model: Any, folder: Path, _: Any) -> None:
    folder.mkdir()
    save_file(
        {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.named_parameters()},
        folder / "model.safetensors",
    )


def task(config: Spread) -> Task:
    def build(_: Any) -> torch.nn.Module:
        built = network(config.model.dropout or 0.0)
        return Reaching(built) if config.flaw == "reaches in" else ready(built, config.model)

    def loss(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        if config.flaw == "reaches in":
            return model(input_ids=batch["input_ids"]).logits.sum()
        total = causal_scores(model, batch).losses.sum()
        # A sum that is not finite, in one step.
        marked = config.flaw == "infinite" and torch.is_grad_enabled() and 6 in batch["input_ids"][:, 1]
        return total * float("inf") if marked else total

    return Task(
        model=build,
        data=TaskData(Rows(37), Rows(5)),
        collate=collate,
        units=lambda batch: len(batch["targets"]),
        loss=loss,
        export=save,
    )


def trained(folder: Path, config: Spread, layout: str, stop_after: int | None = None) -> dict[str, Any]:
    """Run it, or go on with it, and return weights, ledger and plan."""
    config = replace(config, output=str(folder))
    with standin_device() if layout == "spread" else nullcontext(), runtime_on(layout, config) as runtime:
        stopping = stopped_after(stop_after, folder) if stop_after else nullcontext()
        with stopping, redirect_stdout(StringIO()), suppress(Preempted):
            run(config, task, "spread", runtime)
    if stop_after:
        return {"record": json.loads((folder / "run.json").read_text(encoding="utf-8"))}
    rows = [json.loads(line) for line in (folder / "ledger.jsonl").read_text(encoding="utf-8").splitlines()]
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    weights = {name: tensor.tolist() for name, tensor in load_file(folder / "model" / "model.safetensors").items()}
    return {"weights": weights, "rows": rows, "metrics": record["metrics"], "plan": record["plan"]}


@contextmanager
def stopped_after(steps: int, folder: Path) -> Iterator[None]:
    """Ask the run in this folder to stop after so many steps."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    done = 0

    def count(*_: object) -> None:
        nonlocal done
        done += 1
        if done == steps:
            (folder / "STOP").touch()

    handle = register_optimizer_step_post_hook(count)
    try:
        yield
    finally:
        handle.remove()


def told(work: Callable[[], object]) -> str:
    """Return what the user is told, or nothing."""
    try:
        work()
    except UserError as error:
        return "; ".join(error.problems)
    return ""


def beside_accelerate() -> dict[str, Any]:
    """Return losses and gradients of one batch, and what was sent and held: by `spread_layers`, Accelerate's
    `dispatch_model`, and on one device."""
    batch = collate(Rows(8).fetch(range(8)))
    found: dict[str, Any] = {}
    torch.manual_seed(0)
    source = network().state_dict()

    def step(model: torch.nn.Module, moved: dict[str, torch.Tensor]) -> dict[str, Any]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
        logits = model(input_ids=moved["input_ids"], attention_mask=moved["attention_mask"], use_cache=False).logits
        logits.square().sum().backward()
        optimizer.step()
        held: dict[str, int] = {}
        for parameter in model.parameters():
            tensors = [parameter, parameter.grad, *(v for v in optimizer.state[parameter].values() if v.ndim)]
            for tensor in tensors:
                held[str(tensor.device)] = held.get(str(tensor.device), 0) + tensor.numel() * tensor.element_size()
        gradients = {name: p.grad.detach().cpu().tolist() for name, p in model.named_parameters()}
        return {"gradients": gradients, "held": held, "logits on": str(logits.device)}

    one = network()
    one.load_state_dict(source)
    found["one"] = step(one, batch)
    for way in ("toolkit", "accelerate"):
        with standin_device() as device:
            devices = [torch.device(NAME, number) for number in range(3)]
            model = network()
            model.load_state_dict(source)
            if way == "toolkit":
                spread_layers(model, devices)
                placed = dict(model.hf_device_map)
            else:
                layers = {f"transformer.h.{number}": devices[(number + 1) // 2] for number in range(LAYERS)}
                rest = {"transformer.wte": 0, "transformer.wpe": 0, "transformer.ln_f": 2, "lm_head": 0}
                placed = {**{name: devices[at] for name, at in rest.items()}, **layers}
                dispatch_model(model, placed, main_device=devices[0])
            moved = {name: batch[name].to(devices[0]) for name in ("input_ids", "attention_mask")}
            device.sent.clear()
            found[way] = step(model, moved)
            sent = {f"{a} to {b}": size for (a, b), size in sorted(device.sent.items())}
            found[way] |= {"sent": sent, "placed": {name: str(at) for name, at in placed.items()}}
            found[way]["remark"] = getattr(model, "plan_remarks", {}).get("device map")
    return found


def main(output: Path, folder: Path) -> None:
    """Run everything."""
    usual = Spread()
    plain = replace(usual, model=ModelConfig())
    adapters = replace(plain, model=ModelConfig(lora=LoraConfig(rank=2, targets=("c_attn",))))
    averaged = replace(usual.optim, name="muon", average=0.9, nonfinite="skip")
    others = replace(usual, optim=averaged, export="average", flaw="infinite")
    checkpointed = replace(usual, model=replace(usual.model, checkpoint_activations=True))
    found: dict[str, Any] = {
        "usual, one": trained(folder / "usual one", usual, "cpu"),
        "usual, spread": trained(folder / "usual spread", replace(usual, rehearse=True), "spread"),
        "checkpointed": trained(folder / "checkpointed", checkpointed, "spread"),
        "adapters, one": trained(folder / "adapters one", adapters, "cpu"),
        "adapters, spread": trained(folder / "adapters spread", adapters, "spread"),
        "others, one": trained(folder / "others one", others, "cpu"),
        "others, spread": trained(folder / "others spread", others, "spread"),
    }
    for first, then in (("cpu", "spread"), ("spread", "cpu")):
        name = f"{first} then {then}"
        found[f"{name}, stopped"] = trained(folder / name, usual, first, stop_after=3)
        found[name] = trained(folder / name, usual, then)
    found["beside Accelerate"] = beside_accelerate()
    reaching = replace(plain, flaw="reaches in")
    found["reaches in"] = told(lambda: trained(folder / "reaches in", reaching, "spread"))
    output.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
