"""Deploying: handlers and topics that come and go, processes that overlap."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any

from penstock.bus.bus import EventBus
from penstock.bus.contract.world import DEADLINE_S, Seen, World, event, scenario, until
from penstock.bus.events.envelope import Envelope
from penstock.errors import BusError

TOPICS = tuple(f"t.{name}" for name in "abcdef")
EVENTS = 60
KEYS = 5
MADE = 12


async def _publish(bus: EventBus, topic: str, numbers: Iterable[int]) -> None:
    events = [event(n, f"k{n % KEYS}") for n in numbers]
    sequences = [one.sequence for one in await bus.publish_envelope_batch(topic, events)]
    # Else whoever reads them would be blamed for how they are stored.
    assert not bus.features.by_pattern or sequences == sorted(sequences), sequences


def _check(seen: Iterable[Seen], numbers: Iterable[int]) -> None:
    """See that each aggregate's numbers came once and in order, whoever handled them."""
    wanted = list(numbers)
    events = [one for handler in seen for one in handler.events]
    for key in range(KEYS):
        came = [one.payload["number"] for one in events if one.aggregate_id == f"k{key}"]
        assert came == [n for n in wanted if n % KEYS == key], f"k{key}: {came}"


@scenario
async def a_new_service_gets_all_that_is_stored_however_many_handlers_it_has(world: World) -> None:
    async with world.open(service="publishing") as publishing:
        for topic in TOPICS:
            await _publish(publishing, topic, range(EVENTS))
        bus = world.open(service="new")
        seen = {topic: Seen() for topic in TOPICS}
        for topic, handler in seen.items():
            bus.on(topic)(handler)
        async with bus:
            for handler in seen.values():
                await handler.count(EVENTS)
                _check([handler], range(EVENTS))


@scenario
async def a_topic_that_a_release_adds_is_read_from_its_beginning(world: World) -> None:
    async with world.open(service="publishing") as publishing:
        for topic in ("old", "added"):
            await _publish(publishing, topic, range(EVENTS))
        for release, topics in enumerate((["old"], ["old", "added"])):
            async with world.open(service="grows") as bus:
                seen = {topic: Seen() for topic in topics}
                for topic, handler in seen.items():
                    await bus.subscribe_envelope(topic, handler)
                await seen[topics[-1]].count(EVENTS)
                _check([seen[topics[-1]]], range(EVENTS))
                # What the release before has handled does not come again.
                assert not release or seen["old"].events == []


@scenario
async def a_handler_that_comes_while_the_bus_runs_gets_all_that_is_stored(world: World) -> None:
    async with world.open() as bus:
        for topic in ("early", "late"):
            await _publish(bus, topic, range(EVENTS))
        early, late = Seen(), Seen()
        await bus.subscribe_envelope("early", early)
        await early.count(EVENTS)
        await bus.subscribe_envelope("late", late)
        await late.count(EVENTS)

        _check([early], range(EVENTS))
        _check([late], range(EVENTS))


@scenario
async def a_service_that_starts_while_topics_are_made_waits_for_none_of_them(world: World) -> None:
    topics = [f"made.{number}" for number in range(MADE)]
    async with world.open(service="publishing") as publishing:
        await _publish(publishing, topics[0], range(EVENTS))

        async def make() -> None:
            for topic in topics[1:]:
                await _publish(publishing, topic, [0])

        async with world.open(service="new") as bus:
            seen = Seen()
            making = asyncio.create_task(make())
            for topic in topics:
                await bus.subscribe_envelope(topic, seen)
            await making
            await seen.count(EVENTS + MADE - 1)


@scenario
async def a_handler_that_is_gone_stops_nobody_and_finds_its_place_again(world: World) -> None:
    settings: dict[str, Any] = {"consumer": {"max_ack_pending": 20}, "service": "changes"}
    before, after, stays = Seen(), Seen(), Seen()
    async with world.open(**settings) as bus:
        await bus.subscribe_envelope("gone", before)
        await _publish(bus, "gone", range(EVENTS))
        await before.count(EVENTS)
    async with world.open(**settings) as bus:
        await bus.subscribe_envelope("stays", stays)
        await _publish(bus, "gone", range(EVENTS, 2 * EVENTS))
        await _publish(bus, "stays", range(EVENTS))
        await stays.count(EVENTS)
        if bus.features.by_pattern:
            assert bus.health().unhandled == ("gone",)
            assert (await bus.backlog()).unhandled == {"gone": EVENTS}
    async with world.open(**settings) as bus:
        await bus.subscribe_envelope("gone", after)
        await after.count(EVENTS)

    _check([before, after], range(2 * EVENTS))


@scenario
async def a_handler_that_is_unsubscribed_stops_nobody(world: World) -> None:
    async with world.open(consumer={"max_ack_pending": 20, "fetch_batch": 10}) as bus:
        gone, stays = Seen(), Seen()
        subscription = await bus.subscribe_envelope("gone", gone)
        await bus.subscribe_envelope("stays", stays)
        await bus.unsubscribe(subscription)
        await _publish(bus, "gone", range(EVENTS))
        await _publish(bus, "stays", range(EVENTS))
        await stays.count(EVENTS)
        again = Seen()
        await bus.subscribe_envelope("gone", again)
        await again.count(EVENTS)

        _check([again], range(EVENTS))


@scenario
async def a_handler_that_is_unsubscribed_leaves_its_room_to_others(world: World) -> None:
    settings: dict[str, Any] = {
        "consumer": {"max_ack_pending": 20, "fetch_batch": 10},
        "subscriber": {"max_attempts": 1000},
    }
    async with world.open(**settings) as bus:
        gone, stays, again = Seen(), Seen(), Seen()
        gone.failing = lambda _: True
        subscription = await bus.subscribe_envelope("gone", gone)
        await bus.subscribe_envelope("stays", stays)
        await bus.publish_envelope_batch("gone", [event(n) for n in range(EVENTS)])
        await until(lambda: bus.health().in_flight == 20)
        await bus.unsubscribe(subscription)
        await _publish(bus, "stays", range(EVENTS))
        await stays.count(EVENTS)
        await bus.subscribe_envelope("gone", again)
        await again.count(EVENTS)

    _check([stays], range(EVENTS))
    assert again.numbers() == list(range(EVENTS))


@scenario
async def a_pattern_that_becomes_wider_or_narrower_reads_nothing_twice(world: World) -> None:
    await _released(world, "w.a", ("w.a", "w.*", "w.a", "w.>"))


@scenario
async def a_pattern_that_is_narrowed_twice_goes_on_where_the_nearest_one_stands(
    world: World,
) -> None:
    await _released(world, "n.eu.a", ("n.>", "n.eu.*", "n.eu.a"))


async def _released(world: World, topic: str, patterns: Sequence[str]) -> None:
    """See that releases that handle a topic by one pattern after another handle it once."""
    seen: list[Seen] = []
    async with world.open(service="publishing") as publishing:
        for release, pattern in enumerate(patterns):
            numbers = range(release * EVENTS, (release + 1) * EVENTS)
            await _publish(publishing, topic, numbers)
            async with world.open(service="changes") as bus:
                seen.append(Seen())
                await bus.subscribe_envelope(pattern, seen[-1])
                await seen[-1].count(EVENTS)
    _check(seen, range(len(patterns) * EVENTS))


@scenario
async def a_pattern_that_becomes_narrower_repeats_nothing_behind_a_blocked_key(
    world: World,
) -> None:
    settings: dict[str, Any] = {
        "service": "changes",
        "subscriber": {"max_attempts": 1, "on_exhausted": "block"},
    }
    before, after, wide = Seen(), Seen(), Seen()
    before.failing = lambda envelope: envelope.aggregate_id == "k0"
    others = [n for n in range(EVENTS) if n % KEYS]
    async with world.open(**settings) as bus:
        if not bus.features.by_pattern:
            return  # Kafka keeps one number for a partition
        await bus.subscribe_envelope("b.*", before)
        await _publish(bus, "b.a", range(EVENTS))
        await _publish(bus, "b.b", [0])
        await before.count(len(others))
    async with world.open(**settings) as bus:
        await bus.subscribe_envelope("b.a", after)
        await _publish(bus, "b.a", range(EVENTS, 2 * EVENTS))
        await after.count(2 * EVENTS - len(others))
    _check([before, after], range(2 * EVENTS))

    async with world.open(**settings) as bus:
        await bus.subscribe_envelope("b.*", wide)
        await _publish(bus, "b.b", [KEYS])
        await wide.count(2)
    assert wide.numbers() == [0, KEYS]


@scenario
async def what_a_narrower_pattern_has_handled_waits_for_nobody(world: World) -> None:
    settings: dict[str, Any] = {"service": "changes", "consumer": {"max_ack_pending": 20}}
    gate = asyncio.Event()

    async def wait(_: Any) -> None:
        await gate.wait()

    after, wide = Seen(), Seen()
    async with world.open(**settings) as bus:
        if not bus.features.by_pattern:
            return  # Kafka counts for no pattern
        await bus.subscribe_envelope("c.>", wait)
        for topic in ("c.eu.a", "c.us"):
            await _publish(bus, topic, range(EVENTS))
        await until(lambda: bus.health().in_flight == 20)
        closing = asyncio.ensure_future(bus.close())  # the rest is given back
        await until(lambda: not bus.is_open)
        gate.set()
        await closing
        handled = bus.metrics.handled_total
    async with world.open(**settings) as bus:
        await bus.subscribe_envelope("c.eu.*", after)
        await _publish(bus, "c.eu.a", range(EVENTS, 2 * EVENTS))
        await after.count(2 * EVENTS - handled)

        async with asyncio.timeout(DEADLINE_S):
            # A server counts an ack a moment after it came.
            while (await bus.backlog()).unhandled != {"c.>": EVENTS}:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    async with world.open(**settings) as bus:
        await bus.subscribe_envelope("c.>", wide)
        await wide.count(EVENTS)
        await bus.drain()
        assert (await bus.backlog())[:2] == (0, 0.0)
    _check([wide], range(EVENTS))


@scenario
async def what_a_wider_pattern_reads_is_not_forgotten_alone(world: World) -> None:
    first, second = Seen(), Seen()
    async with world.open(service="changes") as bus:
        if not bus.features.by_pattern:
            return  # Kafka has no place for each pattern
        await bus.subscribe_envelope("f.a", first)
        await _publish(bus, "f.a", range(EVENTS))
        await first.count(EVENTS)
    async with world.open(service="changes") as bus:
        await bus.subscribe_envelope("f.*", second)
        await _publish(bus, "f.a", range(EVENTS, 2 * EVENTS))
        await second.count(EVENTS)
        await _refused(bus.forget("f.a"), "`f.*`, of which `f.a` is a part")
        await _publish(bus, "f.a", range(2 * EVENTS, 3 * EVENTS))
        await second.count(2 * EVENTS)
    async with world.open(service="changes") as bus:
        await _refused(bus.forget("f.a"), "`f.*`, of which `f.a` is a part")

    _check([first, second], range(3 * EVENTS))


@scenario
async def nothing_is_forgotten_behind_the_back_of_the_process_that_reads(world: World) -> None:
    settings: dict[str, Any] = {"consumer": {"takeover": 1.0}, "service": "reads"}
    seen, again = Seen(), Seen()
    async with world.open(**settings) as bus:
        if not bus.features.by_pattern:
            return  # Kafka has no place for each pattern
        await bus.subscribe_envelope("kept.*", seen)
        await _publish(bus, "kept.a", range(EVENTS))
        async with world.open(**settings) as script:
            await _refused(script.forget("kept.*"), "call `forget` there, or stop it first")
            await _publish(bus, "kept.a", range(EVENTS, 2 * EVENTS))
            await seen.count(2 * EVENTS)
    _check([seen], range(2 * EVENTS))

    async with world.open(**settings) as script, world.open(**settings) as bus:
        await script.forget("kept.*")
        # That it lives on keeps nobody from reading.
        await bus.subscribe_envelope("kept.*", again)
        await _publish(bus, "kept.a", range(2 * EVENTS, 3 * EVENTS))
        await again.until(lambda: 3 * EVENTS - 1 in again.numbers())


@scenario
async def patterns_that_overlap_in_part_are_refused_with_what_each_remedy_repeats(
    world: World,
) -> None:
    before, after = Seen(), Seen()
    async with world.open(service="changes") as bus:
        if not bus.features.by_pattern:
            return  # Kafka has no place for each pattern
        await bus.subscribe_envelope("o.*", before)
        await _publish(bus, "o.created", range(EVENTS))
        await before.count(EVENTS)
    async with world.open(service="changes") as bus:
        why = "`o.*`, or around it, go on where it stands and repeat nothing"
        await _refused(bus.subscribe_envelope("*.created", after), why)
        await bus.subscribe_envelope("o.created", after)
        await _publish(bus, "o.created", range(EVENTS, 2 * EVENTS))
        await after.count(EVENTS)

    _check([before, after], range(2 * EVENTS))


async def _refused(awaitable: Awaitable[Any], why: str) -> None:
    told = ""
    try:
        await awaitable
    except BusError as error:
        told = str(error)
    assert why in told, told


@scenario
async def of_two_processes_of_an_exclusive_service_one_reads_until_it_stops(
    world: World,
) -> None:
    seen = {"one": Seen(), "two": Seen()}
    settings: dict[str, Any] = {"service": "updated", "consumer": {"exclusive": True}}
    async with world.open(service="publishing") as publishing:
        old, new = world.open(**settings), world.open(**settings)
        async with old:
            for topic, handler in seen.items():
                await old.subscribe_envelope(topic, handler)
                await _publish(publishing, topic, range(EVENTS))
                await handler.count(EVENTS)
            async with new:
                for topic, handler in seen.items():
                    await new.subscribe_envelope(topic, handler)
                more = asyncio.ensure_future(_trickle(publishing, seen))
                await seen["two"].until(lambda: len(seen["two"].events) > EVENTS)
                exclusive = new.features.by_pattern
                if exclusive:
                    assert (old.health().active, new.health().active) == (True, False)
                    assert new.metrics.received_total == 0
                await old.close()
                await more
                for handler in seen.values():
                    await handler.count(3 * EVENTS)
                assert not exclusive or new.metrics.received_total > 0

    for handler in seen.values():
        _check([handler], range(3 * EVENTS))


async def _trickle(bus: EventBus, topics: Iterable[str]) -> None:
    for start in range(EVENTS, 3 * EVENTS, KEYS):
        for topic in topics:
            await _publish(bus, topic, range(start, start + KEYS))
        await asyncio.sleep(0.005)


@scenario
async def a_topic_that_gets_limits_keeps_its_order(world: World) -> None:
    async with world.open() as bus, world.open(service="declaring") as declaring:
        seen = Seen()
        gate = asyncio.Event()

        async def handle(envelope: Envelope[Any]) -> None:
            await gate.wait()
            await seen(envelope)

        await _publish(bus, "limited", range(10 * EVENTS))
        await bus.subscribe_envelope("limited", handle)
        await declaring.configure_topic("limited", max_bytes=1024 * 1024)
        for start in range(10 * EVENTS, 20 * EVENTS, EVENTS):
            await _publish(bus, "limited", range(start, start + EVENTS))
        await _publish(declaring, "limited", range(20 * EVENTS, 21 * EVENTS))
        gate.set()
        await seen.until(lambda: len({one.event_id for one in seen.events}) == 21 * EVENTS)

        for key in range(KEYS):
            # The two that publish have no order between them.
            numbers = [n for n in seen.numbers(f"k{key}") if n < 20 * EVENTS]
            assert numbers == list(range(key, 20 * EVENTS, KEYS))


@scenario
async def a_running_service_hears_of_a_topic_that_gets_limits(world: World) -> None:
    async with world.open() as bus, world.open(service="declaring") as declaring:
        seen = Seen()
        await bus.subscribe_envelope("orders.*", seen)
        await declaring.configure_topic("orders.big", max_bytes=1024 * 1024)
        await _publish(declaring, "orders.big", range(EVENTS))
        await seen.count(EVENTS)

        _check([seen], range(EVENTS))
