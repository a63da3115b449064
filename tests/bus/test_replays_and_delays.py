"""Replays into handlers and topics, and messages that wait for their time."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.aio import asynchronous, until
from tests.conftest import Servers
from tests.servers import PROGRAMS

from penstock.bus import Envelope, EventBus
from penstock.bus.delays import Delays
from penstock.bus.engines.nats import replay
from penstock.bus.replaying import Replay
from penstock.bus.testing import VirtualTime
from penstock.errors import BusError, RequestTimeout


@dataclass
class Order:
    number: int


def event(number: int, key: str = "a", event_type: str = "numbered") -> Envelope[Any]:
    return Envelope(aggregate_id=key, event_type=event_type, payload={"number": number})


async def numbers(bus: EventBus, topic: str, key: str | None = None) -> list[int]:
    return [one.payload["number"] async for _, one in bus.replay(topic, key=key)]


@asynchronous
async def test_a_replay_goes_into_a_typed_handler_in_order(tmp_path: Path) -> None:
    orders: list[Order] = []
    threads: list[Order] = []

    async def handle(order: Order) -> None:
        orders.append(order)

    def handle_on_thread(order: Order) -> None:
        threads.append(order)

    async with EventBus.open(f"embedded:{tmp_path}") as bus:
        receipts = await bus.publish_envelope_batch(
            "orders", [event(n, f"k{n % 2}", "odd" if n % 2 else "even") for n in range(10)]
        )

        assert 4 == await Replay(bus, "orders", sequence=receipts[6].sequence).into_handler(handle)
        assert 5 == await Replay(bus, "orders", key="k1").into_handler(handle_on_thread)
        assert 5 == await Replay(bus, "orders", event_type="even").into_handler(handle)
        future = datetime.now(UTC) + timedelta(hours=1)
        assert 0 == await Replay(bus, "orders", until=receipts_time()).into_handler(handle)
        assert 10 == await Replay(bus, "orders", until=future).into_handler(threads.append)

    assert [6, 7, 8, 9, 0, 2, 4, 6, 8] == [order.number for order in orders]
    assert [1, 3, 5, 7, 9] == [order.number for order in threads[:5]]


def receipts_time() -> datetime:
    return datetime.now(UTC) - timedelta(hours=1)


@asynchronous
async def test_a_replay_into_a_topic_keeps_order_and_can_be_done_again(tmp_path: Path) -> None:
    async with EventBus.open(f"embedded:{tmp_path}") as bus:
        await bus.publish_envelope_batch("orders", [event(n, f"k{n % 3}") for n in range(600)])

        assert 600 == await Replay(bus, "orders").into_topic("copies")
        assert 600 == await Replay(bus, "orders").into_topic("copies")
        assert 600 == len(await numbers(bus, "copies"))
        for key in range(3):
            assert list(range(key, 600, 3)) == await numbers(bus, "copies", f"k{key}")


@asynchronous
async def test_a_replay_keeps_to_its_rate(tmp_path: Path) -> None:
    async with EventBus.open(f"embedded:{tmp_path}") as bus:
        await bus.publish_envelope_batch("orders", [event(n) for n in range(20)])
        started_s = asyncio.get_running_loop().time()
        await Replay(bus, "orders", rate_per_s=100).into_topic("copies")

        assert asyncio.get_running_loop().time() - started_s >= 0.18


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_replay_ends_although_its_last_message_is_deleted_meanwhile(
    program: Any, servers: Servers, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    server = servers(program, "jetstream { store_dir: store }")
    find_last = replay._last_sequence
    deleted: list[int] = []

    async def delete_it(jetstream: Any, stream: str, *arguments: Any) -> int:
        last = await find_last(jetstream, stream, *arguments)
        if not deleted:
            deleted.append(last)
            await jetstream.streams.delete_message(stream, last)
        return last

    found: list[int] = []

    @asynchronous
    async def work() -> None:
        async with EventBus.open(server.url, namespace=f"ends{count}") as bus:
            await bus.publish_envelope_batch("orders", [event(n) for n in range(count)])
            monkeypatch.setattr(replay, "_last_sequence", delete_it)
            async with asyncio.timeout(30):
                found.extend(await numbers(bus, "orders"))

    work()
    assert (list(range(count - 1)), [count]) == (found, deleted)


def test_a_delayed_message_comes_when_its_time_has_come(tmp_path: Path) -> None:
    clock = VirtualTime()
    came_s: dict[int, float] = {}

    async def handle(order: Order) -> None:
        came_s[order.number] = clock.elapsed_s

    async def work() -> int:
        async with EventBus.open(f"embedded:{tmp_path}") as bus, Delays(bus) as delays:
            await bus.subscribe_envelope("reminders", handle)
            await delays.publish("reminders", event(1), delay_s=60)
            await delays.publish("reminders", event(2), delay_s=20)
            await delays.publish("reminders", event(3), delay_s=0)
            while len(came_s) < 3:  # noqa: ASYNC110  (the clock jumps)
                await asyncio.sleep(1)
            await asyncio.sleep(1)
            return len([1 async for _ in bus.engine.replay("delayed", _everything())])

    left = clock.run(work())

    assert [3, 2, 1] == list(came_s)
    # A difference of two floats may be a hair below what it is.
    assert 19.999 <= came_s[2] <= 22
    assert 59.999 <= came_s[1] <= 62
    assert 0 == left


@asynchronous
async def test_one_event_can_be_delayed_on_two_topics(tmp_path: Path) -> None:
    async with EventBus.open(f"embedded:{tmp_path}") as bus, Delays(bus) as delays:
        one = event(1)
        for topic in ("later.first", "later.second"):
            await delays.publish(topic, one, delay_s=0)
        async with bus.messages("later.*") as events:
            came = [await anext(events), await anext(events)]

        assert [one, one] == came


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"delay_s": math.nan}, "`delay_s` must be"),
        ({"delay_s": math.inf}, "`delay_s` must be"),
        ({"delay_s": -1}, "`delay_s` must be"),
        ({"delay_s": "1"}, "`delay_s` must be"),
        ({}, "`delay_s` or `due`"),
        ({"delay_s": 1, "due": datetime.now(UTC)}, "`delay_s` or `due`"),
    ],
)
@asynchronous
async def test_a_delay_that_makes_no_sense_is_refused(settings: Any, complaint: str) -> None:
    async with EventBus.open("embedded:") as bus, Delays(bus) as delays:
        with pytest.raises(BusError, match=complaint):
            await delays.publish("reminders", event(1), **settings)


@asynchronous
async def test_delays_survive_who_runs_them(tmp_path: Path) -> None:
    seen: list[int] = []

    async def handle(order: Order) -> None:
        seen.append(order.number)

    due = datetime.now(UTC) + timedelta(seconds=1)
    async with EventBus.open(f"embedded:{tmp_path}") as bus, Delays(bus) as delays:
        await delays.publish("reminders", event(1), due=due)
        with pytest.raises(BusError, match="days at most"):
            await delays.publish("reminders", event(2), delay_s=1e9)
    async with EventBus.open(f"embedded:{tmp_path}") as bus:
        await bus.subscribe_envelope("reminders", handle)
        async with Delays(bus), Delays(bus):
            await until(lambda: seen)

    assert datetime.now(UTC) >= due
    assert [1] == seen


@asynchronous
async def test_what_was_never_delayed_is_in_nobodys_way(tmp_path: Path) -> None:
    seen: list[int] = []

    async def handle(order: Order) -> None:
        seen.append(order.number)

    async with EventBus.open(f"embedded:{tmp_path}") as bus, Delays(bus) as delays:
        await bus.subscribe_envelope("reminders", handle)
        await bus.publish("delayed", b"bare")
        await bus.publish("delayed", b"odd", headers=[("Delayed-Until", "soon")])
        await delays.publish("reminders", event(1), delay_s=0)
        await until(lambda: seen)

    assert [1] == seen


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_delays_work_on_both_servers(program: Any, servers: Servers) -> None:
    server = servers(program, "jetstream { store_dir: store }")
    seen: list[int] = []

    async def handle(order: Order) -> None:
        seen.append(order.number)

    @asynchronous
    async def work() -> None:
        async with EventBus.open(server.url, namespace="later") as bus, Delays(bus) as delays:
            await bus.subscribe_envelope("reminders", handle)
            await delays.publish("reminders", event(1), delay_s=0.5)
            await delays.publish("reminders", event(2), delay_s=0.1)
            await until(lambda: len(seen) == 2)

    work()
    assert [2, 1] == seen


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_delayed_message_that_went_is_deleted_also_if_that_fails_at_first(
    program: Any, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many may wait as fit, so one that stays for ever would push another out in the end."""
    server = servers(program, "jetstream { store_dir: store }")
    failures = [RequestTimeout("no reply")]
    seen: list[int] = []

    async def handle(order: Order) -> None:
        seen.append(order.number)

    @asynchronous
    async def work() -> None:
        async with EventBus.open(server.url, namespace="deleted") as bus:
            discard = bus.engine.discard

            async def fail_once(topic: str, sequence: int) -> bool:
                if failures:
                    raise failures.pop()
                return await discard(topic, sequence)

            monkeypatch.setattr(bus.engine, "discard", fail_once)
            await bus.subscribe_envelope("reminders", handle)
            async with Delays(bus) as delays, asyncio.timeout(30):
                await delays.publish("reminders", event(1), delay_s=0)
                await until(lambda: seen and not failures)
                while [1 async for _ in bus.engine.replay("delayed", _everything())]:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)

    work()
    assert [1] == seen


def _everything() -> Any:
    from penstock.bus.engine import ReplayFrom

    return ReplayFrom()
