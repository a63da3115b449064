"""Building blocks for the scenarios of the contract."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from penstock.bus.bus import EventBus
from penstock.bus.config.bus import BusConfig
from penstock.bus.events.envelope import Envelope

DEADLINE_S = 20.0
"""How long a scenario waits for what must happen."""

STREAM_BYTES_MAX = 16 * 1024 * 1024
TOPIC = "orders.created"


class World:
    """A broker to open buses on. Each world has topics and services of its own."""

    def __init__(self, base: BusConfig) -> None:
        # Messages must be left over from no other world on the same broker.
        self._base = replace(base, namespace=f"w{uuid.uuid4().hex[:12]}")
        self._buses: list[EventBus] = []

    def open(
        self,
        *,
        consumer: dict[str, Any] | None = None,
        stream: dict[str, Any] | None = None,
        publisher: dict[str, Any] | None = None,
        subscriber: dict[str, Any] | None = None,
        **settings: Any,
    ) -> EventBus:
        """Return a bus that is not open yet."""
        base = self._base
        jetstream = base.nats.jetstream
        jetstream = replace(
            jetstream,
            consumer=replace(jetstream.consumer, **_known_to(jetstream.consumer, consumer or {})),
            # A server may set aside as much as a stream may grow to, and worlds are many.
            stream=replace(jetstream.stream, **({"max_bytes": STREAM_BYTES_MAX} | (stream or {}))),
        )
        kafka = replace(base.kafka.consumer, **_known_to(base.kafka.consumer, consumer or {}))
        config = replace(
            base,
            nats=replace(base.nats, jetstream=jetstream),
            kafka=replace(base.kafka, consumer=kafka),
            publisher=replace(base.publisher, **(publisher or {})),
            subscriber=replace(base.subscriber, **({"backoff": 0.02} | (subscriber or {}))),
            **settings,
        )
        bus = EventBus(self._beside_others(config))
        self._buses.append(bus)
        return bus

    def _beside_others(self, config: BusConfig) -> BusConfig:
        """Connect to the server that an open bus of this world has brought along."""
        if config.type != "embedded":
            return config
        urls = [bus.engine.urls for bus in self._buses if bus.is_open]
        return (
            replace(config, type="nats", nats=replace(config.nats, urls=urls[0]))
            if urls
            else config
        )


def _known_to(config: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that an engine has a use for."""
    return {name: value for name, value in settings.items() if hasattr(config, name)}


Scenario: TypeAlias = Callable[[World], Awaitable[None]]
SCENARIOS: list[Scenario] = []


def scenario(function: Scenario) -> Scenario:
    """Make a coroutine function part of the contract."""
    SCENARIOS.append(function)
    return function


@dataclass
class Order:
    """A payload."""

    number: int


def event(number: int, key: str = "a", **fields: Any) -> Envelope[Any]:
    """Return an event with a number."""
    return Envelope(aggregate_id=key, event_type="numbered", payload={"number": number}, **fields)


class Seen:
    """A handler that remembers what it was called with."""

    def __init__(self) -> None:
        self.events: list[Envelope[Any]] = []
        self.attempts: list[int] = []
        self.failing: Callable[[Envelope[Any]], bool] = lambda _: False
        self._changed = asyncio.Event()

    async def __call__(self, envelope: Envelope[Any]) -> None:
        """Handle an event, or fail."""
        self.attempts.append(envelope.payload["number"])
        self._changed.set()
        if self.failing(envelope):
            raise RuntimeError(f"no {envelope.payload['number']}")
        self.events.append(envelope)

    def numbers(self, key: str | None = None) -> list[int]:
        """Return the numbers handled, of one aggregate or of all."""
        return [
            one.payload["number"] for one in self.events if key is None or one.aggregate_id == key
        ]

    async def count(self, count: int) -> None:
        """Wait until `count` events are handled."""
        await self.until(lambda: len(self.events) >= count)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once the condition is true; it is looked at after every call."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()
                # What follows the call, such as `events`, happens in the same turn.


async def until(condition: Callable[[], Any]) -> None:
    """Return once the condition is true."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110  (it changes in another process too)
            await asyncio.sleep(0.002)
