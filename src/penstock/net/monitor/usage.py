"""CPU and memory use of this process, and its stacks."""

from __future__ import annotations

import os
import resource
import sys
import time
import traceback
from typing import Any

from penstock.protocol.redaction import redact_arguments

SAMPLE_S = 1.0


class CpuShare:
    """The CPU share of this process, measured from one call to the next."""

    def __init__(self) -> None:
        self._wall_s = time.monotonic()
        self._cpu_s = time.process_time()
        self._percent = 0.0

    def cpu_percent(self) -> float:
        """Return the CPU percentage since the last sample, or the same value if that is recent."""
        wall_s, cpu_s = time.monotonic(), time.process_time()
        elapsed_s = wall_s - self._wall_s
        if elapsed_s >= SAMPLE_S:
            self._percent = round(100 * (cpu_s - self._cpu_s) / elapsed_s, 1)
            self._wall_s, self._cpu_s = wall_s, cpu_s
        return self._percent


def resident_bytes() -> int:
    """Return the resident memory; where the system does not tell, its maximum so far."""
    try:
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[1])
    except OSError:
        # macOS counts in bytes, the others in KiB.
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return pages * os.sysconf("SC_PAGE_SIZE")


def cores() -> int:
    """Return the number of processors that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def variables() -> dict[str, Any]:
    """Return the content of `/debug/vars`: the command line and the memory."""
    return {"cmdline": redact_arguments(sys.orig_argv), "memstats": {"Sys": resident_bytes()}}


def profile(name: str) -> dict[str, Any]:
    """Return the answer to a request for a Go profile: Python has none of them."""
    error = f'Profile "{name}" not found' if name else "Profile name not specified"
    return {"profile": None, "error": error}


def stacks() -> str:
    """Return the stack of each thread."""
    return "\n".join(
        f"thread {thread}:\n{''.join(traceback.format_stack(frame))}"
        for thread, frame in sys._current_frames().items()
    )
