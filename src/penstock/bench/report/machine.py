"""The machine behind the figures, and its other load."""

from __future__ import annotations

import os
import platform
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

GIB = 1 << 30
OTHERS_SHARE_MAX = 0.1
"""The share of other processes above which a figure is in doubt."""


def describe() -> str:
    """Return processor, cores, memory, system and Python in one line."""
    parts = [
        processor(),
        f"{os.cpu_count()} cores",
        memory(),
        f"{platform.system()} {platform.release()}",
        f"Python {platform.python_version()}",
    ]
    return ", ".join(part for part in parts if part)


def processor() -> str:
    """Return the name of the processor, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def memory() -> str:
    """Return the size of the memory."""
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return ""
    return f"{size / GIB:.0f} GiB"


@dataclass(frozen=True)
class Usage:
    """A reading of the clocks: wall time, and processor time so far."""

    wall_s: float
    busy_s: float
    server_s: float
    own_s: float

    @classmethod
    def now(cls, server_s: float = 0.0) -> Self:
        """Read the clocks; `server_s` is the processor time of the measured server."""
        return cls(time.monotonic(), _busy_s(), server_s, _own_s())

    def others_share_since(self, start: Usage) -> float:
        """Return the share of the machine, 0 to 1, that went to other processes since `start`."""
        ours_s = self.server_s + self.own_s - start.server_s - start.own_s
        available_s = (self.wall_s - start.wall_s) * (os.cpu_count() or 1)
        # The kernel counts in ticks, so a short run may seem to get more than there was.
        return min(max((self.busy_s - start.busy_s - ours_s) / available_s, 0.0), 1.0)


class Meter:
    """
    The resources that a block takes of the machine: `with Meter(lambda: server.cpu_s) as meter`.

    A neighbour that takes a core can slow one server to a third and spare the other, if it
    comes and goes between their turns. So a run notes how much went to other processes.
    """

    def __init__(self, server_s: Callable[[], float] = lambda: 0.0) -> None:
        self._server_s = server_s
        self.wall_s = self.cpu_s = self.others_share = 0.0
        """Wall time, processor time of the server, and the share of other processes."""

    def __enter__(self) -> Self:
        self._start = Usage.now(self._server_s())
        return self

    def __exit__(self, *_: object) -> None:
        end = Usage.now(self._server_s())
        self.wall_s = end.wall_s - self._start.wall_s
        self.cpu_s = end.server_s - self._start.server_s
        self.others_share = end.others_share_since(self._start)


def raise_open_files_limit() -> None:
    """Raise the limit of this process and its children to the system's maximum."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _busy_s() -> float:
    """Return the time that all processors were busy, or stolen by the hypervisor."""
    try:
        with open("/proc/stat") as stat:
            times = list(map(int, stat.readline().split()[1:9]))
    except OSError:
        return 0.0
    user, nice, system, _idle, _wait, irq, softirq, steal = times
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    """Return the processor time of this process and of its children that have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
