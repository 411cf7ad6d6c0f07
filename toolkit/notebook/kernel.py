"""What is different in the process of a notebook: it outlives its runs, and has several of them."""

import ctypes
import os
import sys
import threading
from dataclasses import replace

from accelerate.state import AcceleratorState, GradientState, PartialState, SharedDict

from toolkit.config.schema import Config
from toolkit.distributed.runtime import Runtime, start_runtime
from toolkit.distributed.watchdog import Verdict, Watchdog
from toolkit.errors import UserError
from toolkit.output import pipes

SET_BY_A_LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class KernelWatchdog(Watchdog):
    """Ends the run where the watch of a process of its own would end the process: a second interrupt leaves the kernel alive."""

    def end(self, verdict: Verdict, found_here: bool) -> None:
        """Have the main thread raise KeyboardInterrupt, once, and say why."""
        if self.settled is None and self.ending.acquire(blocking=False):
            pipes.print_line(f"\nended at once: {verdict['text']}", sys.stderr)
            main = ctypes.c_ulong(threading.main_thread().ident or 0)
            # What the interrupt itself would do, if the run had not taken it for a request to stop.
            ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(KeyboardInterrupt))


def start_in_kernel(config: Config) -> Runtime:
    """Return the runtime of a run of one process, here in the kernel, whatever ran here before.

    Raises:
        UserError: as `start_runtime`, or this kernel was itself started as one of several processes.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']} in this kernel, which is one process; unset it (and RANK), and start "
            "several processes with `launch`"
        )
    forget_previous_runs()
    return replace(start_runtime(config), watchdog=KernelWatchdog())


def forget_previous_runs() -> None:
    """Let the next Accelerator of this process begin anew; those that exist keep what they have.

    Accelerate keeps device and precision in dictionaries of its classes, which all of its objects share: a second run would
    silently take the precision of the first. Emptied in place, as its own `_reset_state` does it, they would be taken from a
    training that the notebook still looks at.
    """
    for state in (PartialState, AcceleratorState, GradientState):
        state._shared_state = SharedDict()
