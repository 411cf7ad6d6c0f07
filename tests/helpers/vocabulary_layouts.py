"""Takes the gradients of language models whose logits are made in chunks, spread over two processes in several ways.

As a script it forks the processes and writes down in the file that it is given, for every layout and model, how far
loss and gradients are from those of one process with all logits.
"""

import copy
import gc
import json
import os
import socket
import sys
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # loaded by sharding: before the fork it is loaded once
import transformers
from accelerate.utils import FullyShardedDataParallelPlugin
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from toolkit import vocabulary_loss
from toolkit.distributed.fsdp import shard
from toolkit.distributed.tensor_parallel import split_layers
from toolkit.losses import NOT_COUNTED, causal_logits, logits_of, summed_cross_entropy
from toolkit.vocabulary_loss import causal_scores, masked_scores, note_labels

PROCESSES = 2
VOCABULARY = 90
SIZES = {
    **{"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"num_key_value_heads": 2, "intermediate_size": 32, "max_position_embeddings": 64, "head_dim": 8},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}
WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MODELS: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "gpt2": lambda: transformers.GPT2Config(
        **{"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64},
        **{"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "gemma2": lambda: transformers.Gemma2Config(**SIZES, final_logit_softcapping=1.5),
    "opt": lambda: transformers.OPTConfig(
        **{"vocab_size": VOCABULARY, "hidden_size": 16, "word_embed_proj_dim": 12, "num_hidden_layers": 2},
        **{"num_attention_heads": 2, "ffn_dim": 32, "max_position_embeddings": 64, "dropout": 0.0, "pad_token_id": 0},
    ),
    "cohere": lambda: transformers.CohereConfig(**SIZES),
    "granite": lambda: transformers.GraniteConfig(**SIZES, logits_scaling=3.0),
    "bert": lambda: transformers.BertConfig(**SIZES, **WITHOUT_DROPOUT),
    "deberta-v2": lambda: transformers.DebertaV2Config(**SIZES, **WITHOUT_DROPOUT),
}
MASKED = {"bert", "deberta-v2"}
LAYOUTS = {
    "DDP": ("llama", "gpt2", "gemma2", "bert"),
    "FSDP2": ("llama", "gpt2", "gemma2", "bert"),
    "FSDP2, the head by itself": ("llama",),
    "tensor": ("llama", "gemma2"),
}


def model_of(name: str) -> Any:
    """Return a small model in float64, in which no weight is what it begins as, not even a bias."""
    torch.manual_seed(0)
    auto = transformers.AutoModelForMaskedLM if name in MASKED else transformers.AutoModelForCausalLM
    model = auto.from_config(MODELS[name]()).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def batch_of(rows: slice = slice(None)) -> dict[str, torch.Tensor]:
    """Return texts of different lengths, in which two tokens of three have a label; the last one has none at all."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, VOCABULARY, (4, 13), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, 9:], mask[3, 6:] = 0, 0
    carries = (torch.rand(ids.shape, generator=generator) < 2 / 3) & (mask > 0)
    carries[2:] = False
    labels = torch.where(carries, torch.randint(VOCABULARY, ids.shape, generator=generator), NOT_COUNTED)
    part = {"input_ids": ids[rows], "attention_mask": mask[rows], "labels": labels[rows]}
    return {**part, **note_labels(part["labels"])}


def loss_of(name: str, model: torch.nn.Module, batch: dict[str, torch.Tensor], whole: bool = False) -> torch.Tensor:
    """Return the summed cross-entropy, from all logits or as recipes take it."""
    if whole:
        inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
        logits = logits_of(model, inputs) if name in MASKED else causal_logits(model, inputs)
        return summed_cross_entropy(logits, batch["labels"])
    return (masked_scores if name in MASKED else causal_scores)(model, batch).losses.sum()


def gradients(model: torch.nn.Module) -> torch.Tensor:
    """Return the gradients of all weights as one vector; a weight without any has zeros."""
    found = []
    for parameter in model.parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        found.append((gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient).flatten())
    return torch.cat(found)


def loss_and_gradients(
    name: str, model: torch.nn.Module, batch: dict[str, torch.Tensor], whole: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss and its gradients, and leave no gradients behind."""
    loss = loss_of(name, model, batch, whole)
    loss.backward()
    found = gradients(model)
    model.zero_grad()
    return loss.detach(), found


def spread(layout: str, model: Any) -> torch.nn.Module:
    """Return a model that lies in both processes after this layout."""
    mesh = init_device_mesh("cpu", (PROCESSES,))
    if layout == "DDP":
        return DistributedDataParallel(model)
    if layout.startswith("FSDP2"):
        os.environ["FSDP_AUTO_WRAP_POLICY"] = "TRANSFORMER_BASED_WRAP" if layout == "FSDP2" else "SIZE_BASED_WRAP"
        os.environ["FSDP_MIN_NUM_PARAMS"] = str(VOCABULARY)
        shard(model, mesh, FullyShardedDataParallelPlugin(fsdp_version=2, reshard_after_forward=True))
    else:
        split_layers(model, mesh)
    wrapped: torch.nn.Module = model
    return wrapped


def work(rank: int, port: int, output: Path) -> None:
    """Be one of the processes."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.distributed.init_process_group("gloo", rank=rank, world_size=PROCESSES)
    results: dict[str, dict[str, Any]] = {}
    for layout, names in LAYOUTS.items():
        # In the second process no token has a label, and in the first there are many chunks.
        rows = slice(None) if layout == "tensor" else slice(2 * rank, 2 * rank + 2)
        for name in names:
            model = model_of(name)
            expected, wanted = loss_and_gradients(name, model, batch_of(), whole=True)
            wrapped = spread(layout, copy.deepcopy(model))
            total, found = loss_and_gradients(name, wrapped, batch_of(rows))
            if layout != "tensor":  # both take the mean over the processes
                found *= PROCESSES
                torch.distributed.all_reduce(total)
            results[f"{layout} {name}"] = {
                "loss": float((total - expected) / expected),
                "gradient": float((found - wanted).abs().max()),
                "remarks": getattr(wrapped, "plan_remarks", {}),
            }
    if rank == 0:
        output.write_text(json.dumps(results), encoding="utf-8")
    torch.distributed.destroy_process_group()


def main() -> None:
    """Fork the processes, with chunks of four tokens."""
    vocabulary_loss.FEWEST_ON_CPU, vocabulary_loss.LOGITS = 4, 1
    gc.freeze()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    context = get_context("fork")
    pair = [context.Process(target=work, args=(rank, port, Path(sys.argv[1]))) for rank in range(PROCESSES)]
    for process in pair:
        process.start()
    for process in pair:
        process.join()
    if any(process.exitcode for process in pair):
        sys.exit(f"the processes ended with {[process.exitcode for process in pair]}")


if __name__ == "__main__":
    main()
