"""What has to be in the environment before a library is loaded: each reads these variables once."""

import logging
import os

# How often a waiting thread of OpenMP looks again before it sleeps. The default is 300,000 times: that keeps a core
# from another process that has work, perhaps from the very thread that is waited for. To sleep at once
# (OMP_WAIT_POLICY=passive) is better still next to a busy process, but slows small models where cores are free.
# `benchmarks/performance/waiting_threads.py` measures the three.
SPINS = "1000"


def prepare_environment() -> None:
    """Set what the user has not set: waiting threads make way, and libraries show no bars and warnings of their own."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    for variable in ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_HUB_DISABLE_TELEMETRY", "TRANSFORMERS_NO_ADVISORY_WARNINGS"):
        os.environ.setdefault(variable, "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    # When a process dies, each other one would print the C++ stack of its lost connection.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    # It recommends a package of kernels from the hub, which would be code from there.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    # Accelerate loads DeepSpeed wherever it is installed, and that sets its level anew and prints on stdout.
    logging.getLogger("DeepSpeed").addFilter(lambda record: record.levelno >= logging.ERROR)
