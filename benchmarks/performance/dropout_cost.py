"""What dropout that knows the sample costs: the time of a step with it and with torch's own, and of single operations.

    python benchmarks/performance/dropout_cost.py
        an encoder and a decoder with dropout of 0.1 in their layers and their attention, one thread; 5 minutes
    python benchmarks/performance/dropout_cost.py --models encoder --rounds 5 --device cuda

Both take turns, step by step, on the same model and batch, so that whatever else the machine does meets both. Exits
with 1 if the median step takes more than 1.03 times as long as with torch's dropout.
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import torch
import torch.nn.functional as F
from machine import machine, table

from toolkit.attention import padding_known
from toolkit.batch_layout import Layout, drawing_from
from toolkit.data.loader import KeyedRows
from toolkit.dropout import elements, know_samples

BOUND = 1.03
ROWS, WORDS, RATE = 16, 2000, 0.1
OPERATIONS = {
    "hidden states (16, 64, 384)": (16, 64, 384),
    "hidden states (16, 256, 768)": (16, 256, 768),
    "weights of attention (16, 12, 64, 64)": (16, 12, 64, 64),
    "pooled states (16, 384)": (16, 384),
}


def main() -> None:
    """Time everything and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--tokens", nargs="+", type=int, default=[32, 128])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(arguments.device)
    rows, passed = [], True
    for name in arguments.models:
        for tokens in arguments.tokens:
            own, theirs = steps(name, tokens, arguments.rounds, device)
            ratios = sorted(mine / other for mine, other in zip(own, theirs, strict=True))
            ratio = median(own) / median(theirs)
            passed = passed and ratio <= BOUND
            spread = f"{ratios[len(ratios) // 4]:.3f} to {ratios[-1 - len(ratios) // 4]:.3f}"
            size = f"{name}, {ROWS} x {tokens} tokens"
            rows.append([size, f"{1e3 * median(theirs):.1f}", f"{1e3 * median(own):.1f}", f"{ratio:.3f}", spread])
    print("# The cost of dropout that knows the sample\n")
    print(f"{machine()}; {arguments.device}, one thread\n")
    print(f"Forward pass, backward pass and AdamW, float32, dropout {RATE}; {arguments.rounds} of each in turn:\n")
    columns = ["model", "torch's dropout, ms", "this one, ms", "ratio of medians", "middle half of the ratios"]
    print(table(columns, rows))
    print(f"\nAt most {BOUND}: {'pass' if passed else 'FAIL'}\n")
    print("A single dropout, forward and backward:\n")
    columns = ["values", "torch's, us", "this one, us", "ratio"]
    print(table(columns, [operation(name, arguments.rounds, device) for name in OPERATIONS]))
    if not passed:
        sys.exit(1)


def encoder() -> torch.nn.Module:
    """Return a BERT of the size of MiniLM, without its table of words."""
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    return BertModel(BertConfig(vocab_size=WORDS, **sizes), add_pooling_layer=False)


def decoder() -> torch.nn.Module:
    """Return a GPT-2 of the same size."""
    from transformers import GPT2Config, GPT2Model

    return GPT2Model(GPT2Config(vocab_size=WORDS, n_embd=384, n_layer=6, n_head=12, use_cache=False))


MODELS: dict[str, Callable[[], torch.nn.Module]] = {"encoder": encoder, "decoder": decoder}


def steps(name: str, tokens: int, rounds: int, device: torch.device) -> tuple[list[float], list[float]]:
    """Return the seconds of each step with this dropout, and of each with torch's."""
    torch.manual_seed(0)
    model = know_samples(MODELS[name]()).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5, fused=True)
    ids = torch.randint(0, WORDS, (ROWS, tokens), device=device)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "unpadded": torch.empty(0)}
    before = torch.get_rng_state()

    def step(number: int, with_samples: bool) -> float:
        synchronize(device)
        started = time.perf_counter()
        keys = KeyedRows(0, number, range(ROWS)).keys().to(device) if with_samples else None
        with drawing_from(keys):
            with padding_known(batch, on_the_right=True):
                states = model(input_ids=ids, attention_mask=batch["attention_mask"]).last_hidden_state
            states.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        synchronize(device)
        return time.perf_counter() - started

    own, theirs = [], []
    for number in range(rounds + 3):
        # Who begins takes turns too.
        order = (True, False) if number % 2 else (False, True)
        for with_samples in order:
            seconds = step(number, with_samples)
            if number == 0 and with_samples and device.type == "cpu":
                assert torch.equal(torch.get_rng_state(), before), "something was drawn without regard to the samples"
            if number >= 3:  # the first steps warm up
                (own if with_samples else theirs).append(seconds)
            elif number == 0:
                before = torch.get_rng_state()
    return own, theirs


def operation(name: str, rounds: int, device: torch.device) -> list[str]:
    """Return the row of a dropout by itself; what is made once for a batch is made before."""
    values = torch.randn(OPERATIONS[name], device=device, requires_grad=True)
    upstream = torch.randn_like(values)
    layout = Layout(keys=KeyedRows(0, 0, range(ROWS)).keys().to(device))

    def by_samples(number: int) -> torch.Tensor:
        left = elements(values, RATE, number, layout)
        assert left is not None
        return left

    kinds: list[tuple[list[float], Callable[[int], torch.Tensor]]] = [
        ([], by_samples),
        ([], lambda number: torch_dropout(values)),
    ]
    for number in range(rounds + 3):
        for seconds, drop in kinds:
            synchronize(device)
            started = time.perf_counter()
            drop(number).backward(upstream)
            synchronize(device)
            if number >= 3:
                seconds.append(time.perf_counter() - started)
            values.grad = None
    own, theirs = (median(seconds) for seconds, _ in kinds)
    return [name, f"{1e6 * theirs:.0f}", f"{1e6 * own:.0f}", f"{own / theirs:.2f}"]


torch_dropout = partial(F.dropout, p=RATE, training=True)


def synchronize(device: torch.device) -> None:
    """Wait for an accelerator."""
    if device.type != "cpu":
        torch.accelerator.synchronize()


if __name__ == "__main__":
    main()
