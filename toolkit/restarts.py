"""Where processes meet that an agent started again.

`torchrun` keeps one store for all of its restarts, in which the addresses of the processes that died still stand (torch 2.13
numbers neither stores nor keys by attempt). Who reads them before they are written anew finds nobody there, or waits.
"""

import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from accelerate.utils import InitProcessGroupKwargs
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.constants import default_pg_nccl_timeout, default_pg_timeout
from torch.distributed.rendezvous import register_rendezvous_handler, rendezvous

SCHEME = "attempt"


def meeting_place(on_cpu: bool) -> list[Any]:
    """Return what tells Accelerate where the processes of this attempt meet; nothing where no agent started them again."""
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        return []
    register_rendezvous_handler(SCHEME, meet)  # type: ignore[no-untyped-call]
    patience = default_pg_timeout if on_cpu else default_pg_nccl_timeout or default_pg_timeout
    return [InitProcessGroupKwargs(init_method=f"{SCHEME}://", timeout=patience)]


def meet(url: str, timeout: timedelta = default_pg_timeout, **others: Any) -> Iterator[tuple[Store, int, int]]:
    """Yield the store of the environment, with keys of this attempt alone, and what is known of this process."""
    store, rank, size = next(rendezvous("env://", timeout=timeout))
    yield PrefixStore(f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}", store), rank, size
