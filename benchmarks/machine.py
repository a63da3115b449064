"""
The machine behind the figures, and its other load.

A neighbour that takes a core can slow one server to a third and spare the other, if it
comes and goes between their turns. So every run notes how much of the machine went to other
processes.
"""

import os
import platform
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

OTHERS_SHARE_MAX = 0.1
"""The share of other processes above which a figure is in doubt."""

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """A reading of the clocks: wall time, and processor time so far."""

    wall_s: float
    busy_s: float
    ours_s: float

    @classmethod
    def now(cls, server_s: float) -> Self:
        """Read the clocks; `server_s` is the processor time of the measured server."""
        return cls(time.monotonic(), _busy_s(), server_s + _self_and_ended_children_s())

    def others_share_since(self, start: "Usage") -> float:
        """Return the share of the machine, 0 to 1, that went to other processes since `start`."""
        others_s = (self.busy_s - start.busy_s) - (self.ours_s - start.ours_s)
        available_s = (self.wall_s - start.wall_s) * (os.cpu_count() or 1)
        # The kernel counts in ticks, so a short run may seem to get more than there was.
        return min(max(others_s / available_s, 0.0), 1.0)


def describe() -> str:
    """Return processor, cores, kernel and Python in one line."""
    return (
        f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}"
    )


def process_cpu_s(pid: int) -> float:
    """Return the processor time that a living process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def _busy_s() -> float:
    """Return the time that all processors were busy, or stolen by the hypervisor."""
    with open("/proc/stat") as stat:
        user, nice, system, _idle, _wait, irq, softirq, steal = map(
            int, stat.readline().split()[1:9]
        )
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_SECOND


def _self_and_ended_children_s() -> float:
    """Return the processor time of the harness and of ended loads."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
