"""
How a batch read scales with its stream: one, five and twenty million messages on one
server.

For each size: rows per second, microseconds of processor time per row in the server, in
Spark's JVM and in its Python workers, and the peak memory of each of them.
"""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.sparkstream import STREAM, fill, processor_times, spent_s
from penstock.net.process import ServerProcess, family

SIZES = (1_000_000, 5_000_000, 20_000_000)
SETTINGS = {"spark.driver.memory": "3g", "spark.ui.enabled": "false"}
PARTS = ("server", "jvm", "workers")
RESET_PEAK = "5"
"""Written to /proc/PID/clear_refs, resets the peak of memory to the current value."""


def run(server: ServerProcess, rounds: int) -> None:
    """Print a line for each size."""
    from penstock.spark import session

    spark = session("growth", master="local[2]", settings=SETTINGS)
    spark.sparkContext.setLogLevel("OFF")
    titles = ("messages", "rows/s", *(f"{part} us" for part in PARTS), *(f"{p} MB" for p in PARTS))
    print("  ".join(f"{title:>10}" for title in titles), flush=True)
    stored = 0
    for size in SIZES:
        asyncio.run(fill(server.url, stored, size))
        stored = size
        reader = spark.read.format("penstock").option("servers", server.url)
        frame = reader.option("stream", STREAM).load()
        if size == SIZES[0]:
            frame.count()  # The JVM compiles its hot code.
        rows_per_s, cpu_us, peak_mb = _best(server, size, rounds, frame.count)
        cells = [f"{size:,}", f"{rows_per_s:,.0f}"]
        cells += [f"{cpu_us[part]:.2f}" for part in PARTS]
        cells += [f"{peak_mb[part]:,.0f}" for part in PARTS]
        print("  ".join(f"{cell:>10}" for cell in cells), flush=True)
    spark.stop()


def _best(
    server: ServerProcess, size: int, rounds: int, count: Callable[[], Any]
) -> tuple[float, dict[str, float], dict[str, float]]:
    """Return the best rate, the least processor time and the peak memory of some rounds."""
    rows_per_s, cpu_us, peak_mb = 0.0, dict.fromkeys(PARTS, float("inf")), dict.fromkeys(PARTS, 0.0)
    for _ in range(rounds):
        for pid in _everybody(server):
            Path(f"/proc/{pid}/clear_refs").write_text(RESET_PEAK)
        before, started_s = processor_times(), time.monotonic()
        assert size == count()
        rows_per_s = max(rows_per_s, size / (time.monotonic() - started_s))
        after, parts = processor_times(), _everybody(server)
        for part in PARTS:
            own = {pid: time_s for pid, time_s in after.items() if parts.get(pid) == part}
            cpu_us[part] = min(cpu_us[part], spent_s(before, own) / size * 1e6)
        for pid, part in parts.items():
            peak_mb[part] = max(peak_mb[part], _peak_mb(pid))
    return rows_per_s, cpu_us, peak_mb


def _everybody(server: ServerProcess) -> dict[int, str]:
    """Return the part that each process belongs to."""
    parts = {}
    for pid in set(family(os.getpid())) - {os.getpid()}:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        parts[pid] = "server" if pid == server.pid else "jvm" if name == "java" else "workers"
    return parts


def _peak_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0
