"""The machine behind the figures."""

from __future__ import annotations

import os
import platform
from pathlib import Path

GIB = 1 << 30


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
