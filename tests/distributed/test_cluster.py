"""The scripts that start a run on a cluster, unchanged, with an srun, an scontrol and an ssh that enter namespaces."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from launching import ROOT, clean_environment
from machines import INTERFACE, Network, machines, possible

on_machines = pytest.mark.skipif(possible() is not None, reason=str(possible()))

SBATCH, SSH = ROOT / "cluster" / "slurm.sbatch", ROOT / "cluster" / "ssh.sh"

SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do [[ $1 != --output=* ]] || output=${1#--output=}; shift; done
node=0 codes=() code=0
for host in $SLURM_JOB_NODELIST; do
    SLURM_NODEID=$node SLURM_PROCID=$node enter-$host "$@" >"${output//%N/$host}" 2>&1 &
    codes+=($!) node=$((node + 1))
done
for pid in "${codes[@]}"; do wait "$pid" || code=$?; done
exit "$code"
"""
SCONTROL = """#!/bin/bash
if [[ $1 == requeue ]]; then echo "$2" >>"$REQUEUED"; else printf '%s\\n' $3; fi
"""
SSH_CLIENT = """#!/bin/bash
while [[ $1 == -o ]]; do shift 2; done
host=$1; shift
exec "enter-$host" sh -c "$*"
"""
# Records the command that each machine gets; nothing trains.
LAUNCHER = """#!/bin/bash
here=$RECORDS/$(hostname)
trap 'echo TERM >>"$here.signals"; exit 3' TERM
trap 'echo INT >>"$here.signals"; exit 4' INT
printf '%s\\n' "$PWD" "$@" >"$here.words.partial"; mv "$here.words.partial" "$here.words"
echo "$(hostname) speaks"
# Not before the other one listens to signals.
until [[ ! -e $here.fails ]]; do [[ ! -e $RECORDS/machine-0.words ]] || exit 7; sleep 0.05; done
until [[ -e $RUN/STOP || -e $RUN/run.json ]]; do sleep 0.05; done
# As a run does that was asked to stop.
[[ -e $RUN/run.json ]] || echo '{"status": "preempted"}' >"$RUN/run.json"
exit 1
"""


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """The folder of the commands of a cluster that has none."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in {"srun": SRUN, "scontrol": SCONTROL, "ssh": SSH_CLIENT, "accelerate": LAUNCHER}.items():
        make_command(folder / name, text)
    return folder


def make_command(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


@contextmanager
def cluster(commands: Path) -> Iterator[Network]:
    """Give two machines, which the commands enter."""
    with machines(2) as network:
        for machine in range(2):
            make_command(
                commands / f"enter-{network.host(machine)}",
                f"#!/bin/sh\nexec nsenter --net=/run/netns/{network.names[machine]} unshare --uts --mount sh -c "
                f"""'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"' """
                f'sh {network.host(machine)} {shlex.quote(str(network.folder / "hosts"))} "$@"\n',
            )
        yield network


def begin(command: list[str | Path], commands: Path, folder: Path, **environment: str) -> subprocess.Popen[str]:
    """Start a command where those of the cluster come first."""
    path = f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    settings = clean_environment(PATH=path, GLOO_SOCKET_IFNAME=INTERFACE, **environment)
    words = [str(word) for word in command]
    output: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # The tests may run in the background, where a shell ignores Ctrl-C for good.
    return subprocess.Popen(words, env=settings, cwd=folder, preexec_fn=hears_interrupts, **output)  # noqa: PLW1509


def hears_interrupts() -> None:
    """Let this process be interrupted, as one that a person started."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_until(found: object, process: subprocess.Popen[str], seconds: float = 120) -> None:
    """Wait until a file is there (a path), or a condition holds (a function)."""
    ends = time.monotonic() + seconds
    while not (found.exists() if isinstance(found, Path) else found()):  # type: ignore[operator]
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < ends, "it takes too long"
        time.sleep(0.05)


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Where launchers record their commands."""
    folder = tmp_path / "records"
    folder.mkdir()
    return folder


@on_machines
@pytest.mark.parametrize("how", ["USR1", "TERM", "finished", "failed"])
def test_a_slurm_job_stops_before_its_time_limit_and_is_put_back_into_the_queue_by_the_code_of_its_run(
    commands: Path, records: Path, tmp_path: Path, how: str
) -> None:
    run, queue = tmp_path / "a run", tmp_path / "requeued"
    settings = {
        "SLURM_JOB_ID": "41", "SLURM_JOB_NODELIST": "machine-0 machine-1", "SLURM_NNODES": "2",
        "SLURM_GPUS_ON_NODE": "8",
        "REQUEUED": str(queue), "RECORDS": str(records), "RUN": str(run),
    }  # fmt: skip
    odd = ["--data.text", "it's $HOME; \"`"]
    with cluster(commands) as network:
        job = begin(["bash", SBATCH, run, "recipes/some.py", *odd], commands, tmp_path, **settings)
        for machine in range(2):
            wait_until(records / f"machine-{machine}.words", job)
        if how in ("USR1", "TERM"):
            job.send_signal(signal.Signals[f"SIG{how}"])
        else:
            run.mkdir(exist_ok=True)
            (run / "run.json").write_text(json.dumps({"status": how}))
        output, errors = job.communicate(timeout=60)
        assert network.running(0) == network.running(1) == []
    assert job.returncode == {"USR1": 75, "TERM": 75, "finished": 0, "failed": 1}[how], output + errors
    assert queue.exists() == (how == "USR1")
    for machine in range(2):
        _, *words = (records / f"machine-{machine}.words").read_text().splitlines()
        given = {
            name: words[words.index(f"--{name}") + 1] for name in ("machine_rank", "num_processes", "main_process_ip")
        }
        assert given == {"machine_rank": str(machine), "num_processes": "16", "main_process_ip": "machine-0"}
        assert words[words.index("--main_process_port") + 1] == "20041"
        assert words[words.index("--config_file") + 1] == "accelerate_configs/ddp_several_nodes.yaml"
        assert words[-5:] == ["recipes/some.py", *odd, "--output", str(run)]
        assert (tmp_path / f"slurm-41-machine-{machine}.txt").read_text() == f"machine-{machine} speaks\n"


def over_ssh(commands: Path, records: Path, *words: str) -> subprocess.Popen[str]:
    """Start ssh.sh for both machines."""
    command: list[str | Path] = [SSH, "machine-0", "me@machine-1", "--", "recipes/some.py", *words]
    return begin(command, commands, records.parent, SETUP="true", RECORDS=str(records), RUN=str(records))


@on_machines
@pytest.mark.parametrize("how", ["INT", "TERM", "failure"])
def test_ssh_starts_a_launcher_on_each_machine_and_ends_all(commands: Path, records: Path, how: str) -> None:
    odd = ["--output", "a run", "--data.text", "it's $HOME; \"`"]
    if how == "failure":
        (records / "machine-1.fails").touch()
    with cluster(commands) as network:
        (commands / "enter-me@machine-1").symlink_to(commands / "enter-machine-1")
        script = over_ssh(commands, records, *odd)
        if how != "failure":
            for machine in range(2):
                wait_until(records / f"machine-{machine}.words", script, 20)
            script.send_signal(signal.Signals[f"SIG{how}"])
        _, errors = script.communicate(timeout=30)
        assert network.running(0) == network.running(1) == []
    assert script.returncode == {"INT": 4, "TERM": 3, "failure": 7}[how]
    # The shells there print nothing about their jobs.
    assert "Terminated" not in errors
    assert (records / "machine-0.signals").read_text() == ("INT\n" if how == "INT" else "TERM\n")
    for machine in range(2):
        place, *words = (records / f"machine-{machine}.words").read_text().splitlines()
        assert place == str(records.parent)
        assert words[words.index("--machine_rank") + 1] == str(machine)
        assert words[words.index("--main_process_ip") + 1] == "machine-0"
        assert words[words.index("--num_processes") + 1] == "2"
        assert words[-5:] == ["recipes/some.py", *odd]
    if how == "failure":
        assert "me@machine-1: the launcher ended with 7" in errors
