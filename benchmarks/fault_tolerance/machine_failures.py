"""What becomes of a run on several machines when one of them loses power, leaves or comes, under an elastic launch.

    python benchmarks/fault_tolerance/machine_failures.py
        each machine is a network namespace (root, Linux, iproute2); about 8 minutes on two cores
    python benchmarks/fault_tolerance/machine_failures.py --cases 1 3

Every case trains the tests' small network, float64 throughout, and is held against one process that nothing happened
to: the samples of each step, and the weights at the end. Exits with 1 where a promise is not kept.
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "helpers"))

import numpy as np
from launching import TINY, python
from machine import machine, table
from machines import Network, Process, machines, possible
from resuming import Numbers, numbers

STEPS, SILENCE, MEETING = 600, 6, 20
RUN = ("--epochs", "null", "--steps", str(STEPS), "--checkpoint.every", "10", "--data.held_out", "0", "--threads", "1")
TIMEOUTS = ("--timeout.silence", str(SILENCE), "--timeout.rendezvous", str(MEETING))
BOUND = 1e-12


class Job:
    """A run under an elastic launch."""

    def __init__(self, network: Network, folder: Path, host: int = 0, fewest: int = 1) -> None:
        self.network, self.folder, self.host, self.fewest = network, folder, host, fewest
        self.agents: dict[int, Process] = {}

    def start(self, *which: int, processes: int = 1) -> None:
        """Start the launcher on these machines."""
        agent = ["torchrun", "--nnodes", f"{self.fewest}:3", "--nproc-per-node", str(processes), "--max-restarts", "3"]
        agent += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{self.network.address(self.host)}:29400"]
        agent += ["--rdzv-id", "job", "--rdzv-conf", "join_timeout=60,last_call_timeout=5"]
        settings = {"ACCELERATE_USE_CPU": "true", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        for number in which:
            command = [*agent, TINY, *RUN, *TIMEOUTS, "--output", self.folder]
            self.agents[number] = self.network.start(number, command, **settings)

    @property
    def record(self) -> dict[str, object]:
        """The run.json."""
        found: dict[str, object] = json.loads((self.folder / "run.json").read_text(encoding="utf-8"))
        return found

    @property
    def sizes(self) -> list[int]:
        """Processes of each start."""
        return [start["processes"] for start in self.record["topology"]]  # type: ignore[attr-defined]

    def steps(self) -> int:
        """Steps in the ledger."""
        ledger = self.folder / "ledger.jsonl"
        return ledger.read_bytes().count(b"\n") if ledger.exists() else 0

    def until(self, holds: Callable[[], bool], seconds: float = 180) -> None:
        """Wait until something is so."""
        ends = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > ends:
                said = "\n".join(agent.output[-2000:] + agent.error_output[-4000:] for agent in self.agents.values())
                raise RuntimeError(f"it takes too long\n{said}")
            time.sleep(0.02)

    def ended(self) -> bool:
        """Whether no launcher runs any more."""
        return all(agent.poll() is not None for agent in self.agents.values())


def a_machine(job: Job) -> float:
    """Machine 2 of 3 loses power."""
    return lose(job, host=0, victim=2)


def the_first(job: Job) -> float:
    """Machine 0, with process 0, loses power; the rendezvous is on machine 2."""
    return lose(job, host=2, victim=0)


def lose(job: Job, host: int, victim: int) -> float:
    """Let a machine lose power, and return after how many seconds the others take steps again."""
    job.host = host
    job.start(0, 1, 2)
    job.until(lambda: job.steps() >= 25)
    job.network.kill(victim)
    began = time.monotonic()
    job.until(lambda: len(job.sizes) > 1)
    went_on = time.monotonic() - began
    job.until(job.ended)
    return went_on


def the_host(job: Job) -> float:
    """All processes of machine 0 die, with process 0 and the rendezvous: all end; the same command goes on with two."""
    job.start(0, 1, 2)
    job.until(lambda: job.steps() >= 25)
    # Without power the launchers of torch 2.13 wait in its store long after our processes have ended.
    job.network.kill(0, power=False)
    began = time.monotonic()
    job.until(job.ended)
    seconds = time.monotonic() - began
    job.host = 1
    job.start(1, 2)
    job.until(job.ended)
    return seconds


def a_newcomer(job: Job) -> float:
    """Machine 2 joins 0 and 1, which train already."""
    job.start(0, 1)
    job.until(lambda: job.steps() >= 25)
    began = time.monotonic()
    job.start(2)
    job.until(lambda: len(job.sizes) > 1)
    joined = time.monotonic() - began
    job.until(job.ended)
    return joined


def unequal(job: Job) -> float:
    """Machine 0 has two processes, machine 1 has one, which loses power."""
    job.start(0, processes=2)
    job.start(1)
    job.until(lambda: job.steps() >= 25)
    job.network.kill(1)
    began = time.monotonic()
    job.until(lambda: len(job.sizes) > 1)
    went_on = time.monotonic() - began
    job.until(job.ended)
    return went_on


def one_is_taken(job: Job) -> float:
    """The launcher of machine 1 of 3 gets SIGTERM, as on preemption: the other two go on without it."""
    job.start(0, 1, 2)
    job.until(lambda: job.steps() >= 25)
    job.agents[1].send_signal(signal.SIGTERM)
    began = time.monotonic()
    job.until(lambda: len(job.sizes) > 1)
    went_on = time.monotonic() - began
    job.until(job.ended)
    return went_on


def asked_to_stop(job: Job) -> float:
    """A machine loses power; the run goes on, is asked to stop and stays stopped; the same command goes on."""
    job.start(0, 1, 2)
    job.until(lambda: job.steps() >= 25)
    job.network.kill(2)
    job.until(lambda: len(job.sizes) > 1)
    (job.folder / "STOP").touch()
    began = time.monotonic()
    job.until(job.ended)
    seconds = time.monotonic() - began
    if job.record["status"] != "preempted" or len(job.sizes) != 2:
        raise RuntimeError(f"it did not stay stopped: {job.record}")
    job.start(0, 1)
    job.until(job.ended)
    return seconds


CASES: list[tuple[Callable[[Job], float], str]] = [
    (a_machine, "on again"),
    (the_first, "on again"),
    (the_host, "all ended"),
    (a_newcomer, "on again"),
    (unequal, "on again"),
    (one_is_taken, "on again"),
    (asked_to_stop, "all ended"),
]


def distance(found: Numbers, expected: Numbers) -> float:
    """Return the relative difference of the weights."""
    mine, other = (
        np.concatenate([np.frombuffer(run.weights[name], np.float64) for name in sorted(expected.weights)])
        for run in (found, expected)
    )
    return float(np.linalg.norm(mine - other) / np.linalg.norm(other))


def main() -> None:
    """Run the cases and print what became of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", type=int, default=list(range(1, len(CASES) + 1)))
    chosen = parser.parse_args().cases
    if why := possible():
        sys.exit(why)
    rows, kept = [], True
    with TemporaryDirectory() as place:
        done = python(TINY, *RUN, "--output", f"{place}/one")
        assert done.returncode == 0, done.stderr
        expected = numbers(Path(place, "one"))
        for number in chosen:
            case, what = CASES[number - 1]
            with machines(3) as network:
                job = Job(network, Path(place, f"case {number}"))
                try:
                    seconds = case(job)
                except RuntimeError as error:
                    kept = False
                    rows.append([f"{number}. {case.__doc__}", "FAILED", "", "", "", ""])
                    print(error, file=sys.stderr, flush=True)
                    continue
            found, record = numbers(job.folder), job.record
            same = [row["fingerprint"] for row in found.rows] == [row["fingerprint"] for row in expected.rows]
            off = distance(found, expected)
            kept = kept and same and off <= BOUND and record["status"] == "finished"
            rows.append(
                [
                    f"{number}. {case.__doc__}",
                    f"{what} after {seconds:.0f} s",
                    " -> ".join(map(str, job.sizes)),
                    str(record["repeated"]),
                    "yes" if same else "NO",
                    f"{off:.1e}",
                ]
            )
            print(rows[-1], file=sys.stderr, flush=True)
    print(f"# Machines that fail, leave and come, under an elastic launch\n\n{machine()}\n")
    print(
        f"`torchrun --nnodes 1:3 --max-restarts 3 --rdzv-backend c10d`, {STEPS} steps, a checkpoint every 10; "
        f"timeout.silence {SILENCE} s (60 by default), timeout.rendezvous {MEETING} s (60), "
        f"last_call_timeout 5 s (30). Machines are network namespaces.\n"
    )
    names = [
        "what happens",
        "then",
        "processes",
        "steps repeated",
        "same samples in each step",
        f"weights, bound {BOUND:g}",
    ]
    print(table(names, rows))
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
