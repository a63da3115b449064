"""Running a bus: backlog, replay, requests, health, and leaving nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from penstock.bus.bus import EventBus
from penstock.bus.config.bus import BacklogConfig
from penstock.bus.contract.world import DEADLINE_S, TOPIC, Seen, World, event, scenario, until
from penstock.bus.operate.backlog import Backlog
from penstock.errors import BusError, NoResponders


@scenario
async def callbacks_that_nobody_would_await_are_refused(world: World) -> None:
    async def callback(*_: object) -> None:
        raise AssertionError("nobody awaits this")

    async with world.open() as bus:
        registrations: list[Callable[[Any], Any]] = [
            bus.on_published,
            bus.on_health,
            bus.on_backlog,
            bus.on_reconnected,
            lambda one: bus.instrument(outgoing=one, delivery=print),
            lambda one: bus.instrument(outgoing=print, delivery=one),
        ]
        for register in registrations:
            assert "`async def`" in _refusal(register, callback)
            assert "no callback" in _refusal(register, 5)


def _refusal(register: Callable[[Any], Any], callback: Any) -> str:
    try:
        register(callback)
    except BusError as error:
        return str(error)
    return ""


@scenario
async def the_backlog_is_what_is_not_handled_and_its_age(world: World) -> None:
    async with world.open() as bus:
        gate = asyncio.Event()

        async def wait(_: Any) -> None:
            await gate.wait()

        await bus.subscribe_envelope(TOPIC, wait)
        assert (await bus.backlog())[:2] == (0, 0.0)
        await bus.publish_envelope_batch(TOPIC, [event(n) for n in range(10)])
        async with asyncio.timeout(DEADLINE_S):
            # In a cluster one server acks, and another counts a moment later.
            while (first := await bus.backlog()).messages < 10:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        second = await bus.backlog()
        gate.set()
        await until(lambda: bus.metrics.handled_total == 10)
        await bus.engine.flush()

        assert (first.messages, second.messages) == (10, 10)
        assert 0 < first.age_s < second.age_s < 10
        assert second.age_s - first.age_s >= 0.04


@scenario
async def a_backlog_is_reported_when_it_begins_and_when_it_is_well_over(world: World) -> None:
    reports: list[Backlog] = []
    config = BacklogConfig(max_lag=10, recover_ratio=0.5, interval=0.01)
    async with world.open(backlog=config, subscriber={"lanes": 1}) as bus:
        steps = asyncio.Semaphore(0)

        async def wait(_: Any) -> None:
            await steps.acquire()

        await bus.subscribe_envelope(TOPIC, wait)
        bus.on_backlog(reports.append)
        await bus.publish_envelope_batch(TOPIC, [event(n) for n in range(12)])
        await until(lambda: len(reports) == 1)
        for _ in range(4):
            steps.release()
        await until(lambda: bus.metrics.handled_total == 4)
        await asyncio.sleep(0.05)
        assert len(reports) == 1
        for _ in range(8):
            steps.release()
        await until(lambda: len(reports) == 2)

    assert [report.is_high for report in reports] == [True, False]
    assert reports[1].messages <= 5


@scenario
async def a_topic_can_be_read_again_by_sequence_time_and_key(world: World) -> None:
    async with world.open() as bus:
        receipts = await bus.publish_envelope_batch(
            TOPIC, [event(n, f"k{n % 2}") for n in range(10)]
        )
        await asyncio.sleep(0.02)
        middle = datetime.now(UTC)
        await bus.publish_envelope_batch(TOPIC, [event(n, f"k{n % 2}") for n in range(10, 15)])
        await bus.publish_envelope_batch("other", [event(99)])

        async def numbers(topic: str = TOPIC, **start: Any) -> list[int]:
            found = [one.payload["number"] async for _, one in bus.replay(topic, **start)]
            return found if bus.features.orders_topics else sorted(found)

        assert await numbers() == list(range(15))
        assert await numbers(sequence=receipts[7].sequence, key="k1") == [7, 9, 11, 13]
        if bus.features.orders_topics:
            assert await numbers(sequence=receipts[7].sequence) == list(range(7, 15))
        assert await numbers(time=middle) == list(range(10, 15))
        assert await numbers(key="k1") == [1, 3, 5, 7, 9, 11, 13]
        assert await numbers(sequence=receipts[7].sequence + 1_000_000) == []
        assert await numbers(time=datetime.now(UTC)) == []
        assert await numbers("never-used") == []


async def heard(bus: EventBus, topic: str, payload: Any) -> None:
    """Return once somebody answers: the servers of a cluster take a moment to tell each other."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                await bus.request(topic, payload)
            except NoResponders:
                await asyncio.sleep(0.01)
            else:
                return


@scenario
async def a_request_is_answered_or_told_why_not(world: World) -> None:
    async with world.open() as bus, world.open(service="asking") as asking:
        if not bus.features.ephemeral:
            return

        async def half(payload: Any) -> Any:
            if payload["by"] == -1:
                raise GeneratorExit
            return payload["number"] / payload["by"]

        bus.respond("divide", half)
        await heard(asking, "divide", {"number": 0, "by": 1})

        assert await asking.request("divide", {"number": 6, "by": 2}) == 3
        for by, expected in ((0, "ZeroDivisionError"), (-1, "GeneratorExit")):
            try:
                answer = await asking.request("divide", {"number": 6, "by": by})
            except BusError as error:
                answer = str(error)
            assert expected in str(answer)


@scenario
async def a_request_that_came_before_closing_is_answered(world: World) -> None:
    async with world.open(service="asking") as asking, world.open() as bus:
        if not bus.features.ephemeral:
            return
        started = asyncio.Event()

        async def repeat(payload: Any) -> Any:
            started.set()
            await asyncio.sleep(0.05)
            return payload

        bus.respond("repeat", repeat)
        await heard(asking, "repeat", 0)
        started.clear()
        asked = asyncio.ensure_future(asking.request("repeat", 7))
        await started.wait()
        await bus.close()

        assert await asked == 7


@scenario
async def forgotten_topics_are_read_no_more(world: World) -> None:
    async with world.open() as bus:
        kept, gone = Seen(), Seen()
        await bus.configure_topic("gone.limited", max_bytes=1024 * 1024)
        await bus.subscribe_envelope("kept", kept)
        for _ in range(2):
            subscription = await bus.subscribe_envelope("gone.*", gone)
            await bus.unsubscribe(subscription)
        await bus.forget("gone.*")
        for topic in ("gone.plain", "gone.limited"):
            await bus.publish_envelope_batch(topic, [event(n) for n in range(5)])
        await bus.publish_envelope_sync("kept", event(1))
        await kept.count(1)

        assert (gone.numbers(), bus.metrics.received_total) == ([], 1)


@scenario
async def health_says_what_is_going_on(world: World) -> None:
    async with world.open() as bus:
        seen = Seen()
        await bus.subscribe_envelope(TOPIC, seen)
        await bus.publish_envelope_sync(TOPIC, event(1))
        await seen.count(1)
        await until(lambda: bus.health().in_flight == 0)
        health = bus.health()

        assert (health.connected, health.unacked, dict(health.parked_keys)) == (True, 0, {})
        assert "penstock_bus_handled_total 1" in bus.snapshot().prometheus()
    assert not bus.health().connected


@scenario
async def a_heartbeat_goes_through_the_broker_and_back(world: World) -> None:
    async with world.open() as bus:
        heartbeat = await bus.beat()

        assert (heartbeat.severity, heartbeat.misses) == ("healthy", 0)
        assert 0 < heartbeat.round_trip_s < 5
        assert bus.health().heartbeat == heartbeat


@scenario
async def closing_leaves_no_task_behind(world: World) -> None:
    before = asyncio.all_tasks()
    async with world.open() as bus:
        seen = Seen()
        seen.failing = lambda one: one.payload["number"] == 3
        await bus.subscribe_envelope(TOPIC, seen)
        bus.on_backlog(lambda _: None)
        bus.on_health(lambda _: None)
        await bus.publish_envelope_batch(TOPIC, [event(n, f"k{n}") for n in range(50)])
        await seen.count(49)
    await bus.close()

    assert asyncio.all_tasks() == before
