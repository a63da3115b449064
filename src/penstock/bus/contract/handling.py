"""Handlers: how they are registered, called, and what they are given."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from penstock.bus.contract.world import TOPIC, Order, Seen, World, event, scenario, until
from penstock.bus.events.envelope import Envelope
from penstock.errors import AlreadyHandled, BusError


@scenario
async def a_handler_registered_before_opening_is_called(world: World) -> None:
    bus = world.open()
    orders: asyncio.Queue[Order] = asyncio.Queue()

    @bus.on("orders.*")
    async def take(order: Order) -> None:
        orders.put_nowait(order)

    async with bus:
        await bus.publish_envelope("orders.a", event(1))
        await bus.publish_envelope("orders.b", event(2))

        got = [await asyncio.wait_for(orders.get(), 10) for _ in range(2)]
        assert sorted(order.number for order in got) == [1, 2]


@scenario
async def a_handler_is_given_what_its_annotation_says(world: World) -> None:
    got: dict[str, Any] = {}

    async def typed(envelope: Envelope[Order]) -> None:
        got["typed"] = envelope.payload

    async def both(order: Order, envelope: Envelope[Any]) -> None:
        got["both"] = (order, envelope.aggregate_id)

    async def raw(data: bytes) -> None:
        got["raw"] = data

    async with world.open() as bus:
        await bus.subscribe_envelope("x.typed", typed)
        await bus.subscribe_envelope("x.both", both)
        await bus.subscribe("x.raw", raw)
        for name in ("typed", "both"):
            await bus.publish_envelope(f"x.{name}", event(1))
        await bus.publish("x.raw", b"as it is")
        await until(lambda: len(got) == 3)

    assert got == {"typed": Order(1), "both": (Order(1), "a"), "raw": b"as it is"}


@scenario
async def a_plain_function_runs_on_a_thread(world: World) -> None:
    threads: list[str] = []

    def handle(order: Order) -> None:
        threads.append(threading.current_thread().name)

    async with world.open() as bus:
        await bus.subscribe_envelope(TOPIC, handle)
        await bus.publish_envelope(TOPIC, event(1))
        await until(lambda: threads)

    assert threads[0] != threading.current_thread().name


@scenario
async def a_wildcard_finds_topics_that_did_not_exist_before(world: World) -> None:
    async with world.open() as bus, world.open(service="other") as other:
        seen = Seen()
        await bus.subscribe_envelope("orders.>", seen)
        await other.publish_envelope_sync("orders.new.at-last", event(1))
        await other.publish_envelope_sync("payments.new", event(2))
        await other.publish_envelope_sync("orders.end", event(3, "b"))
        await seen.until(lambda: {1, 3} <= set(seen.numbers()))

        # Nothing is promised about the order of two topics.
        assert sorted(seen.numbers()) == [1, 3]


@scenario
async def every_service_gets_every_event(world: World) -> None:
    async with world.open(service="one") as one, world.open(service="two") as two:
        seen = [Seen(), Seen()]
        await one.subscribe_envelope(TOPIC, seen[0])
        await two.subscribe_envelope(TOPIC, seen[1])
        await one.publish_envelope_batch(TOPIC, [event(n) for n in range(10)])
        for handler in seen:
            await handler.count(10)

        assert [list(range(10))] * 2 == [handler.numbers() for handler in seen]


@scenario
async def a_topic_has_one_handler(world: World) -> None:
    async with world.open() as bus:
        await bus.subscribe_envelope("orders.*", Seen())
        for pattern in ("orders.*", "orders.created", ">"):
            try:
                await bus.subscribe_envelope(pattern, Seen())
            except AlreadyHandled:
                continue
            raise AssertionError(f"`{pattern}` got a second handler")


@scenario
async def of_handlers_that_are_registered_all_are_called_or_none(world: World) -> None:
    async with world.open(service="publishing") as publishing:
        await publishing.publish_envelope_batch("h.a", [event(n) for n in range(10)])
        bus, seen = world.open(service="late"), Seen()
        bus.on("h.a")(seen)
        assert "share topics" in _told(lambda: bus.on("h.*")(seen))
        assert "cannot be called" in _told(lambda: bus.on("h.b")(lambda: None))
        # How it is called is known when its annotations are: then no other was called yet.
        bus.on("h.c")(lambda payload, event: None)
        told = ""
        try:
            async with bus:
                await seen.count(1)
        except BusError as error:
            told = str(error)

        assert "cannot be called" in told
        assert (bus.metrics.received_total, seen.attempts) == (0, [])


def _told(call: Callable[[], object]) -> str:
    """Return why something is refused."""
    try:
        call()
    except BusError as error:
        return str(error)
    return ""


@scenario
async def messages_are_held_for_a_handler_that_comes_late(world: World) -> None:
    async with world.open() as bus:
        first = Seen()
        await bus.subscribe_envelope("a", first)
        second = await bus.subscribe_envelope("b", Seen())
        await bus.unsubscribe(second)
        await bus.publish_envelope_batch("b", [event(n) for n in range(5)])
        await bus.publish_envelope_batch("a", [event(9)])
        await first.count(1)
        late = Seen()
        await bus.subscribe_envelope("b", late)
        await late.count(5)

        assert late.numbers() == list(range(5))


@scenario
async def what_nobody_handles_can_be_skipped(world: World) -> None:
    async with world.open(subscriber={"unhandled": "skip"}) as bus:
        gone = await bus.subscribe_envelope("b", Seen())
        seen = Seen()
        await bus.subscribe_envelope("a", seen)
        await bus.unsubscribe(gone)
        await bus.publish_envelope_batch("b", [event(n) for n in range(5)])
        await bus.publish_envelope_sync("a", event(9))
        await seen.count(1)
        await until(lambda: bus.metrics.skipped_total == 5)
        await until(lambda: bus.health().in_flight == 0)


@scenario
async def events_can_be_iterated_over(world: World) -> None:
    async with world.open() as bus:
        await bus.publish_envelope_batch(TOPIC, [event(n) for n in range(5)])
        numbers = []
        async with bus.messages(TOPIC) as events:
            async for envelope in events:
                numbers.append(envelope.payload["number"])
                if len(numbers) == 3:
                    break
        assert numbers == [0, 1, 2]
        async with bus.messages(TOPIC, Envelope[Order]) as typed:
            async for envelope in typed:
                numbers.append(envelope.payload.number)
                if envelope.payload.number == 4:
                    break

        # The one at which the loop was left was not done with.
        assert numbers == [0, 1, 2, 2, 3, 4]


@scenario
async def a_bus_can_be_closed_while_its_events_are_iterated_over(world: World) -> None:
    async with world.open(shutdown_timeout=0.2) as bus:
        await bus.publish_envelope_batch(TOPIC, [event(n) for n in range(3)])
        numbers = []
        async with bus.messages(TOPIC) as events:
            async for envelope in events:
                numbers.append(envelope.payload["number"])
                await bus.close()
                break

        assert numbers == [0]


@scenario
async def an_old_version_is_brought_up_to_date(world: World) -> None:
    async with world.open() as bus:
        orders: list[Order] = []

        @bus.upcaster("numbered", from_version=1)
        def rename(payload: Any) -> Any:
            return {"number": payload["no"]}

        async def handle(order: Order) -> None:
            orders.append(order)

        await bus.subscribe_envelope(TOPIC, handle)
        await bus.publish_envelope(TOPIC, event(0).with_payload({"no": 5}))
        await until(lambda: orders)

        assert orders == [Order(5)]
