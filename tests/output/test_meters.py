"""What a run is measured by: peaks by the names of GPUs, words for the screen, and what is not known."""

import pytest
import torch

from toolkit.output.ledger import LedgerRow
from toolkit.output.meters import Meters, arithmetic_of, described, device_peak, host_peak, peak_flops, with_prefix
from toolkit.verify.compare_ledgers import EXACT, ROUNDED


@pytest.mark.parametrize(
    ("name", "arithmetic", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.5e12),
        ("NVIDIA H100 PCIe", "tf32", 378e12),
        ("NVIDIA A100-SXM4-80GB", "fp16", 312e12),
        ("NVIDIA A100-SXM4-80GB", "fp32", 19.5e12),
        ("Tesla T4", "fp16", 65e12),
        ("Tesla T4", "bf16", None),
        ("NVIDIA A10G", "bf16", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16", None),
        ("NVIDIA H200", None, None),
        ("", "fp32", None),
    ],
)
def test_the_peak_of_a_gpu_is_known_by_its_whole_name(name: str, arithmetic: str | None, peak: float | None) -> None:
    assert peak_flops(name, arithmetic) == peak


def test_what_a_model_multiplies_in() -> None:
    model = torch.nn.Linear(4, 4)
    assert arithmetic_of(model, "bf16") == "bf16"
    assert arithmetic_of(model, "no") == "fp32"
    assert arithmetic_of(model.bfloat16(), "no") == "bf16"
    assert arithmetic_of(model.double(), "no") is None


def row(tokens: int | None, padding: float | None, flops: int | None) -> LedgerRow:
    return LedgerRow(1, 0.1, 1.0, 1.0, 0.1, 8, 8, "0", padding, 2.0, 0.5, tokens=tokens, flops=flops)


def test_what_is_known_and_what_is_not() -> None:
    meters = Meters()
    for each in (row(60, 0.4, None), row(90, 0.1, 4_000)):
        meters.add(each)
    found = meters.as_json(peak=10_000.0, processes=2)
    # 60 of 100 computed tokens, and 90 of 100; the operations of two seconds of the four.
    expected = {"samples_per_second": 4, "tokens_per_second": 37.5, "padding": 0.25, "waiting": 0.25}
    assert found == pytest.approx({**expected, "flops_per_second": 2_000, "peak_flops": 10_000, "mfu": 0.1})
    assert described({**found, "host_memory": 1.5e9, "device_memory": None}) == {
        "speed": "4 samples/s, 38 tokens/s, 2 kFLOP/s, MFU 10.0%",
        "spent": "25.0% of the computed tokens were padding, 25.0% of the time went to waiting for data",
        "peak memory": "host 1.5 GB",
    }
    assert Meters().as_json(None, 1)["mfu"] is None
    meters.add(row(None, None, None))
    found = meters.as_json(None, 1)
    assert (found["tokens_per_second"], found["padding"]) == (None, None)
    assert "2 kFLOP/s, MFU unknown" in described({**found, "host_memory": 1.0})["speed"]
    unknown = Meters()
    unknown.add(row(None, None, None))
    assert "FLOP/s unknown, MFU unknown" in described({**unknown.as_json(1.0, 1), "host_memory": 1.0})["speed"]


def test_the_row_that_an_older_checkpoint_holds_is_gone_on_with() -> None:
    new = {"tokens", "flops", "host_memory", "device_memory"}
    older = {name: value for name, value in vars(row(60, 0.4, 4_000)).items() if name not in new}
    assert {getattr(LedgerRow(**older), name) for name in new} == {None}
    compared = {name for names in EXACT.values() for name in names} | set(ROUNDED.values())
    assert compared < set(older)


def test_memory_and_prefixes() -> None:
    before = host_peak()
    held = torch.ones(30_000_000)
    assert host_peak() >= before
    assert host_peak() > held.nbytes
    assert device_peak(torch.device("cpu")) is None
    assert [with_prefix(value) for value in (5, 999.6, 1234567, 2.5e15)] == ["5 ", "1 k", "1.23 M", "2.5 P"]
