"""Order: of one aggregate, also when handlers fail, time out, or the bus restarts."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.bus.contract.world import TOPIC, Order, Seen, World, event, scenario, until
from penstock.bus.deadletters.deadletters import ATTEMPT, CAUSE, KEY
from penstock.bus.deadletters.deadletters import TOPIC as DEAD_TOPIC
from penstock.bus.deadletters.stored import DeadLetterBox, Selection
from penstock.bus.engine import Delivery
from penstock.bus.events.envelope import Envelope
from penstock.errors import BusClosed

DEAD = f"dead-letters.{TOPIC}"


@scenario
async def one_aggregate_is_handled_in_order(world: World) -> None:
    async with world.open() as bus:
        seen = Seen()
        await bus.subscribe_envelope(TOPIC, seen)
        for number in range(1000):
            await bus.publish_envelope(TOPIC, event(number))
        await seen.count(1000)

        assert seen.numbers() == list(range(1000))


@scenario
async def many_aggregates_are_each_handled_in_order(world: World) -> None:
    async with world.open(subscriber={"lanes": 8}) as bus:
        seen = Seen()
        await bus.subscribe_envelope(TOPIC, seen)
        for number in range(2000):
            await bus.publish_envelope(TOPIC, event(number, f"key-{number % 50}"))
        await seen.count(2000)

        for key in range(50):
            assert seen.numbers(f"key-{key}") == list(range(key, 2000, 50))


@scenario
async def handlers_of_different_keys_run_at_once_and_of_one_key_never(world: World) -> None:
    running: dict[str, int] = {}
    highest, together = 0, 0

    async def handle(envelope: Envelope[Any]) -> None:
        nonlocal highest, together
        key = envelope.aggregate_id
        running[key] = running.get(key, 0) + 1
        highest = max(highest, running[key])
        together = max(together, sum(running.values()))
        await asyncio.sleep(0.002)
        running[key] -= 1

    async with world.open() as bus:
        await bus.subscribe_envelope(TOPIC, handle)
        await bus.publish_envelope_batch(TOPIC, [event(n, f"k{n % 20}") for n in range(200)])
        await until(lambda: bus.metrics.handled_total == 200)

    assert highest == 1
    assert together > 10


@scenario
async def a_failing_key_waits_and_the_others_go_on(world: World) -> None:
    async with world.open(subscriber={"lanes": 1, "max_attempts": 100}) as bus:
        seen = Seen()
        is_healed = False
        seen.failing = lambda one: one.aggregate_id == "bad" and not is_healed
        await bus.subscribe_envelope(TOPIC, seen)
        for number in range(10):
            await bus.publish_envelope(TOPIC, event(number, "bad"))
            await bus.publish_envelope(TOPIC, event(number, "good"))
        await seen.until(lambda: len(seen.numbers("good")) == 10)
        await seen.until(lambda: len(seen.attempts) > 13)
        assert seen.numbers("bad") == []
        assert list(bus.health().parked_keys) == ["bad"]
        is_healed = True
        await seen.count(20)

        assert seen.numbers("bad") == list(range(10))
        assert set(seen.attempts[10:-10]) <= set(range(10))


@scenario
async def a_message_that_fails_now_and_then_keeps_its_place(world: World) -> None:
    async with world.open() as bus:
        seen = Seen()
        failed: set[str] = set()

        def fails_once(one: Envelope[Any]) -> bool:
            first = one.payload["number"] % 7 == 0 and one.event_id not in failed
            failed.add(one.event_id)
            return first

        seen.failing = fails_once
        await bus.subscribe_envelope(TOPIC, seen)
        await bus.publish_envelope_batch(TOPIC, [event(n, f"k{n % 10}") for n in range(300)])
        await seen.count(300)

        for key in range(10):
            assert seen.numbers(f"k{key}") == list(range(key, 300, 10))


@scenario
async def after_the_last_attempt_a_message_is_a_dead_letter_and_its_key_reopens(
    world: World,
) -> None:
    letters: list[Delivery] = []

    async def collect(letter: Delivery) -> None:
        letters.append(letter)

    async with world.open(subscriber={"max_attempts": 3}) as bus:
        seen = Seen()
        seen.failing = lambda one: one.payload["number"] == 1
        await bus.subscribe_envelope(TOPIC, seen)
        await bus.subscribe_envelope(DEAD, collect)
        await bus.publish_envelope_batch(TOPIC, [event(n) for n in range(4)])
        await seen.count(3)
        await until(lambda: letters)

        assert seen.numbers() == [0, 2, 3]
        assert seen.attempts == [0, 1, 1, 1, 2, 3]
        letter = letters[0]
        assert bus.codec.decode(letter.payload).payload == {"number": 1}
        assert (TOPIC, "a") == (letter.header(DEAD_TOPIC), letter.header(KEY))
        assert letter.header(CAUSE) == "RuntimeError: no 1"
        history = [value for name, value in letter.headers if name == ATTEMPT]
        assert history == ["RuntimeError: no 1"] * 3


@scenario
async def a_key_can_be_blocked_instead_until_it_is_reopened(world: World) -> None:
    async with world.open(subscriber={"max_attempts": 2, "on_exhausted": "block"}) as bus:
        seen = Seen()
        is_healed = False
        seen.failing = lambda one: one.aggregate_id == "bad" and not is_healed
        await bus.subscribe_envelope(TOPIC, seen)
        batch = [event(n, key) for n in range(5) for key in ("bad", "good")]
        await bus.publish_envelope_batch(TOPIC, batch)
        await seen.count(5)
        await until(lambda: len(seen.attempts) == 7)
        assert not bus.reopen("good")
        is_healed = True
        assert bus.reopen("bad")
        await seen.count(10)

        assert seen.numbers("bad") == list(range(5))
        assert bus.metrics.dead_letters_total == 0


@scenario
async def a_handler_that_takes_too_long_has_failed(world: World) -> None:
    calls: list[int] = []

    async def handle(envelope: Envelope[Any]) -> None:
        calls.append(envelope.payload["number"])
        if calls == [0]:
            await asyncio.sleep(60)

    async with world.open(subscriber={"process_timeout": 0.1}) as bus:
        await bus.subscribe_envelope(TOPIC, handle)
        await bus.publish_envelope_batch(TOPIC, [event(0), event(1)])
        await until(lambda: len(calls) == 3)

    assert calls == [0, 0, 1]
    assert bus.metrics.handler_timeouts_total == 1


@scenario
async def what_cannot_be_read_is_a_dead_letter_at_once(world: World) -> None:
    letters: list[bytes] = []

    async def collect(letter: bytes) -> None:
        letters.append(letter)

    async with world.open() as bus:
        seen = Seen()
        await bus.subscribe_envelope(TOPIC, seen)
        await bus.subscribe(DEAD, collect)
        await bus.publish(TOPIC, b"no envelope")
        await bus.publish_envelope(TOPIC, event(1))
        await seen.count(1)
        await until(lambda: letters)

        assert letters == [b"no envelope"]
        assert bus.metrics.invalid_total == 1


@scenario
async def a_payload_that_does_not_fit_is_a_dead_letter_of_its_aggregate(world: World) -> None:
    numbers: list[int] = []

    async def handle(order: Order) -> None:
        numbers.append(order.number)

    async with world.open() as bus:
        await bus.subscribe_envelope(TOPIC, handle)
        misfit = Envelope(aggregate_id="k", event_type="numbered", payload={"number": "one"})
        await bus.publish_envelope_sync(TOPIC, misfit)
        await bus.publish_envelope_sync(TOPIC, event(2, "k"))
        await until(lambda: numbers == [2] and bus.metrics.dead_letters_total == 1)

        letters = [letter async for letter in DeadLetterBox(bus).find(Selection(key="k"))]
        assert [letter.payload for letter in letters] == [bus.codec.encode(misfit)]


@scenario
async def a_long_handler_is_not_taken_for_lost(world: World) -> None:
    async with world.open(consumer={"ack_wait": 0.6}) as bus:
        seen = Seen()
        started = asyncio.Event()

        async def handle(envelope: Envelope[Any]) -> None:
            started.set()
            await asyncio.sleep(0.5)
            await seen(envelope)

        await bus.subscribe_envelope(TOPIC, handle)
        await bus.publish_envelope_batch(TOPIC, [event(n) for n in range(4)])
        await seen.count(4)
        await bus.publish_envelope_sync(TOPIC, event(4))
        await seen.count(5)

        assert seen.attempts == list(range(5))


@scenario
async def parked_messages_are_bounded_and_then_fetching_pauses(world: World) -> None:
    async with world.open(
        consumer={"max_ack_pending": 20, "fetch_batch": 10}, subscriber={"max_attempts": 1000}
    ) as bus:
        seen = Seen()
        is_healed = False
        seen.failing = lambda _: not is_healed
        await bus.subscribe_envelope(TOPIC, seen)
        await bus.publish_envelope_batch(TOPIC, [event(n) for n in range(100)])
        await seen.until(lambda: len(seen.attempts) > 5)
        await until(lambda: bus.health().in_flight == 20)
        assert set(seen.attempts) == {0}
        is_healed = True
        await seen.count(100)

        assert seen.numbers() == list(range(100))
        assert bus.metrics.received_total == 100


@scenario
async def a_restart_goes_on_where_it_was_left(world: World) -> None:
    handled: list[int] = []
    for first in (0, 20, 40):
        async with world.open() as bus:
            seen = Seen()
            await bus.subscribe_envelope(TOPIC, seen)
            await bus.publish_envelope_batch(TOPIC, [event(n) for n in range(first, first + 20)])
            await seen.count(20)
        handled += seen.numbers()

    assert handled == list(range(60))


@scenario
async def what_was_left_undone_comes_before_what_is_newer(world: World) -> None:
    async with world.open(subscriber={"max_attempts": 1000}) as bus:
        seen = Seen()
        seen.failing = lambda one: one.aggregate_id == "bad"
        await bus.subscribe_envelope(TOPIC, seen)
        await bus.publish_envelope_batch(
            TOPIC, [event(n, key) for n in range(10) for key in ("bad", "good")]
        )
        await seen.until(lambda: len(seen.numbers("good")) == 10)
    async with world.open() as bus:
        await bus.publish_envelope_batch(TOPIC, [event(n, "bad") for n in range(10, 20)])
        after = Seen()
        await bus.subscribe_envelope(TOPIC, after)
        await after.count(20)

        assert after.numbers("bad") == list(range(20))
        assert after.numbers("good") == []


@scenario
async def closing_finishes_what_runs_and_gives_the_rest_back(world: World) -> None:
    begun, done = asyncio.Event(), asyncio.Event()
    handled: list[int] = []

    async def handle(envelope: Envelope[Any]) -> None:
        begun.set()
        await done.wait()
        handled.append(envelope.payload["number"])

    async with world.open() as bus:
        await bus.subscribe_envelope(TOPIC, handle)
        await bus.publish_envelope_batch(TOPIC, [event(n) for n in range(20)])
        await begun.wait()
        await until(lambda: bus.health().in_flight == 20)
        closing = asyncio.ensure_future(bus.close())
        await until(lambda: not bus.is_open)
        done.set()
        await closing
    async with world.open() as bus:
        again = Seen()
        await bus.subscribe_envelope(TOPIC, again)
        await again.count(19)

    assert handled == [0]
    assert again.numbers() == list(range(1, 20))


@scenario
async def a_bus_that_closes_takes_no_more_events_but_of_handlers_that_run(world: World) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    bus = world.open()

    async def handle(envelope: Envelope[Any]) -> None:
        begun.set()
        await go_on.wait()
        await bus.publish_envelope_sync("orders.done", event(5))

    async with bus:
        await bus.subscribe_envelope(TOPIC, handle)
        await bus.publish_envelope_sync(TOPIC, event(1))
        await begun.wait()
        closing = asyncio.ensure_future(bus.close())
        await until(lambda: not bus.is_open)
        for publish in (bus.publish_envelope, bus.publish_envelope_sync):
            refusal = ""
            try:
                await publish(TOPIC, event(2))
            except BusClosed as error:
                refusal = str(error)
            assert "clos" in refusal, refusal
        go_on.set()
        await closing
    async with world.open(service="other") as bus:
        seen = Seen()
        await bus.subscribe_envelope("orders.*", seen)
        await seen.count(2)
        assert sorted(seen.numbers()) == [1, 5]


@scenario
async def closing_leaves_a_handler_behind_that_does_not_end(world: World) -> None:
    begun, end = asyncio.Event(), asyncio.Event()

    async def stubborn(_: Envelope[Any]) -> None:
        begun.set()
        while not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                continue

    async with world.open(shutdown_timeout=0.2) as bus:
        await bus.subscribe_envelope(TOPIC, stubborn)
        await bus.publish_envelope_batch(TOPIC, [event(n) for n in range(3)])
        await begun.wait()
    end.set()
    async with world.open() as bus:
        again = Seen()
        await bus.subscribe_envelope(TOPIC, again)
        await again.count(3)

    assert again.numbers() == [0, 1, 2]


@scenario
async def closing_does_not_wait_for_ever(world: World) -> None:
    async def hang(_: Envelope[Any]) -> None:
        await asyncio.sleep(3600)

    async with world.open(shutdown_timeout=0.2) as bus:
        await bus.subscribe_envelope(TOPIC, hang)
        await bus.publish_envelope_batch(TOPIC, [event(n) for n in range(3)])
        await until(lambda: bus.health().in_flight == 3)
    async with world.open() as bus:
        again = Seen()
        await bus.subscribe_envelope(TOPIC, again)
        await again.count(3)

    assert again.numbers() == [0, 1, 2]
