"""What the processes that write parts of a checkpoint tell the main one, whose thread seals it.

They talk through a store beside the process groups, which their threads may not touch: training communicates through those.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from time import sleep
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from toolkit.checkpoint.format import SealedFile

INTERVAL = 0.02


class Exchange:
    """One process's side of it; only the thread that writes uses it."""

    def __init__(self, rank: int, store: TCPStore) -> None:
        """Take the store of the run; a copy of its connection is made, since another thread uses that one."""
        self.rank = rank
        self.store: TCPStore = store.clone()  # type: ignore[attr-defined]  # which its type hints leave out

    def tell(self, step: int, files: Mapping[str, SealedFile]) -> None:
        """Say that this process has written its files of the checkpoint of a step."""
        self.send(step, {"files": {name: asdict(entry) for name, entry in files.items()}})

    def tell_failure(self, step: int, error: Exception) -> None:
        """Say that this process could not write its files."""
        if isinstance(error, OSError):
            self.send(step, {"refused": error.strerror or str(error), "errno": error.errno})
        else:
            self.send(step, {"defect": f"{type(error).__name__}: {error}".rstrip(": ")})

    def send(self, step: int, content: Mapping[str, object]) -> None:
        """Leave word for the main process."""
        self.store.set(self.key(step, self.rank), json.dumps(content))

    def key(self, step: int, rank: int) -> str:
        """Return under which name a process leaves word."""
        return f"checkpoint/{step}/{rank}"

    def gather(self, step: int, ranks: Iterable[int], folder: Path) -> dict[str, SealedFile]:
        """Wait until these processes have told of their files, and return them all.

        A process that dies meanwhile ends this one too (`toolkit/distributed/watchdog.py`).

        Raises:
            OSError: one of them could not write its files, or they are not to be seen here.
            RuntimeError: one of them failed by a defect.
        """
        told = {rank: self.wait_for(step, rank) for rank in ranks}
        defects = [f"process {rank}: {content['defect']}" for rank, content in told.items() if "defect" in content]
        if defects:
            raise RuntimeError("; ".join(defects))
        refused = {rank: content for rank, content in told.items() if "refused" in content}
        if refused:
            said = "; ".join(f"process {rank}: {content['refused']}" for rank, content in refused.items())
            raise OSError(next(iter(refused.values()))["errno"], said)
        files: dict[str, SealedFile] = {}
        for rank, content in told.items():
            for name, entry in content["files"].items():
                files[name] = SealedFile(**entry)
                if not (folder / name).is_file() or (folder / name).stat().st_size != files[name].bytes:
                    raise OSError(None, f"process {rank} wrote {name}, which the main process does not see in {folder}")
        return files

    def wait_for(self, step: int, rank: int) -> dict[str, Any]:
        """Return what a process says of the checkpoint of a step, when it does."""
        key = self.key(step, rank)
        while not self.store.check([key]):
            sleep(INTERVAL)
        content: dict[str, Any] = json.loads(self.store.get(key))
        self.store.delete_key(key)
        return content
