"""What a run is measured by: its speed, what was spent on padding and waiting, its memory, and the share of the
device's peak that it reaches."""

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from sys import platform
from time import monotonic
from typing import Any

import torch

from toolkit.output.ledger import LedgerRow

SECONDS_BETWEEN_READINGS = 1.0
PEAKS: dict[str, dict[str, float]] = {
    # Data sheet of the HGX platform, Blackwell: 4.5 and 2.2 PFLOP/s with sparsity, which is twice the dense figure.
    r"NVIDIA B200": {"half": 2250, "tf32": 1100, "fp32": 75},
    # Data sheet of the H200: 1,979 and 989 with sparsity.
    r"NVIDIA H200": {"half": 989.5, "tf32": 494.5, "fp32": 67},
    # Data sheet of the H100: SXM 1,979 and 989, PCIe 1,513 and 756, all with sparsity.
    r"NVIDIA H100 80GB HBM3": {"half": 989.5, "tf32": 494.5, "fp32": 67},
    r"NVIDIA H100 PCIe": {"half": 756.5, "tf32": 378, "fp32": 51},
    # Data sheet of the A100, the same for both forms and sizes.
    r"(NVIDIA )?A100-(SXM4|PCIE)-[48]0GB|NVIDIA A100 80GB PCIe": {"half": 312, "tf32": 156, "fp32": 19.5},
    # Data sheet of the L4: 242 and 120 with sparsity.
    r"NVIDIA L4": {"half": 121, "tf32": 60, "fp32": 30.3},
    # Data sheet of the L40S.
    r"NVIDIA L40S": {"half": 362, "tf32": 183, "fp32": 91.6},
    # Data sheet of the A10. (The A10G of clouds is another chip.)
    r"NVIDIA A10": {"half": 125, "tf32": 62.5, "fp32": 31.2},
    # Data sheet of the T4, which knows neither bfloat16 nor TF32.
    r"Tesla T4": {"fp16": 65, "fp32": 8.1},
    # Data sheet of the V100, likewise.
    r"Tesla V100-SXM2-(16|32)GB": {"fp16": 125, "fp32": 15.7},
}
"""The most that a GPU can do by its vendor's word, in 10^12 floating-point operations per second, without sparsity, by
the name that its driver gives. A part of a GPU (MIG) has another name, and so no peak."""


def peak_flops(name: str, arithmetic: str | None) -> float | None:
    """Return what the device of this name can do at most, per second; None where that is not known.

    `arithmetic` is bf16, fp16, tf32 or fp32.
    """
    for pattern, peaks in PEAKS.items():
        if re.fullmatch(pattern, name):
            half = peaks.get("half") if arithmetic in ("bf16", "fp16") else None
            peak = peaks.get(arithmetic or "", half)
            return None if peak is None else peak * 1e12
    return None


def arithmetic_of(model: torch.nn.Module, precision: str) -> str | None:
    """Return in which numbers a model multiplies: bf16, fp16, tf32, fp32, or None for others.

    Args:
        model: most of its weights decide.
        precision: mixed precision, as Accelerate calls it.
    """
    if precision != "no":
        return precision
    sizes: dict[torch.dtype, int] = {}
    for parameter in model.parameters():
        # DeepSpeed's stage 3 leaves empty ones in the model.
        size = getattr(parameter, "ds_numel", parameter.numel())
        sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + size
    match max(sizes, key=lambda kind: sizes[kind]):
        case torch.bfloat16:
            return "bf16"
        case torch.float16:
            return "fp16"
        case torch.float32:
            return "fp32" if torch.get_float32_matmul_precision() == "highest" else "tf32"
        case _:
            return None


def linux_peak() -> int | None:
    """Return the most host memory that this process has had resident since it was last forgotten, in bytes; None where
    the system does not tell (it is no Linux)."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


def forget_peak(*devices: torch.device) -> None:
    """Set the peaks of host and devices back to what is taken now, where the system can."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # see proc_pid_clear_refs
    for device in devices:
        backend = None if device.type == "cpu" else torch.get_device_module(device)
        forget = getattr(backend, "reset_peak_memory_stats", None)
        if forget is not None:
            forget(device)


def host_peak() -> int:
    """Return the most host memory that this process has had resident, in bytes, since training began."""
    # Linux hands the figure of `getrusage` on to the processes that a large one starts.
    peak = linux_peak()
    return getrusage(RUSAGE_SELF).ru_maxrss * (1 if platform == "darwin" else 1024) if peak is None else peak


def device_peak(*devices: torch.device) -> int | None:
    """Return the most memory that tensors have had on a device, in bytes, since training began, of several that on the
    one with most; None where they have none of their own."""
    if devices[0].type == "cpu":
        return None
    # A count of the allocator, on the host: nothing waits for the device.
    counter = getattr(torch.get_device_module(devices[0]), "max_memory_allocated", None)
    return None if counter is None else max(int(counter(device)) for device in devices)


class PeakMemory:
    """The peaks of this process up to now, read at most once in a second: to read them takes about 50 us."""

    def __init__(self, *devices: torch.device) -> None:
        self.devices = devices
        self.read_at = -SECONDS_BETWEEN_READINGS
        self.latest: tuple[int, int | None] = (0, None)

    def read(self) -> tuple[int, int | None]:
        """Return the peaks of host and device."""
        if (now := monotonic()) - self.read_at >= SECONDS_BETWEEN_READINGS:
            self.read_at, self.latest = now, (host_peak(), device_peak(*self.devices))
        return self.latest


@dataclass
class Meters:
    """The steps of one start, added up."""

    seconds: float = 0.0
    waiting: float = 0.0
    samples: int = 0
    tokens: int | None = 0
    computed: float = 0.0
    """Tokens with padding."""
    flops: int = 0
    flops_seconds: float = 0.0
    """Seconds of the steps whose floating-point operations are known."""

    def add(self, row: LedgerRow) -> None:
        """Add a step; tokens that are unknown of one step are unknown of all."""
        self.seconds += row.seconds
        self.waiting += row.waiting
        self.samples += row.samples
        self.tokens = None if self.tokens is None or row.tokens is None else self.tokens + row.tokens
        if row.tokens and row.padding is not None:
            self.computed += row.tokens / (1 - row.padding)
        if row.flops is not None:
            self.flops += row.flops
            self.flops_seconds += row.seconds

    def as_json(self, peak: float | None, processes: int) -> dict[str, float | None]:
        """Return the meters by name.

        Args:
            peak: what one device can do at most, in floating-point operations per second.
            processes: how many devices computed.
        """
        seconds = self.seconds or None
        per_second = self.flops / self.flops_seconds if self.flops and self.flops_seconds else None
        return {
            "samples_per_second": self.samples / seconds if seconds else None,
            "tokens_per_second": self.tokens / seconds if self.tokens and seconds else None,
            "padding": 1 - self.tokens / self.computed if self.tokens and self.computed else None,
            "waiting": self.waiting / seconds if seconds else None,
            "flops_per_second": per_second,
            "peak_flops": peak,
            "mfu": per_second / (peak * processes) if per_second and peak else None,
        }


def described(meters: dict[str, Any]) -> dict[str, str]:
    """Return for the screen what `Meters.as_json` returned, together with `host_memory` and `device_memory`."""
    known = {name: value for name, value in meters.items() if value is not None}
    speed = [f"{known.get('samples_per_second', 0):,.0f} samples/s"]
    if "tokens_per_second" in known:
        speed.append(f"{known['tokens_per_second']:,.0f} tokens/s")
    speed.append(f"{with_prefix(known['flops_per_second'])}FLOP/s" if "flops_per_second" in known else "FLOP/s unknown")
    speed.append(f"MFU {known['mfu']:.1%}" if "mfu" in known else "MFU unknown")
    spent = [f"{known['padding']:.1%} of the computed tokens were padding"] if "padding" in known else []
    spent.append(f"{known.get('waiting', 0):.1%} of the time went to waiting for data")
    memory = [f"host {with_prefix(known['host_memory'])}B"]
    if "device_memory" in known:
        memory.append(f"device {with_prefix(known['device_memory'])}B")
    return {"speed": ", ".join(speed), "spent": ", ".join(spent), "peak memory": ", ".join(memory)}


def with_prefix(value: float) -> str:
    """Return a number with three digits and a prefix of thousands, ready for its unit: 1234567 is '1.23 M'."""
    for prefix in ("", "k", "M", "G", "T", "P"):
        if value < 999.5:
            return f"{value:.3g} {prefix}"
        value /= 1000
    return f"{value:.3g} E"
