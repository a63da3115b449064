"""The loads of a service of many processes, each a process of its own, and their figures."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from statistics import quantiles
from typing import Any

import penstock
from benchmarks import busloads
from penstock.bus import BusConfig, Envelope, EventBus
from penstock.bus.running import run_until_stopped

TOPIC = "shared.numbers"
KEYS = 100_000
HANDLER_S = 0.002
BUSY_S = 6.0
"""How long the members of a service are watched at work."""
PACED_PER_S = 150
IDLE_S = 5.0


class Member:
    """A process of the service: what it has handled, by its own words."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.handled = 0
        self.latencies: list[tuple[float, float]] = []
        """When each event was handled, and how long after it was published."""
        self.slots = 0

    async def listen(self) -> None:
        """Hear what it says."""
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            kind, *numbers = line.decode().split()
            if kind == "slots":
                self.slots = int(numbers[0])
            elif kind == "handled":
                self.handled += 1
                handled_s, published_s = map(float, numbers)
                self.latencies.append((handled_s, handled_s - published_s))


def shared(url: str, namespace: str = "") -> BusConfig:
    """Return the configuration of members that handle one event at a time."""
    config = busloads.settings(url)
    subscriber = replace(config.subscriber, lanes=1)
    namespace = namespace or config.namespace
    return replace(config, service="crew", subscriber=subscriber, namespace=namespace)


async def scaling(url: str, members: int) -> float:
    """Return events per second of some members with handlers of 2 ms."""
    config = shared(url)
    async with EventBus(replace(config, service="writing")) as bus, AsyncExitStack() as stack:
        crew = [
            await stack.enter_async_context(_member(url, config.namespace)) for _ in range(members)
        ]
        await _until(lambda: min(one.slots for one in crew) >= 256 // members)
        # More than they can do, so that each has something all the time.
        for number in range(int(members * BUSY_S * 1.5 / HANDLER_S)):
            await bus.publish_envelope(TOPIC, _event(number))
        await bus.flush()
        before, began_s = sum(one.handled for one in crew), time.monotonic()
        await asyncio.sleep(BUSY_S)
        done = sum(one.handled for one in crew) - before
        return done / (time.monotonic() - began_s)


async def many(url: str, members: int) -> tuple[float, int]:
    """Return how evenly this many members share 100,000 keys, and how many were handled twice."""
    config = shared(url)
    async with AsyncExitStack() as stack:
        crew = []
        handled: set[int] = set()
        twice = 0
        for _ in range(members):
            counts: list[int] = []
            bus = await stack.enter_async_context(EventBus(config))

            async def handle(envelope: Envelope[Any], counts: list[int] = counts) -> None:
                nonlocal twice
                twice += envelope.payload["number"] in handled
                handled.add(envelope.payload["number"])
                counts.append(1)

            await bus.subscribe_envelope(TOPIC, handle)
            crew.append((bus, counts))
        await _until(lambda: min(bus.snapshot().slots for bus, _ in crew) >= 256 // members)
        for number in range(KEYS):
            await crew[0][0].publish_envelope(TOPIC, _event(number))
        await _until(lambda: len(handled) == KEYS)
        return max(len(counts) for _, counts in crew) * members / KEYS, twice


async def hand_overs(url: str, rounds: int) -> tuple[float, float]:
    """Return p50 and p99 of how long the slowest event waits when a member is replaced, in ms."""
    config = shared(url)
    async with EventBus(replace(config, service="writing")) as bus, AsyncExitStack() as stack:
        crew = [await stack.enter_async_context(_member(url, config.namespace)) for _ in range(3)]
        await _until(lambda: min(one.slots for one in crew) > 0)
        publishing = asyncio.create_task(_publish_paced(bus))
        times_ms = []
        for number in range(rounds):
            await _until(lambda: min(one.slots for one in crew) > 0)
            await asyncio.sleep(1.0)
            # The oldest leads, and is stopped every third time.
            leaving = crew.pop(0 if number % 3 == 0 else -1)
            stopped_s = time.monotonic()
            leaving.process.terminate()
            await leaving.process.wait()
            await asyncio.sleep(0.5)
            times_ms.append(_slowest_ms([*crew, leaving], stopped_s))
            crew.append(await stack.enter_async_context(_member(url, config.namespace)))
        publishing.cancel()
        cuts = quantiles(times_ms, n=100, method="inclusive")
        return cuts[49], cuts[98]


async def idle(url: str, members: int) -> float:
    """Return how many requests per second a service sends that has nothing to do."""
    config = shared(url)
    async with AsyncExitStack() as stack:
        for _ in range(members):
            bus = await stack.enter_async_context(EventBus(config))
            await bus.subscribe_envelope(TOPIC, lambda event: None)
        await _until(lambda: len(bus.health().members) == members)
        await asyncio.sleep(2.0)
        seen: list[str] = []
        observer = await stack.enter_async_context(await penstock.connect(url))
        name = config.namespace
        for pattern in ("$JS.API.>", f"{name}-members.>", f"{name}-leases.>"):
            await observer.subscribe(pattern, callback=lambda one: seen.append(one.subject))
        await observer.flush()
        await asyncio.sleep(IDLE_S)
        return len([one for one in seen if not one.endswith(".grant")]) / IDLE_S


def _event(number: int) -> Envelope[Any]:
    payload = {"number": number, "at": time.monotonic()}
    return Envelope(aggregate_id=f"a{number % KEYS}", event_type="load", payload=payload)


async def _publish_paced(bus: EventBus) -> None:
    started_s, number = time.monotonic(), 0
    while True:
        await bus.publish_envelope(TOPIC, _event(number))
        number += 1
        await asyncio.sleep(max(0.0, started_s + number / PACED_PER_S - time.monotonic()))


def _slowest_ms(crew: list[Member], stopped_s: float) -> float:
    waits = (
        wait_s for one in crew for handled_s, wait_s in one.latencies if handled_s >= stopped_s
    )
    return 1000 * max(waits, default=0.0)


@asynccontextmanager
async def _member(url: str, namespace: str) -> AsyncIterator[Member]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.busmembers", url, namespace),
        stdout=asyncio.subprocess.PIPE,
    )
    member = Member(process)
    listening = asyncio.create_task(member.listen())
    try:
        yield member
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await listening


async def _until(is_so: Any) -> None:
    async with asyncio.timeout(120.0):
        while not is_so():  # noqa: ASYNC110  (other processes change it)
            await asyncio.sleep(0.02)


async def be_member(url: str, namespace: str) -> None:
    """Be a member until SIGTERM, and say what is handled."""
    bus = EventBus(shared(url, namespace))

    @bus.on(TOPIC)
    async def handle(envelope: Envelope[Any]) -> None:
        await asyncio.sleep(HANDLER_S)
        print("handled", time.monotonic(), envelope.payload["at"], flush=True)

    async def tell() -> None:
        slots = -1
        while True:
            if slots != bus.snapshot().slots:
                slots = bus.snapshot().slots
                print("slots", slots, flush=True)
            await asyncio.sleep(0.05)

    telling = asyncio.create_task(tell())
    await run_until_stopped(bus)
    telling.cancel()


if __name__ == "__main__":
    asyncio.run(be_member(*sys.argv[1:]))
