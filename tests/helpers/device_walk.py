"""Walks every recipe on a stand-in for a GPU and writes down what would make the host wait: steps, saving, evaluation.

    python tests/helpers/device_walk.py OUTPUT DATA

The same with what was wrong once put back, and single operations, show that the walk would notice.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import astuple, replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import transformers
from accelerate import PartialState
from accelerate.state import AcceleratorState
from recipe_layouts import RECIPES, WEIGHTED, config_class, load_recipe, small_arguments
from standin_device import DEVICES, NAME, Fault, standin_device
from torch.distributed.fsdp import CPUOffloadPolicy

from toolkit import losses, vocabulary_loss
from toolkit.batch_layout import NOTES, note_padding
from toolkit.checkpoint import writer as saving
from toolkit.checkpoint.staging import StagingBuffer
from toolkit.checkpoint.writer import Saver
from toolkit.config.parser import parse
from toolkit.config.schema import Config
from toolkit.data.loader import LoadedMicroBatch
from toolkit.distributed import model_from_main
from toolkit.distributed.fsdp import shard
from toolkit.distributed.model_from_main import build_on_main, shard_from_main
from toolkit.distributed.runtime import Runtime
from toolkit.distributed.start_runtime import start_runtime
from toolkit.loop import train
from toolkit.losses import NOT_COUNTED, logits_of, summed_cross_entropy
from toolkit.output.ledger import Ledger
from toolkit.output.run_folder import RunFolder
from toolkit.prepare import prepare
from toolkit.task import Batch, Task
from toolkit.tasks.seq2seq.models import target_logits
from toolkit.train_state import Output
from toolkit.vocabulary_loss import causal_scores, note_labels

ON_CPU = {"ACCELERATE_USE_CPU": "true"}
ALONE = {
    **{"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"},
    **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"},
}
SHARDED = {
    **ON_CPU,
    **ALONE,
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
}
ENVIRONMENT = {
    "cpu": ON_CPU,
    "whole": ON_CPU,
    "sharded": SHARDED,
    "offloaded": {**SHARDED, "FSDP_OFFLOAD_PARAMS": "true"},
    "spread": ON_CPU,
}
WALKED = [*RECIPES, WEIGHTED[0]]
# Beside cpu and whole, which are those of every recipe: one that generates, one with a global-batch loss, one with two
# models; those with an encoder and a decoder are spread over several devices too.
MORE = {
    **{"chat": ("sharded", "spread"), "classify": ("offloaded",), "embed": ("sharded", "spread")},
    **{"prefer": ("offloaded", "spread"), "translate": ("spread",)},
}
# Walked with classify, each beside adamw, which all recipes take.
OPTIMIZERS = ("sgd", "adafactor", "muon")
KINDS = {
    "encoder": ("AutoModelForSequenceClassification", lambda model, batch: logits_of(model, batch).square().sum()),
    "causal": ("AutoModelForCausalLM", lambda model, batch: causal_scores(model, batch).losses.sum()),
    "seq2seq": (
        "AutoModelForSeq2SeqLM",
        lambda model, batch: summed_cross_entropy(target_logits(model, batch), batch["labels"]),
    ),
}
SIZES = {
    **{"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32},
    **{"max_position_embeddings": 64, "pad_token_id": 0, "head_dim": 8, "num_key_value_heads": 2},
    **{"encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32},
    **{"encoder_attention_heads": 2, "decoder_attention_heads": 2},
}
FAMILIES = {
    "encoder": ("bert", "bert eager", "deberta-v2", "mpnet", "canine"),
    "causal": ("gpt2", "qwen3", "qwen3 eager", "gemma3_text", "falcon", "lfm2"),
    "seq2seq": ("bart",),
}


@contextmanager
def runtime_on(layout: str, config: Config) -> Iterator[Runtime]:
    """Start a runtime on the CPU, as a launch file would, then make the stand-in its device, but for the layout cpu."""
    AcceleratorState._reset_state(reset_partial_state=True)
    with mock.patch.dict(os.environ, ENVIRONMENT[layout]):
        runtime = start_runtime(config)
    if layout == "offloaded":
        runtime.accelerator.state.fsdp_plugin.cpu_offload = CPUOffloadPolicy(pin_memory=True)
    if layout != "cpu":
        PartialState._shared_state["device"] = runtime.accelerator.state.device = torch.device(NAME, 0)
    if layout == "spread":
        runtime = replace(runtime, strategy=replace(runtime.strategy, devices=DEVICES))
    yield runtime
    runtime.accelerator.free_memory()


def walk(task: Task, config: Config, layout: str, folder: Path) -> tuple[list[float | None], list[Fault]]:
    """Take three steps, with a checkpoint after the second and an evaluation at the end; return losses and faults."""
    with standin_device() if layout != "cpu" else nullcontext() as device, runtime_on(layout, config) as runtime:
        training = prepare(task, config, runtime)
        run = RunFolder(folder)
        run.claim()
        run.replace_record()
        ledger = Ledger(run.ledger_file)
        saver = Saver(run, ledger, keep=1, pinned=runtime.has_own_memory)
        training.output = Output(ledger, writer=saver, rows=[])
        if device is not None:
            device.watching = True
        train(training)
        training.output.wait()
        ledger.close()
        run.release()
        return [row.loss for row in training.output.rows or ()], device.faults if device is not None else []


patch = mock.patch.object


def stacked(runtime: Runtime, *numbers: torch.Tensor) -> Callable[[], list[float]]:
    """Read later, by one copy of all numbers."""
    return torch.stack([number.double() for number in numbers]).tolist


def selected(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Return the loss of a conversation, of what a mask selects."""
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False).logits
    wanted = batch["labels"][:, 1:]
    carries = wanted != NOT_COUNTED
    return summed_cross_entropy(logits[:, :-1][carries], wanted[carries])


def unknown(*_: Any, **__: Any) -> AbstractContextManager[None]:
    """Know nothing of a mask."""
    return nullcontext()


@contextmanager
def nothing_known(*modules: ModuleType) -> Iterator[None]:
    """Let these modules know nothing of a mask."""
    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(patch(module, "padding_known", unknown))
        yield


# What was so once: the recipe that had it, in which layout, and how it is put back.
ONCE: dict[str, tuple[str, str, Callable[[ModuleType], Any]]] = {
    "norm stacked with the loss": ("classify", "offloaded", lambda _: patch(Runtime, "read_later", stacked)),
    "loss of what a mask selects": ("chat", "whole", lambda recipe: patch(recipe, "loss", selected)),
    "look at an encoder's mask": ("classify", "whole", lambda _: patch(losses, "padding_known", unknown)),
    "look at a causal mask": ("prefer", "whole", lambda recipe: nothing_known(vocabulary_loss, recipe)),
    "pageable batches": ("tag", "whole", lambda _: patch(LoadedMicroBatch, "pin_memory", lambda micro: micro)),
    "order sent by a copy": ("embed", "whole", lambda _: patch(Runtime, "put", lambda at, ids: ids.to(at.device))),
    "pageable checkpoint": (
        "classify",
        "whole",
        lambda _: patch(saving, "StagingBuffer", lambda pinned: StagingBuffer()),
    ),
}


def operations() -> dict[str, list[str]]:
    """Return what the stand-in says of single operations."""
    with standin_device() as device:
        host = torch.arange(6.0).reshape(2, 3)
        on, ids = host.to(f"{NAME}:0"), torch.tensor([1, 0]).to(f"{NAME}:0")
        mask, ready = on > 2, host.pin_memory()
        told: dict[str, Callable[[], Any]] = {
            "item": lambda: on.sum().item(),
            "bool": lambda: bool(mask.all()),
            "float": lambda: float(on[0, 0]),
            "tolist": on.tolist,
            "cpu": on.cpu,
            "nonzero": mask.nonzero,
            "unique": on.unique,
            "masked_select": lambda: on.masked_select(mask),
            "select by a mask": lambda: on[mask],
            "put by a mask": lambda: on.clone().__setitem__(mask, on[0, :1].expand(3)),
            "repeat_interleave": lambda: on.repeat_interleave(ids, 0),
            "repeat_interleave, size known": lambda: on.repeat_interleave(ids, 0, output_size=1),
            "equal": lambda: torch.equal(on, on),
            "tensor": lambda: torch.tensor([1.0], device=on.device),
            "to": lambda: host.to(on.device),
            "to, not waited for": lambda: host.to(on.device, non_blocking=True),
            "to, pinned and not waited for": lambda: ready.to(on.device, non_blocking=True),
            "to, pinned": lambda: ready.to(on.device),
            "into pinned memory": lambda: ready.copy_(on, non_blocking=True),
            "into pageable memory": lambda: host.clone().copy_(on, non_blocking=True),
            "index by a tensor of the device": lambda: on[ids],
            "index by a tensor of the host": lambda: on[torch.tensor([1, 0])],
            "index by numbers": lambda: on[1, 2],
            "add a number": lambda: on + 1,
            "add a lone number of the host": lambda: on + torch.tensor(1.0),
            "add a row of the host": lambda: on + host[0],
            "stack with the host": lambda: torch.stack([on[0, 0], host[0, 0]]),
            "cat with the host": lambda: torch.cat([on, host]),
            "made on the device": lambda: on * torch.arange(3, device=on.device),
            "where": lambda: torch.where(mask, on, 0.0).masked_fill(mask, 1.0),
            "softmax, loss and gradient": lambda: loss_of(on, ids),
        }
        device.watching = True
        found = {}
        for name, operation in told.items():
            device.faults.clear()
            # What the stand-in has noted CUDA would refuse, and so may the CPU.
            with suppress(RuntimeError):
                operation()
            found[name] = sorted({fault.what for fault in device.faults})
        return found


def loss_of(values: torch.Tensor, ids: torch.Tensor) -> None:
    """Run forward and backward."""
    leaf = values.detach().clone().requires_grad_()
    torch.nn.functional.cross_entropy(leaf, ids, ignore_index=-100, reduction="sum").backward()


def built_elsewhere(make_room: Callable[..., None]) -> dict[str, list[str]]:
    """Run an offloaded model that another process built; return where its parameters and buffers lie."""
    asked = {**ENVIRONMENT["offloaded"], "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}
    config = small_config("bert")
    with standin_device(), mock.patch.dict(ENVIRONMENT, offloaded=asked), runtime_on("offloaded", Config()) as runtime:
        plugin, mesh = runtime.accelerator.state.fsdp_plugin, runtime.sharding_mesh
        with patch(Runtime, "is_main", False), patch(model_from_main, "make_room", make_room):
            model = build_on_main(lambda: transformers.AutoModel.from_config(config, add_pooling_layer=False), runtime)
            shard_from_main(model, lambda model: shard(model, mesh, plugin), runtime)
        lie = {
            "parameters": sorted({parameter.device.type for parameter in model.parameters()}),
            "buffers": sorted({buffer.device.type for buffer in model.buffers()}),
        }
        for buffer in model.buffers():
            buffer.zero_()  # what the main process would send
        model(torch.ones(2, 3, dtype=torch.int64, device=runtime.device))
        return lie


def all_on_the_device(model: torch.nn.Module, runtime: Runtime) -> None:
    """Make room as if nothing were offloaded."""
    model.to_empty(device=runtime.device)


def refusal_of(work: Callable[[], object]) -> str:
    """Return the first line of what torch refuses."""
    try:
        work()
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    return ""


def families() -> dict[str, list[str]]:
    """Return for small models of several families the functions that make the host wait, with padding and without."""
    found = {}
    with standin_device() as device:
        for kind, names in FAMILIES.items():
            auto, loss = KINDS[kind]
            for name in names:
                family, _, attention = name.partition(" ")
                model = getattr(transformers, auto).from_config(
                    small_config(family), attn_implementation=attention or None
                )
                model = model.to(f"{NAME}:0")
                device.faults.clear()
                for lengths in ((8, 8, 8), (8, 5, 7)):
                    batch = batch_of(lengths, kind)
                    device.watching = True
                    loss(model, batch).backward()
                    device.watching = False
                found[name] = sorted({fault.place for fault in device.faults})
    return found


def small_config(family: str) -> Any:
    """Return the configuration of a small model of a family."""
    usual = transformers.AutoConfig.for_model(family)
    computed = {name for name in SIZES if isinstance(getattr(type(usual), name, None), property)}
    sizes = {name: size for name, size in SIZES.items() if hasattr(usual, name) and name not in computed}
    config = transformers.AutoConfig.for_model(family, **sizes)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:2]
    return config


def batch_of(lengths: Sequence[int], kind: str) -> Batch:
    """Return rows of these lengths, padded on the right, on the device."""
    mask = torch.tensor([[1] * length + [0] * (max(lengths) - length) for length in lengths])
    ids = mask * torch.arange(5, 5 + max(lengths))
    labels = {"encoder": mask[:, 0], "causal": ids, "seq2seq": ids}[kind]
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels, **note_padding(lengths)}
    batch |= note_labels(ids) if kind == "causal" else {}
    return {name: values if name in NOTES else values.to(f"{NAME}:0") for name, values in batch.items()}


def main(output: Path, data: Path) -> None:
    """Walk everything."""
    found: dict[str, dict[str, Any]] = {"losses": {}, "faults": {}, "once": {}}
    for name in WALKED:
        recipe = load_recipe(name)
        arguments = [*small_arguments(name, data / name), "--threads", "1", "--output", str(data / "runs")]
        config: Any = parse(config_class(recipe), recipe.__doc__ or "", [*arguments, "--batch.micro", "3"])
        every = {"evaluate": replace(config.evaluate, every=3), "checkpoint": replace(config.checkpoint, every=2)}
        config = replace(config, steps=3, **every)
        for layout in ("cpu", "whole", *MORE.get(name, ())):
            at = f"{name} {layout}"
            found["losses"][at], faults = walk(recipe.task(config), config, layout, data / "runs" / at)
            found["faults"][at] = sorted({astuple(fault) for fault in faults})
        for optimizer in OPTIMIZERS if name == "classify" else ():
            optim = replace(config.optim, name=optimizer, layer_decay=0.5, average=0.9)
            for layout in ("cpu", "whole", "sharded"):
                at, chosen = f"{optimizer} {layout}", replace(config, optim=optim)
                found["losses"][at], faults = walk(recipe.task(chosen), chosen, layout, data / "runs" / at)
                found["faults"][at] = sorted({astuple(fault) for fault in faults})
        for what, (where, layout, put_back) in ONCE.items():
            if where == name:
                with put_back(recipe):
                    _, faults = walk(recipe.task(config), config, layout, data / "runs" / what)
                found["once"][what] = sorted({astuple(fault) for fault in faults})
    found |= {"operations": operations(), "families": families()}
    found["built elsewhere"] = built_elsewhere(model_from_main.make_room)
    found["once"]["shards of an offloaded model on the device"] = refusal_of(lambda: built_elsewhere(all_on_the_device))
    output.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
