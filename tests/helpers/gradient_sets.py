"""Counts the bytes of gradients that a step sends, with DDP, FSDP2 and ZeRO, by one and by four micro-batches.

As a script it forks the processes, two at a time, and writes down in the file that it is given what they handed to
collectives.
"""

import gc
import json
import os
import socket
import sys
from multiprocessing import get_context
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"

# Loaded by sharding: before the fork it is loaded once.
import deepspeed  # noqa: F401
import torch._dynamo  # noqa: F401

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "performance"))

import links_worker
from gradient_bytes_worker import Bytes, count_loops

PROCESSES = 2
# What is counted does not depend on the size, and what it takes does.
links_worker.FEATURES, links_worker.WIDTH = 16, 32
SHARDED = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_TRANSFORMER_CLS_TO_WRAP": "Linear",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
}
WAYS: dict[str, dict[str, str]] = {
    "DDP": {},
    "FSDP2": SHARDED,
    **{
        f"ZeRO {stage}": {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": str(stage)}
        for stage in (1, 2, 3)
    },
}


def count(rank: int, port: int, way: str, reduce_each: bool, output: Path) -> None:
    """Be one of the two processes."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(PROCESSES),
        "LOCAL_WORLD_SIZE": str(PROCESSES),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "ACCELERATE_USE_CPU": "true",
        **WAYS[way],
    }
    found = count_loops([4] if reduce_each else [1, 4], reduce_each, plain=False)
    if found is not None:
        output.write_text(json.dumps(found), encoding="utf-8")


def main() -> None:
    """Count in pairs of processes, one pair after another."""
    output = Path(sys.argv[1])
    # What is loaded stays: no process looks through it again when it ends.
    gc.freeze()
    results: dict[str, dict[str, dict[str, Bytes]]] = {way: {} for way in WAYS}
    for way, reduce_each in (*((way, False) for way in WAYS), ("FSDP2", True)):
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            port = listening.getsockname()[1]
        context = get_context("fork")
        pair = [context.Process(target=count, args=(rank, port, way, reduce_each, output)) for rank in range(PROCESSES)]
        for process in pair:
            process.start()
        for process in pair:
            process.join()
        if any(process.exitcode for process in pair):
            sys.exit(f"{way}, reduce_each {reduce_each}: {[process.exitcode for process in pair]}")
        results[way] |= json.loads(output.read_text(encoding="utf-8"))
    output.write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main()
