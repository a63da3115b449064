"""
One load on one engine of the event bus, in its own process: `engineload URL MESSAGES`.

Everything is set up and warmed up first. The clock runs from the first publish to the last
handled event, without deliberate waits in between. Prints JSON.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import threading
import time
from typing import Any

from penstock.bench.report.histogram import Histogram
from penstock.bench.report.result import latency_json

TOPIC = "load"
AGGREGATES = 1000
WARM_UP_MESSAGES = 500
PAYLOAD_BYTES = 256
SAMPLE_EVERY = 250
"""Events between two samples of tasks and threads: a sample is not free."""


class Load:
    """Counts the handled events, their delays, and their order."""

    def __init__(self) -> None:
        self.latency_ns = Histogram()
        self.disordered = 0
        self.tasks = self.threads = 0
        self._following: dict[str, int] = {}
        self._left = 0
        self._done = asyncio.Event()

    async def handle(self, event: Any) -> None:
        """Handle one event."""
        number, sent_ns, _ = event.payload
        self.latency_ns.record(time.perf_counter_ns() - sent_ns)
        if number != self._following.get(event.aggregate_id, number):
            self.disordered += 1
        self._following[event.aggregate_id] = number + AGGREGATES
        self._left -= 1
        if self._left % SAMPLE_EVERY == 0:
            self._look()
        if not self._left:
            self._done.set()

    async def run(self, bus: Any, messages: int) -> float:
        """Publish and handle this number of events; return the seconds it took."""
        from penstock.bus import Envelope

        filler = "x" * PAYLOAD_BYTES
        self.latency_ns, self._following, self._left = Histogram(), {}, messages
        self._done.clear()
        gc.collect()
        started_s = time.perf_counter()
        for number in range(messages):
            await bus.publish_envelope(
                TOPIC,
                Envelope(
                    aggregate_id=f"a{number % AGGREGATES}",
                    event_type="load",
                    payload=(number, time.perf_counter_ns(), filler),
                ),
            )
        self._look()
        await self._done.wait()
        return time.perf_counter() - started_s

    def _look(self) -> None:
        self.tasks = max(self.tasks, len(asyncio.all_tasks()))
        self.threads = max(self.threads, _threads())


def _threads() -> int:
    """Return the number of threads, including those of libraries where the system tells."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return threading.active_count()


async def measure(url: str, messages: int) -> dict[str, Any]:
    """Return the figures of one load."""
    from penstock.bus import EventBus
    from penstock.net.process import resident_bytes

    load = Load()
    name = f"bench-{time.monotonic_ns()}"
    async with EventBus.open(url, preset="high_throughput", namespace=name) as bus:
        await bus.configure_topic(TOPIC)
        await bus.subscribe_envelope(TOPIC, load.handle)
        await load.run(bus, WARM_UP_MESSAGES)
        elapsed_s = await load.run(bus, messages)
        return {
            "rate": messages / elapsed_s,
            "latency_ns": latency_json(load.latency_ns),
            "resident_bytes": resident_bytes(os.getpid()),
            "tasks": load.tasks,
            "threads": load.threads,
            "disordered": load.disordered,
        }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(sys.argv[1], int(sys.argv[2])))))
