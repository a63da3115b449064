"""Handlers that fail in unusual ways: what is no `Exception`, threads, what cannot work at all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

from penstock.bus.config.bus import BacklogConfig, HealthConfig
from penstock.bus.contract.world import TOPIC, Seen, World, event, scenario, until
from penstock.bus.deadletters.stored import DeadLetter, DeadLetterBox
from penstock.bus.events.envelope import Envelope
from penstock.errors import BusError


class Panic(BaseException):
    """A `BaseException`, as libraries in other languages raise; it is no `Exception`."""


async def letters_of(bus: Any, count: int) -> list[DeadLetter]:
    """Wait for `count` dead letters and return them."""
    await until(lambda: bus.metrics.dead_letters_total == count)
    return [letter async for letter in DeadLetterBox(bus).find()]


@scenario
async def whatever_a_handler_raises_is_a_failed_attempt(world: World) -> None:
    seen = Seen()

    async def handle(envelope: Envelope[Any]) -> None:
        seen.attempts.append(envelope.payload["number"])
        if envelope.payload["number"] == 1:
            raise Panic("index out of bounds")
        seen.events.append(envelope)

    async with world.open(subscriber={"max_attempts": 2}) as bus:
        await bus.subscribe_envelope(TOPIC, handle)
        await bus.publish_envelope_batch(TOPIC, [event(n) for n in range(4)])
        await until(lambda: len(seen.events) == 3)

        assert seen.attempts == [0, 1, 1, 2, 3]
        (letter,) = await letters_of(bus, 1)
        assert letter.cause == "Panic: index out of bounds"
        # Two attempts are one more than the first.
        assert (bus.metrics.handler_failures_total, bus.metrics.retries_total) == (2, 1)


@scenario
async def an_exit_that_a_handler_raises_is_a_failed_attempt(world: World) -> None:
    """Python ends coroutines with a GeneratorExit, but nobody ended these."""
    numbers: list[int] = []

    async def handle(envelope: Envelope[Any]) -> None:
        numbers.append(envelope.payload["number"])
        if envelope.payload["number"] == 1:
            raise GeneratorExit

    def handle_on_thread(envelope: Envelope[Any]) -> None:
        raise GeneratorExit

    async with world.open(subscriber={"max_attempts": 2}) as bus:
        await bus.subscribe_envelope(TOPIC, handle)
        await bus.subscribe_envelope("threads", handle_on_thread)
        await bus.publish_envelope_batch(TOPIC, [event(n) for n in range(4)])
        await bus.publish_envelope_batch("threads", [event(n) for n in range(2)])
        await until(lambda: numbers == [0, 1, 1, 2, 3])
        letters = await letters_of(bus, 3)
        assert all(letter.cause.startswith("GeneratorExit") for letter in letters)


@scenario
async def a_handler_that_is_cancelled_by_anybody_is_a_failed_attempt(world: World) -> None:
    seen = Seen()

    async def fail() -> None:
        raise ValueError("no answer")

    async def end_before_it_is_noticed() -> None:
        own_task().cancel()

    async def end() -> None:
        own_task().cancel()
        await asyncio.sleep(20)

    async def fail_in_a_group() -> None:
        # Before Python 3.13 it leaves a cancellation behind.
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())

    async def wait_for_what_is_cancelled() -> None:
        waiting = asyncio.ensure_future(asyncio.sleep(20))
        asyncio.get_running_loop().call_soon(waiting.cancel)
        await waiting

    ways = [fail_in_a_group, wait_for_what_is_cancelled, fail_in_a_group, fail_in_a_group]
    ways += [end, end, wait_for_what_is_cancelled, end_before_it_is_noticed]

    async def handle(envelope: Envelope[Any]) -> None:
        number = envelope.payload["number"]
        if ways and number == 1:
            await ways.pop(0)()
        await seen(envelope)

    settings = {"lanes": 1, "max_attempts": 20, "max_backoff": 0.05}
    async with world.open(subscriber=settings) as bus:
        await bus.subscribe_envelope(TOPIC, handle)
        await bus.publish_envelope_batch(TOPIC, [event(n, f"k{n % 2}") for n in range(10)])
        await seen.until(lambda: set(seen.numbers()) == set(range(10)))

    assert not ways
    for key in range(2):
        assert seen.numbers(f"k{key}") == list(range(key, 10, 2))


def own_task() -> asyncio.Task[Any]:
    """Return the task that runs."""
    task = asyncio.current_task()
    assert task is not None
    return task


@scenario
async def whatever_a_plain_function_raises_is_a_failed_attempt(world: World) -> None:
    raised: list[BaseException] = [Panic("thread"), StopIteration("no more"), KeyError("iban")]
    raised.append(asyncio.CancelledError())
    handled: list[int] = []

    def handle(envelope: Envelope[Any]) -> None:
        if raised:
            raise raised.pop(0)
        handled.append(envelope.payload["number"])

    async with world.open() as bus:
        await bus.subscribe_envelope(TOPIC, handle)
        await bus.publish_envelope_batch(TOPIC, [event(n) for n in range(3)])
        await until(lambda: len(handled) == 3)

        assert handled == [0, 1, 2]
        assert bus.metrics.handler_failures_total == 4
        assert bus.metrics.handler_timeouts_total == 0


@scenario
async def a_plain_function_that_takes_too_long_is_waited_for(world: World) -> None:
    steps: list[tuple[str, int]] = []
    go_on = threading.Event()

    def handle(envelope: Envelope[Any]) -> None:
        number = envelope.payload["number"]
        steps.append(("begin", number))
        if number == 0:
            go_on.wait(20)
        steps.append(("end", number))

    async with world.open(subscriber={"process_timeout": 0.05}) as bus:
        await bus.subscribe_envelope(TOPIC, handle)
        await bus.publish_envelope_batch(TOPIC, [event(n) for n in range(3)])
        await bus.publish_envelope_sync(TOPIC, event(9, "b"))
        await until(lambda: bus.metrics.handler_timeouts_total and ("end", 9) in steps)
        # Nothing of its aggregate runs beside it, neither a second attempt nor a later event.
        assert [one for one in steps if one[1] != 9] == [("begin", 0)]
        go_on.set()
        await until(lambda: bus.metrics.handled_total == 4)

        assert [one for one in steps if one[1] != 9] == [
            (step, number) for number in range(3) for step in ("begin", "end")
        ]
        assert bus.metrics.handler_timeouts_total == 1


@scenario
async def a_dead_letter_tells_where_the_last_attempt_failed(world: World) -> None:
    def find_the_account(number: int) -> None:
        raise LookupError(f"no account {number}")

    async def handle(envelope: Envelope[Any]) -> None:
        find_the_account(envelope.payload["number"])

    async with world.open(subscriber={"max_attempts": 1}) as bus:
        await bus.subscribe_envelope(TOPIC, handle)
        await bus.publish_envelope_sync(TOPIC, event(7))
        (letter,) = await letters_of(bus, 1)

        assert "in find_the_account" in letter.trace
        assert letter.trace.endswith("LookupError: no account 7")
        assert letter.headers == [one for one in letter.headers if "Dead-Letter" not in one[0]]


@scenario
async def handlers_that_can_never_work_are_refused(world: World) -> None:
    async def yields(envelope: Envelope[Any]) -> AsyncIterator[int]:
        yield 1

    def yields_too(envelope: Envelope[Any]) -> Iterator[int]:
        yield 1

    async def nothing() -> None: ...

    async def three(order: int, envelope: Envelope[Any], more: int) -> None: ...

    async def untyped(order, envelope) -> None: ...  # type: ignore[no-untyped-def]

    async def named(envelope: Envelope[Any], *, database: Any) -> None: ...

    async with world.open() as bus:
        for handler in (yields, yields_too, nothing, three, untyped, named, Seen, "handle"):
            refusal = ""
            try:
                await bus.subscribe_envelope(TOPIC, handler)  # type: ignore[arg-type]
            except BusError as error:
                refusal = str(error)
            assert str(getattr(handler, "__name__", handler)) in refusal, handler


@scenario
async def a_plain_function_around_a_coroutine_function_is_awaited(world: World) -> None:
    seen = Seen()

    async with world.open() as bus:
        await bus.subscribe_envelope(TOPIC, lambda envelope: seen(envelope))
        await bus.publish_envelope_sync(TOPIC, event(1))
        await seen.count(1)


@scenario
async def what_fails_behind_the_scenes_is_tried_again(world: World) -> None:
    def failing(function: Any) -> Any:
        """Return the function, which panics the first time."""
        is_first = True

        async def call(*arguments: Any) -> Any:
            nonlocal is_first
            if is_first:
                is_first = False
                raise Panic("once")
            return await function(*arguments)

        return call

    fast = BacklogConfig(max_lag=1, interval=0.01), HealthConfig(interval=0.01)
    async with world.open(backlog=fast[0], health=fast[1]) as bus:
        engine: Any = bus.engine
        for name in ("fetch", "lag", "echo"):
            setattr(engine, name, failing(getattr(engine, name)))
        bus.on_backlog(lambda _: None)
        bus.on_health(lambda _: None)
        seen = Seen()
        seen.failing = lambda _: len(seen.attempts) < 3
        await bus.subscribe_envelope(TOPIC, seen)
        await bus.publish_envelope_batch(TOPIC, [event(n) for n in range(3)])
        await seen.count(3)
        await until(lambda: bus.health().heartbeat.round_trip_s > 0)

        assert seen.numbers() == [0, 1, 2]
