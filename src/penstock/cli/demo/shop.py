"""
An order service on the bus: it publishes the events of orders, and handles them.

Every order goes through four steps, on the topic of its region. The handler deliberately
fails one event in two hundred at first. The bus retries it, and later events of the same
order wait behind it.

The service has two processes that share the orders. One of them is killed in the middle, and
the other goes on with its orders. Both write down what they handle and when.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from penstock.bus import BusConfig, Envelope, EventBus, load_config

STEPS = ("placed", "paid", "packed", "shipped")
REGIONS = ("asia", "europe", "us")
AT_ONCE = 1000
"""The number of orders in progress at the same time."""
FAILS_EVERY = 200
NAMESPACE = "shop"
SAMPLE_S = 0.25
BACKOFF_S = 0.05
WINDOWS_TOPIC = "insights.windows"


class Moment(NamedTuple):
    """The progress of the service at one moment."""

    elapsed_s: float
    published: int
    handled: int


class WarehouseBusy(Exception):
    """The deliberate failure of the handler."""


class Entry(NamedTuple):
    """A line of the ledger: an event that was handled."""

    at_ns: int
    """By the clock of the machine, which all processes share."""
    event_id: str
    order: str
    step: int


class Handler:
    """Handles events, and fails some of them once."""

    def __init__(self, wrote: Callable[[Entry], None]) -> None:
        self.failures = 0
        self._wrote = wrote
        self._refused: set[str] = set()

    async def __call__(self, envelope: Envelope[Any]) -> None:
        """Handle a step of an order."""
        order, step = envelope.aggregate_id, envelope.payload["step"]
        if step == 1 and number_of(order) % (FAILS_EVERY // len(STEPS)) == 0:
            self._refuse_once(order)
        self._wrote(Entry(time.monotonic_ns(), envelope.event_id, order, step))

    def _refuse_once(self, order: str) -> None:
        if order not in self._refused:
            self._refused.add(order)
            self.failures += 1
            raise WarehouseBusy(f"{order} has to wait")


class Shop:
    """The service, and its observations."""

    def __init__(self, url: str, *, orders: int) -> None:
        self._url = url
        self._orders = orders
        self.events = orders * len(STEPS)
        self.published = 0
        self.out_of_order = 0
        self.repeated = 0
        self.elapsed_s = 0.0
        self.moments: list[Moment] = []
        self.killed_at = 0
        """How many events were handled when the other process was killed."""
        self.taken_over_s = 0.0
        """How long after that its orders were this process's."""
        self.in_flight_max = configuration(url, service="orders").max_ack_pending
        """How many events a process may have."""
        self._handler = Handler(self._wrote)
        self._ledger: list[Entry] = []
        self._known: set[str] = set()
        self._half = asyncio.Event()
        self._finished = asyncio.Event()

    @property
    def failures(self) -> int:
        """How often the handler failed on purpose in this process."""
        return self._handler.failures

    @property
    def handled(self) -> int:
        """The number of handled events."""
        return len(self._known)

    async def run(self, show: Callable[[Shop], None]) -> None:
        """Publish everything, and return once everything is handled."""
        async with EventBus(configuration(self._url, service="orders")) as bus:
            await bus.subscribe_envelope("orders.*", self._handler)
            async with self._other() as other:
                await _shared(bus, 2)
                self._started_s = time.monotonic()
                watching = asyncio.create_task(self._watch(show))
                killing = asyncio.create_task(self._kill(bus, other))
                try:
                    await self._publish(bus)
                    await self._finished.wait()
                    await killing
                    await bus.drain()
                finally:
                    watching.cancel()
                    killing.cancel()
        self._judge()
        self._sample()
        self.elapsed_s = self.moments[-1].elapsed_s
        show(self)

    def write_ledger(self, path: Path) -> None:
        """Write the time and order of handled events, for the audit."""
        import pyarrow
        from pyarrow import parquet

        columns = {
            "event_id": [entry.event_id for entry in self._ledger],
            "aggregate_id": [entry.order for entry in self._ledger],
            "position": range(self.handled),
        }
        parquet.write_table(pyarrow.table(columns), path)

    async def _publish(self, bus: EventBus) -> None:
        for topic, envelope in self._events():
            await bus.publish_envelope(topic, envelope)
            self.published += 1
        await bus.flush()

    def _events(self) -> Iterator[tuple[str, Envelope[Any]]]:
        """Yield the interleaved steps of many orders, as they happen in a shop."""
        for first in range(0, self._orders, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, self._orders))
            for step, name in enumerate(STEPS):
                for number in numbers:
                    topic = f"orders.{REGIONS[number % len(REGIONS)]}"
                    payload = {"step": step, "amount_cents": 100 + number * 37 % 20_000}
                    yield (
                        topic,
                        Envelope(aggregate_id=f"order-{number}", event_type=name, payload=payload),
                    )

    @asynccontextmanager
    async def _other(self) -> AsyncIterator[asyncio.subprocess.Process]:
        """Start the other process of the service, and hear what it handles."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", __name__, self._url), stdout=asyncio.subprocess.PIPE
        )
        listening = asyncio.create_task(self._listen(process))
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            await listening

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if line.endswith(b"\n"):  # the last one may be cut off
                at_ns, event_id, order, step = line.decode().split()
                self._wrote(Entry(int(at_ns), event_id, order, int(step)))

    async def _kill(self, bus: EventBus, other: asyncio.subprocess.Process) -> None:
        """Kill the other process in the middle, and see how long its orders wait."""
        await self._half.wait()
        self.killed_at, killed_s = self.handled, time.monotonic()
        other.kill()
        await _shared(bus, 1)
        self.taken_over_s = time.monotonic() - killed_s

    def _wrote(self, entry: Entry) -> None:
        self._ledger.append(entry)
        self._known.add(entry.event_id)
        if self.handled >= self.events // 2:
            self._half.set()
        if self.handled == self.events:
            self._finished.set()

    def _judge(self) -> None:
        """Look through the ledgers of both: each step of an order after the one before it."""
        first = {entry.event_id: entry for entry in sorted(self._ledger, reverse=True)}
        self.repeated = len(self._ledger) - len(first)
        self._ledger = sorted(first.values())
        steps: dict[str, int] = {}
        for entry in self._ledger:
            self.out_of_order += steps.get(entry.order, 0) != entry.step
            steps[entry.order] = entry.step + 1

    async def _watch(self, show: Callable[[Shop], None]) -> None:
        while True:
            await asyncio.sleep(SAMPLE_S)
            self._sample()
            show(self)

    def _sample(self) -> None:
        elapsed_s = time.monotonic() - self._started_s
        self.moments.append(Moment(elapsed_s, self.published, self.handled))


async def read_windows(url: str, count: int) -> list[dict[str, Any]]:
    """Return the figures that Spark wrote to the bus, as any service would get them."""
    windows: list[dict[str, Any]] = []
    async with EventBus(configuration(url, service="insights")) as bus:
        async with bus.messages(WINDOWS_TOPIC) as events:
            async for event in events:
                windows.append(event.payload)
                if len(windows) == count:
                    break
    return windows


def configuration(url: str, *, service: str) -> BusConfig:
    """Return the bus configuration of a service of the shop."""
    settings = {"type": "nats", "nats": {"urls": [url]}}
    config = load_config(settings, preset="high_throughput", environment={})
    subscriber = replace(config.subscriber, backoff=BACKOFF_S)
    return replace(config, namespace=NAMESPACE, service=service, subscriber=subscriber)


async def _shared(bus: EventBus, members: int) -> None:
    """Return once as many processes share the orders."""
    while sum(slots > 0 for slots in bus.health().members.values()) != members:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def be_other(url: str) -> None:
    """Be the other process of the service until it is killed."""

    def write(entry: Entry) -> None:
        # In one piece, before the event is acked.
        os.write(1, f"{entry.at_ns} {entry.event_id} {entry.order} {entry.step}\n".encode())

    logging.disable(logging.WARNING)  # the demo tells of failures itself
    async with EventBus(configuration(url, service="orders")) as bus:
        await bus.subscribe_envelope("orders.*", Handler(write))
        await asyncio.Event().wait()


def number_of(order: str) -> int:
    """Return the number of an order."""
    return int(order.rpartition("-")[2])


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):  # the demo is told of it too
        asyncio.run(be_other(sys.argv[1]))
