"""Peak memory and time of a causal model's loss against the size of its vocabulary: whole logits, and as recipes do it.

    python benchmarks/performance/vocabulary_memory.py
        1,024 tokens of vocabularies of 1,000 to 256,000, forward and backward: takes up to 5 GB of memory

A Llama of two layers and 64 features on one thread, in float32. Every figure is of a process of its own. Memory is what
the process takes at most beyond what it holds before: weights and gradients (VmHWM less VmRSS, /proc/self/status).
Rounds alternate between the ways; a ratio is the median of the rounds, of the time in chunks by that of whole logits.
Exits with 1 if chunks take more memory than whole logits, or at 256,000 more than a third of it.
"""

import argparse
import ctypes
import statistics
import sys
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import torch
from machine import machine, table
from transformers import LlamaConfig, LlamaForCausalLM

from toolkit.losses import NOT_COUNTED, causal_logits, summed_cross_entropy
from toolkit.vocabulary_loss import causal_scores, note_labels

VOCABULARIES = (1_000, 4_000, 16_000, 64_000, 256_000)
ROWS, LENGTH = 4, 256
WAYS = ("whole", "chunks")
SHARES = (1, 4)
"""One token of so many has a label: all, as in language.py, or a quarter of them, as in chats."""
STEPS = 1


def status(name: str) -> int:
    """Return a size that the system notes of this process, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def measure(way: str, vocabulary: int, share: int) -> dict[str, Any]:
    """Return the most bytes beyond weights and gradients, and the seconds of the fastest step."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, **sizes))

    def batch(rows: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(vocabulary, (rows, LENGTH))
        labels = ids.roll(-1, 1)
        labels[:, torch.arange(LENGTH) % share > 0] = NOT_COUNTED
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels, **note_labels(labels)}

    def step(batch: dict[str, torch.Tensor]) -> float:
        if way == "whole":
            loss = summed_cross_entropy(causal_logits(model, batch), batch["labels"])
        else:
            loss = causal_scores(model, batch).losses.sum()
        loss.backward()
        model.zero_grad(set_to_none=False)
        return float(loss.detach())

    step({name: values[:1] for name, values in batch(1).items()} | note_labels(torch.zeros(1, 1, dtype=torch.int64)))
    given = batch(ROWS)
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the highest size begins anew
    before = status("VmRSS")
    seconds = []
    for _ in range(STEPS):
        began = time.perf_counter()
        loss = step(given)
        seconds.append(time.perf_counter() - began)
    return {"peak": status("VmHWM") - before, "seconds": min(seconds), "loss": loss}


def in_a_process(way: str, vocabulary: int, share: int) -> dict[str, Any]:
    """Return the figures of a process of its own."""
    context = get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sending.send(measure(way, vocabulary, share)))
    process.start()
    sending.close()
    found: dict[str, Any] = receiving.recv()
    process.join()
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="processes of each way and vocabulary (default 3)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"# Memory and time of a loss against the vocabulary, {ROWS * LENGTH:,} tokens\n\n{machine()}\n")
    print(f"MB beyond weights and gradients, the most of {given.rounds} rounds; times are medians of the rounds.\n")
    rows, failed = [], False
    for share in SHARES:
        for vocabulary in VOCABULARIES:
            found = {way: [] for way in WAYS}
            for _ in range(given.rounds):
                for way in WAYS:
                    found[way].append(in_a_process(way, vocabulary, share))
            whole, chunks = (max(figures["peak"] for figures in found[way]) for way in WAYS)
            times = zip(*([figures["seconds"] for figures in found[way]] for way in WAYS), strict=True)
            ratios = sorted(chunked / entire for entire, chunked in times)
            apart = abs(found["whole"][0]["loss"] - found["chunks"][0]["loss"]) / found["whole"][0]["loss"]
            failed |= (
                chunks > whole * 1.1 + 8e6 or apart > 1e-5 or (vocabulary == max(VOCABULARIES) and chunks > whole / 3)
            )
            ratio = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            sizes = (f"{size / 1e6:,.0f}" for size in (whole, chunks))
            rows.append([f"{vocabulary:,}, 1 of {share}", *sizes, f"{chunks / whole:.2f}", ratio])
            print(rows[-1], file=sys.stderr)
    print(table(["vocabulary, labels", "whole logits", "chunks", "memory ratio", "time ratio"], rows))
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
