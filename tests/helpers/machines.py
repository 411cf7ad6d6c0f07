"""Several machines on one: each a network namespace with a cable to a common switch, shaped, delayed, cut or killed at
will.

    with machines(2) as network:
        process = network.start(0, ["accelerate", "launch", ...], SOME_VARIABLE="1")
        network.shape(1, rate="100mbit", delay=0.020)
        network.cut(1)

It needs root, Linux with network namespaces, and Debian's packages iproute2 and util-linux: `possible` says what is
missing.

Each machine has an address of its own (10.77.0.1 and on), a host name (machine-0 and on) that all of them resolve, and
a working folder. Disks, process numbers and cores are those of the real machine. The switch is a namespace too, so that
nothing is changed in the real network, and everything is gone with the namespaces.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import psutil
from launching import ROOT, clean_environment

FILE = ROOT / "accelerate_configs" / "cpu_several_nodes.yaml"
PORT = "29500"
NETWORK = "10.77.0"
INTERFACE = "eth0"
"""What the network device is called on every machine."""
RELAY = Path(__file__).with_name("link_relay.py")
TOOLS = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux", "unshare": "util-linux", "mount": "mount"}
PREFIX = "finetune-machines"
SECONDS_TO_DIE = 10.0
# Longer than the frames of a burst take at any rate that is tried; what does not fit is lost, as in a real switch.
QUEUE = "100ms"
numbers = count()


class Process(subprocess.Popen[bytes]):
    """A process on one of the machines; what it prints goes into files, which can be read while it runs."""

    def __init__(self, command: Sequence[str], name: str, folder: Path, cwd: Path, environment: dict[str, str]) -> None:
        self.output_file, self.errors_file = folder / f"{name}.out", folder / f"{name}.err"
        with self.output_file.open("wb") as output, self.errors_file.open("wb") as errors:
            # A session of its own: Ctrl-C in the tests' terminal ends it by way of the clean-up alone.
            super().__init__(
                command, stdout=output, stderr=errors, stdin=subprocess.DEVNULL,
                cwd=cwd, env=environment, start_new_session=True,
            )  # fmt: skip

        self.kept: dict[Path, str] = {}

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return self.read(self.output_file)

    @property
    def error_output(self) -> str:
        """What it has printed to stderr so far."""
        return self.read(self.errors_file)

    def read(self, file: Path) -> str:
        """Return what is in one of its files, also after they are gone."""
        return self.kept[file] if file in self.kept else file.read_text(encoding="utf-8", errors="replace")

    def keep(self) -> None:
        """Keep what it has printed: its files are going to be deleted."""
        self.kept = {file: self.read(file) for file in (self.output_file, self.errors_file)}


class Network:
    """Some machines, joined by a switch."""

    def __init__(self, size: int, folder: Path, name: str) -> None:
        self.size = size
        self.folder = folder
        self.names = [f"{name}-{machine}" for machine in range(size)]
        self.switch = f"{name}-switch"
        self.processes: list[Process] = []
        self.relays: dict[int, subprocess.Popen[bytes]] = {}

    def connect(self) -> None:
        """Make the machines, the switch, and the cables between them."""
        for name in (*self.names, self.switch):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        # A lone switch has nothing to find out before it forwards.
        ip("-n", self.switch, "link", "add", "switch", "type", "bridge", "stp_state", "0", "forward_delay", "0")
        ip("-n", self.switch, "link", "set", "switch", "up")
        hosts = "127.0.0.1 localhost\n" + "".join(f"{self.address(m)} {self.host(m)}\n" for m in range(self.size))
        (self.folder / "hosts").write_text(hosts, encoding="utf-8")
        for machine, name in enumerate(self.names):
            port = f"port{machine}"
            ip("-n", self.switch, "link", "add", port, "type", "veth", "peer", "name", INTERFACE, "netns", name)
            ip("-n", self.switch, "link", "set", port, "master", "switch", "up")
            ip("-n", name, "address", "add", f"{self.address(machine)}/24", "dev", INTERFACE)
            ip("-n", name, "link", "set", INTERFACE, "up")
            self.work_folder(machine).mkdir()

    def address(self, machine: int) -> str:
        """Return the address of a machine."""
        return f"{NETWORK}.{machine + 1}"

    def host(self, machine: int) -> str:
        """Return the host name of a machine."""
        return f"machine-{machine}"

    def work_folder(self, machine: int) -> Path:
        """Return the folder in which the processes of a machine start; the others see it, since all have the same
        disk."""
        return self.folder / self.host(machine)

    def start(
        self, machine: int, command: Sequence[str | Path], cwd: Path | None = None, **environment: str
    ) -> Process:
        """Start a command on a machine; python, accelerate and torchrun are those of this environment."""
        words = [str(word) for word in command]
        own = Path(sys.executable).parent / words[0]
        words[0] = str(own) if own.is_file() else words[0]
        # The processes replace each other: the number of the one that is returned is that of the command itself.
        enter = ["nsenter", f"--net=/run/netns/{self.names[machine]}", "unshare", "--uts", "--mount", "sh", "-c"]
        enter += ['hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"', "sh"]
        process = Process(
            [*enter, self.host(machine), str(self.folder / "hosts"), *words],
            f"{self.host(machine)}-{len(self.processes)}",
            self.folder,
            cwd or self.work_folder(machine),
            clean_environment(GLOO_SOCKET_IFNAME=INTERFACE, NCCL_SOCKET_IFNAME=INTERFACE, **environment),
        )
        self.processes.append(process)
        return process

    def start_all(
        self, script: Path, *arguments: str | Path, processes: int = 1, file: Path = FILE, **environment: str
    ) -> list[Process]:
        """Start a script on all machines by `accelerate launch`, as the launch file says, with so many processes on
        each."""
        total = ["--num_machines", str(self.size), "--num_processes", str(self.size * processes)]
        shared = ["accelerate", "launch", "--config_file", str(file), *total]
        shared += ["--main_process_ip", self.address(0), "--main_process_port", PORT]
        return [
            self.start(machine, [*shared, "--machine_rank", str(machine), script, *arguments], cwd=None, **environment)
            for machine in range(self.size)
        ]

    def shape(self, machine: int, rate: str | None = None, delay: float = 0.0) -> None:
        """Let the cable of a machine carry `rate` ("100mbit") in each direction, each frame `delay` seconds later.

        It may be changed at any time, and None and 0 undo it. The round trip grows by twice the delay.
        """
        self.delay(machine, delay)
        for name, device in ((self.names[machine], INTERFACE), (self.switch, f"port{machine}")):
            limit = ["tbf", "rate", str(rate), "burst", "256kb", "latency", QUEUE]
            tool("tc", "-n", name, "qdisc", "replace", "dev", device, "root", *(limit if rate else ["noqueue"]))

    def delay(self, machine: int, seconds: float) -> None:
        """Put a relay that holds every frame for so long between the port of a machine and the switch, or take it
        out."""
        port, near, far, loop = (f"{word}{machine}" for word in ("port", "near", "far", "loop"))
        if machine in self.relays:
            ip("-n", self.switch, "link", "set", port, "master", "switch")
            stop(self.relays.pop(machine))
            for device in (near, far, loop):
                ip("-n", self.switch, "link", "delete", device)
        if seconds:
            ip("-n", self.switch, "link", "add", loop, "type", "bridge", "stp_state", "0", "forward_delay", "0")
            for device, bridge in ((near, loop), (far, "switch")):
                tool("ip", "-n", self.switch, "tuntap", "add", "mode", "tap", "vnet_hdr", "name", device)
                ip("-n", self.switch, "link", "set", device, "txqueuelen", "10000", "master", bridge, "up")
            ip("-n", self.switch, "link", "set", loop, "up")
            enter = ["nsenter", f"--net=/run/netns/{self.switch}"]
            command = [*enter, sys.executable, str(RELAY), near, far, str(seconds)]
            relay = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
            self.relays[machine] = relay
            assert relay.stdout is not None
            if not relay.stdout.readline():
                raise RuntimeError("the relay that delays a link did not start")
            ip("-n", self.switch, "link", "set", port, "master", loop)

    def cut(self, machine: int) -> None:
        """Pull the cable of a machine. Nobody is told: what is sent is lost, and connections stay open."""
        ip("-n", self.switch, "link", "set", f"port{machine}", "down")

    def mend(self, machine: int) -> None:
        """Plug it in again."""
        ip("-n", self.switch, "link", "set", f"port{machine}", "up")

    def kill(self, machine: int, power: bool = True) -> None:
        """End all processes of a machine at once.

        As a machine that loses power it is cut off first, so that no closing connection tells the others; `mend` brings
        it back, with no process. Without `power` only the processes are killed, and their connections are closed.
        """
        if power:
            self.cut(machine)
        kill_all(self.names[machine])

    def running(self, machine: int) -> list[int]:
        """Return the numbers of the processes of a machine."""
        return processes_of(self.names[machine])

    def bytes_sent(self, machine: int) -> int:
        """Return what a machine has sent so far, as `ip -s link` counts it: a segment of up to 64 KB has one header
        there."""
        said = ip("-n", self.names[machine], "-s", "-json", "link", "show", INTERFACE)
        device: dict[str, Any] = json.loads(said)[0]
        return int(device["stats64"]["tx"]["bytes"])

    def wait(self, *processes: Process, timeout: float) -> list[int]:
        """Return the exit codes of these processes, or fail with what all of them said if they take too long."""
        ends = time.monotonic() + timeout
        try:
            return [process.wait(max(0.1, ends - time.monotonic())) for process in processes]
        except subprocess.TimeoutExpired:
            said = "\n".join(f"--- {process.args!r}\n{process.output}{process.error_output}" for process in processes)
            raise AssertionError(f"not all processes ended within {timeout:g} s\n{said}") from None

    def close(self) -> None:
        """Kill what still runs and take everything down."""
        for name in (*self.names, self.switch):
            remove(name)
        for process in (*self.processes, *self.relays.values()):
            stop(process)
        for process in self.processes:
            process.keep()


@contextmanager
def machines(size: int) -> Iterator[Network]:
    """Give so many machines, and take them down again."""
    clear_leftovers()
    # Who made namespaces and folders is in their names, so that what a killed test run left behind is known.
    name = f"{PREFIX}-{os.getpid()}-{int(psutil.Process().create_time())}-{next(numbers)}"
    with TemporaryDirectory(prefix=f"{name}-") as folder:
        network = Network(size, Path(folder), name)
        try:
            network.connect()
            yield network
        finally:
            network.close()


@cache
def possible() -> str | None:
    """Return why there can be no machines here, or None if there can."""
    if not sys.platform.startswith("linux"):
        return "machines need the network namespaces of Linux"
    if os.geteuid() != 0:
        return "machines as network namespaces need root"
    missing = [f"{name} (package {package})" for name, package in TOOLS.items() if shutil.which(name) is None]
    if missing:
        return f"machines as network namespaces need {', '.join(missing)}"
    if not Path("/dev/net/tun").exists():
        return "delaying a link needs /dev/net/tun"
    try:
        with machines(1) as network:
            network.shape(0, rate="1gbit", delay=0.001)
            code = network.start(0, ["true"]).wait(SECONDS_TO_DIE)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        return f"this machine allows no machines as network namespaces: {error}"
    return None if code == 0 else f"this machine allows no namespaces: entering one ended with {code}"


def clear_leftovers() -> None:
    """Take down the machines of test runs that were killed."""
    for line in ip("netns", "list").splitlines():
        if is_left_over(name := line.split()[0]):
            remove(name)
    for folder in Path(gettempdir()).glob(f"{PREFIX}-*"):
        if is_left_over(folder.name):
            shutil.rmtree(folder, ignore_errors=True)


def is_left_over(name: str) -> bool:
    """Return whether a namespace or a folder was made here by a process that is gone."""
    found = re.match(rf"{PREFIX}-(\d+)-(\d+)-", name)
    if found is None:
        return False
    number, born = map(int, found.groups())
    try:
        # Process numbers are used again; the time of birth tells.
        return abs(psutil.Process(number).create_time() - born) >= 2
    except psutil.Error:
        return True


def remove(name: str) -> None:
    """Kill all processes in a namespace and delete it, if it is there."""
    with suppress(RuntimeError):
        kill_all(name)
        ip("netns", "delete", name)


def kill_all(name: str) -> None:
    """Kill all processes in a namespace, also those that are being born meanwhile."""
    ends = time.monotonic() + SECONDS_TO_DIE
    while found := processes_of(name):
        assert time.monotonic() < ends, f"processes {found} do not die"
        for number in found:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        time.sleep(0.01)


def processes_of(name: str) -> list[int]:
    """Return the numbers of the living processes in a namespace."""
    found = []
    for number in map(int, ip("netns", "pids", name).split()):
        with suppress(psutil.Error):
            # Who is dead and not yet waited for is still counted by the system.
            if psutil.Process(number).status() != psutil.STATUS_ZOMBIE:
                found.append(number)
    return found


def stop(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and wait for it."""
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def ip(*words: str) -> str:
    """Run `ip` and return what it says."""
    return tool("ip", *words)


def tool(*words: str) -> str:
    """Run a command and return what it says; a RuntimeError says why it could not do it."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout
