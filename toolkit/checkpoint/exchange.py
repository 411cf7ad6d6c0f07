"""How the processes that write parts of a checkpoint report to the main one, whose thread seals it.

They use the watchdog's store. Their threads may not touch the process groups, through which training communicates.
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
    """One process's end of it; only the thread that writes uses it."""

    def __init__(self, rank: int, store: TCPStore) -> None:
        """Take the store of the run; a copy of its connection is made, since another thread uses that one."""
        self.rank = rank
        self.store: TCPStore = store.clone()  # type: ignore[attr-defined]  # which its type hints leave out

    def report(self, step: int, files: Mapping[str, SealedFile]) -> None:
        """Report that this process has written its files of the checkpoint of a step."""
        self.send(step, {"files": {name: asdict(entry) for name, entry in files.items()}})

    def report_failure(self, step: int, error: Exception) -> None:
        """Report that this process could not write its files."""
        if isinstance(error, OSError):
            self.send(step, {"refused": error.strerror or str(error), "errno": error.errno})
        else:
            self.send(step, {"defect": f"{type(error).__name__}: {error}".rstrip(": ")})

    def send(self, step: int, content: Mapping[str, object]) -> None:
        self.store.set(self.key(step, self.rank), json.dumps(content))

    def key(self, step: int, rank: int) -> str:
        return f"checkpoint/{step}/{rank}"

    def gather(self, step: int, ranks: Iterable[int], folder: Path) -> dict[str, SealedFile]:
        """Wait until these processes have reported, and return the files of all of them.

        A process that dies meanwhile ends this one too (`toolkit/distributed/watchdog.py`).

        Raises:
            OSError: one of them could not write its files, or this process does not see them.
            RuntimeError: one of them failed by a defect.
        """
        reports = {rank: self.wait_for(step, rank) for rank in ranks}
        defects = [f"process {rank}: {content['defect']}" for rank, content in reports.items() if "defect" in content]
        if defects:
            raise RuntimeError("; ".join(defects))
        refused = {rank: content for rank, content in reports.items() if "refused" in content}
        if refused:
            problem = "; ".join(f"process {rank}: {content['refused']}" for rank, content in refused.items())
            raise OSError(next(iter(refused.values()))["errno"], problem)
        files: dict[str, SealedFile] = {}
        for rank, content in reports.items():
            for name, entry in content["files"].items():
                files[name] = SealedFile(**entry)
                if not (folder / name).is_file() or (folder / name).stat().st_size != files[name].bytes:
                    raise OSError(None, f"process {rank} wrote {name}, which the main process does not see in {folder}")
        return files

    def wait_for(self, step: int, rank: int) -> dict[str, Any]:
        """Return the report of a process on the checkpoint of a step, once it is there."""
        key = self.key(step, rank)
        while not self.store.check([key]):
            sleep(INTERVAL)
        content: dict[str, Any] = json.loads(self.store.get(key))
        self.store.delete_key(key)
        return content
