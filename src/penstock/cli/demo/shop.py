"""
An order service on the bus: it publishes the events of orders, and handles them.

Every order goes through four steps, on the topic of its region. The handler deliberately
fails one event in two hundred at first. The bus retries it, and later events of the same
order wait behind it. The handler itself checks whether a step came too early.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
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


class Shop:
    """The service, and its observations."""

    def __init__(self, url: str, *, orders: int) -> None:
        self._url = url
        self._orders = orders
        self.events = orders * len(STEPS)
        self.published = 0
        self.failures = 0
        self.out_of_order = 0
        self.elapsed_s = 0.0
        self.moments: list[Moment] = []
        self._ledger: list[tuple[str, str]] = []
        self._steps: dict[str, int] = {}
        self._refused: set[str] = set()
        self._finished = asyncio.Event()

    @property
    def handled(self) -> int:
        """The number of handled events."""
        return len(self._ledger)

    async def run(self, show: Callable[[Shop], None]) -> None:
        """Publish everything, and return once everything is handled."""
        async with EventBus(configuration(self._url, service="orders")) as bus:
            await bus.subscribe_envelope("orders.*", self._handle)
            watching = asyncio.create_task(self._watch(show))
            try:
                await self._publish(bus)
                await self._finished.wait()
                await bus.drain()
            finally:
                watching.cancel()
        self._sample()
        self.elapsed_s = self.moments[-1].elapsed_s
        show(self)

    def write_ledger(self, path: Path) -> None:
        """Write the time and order of handled events, for the audit."""
        import pyarrow
        from pyarrow import parquet

        event_ids, aggregate_ids = zip(*self._ledger, strict=True)
        columns = {
            "event_id": event_ids,
            "aggregate_id": aggregate_ids,
            "position": range(self.handled),
        }
        parquet.write_table(pyarrow.table(columns), path)

    async def _publish(self, bus: EventBus) -> None:
        self._started_s = time.monotonic()
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

    async def _handle(self, envelope: Envelope[Any]) -> None:
        order, step = envelope.aggregate_id, envelope.payload["step"]
        if step == 1 and number_of(order) % (FAILS_EVERY // len(STEPS)) == 0:
            self._refuse_once(order)
        if self._steps.get(order, 0) != step:
            self.out_of_order += 1
        self._steps[order] = step + 1
        self._ledger.append((envelope.event_id, order))
        if len(self._ledger) == self.events:
            self._finished.set()

    def _refuse_once(self, order: str) -> None:
        if order not in self._refused:
            self._refused.add(order)
            self.failures += 1
            raise WarehouseBusy(f"{order} has to wait")

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


def number_of(order: str) -> int:
    """Return the number of an order."""
    return int(order.rpartition("-")[2])
