"""Sharing: several processes of one service, each key at one of them at a time and in order."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any

from penstock.bus.bus import EventBus
from penstock.bus.contract.world import DEADLINE_S, Seen, World, event, scenario, until
from penstock.bus.events.envelope import Envelope

KEYS = 60
EVENTS = 600
TOPIC = "shared"
SETTLED_S_MAX = 3 * DEADLINE_S
"""How long members may take to share what there is: on Kafka by its own timers."""


class Crew:
    """Processes of one service, and all that they handle together."""

    def __init__(self, world: World, **settings: Any) -> None:
        self.seen = Seen()
        self.counts: Counter[int] = Counter()
        """How many events each has handled."""
        self._world = world
        self._settings: dict[str, Any] = {"service": "crew"} | settings
        self.running: Counter[str] = Counter()
        """Handlers that run right now, by key."""
        self.overlaps = 0
        """How often a key was handled twice at a time."""

    async def join(self, pause_s: float = 0.0, *, instance: str = "") -> EventBus:
        """Return a member that is open; where a broker knows members by name, with a name."""
        settings = dict(self._settings)
        if instance:
            settings["consumer"] = settings.get("consumer", {}) | {"instance": instance}
        bus = self._world.open(**settings)
        number = len(self.counts)
        self.counts[number] = 0

        async def handle(envelope: Envelope[Any]) -> None:
            self.running[envelope.aggregate_id] += 1
            self.overlaps += self.running[envelope.aggregate_id] > 1
            try:
                await asyncio.sleep(pause_s)
                await self.seen(envelope)
                self.counts[number] += 1
            finally:
                self.running[envelope.aggregate_id] -= 1

        bus.on(TOPIC)(handle)
        return await bus.__aenter__()

    def check(self, count: int, *, may_repeat: bool = False) -> None:
        """See that each event was handled once, and each key in order."""
        assert self.overlaps == 0
        for key in range(KEYS):
            wanted = list(range(key, count, KEYS))
            came = self.seen.numbers(f"k{key}")
            came = list(dict.fromkeys(came)) if may_repeat else came
            assert came == wanted, f"k{key}: {came}"


async def publish(bus: EventBus, numbers: Iterable[int]) -> None:
    """Publish events of all keys in turn."""
    await bus.publish_envelope_batch(TOPIC, [event(n, f"k{n % KEYS}") for n in numbers])


async def trickle(bus: EventBus, numbers: range) -> None:
    """Publish a little at a time."""
    for start in range(numbers.start, numbers.stop, KEYS):
        await publish(bus, range(start, min(start + KEYS, numbers.stop)))
        await asyncio.sleep(0.02)


async def shared(buses: Iterable[EventBus]) -> None:
    """Return once each of the members has a part of the keys."""
    async with asyncio.timeout(SETTLED_S_MAX):
        for bus in buses:
            while not bus.snapshot().slots:  # noqa: ASYNC110  (it changes in another process too)
                await asyncio.sleep(0.01)


async def _opened(world: World, stack: AsyncExitStack) -> EventBus:
    publishing = await stack.enter_async_context(world.open(service="publishing"))
    await publishing.configure_topic(TOPIC)
    return publishing


@scenario
async def members_share_the_keys_and_each_key_keeps_its_order(world: World) -> None:
    async with AsyncExitStack() as stack:
        publishing = await _opened(world, stack)
        crew = Crew(world)
        members = [await crew.join() for _ in range(3)]
        for member in members:
            stack.push_async_callback(member.close)
        await shared(members)
        await publish(publishing, range(EVENTS))
        await crew.seen.count(EVENTS)

        crew.check(EVENTS)
        assert min(crew.counts.values()) > 0, crew.counts


@scenario
async def a_member_that_joins_takes_its_part_and_the_order_is_kept(world: World) -> None:
    async with AsyncExitStack() as stack:
        publishing = await _opened(world, stack)
        crew = Crew(world)
        first = await crew.join(0.002)
        stack.push_async_callback(first.close)
        await publish(publishing, range(EVENTS))
        second = await crew.join(0.002)
        stack.push_async_callback(second.close)
        await shared([first, second])
        await trickle(publishing, range(EVENTS, 2 * EVENTS))
        await crew.seen.count(2 * EVENTS)

        crew.check(2 * EVENTS)
        assert crew.counts[1] > 0, crew.counts


@scenario
async def whichever_member_stops_the_others_go_on_and_repeat_nothing(world: World) -> None:
    async with AsyncExitStack() as stack:
        publishing = await _opened(world, stack)
        crew = Crew(world)
        members = [await crew.join(0.002) for _ in range(3)]
        for member in members:
            stack.push_async_callback(member.close)
        await shared(members)
        publishes = asyncio.ensure_future(trickle(publishing, range(3 * EVENTS)))
        for number, member in enumerate(members[:2]):
            await crew.seen.until(lambda: len(crew.seen.events) > (number + 1) * EVENTS // 2)  # noqa: B023
            await member.close()
        await publishes
        await crew.seen.count(3 * EVENTS)

        crew.check(3 * EVENTS)


@scenario
async def a_release_that_rolls_over_all_members_repeats_nothing(world: World) -> None:
    async with AsyncExitStack() as stack:
        publishing = await _opened(world, stack)
        crew = Crew(world)
        members = [await crew.join() for _ in range(2)]
        await shared(members)
        publishes = asyncio.ensure_future(trickle(publishing, range(2 * EVENTS)))
        for old in members:
            new = await crew.join()
            stack.push_async_callback(new.close)
            await old.close()
        await publishes
        await crew.seen.count(2 * EVENTS)

        crew.check(2 * EVENTS)


@scenario
async def a_member_that_is_restarted_under_its_name_repeats_nothing(world: World) -> None:
    async with AsyncExitStack() as stack:
        publishing = await _opened(world, stack)
        crew = Crew(world)
        first, second = [await crew.join(instance=name) for name in ("first", "second")]
        stack.push_async_callback(second.close)
        await shared([first, second])
        before = second.snapshot().slots
        publishes = asyncio.ensure_future(trickle(publishing, range(2 * EVENTS)))
        await crew.seen.until(lambda: len(crew.seen.events) > EVENTS // 2)
        await first.close()
        if not second.features.by_pattern:
            assert before == second.snapshot().slots, "its place is kept for it"
        again = await crew.join(instance="first")
        stack.push_async_callback(again.close)
        await publishes
        await crew.seen.count(2 * EVENTS)

        crew.check(2 * EVENTS)
        assert crew.counts[2] > 0, crew.counts


@scenario
async def a_key_that_fails_keeps_no_other_from_being_shared(world: World) -> None:
    async with AsyncExitStack() as stack:
        publishing = await _opened(world, stack)
        crew = Crew(world, subscriber={"max_attempts": 1000, "max_backoff": 0.05})
        crew.seen.failing = lambda envelope: envelope.aggregate_id == "k7"
        first = await crew.join()
        stack.push_async_callback(first.close)
        await publish(publishing, range(EVENTS))
        others = EVENTS - EVENTS // KEYS
        await crew.seen.count(others)
        second = await crew.join()
        stack.push_async_callback(second.close)
        await shared([first, second])
        await publish(publishing, range(EVENTS, 2 * EVENTS))
        await until(lambda: len(set(crew.seen.numbers())) == 2 * others)
        crew.seen.failing = lambda envelope: False
        await until(lambda: len(set(crew.seen.numbers())) == 2 * EVENTS)

        # Kafka keeps one number for a partition, and what is done behind the key comes again.
        crew.check(2 * EVENTS, may_repeat=not first.features.by_pattern)
