"""Publishing and topics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

from penstock.bus.config.bus import TopicOptions
from penstock.bus.contract.world import DEADLINE_S, TOPIC, Seen, World, event, scenario, until
from penstock.bus.engine import Delivery
from penstock.bus.events.envelope import Envelope
from penstock.bus.results import PublishResult
from penstock.errors import (
    BatchFailed,
    BusClosed,
    BusError,
    DeadlineExceeded,
    InvalidEnvelope,
    MessageTooLarge,
    TopicMismatch,
)

SMALL, LARGE = 4 * 1024 * 1024, 8 * 1024 * 1024
"""Two limits of a topic."""


@scenario
async def an_event_arrives_as_it_was_published(world: World) -> None:
    async with world.open() as bus:
        seen = Seen()
        await bus.subscribe_envelope(TOPIC, seen)
        envelope = event(1, trace_id="t", correlation_id="c", tenant_id=7)
        await bus.publish_envelope(TOPIC, envelope)
        await seen.count(1)

        assert seen.events == [envelope]


@scenario
async def a_receipt_names_growing_sequences(world: World) -> None:
    async with world.open() as bus:
        receipts = [await bus.publish_envelope_sync(TOPIC, event(n)) for n in range(3)]

        sequences = [receipt.sequence for receipt in receipts]
        assert sequences == sorted(set(sequences))
        assert not any(receipt.duplicate for receipt in receipts)


@scenario
async def an_event_published_again_is_stored_once(world: World) -> None:
    async with world.open() as bus:
        if not bus.features.deduplicates:
            return
        envelope = event(1)
        first = await bus.publish_envelope_sync(TOPIC, envelope)
        again = await bus.publish_envelope_sync(TOPIC, envelope)

        assert (first.sequence, False, True) == (again.sequence, first.duplicate, again.duplicate)


@scenario
async def an_event_sent_on_to_another_topic_is_stored_there_too(world: World) -> None:
    async with world.open() as bus:
        seen = Seen()
        await bus.subscribe_envelope("billing.*", seen)

        async def send_on(envelope: Envelope[Any]) -> None:
            await bus.publish_envelope("billing.todo", envelope)
            await bus.publish("billing.raw", bus.codec.encode(envelope), message_id="same")

        await bus.subscribe_envelope(TOPIC, send_on)
        await bus.publish(TOPIC, bus.codec.encode(event(1)), message_id="same")
        await seen.count(2)

        assert seen.numbers() == [1, 1]


@scenario
async def bytes_sent_on_with_their_headers_are_stored_there_too(world: World) -> None:
    async with world.open() as bus:
        arrived: asyncio.Queue[Delivery] = asyncio.Queue()

        async def send_on(message: Delivery) -> None:
            await bus.publish("copies", message.payload, headers=message.headers)

        async def take(message: Delivery) -> None:
            arrived.put_nowait(message)

        await bus.subscribe_envelope("originals", send_on)
        await bus.subscribe_envelope("copies", take)
        await bus.publish("originals", b"1", headers=[("k", "v")], message_id="same")
        first = await asyncio.wait_for(arrived.get(), DEADLINE_S)
        await bus.publish_envelope_sync("originals", event(2))
        second = await asyncio.wait_for(arrived.get(), DEADLINE_S)

        assert (first.payload, first.header("k")) == (b"1", "v")
        assert bus.codec.decode(second.payload).payload == {"number": 2}


@scenario
async def a_batch_returns_a_receipt_for_each(world: World) -> None:
    async with world.open(publisher={"max_pending": 10}) as bus:
        receipts = await bus.publish_envelope_batch(TOPIC, [event(n) for n in range(100)])

        assert len({receipt.sequence for receipt in receipts}) == 100
        assert await bus.publish_envelope_batch(TOPIC, []) == []


@scenario
async def a_batch_names_every_failure_and_stores_the_others(world: World) -> None:
    async with world.open() as bus:
        seen = Seen()
        await bus.subscribe_envelope(TOPIC, seen)
        batch = [event(n) for n in range(10)]
        for index in (3, 7):
            batch[index] = batch[index].with_payload(object())
        try:
            await bus.publish_envelope_batch(TOPIC, batch)
        except BatchFailed as error:
            failures = error.failures
        await seen.count(8)

        assert list(failures) == [3, 7]
        assert all(isinstance(error, InvalidEnvelope) for error in failures.values())
        assert seen.numbers() == [0, 1, 2, 4, 5, 6, 8, 9]


@scenario
async def a_full_window_makes_the_publisher_wait(world: World) -> None:
    async with world.open(publisher={"max_pending": 10}) as bus:
        highest = 0
        for number in range(500):
            await bus.publish_envelope(TOPIC, event(number))
            highest = max(highest, bus.health().unacked)
        await bus.flush()

        assert highest == 10
        assert (bus.metrics.publish_acked_total, bus.health().unacked) == (500, 0)


@scenario
async def a_callback_is_told_how_each_publish_ended(world: World) -> None:
    async with world.open() as bus:
        results: list[PublishResult] = []
        bus.on_published(results.append)
        sent = [event(n) for n in range(5)]
        for envelope in sent:
            await bus.publish_envelope(TOPIC, envelope)
        await bus.flush()

        assert [result.event_id for result in results] == [one.event_id for one in sent]
        assert all(result.success for result in results)


@scenario
async def results_are_streamed_to_all_and_by_tenant(world: World) -> None:
    async with world.open() as bus:
        with bus.results() as everything, bus.results(7) as sevens:
            for tenant_id in (7, 8, None, 7):
                await bus.publish_envelope(TOPIC, event(1, tenant_id=tenant_id))
            await bus.flush()
            assert [(await anext(everything)).tenant_id for _ in range(4)] == [7, 8, None, 7]
            assert [(await anext(sevens)).tenant_id for _ in range(2)] == [7, 7]
            assert len(sevens) == 0


@scenario
async def no_result_is_lost_when_nobody_reads_them(world: World) -> None:
    async with world.open(publisher={"max_results": 5}) as bus:
        with bus.results() as results:
            publishing = asyncio.ensure_future(_publish(bus, 20))
            await until(lambda: len(results) == 5)
            assert not publishing.done()
            read = [await anext(results) for _ in range(20)]
            await publishing

            assert [one.envelope.payload["number"] for one in read if one.envelope] == list(
                range(20)
            )


@scenario
async def a_deadline_ends_the_wait_for_room(world: World) -> None:
    async with world.open(publisher={"max_results": 1}) as bus:
        with bus.results():
            await bus.publish_envelope(TOPIC, event(0))
            try:
                await bus.publish_envelope(TOPIC, event(1), timeout_s=0.05)
            except DeadlineExceeded:
                return
            raise AssertionError("there was room")


@scenario
async def publishers_that_give_up_leave_their_room_to_others(world: World) -> None:
    async with world.open(publisher={"max_pending": 1}) as bus:
        await bus.configure_topic(TOPIC)
        publishing = [
            asyncio.ensure_future(bus.publish_envelope_sync(TOPIC, event(number)))
            for number in range(20)
        ]
        await asyncio.sleep(0)
        for task in publishing[1:10]:
            task.cancel()
        await asyncio.wait(publishing, timeout=10)

        assert [task.cancelled() for task in publishing] == [False, *[True] * 9, *[False] * 10]


@scenario
async def publishers_that_give_up_leave_their_place_in_the_results(world: World) -> None:
    async with world.open(publisher={"max_pending": 1, "max_results": 2}) as bus:
        await bus.configure_topic(TOPIC)
        with bus.results():
            publishing = [
                asyncio.ensure_future(bus.publish_envelope(TOPIC, event(number)))
                for number in range(3)
            ]
            await asyncio.sleep(0)
            publishing[1].cancel()
            await asyncio.wait(publishing, timeout=10)

            assert [task.done() for task in publishing] == [True] * 3


@scenario
async def a_rate_limit_spreads_publishes_over_time(world: World) -> None:
    async with world.open(publisher={"rate": 200.0, "rate_burst": 1}) as bus:
        await bus.configure_topic(TOPIC)
        started_s = monotonic()
        await _publish(bus, 41)

        assert monotonic() - started_s >= 39 / 200


@scenario
async def large_events_travel_compressed(world: World) -> None:
    async with world.open(publisher={"compression": "zstd", "compress_from": 500}) as bus:
        seen, sizes = Seen(), []
        await bus.subscribe_envelope(TOPIC, seen)
        bus.on_published(lambda result: sizes.append(len(result.payload)))
        envelope = event(1).with_payload({"number": 1, "text": "x" * 5000})
        await bus.publish_envelope(TOPIC, envelope)
        await seen.count(1)
        await bus.flush()

        assert seen.events == [envelope]
        assert sizes[0] < 500


@scenario
async def bytes_travel_as_they_are_with_their_headers(world: World) -> None:
    async with world.open() as bus:
        received: asyncio.Queue[Delivery] = asyncio.Queue()

        async def take(message: Delivery) -> None:
            received.put_nowait(message)

        await bus.subscribe_envelope("raw.*", take)
        await bus.publish("raw.a", b"\x00\xff", headers=[("k", "1"), ("k", "2")])
        message = await asyncio.wait_for(received.get(), 10)

        assert (message.topic, message.payload) == ("raw.a", b"\x00\xff")
        assert message.headers == [("k", "1"), ("k", "2")]


@scenario
async def an_ephemeral_topic_is_delivered_and_not_kept(world: World) -> None:
    async with world.open() as bus:
        if not bus.features.ephemeral:
            return
        seen = Seen()
        report = await bus.configure_topic("clicks", persistence="ephemeral")
        await bus.subscribe_envelope("clicks", seen)
        await bus.engine.flush()
        assert await bus.publish("clicks", bus.codec.encode(event(1))) is None
        await bus.publish_envelope("clicks", event(2))
        await seen.count(2)

        assert report.action == "ephemeral"
        assert seen.numbers() == [1, 2]
        assert [one async for one in bus.replay("clicks")] == []


@scenario
async def a_topic_keeps_to_its_own_limits(world: World) -> None:
    async with world.open() as bus:
        if not bus.features.limits_messages:
            return
        seen = Seen()
        await bus.configure_topic("small", max_msgs=5)
        await bus.subscribe_envelope(">", seen)
        await bus.publish_envelope_batch("small", [event(n) for n in range(20)])
        await bus.publish_envelope_batch("large", [event(n, "b") for n in range(20)])
        await seen.until(lambda: len(seen.numbers("b")) == 20)

        kept = [envelope.payload["number"] async for _, envelope in bus.replay("small")]
        assert kept == [15, 16, 17, 18, 19]
        assert len([one async for one in bus.replay("large")]) == 20


@scenario
async def configuring_a_topic_twice_changes_nothing(world: World) -> None:
    async with world.open() as bus:
        reports = [await bus.configure_topic("t", max_bytes=SMALL) for _ in range(2)]

        assert [report.action for report in reports] == ["created", "kept"]
        assert reports[1].in_sync


@scenario
async def create_only_never_changes_a_topic(world: World) -> None:
    async with world.open() as first:
        await first.configure_topic("t", max_bytes=SMALL)
    async with world.open(strategy="create_only") as bus:
        report = await bus.configure_topic("t", max_bytes=LARGE)
        drifts = [(drift.field, drift.expected, drift.actual) for drift in report.drifts]

        assert (report.action, drifts) == ("kept", [("max_bytes", LARGE, SMALL)])
        assert not (await bus.check_topic("t")).in_sync


@scenario
async def create_or_update_makes_a_topic_as_declared(world: World) -> None:
    async with world.open() as first:
        await first.configure_topic("t", max_bytes=SMALL)
    async with world.open(strategy="create_or_update") as bus:
        report = await bus.configure_topic("t", max_bytes=LARGE, retention=3600.0)

        assert report.action == "updated"
        assert {drift.field for drift in report.drifts} == {"max_bytes", "retention"}
        assert (await bus.check_topic("t")).in_sync


@scenario
async def validate_only_compares_with_the_broker_and_changes_nothing(world: World) -> None:
    wanted = TopicOptions(max_bytes=LARGE)
    async with world.open(strategy="validate_only") as bus:
        assert not (await _mismatch(bus, wanted)).exists
    async with world.open() as first:
        await first.configure_topic("t", max_bytes=SMALL)
    async with world.open(strategy="validate_only") as bus:
        report = await _mismatch(bus, wanted)
        assert [drift.field for drift in report.drifts] == ["max_bytes"]
        assert (await bus.configure_topic("t", max_bytes=SMALL)).in_sync


@scenario
async def skip_looks_at_nothing(world: World) -> None:
    async with world.open() as first:
        await first.configure_topic("t", max_bytes=SMALL)
    async with world.open(strategy="skip") as bus:
        assert (await bus.configure_topic("t", max_bytes=LARGE)).action == "skipped"
        await bus.publish_envelope_sync("t", event(1))


@scenario
async def names_that_are_no_topics_are_refused(world: World) -> None:
    async with world.open() as bus:
        for name in ("", "a..b", "a b", "a.*", ">", "é", "x" * 256):
            try:
                await bus.publish_envelope(name, event(1))
            except BusError:
                continue
            raise AssertionError(f"`{name}` was taken for a topic")


@scenario
async def a_closed_bus_refuses_to_publish_and_stays_closed(world: World) -> None:
    bus = world.open()
    async with bus:
        await bus.publish_envelope_sync(TOPIC, event(1))
    await bus.close()
    for use in (lambda: bus.publish_envelope(TOPIC, event(2)), bus.__aenter__):
        try:
            await use()
        except BusClosed:
            continue
        raise AssertionError("a closed bus was used")


async def _publish(bus: Any, count: int) -> None:
    for number in range(count):
        await bus.publish_envelope(TOPIC, event(number))


async def _mismatch(bus: Any, options: TopicOptions) -> Any:
    try:
        await bus.configure_topic("t", options)
    except TopicMismatch as error:
        return error.report
    raise AssertionError("no mismatch was found")


@scenario
async def an_event_that_is_too_large_fails_like_any_other(world: World) -> None:
    async with world.open() as bus:
        results: list[Any] = []
        bus.on_published(results.append)
        await bus.publish_envelope_sync(TOPIC, event(1))
        large = event(2).with_payload("x" * (9 * 1024 * 1024))
        await bus.publish_envelope(TOPIC, large)
        await bus.publish_envelope(TOPIC, event(3))
        await bus.flush()

        assert [result.success for result in results] == [False, True]
        assert bus.metrics.publish_failed_total == 1
        refusal = ""
        try:
            await bus.publish_envelope_sync(TOPIC, large)
        except MessageTooLarge as error:
            refusal = str(error)
        assert refusal


@scenario
async def what_cannot_travel_is_refused_where_it_is_written(world: World) -> None:
    async with world.open() as bus:
        bad: list[Any] = [("", "a"), ("a:b", "c"), ("ä", "a"), ("a b", "c"), ("a",), "ab"]
        bad += [("a", "\ud800"), ("a", "b\nc: d")]
        for header in bad:
            refusal = ""
            try:
                await bus.publish(TOPIC, b"", headers=[header])
            except BusError as error:
                refusal = str(error)
            assert "is no header" in refusal, header
        await bus.publish(TOPIC, b"", headers=[("Color", "grün")])
        try:
            await bus.publish(TOPIC, b"", headers=[("Nats-Msg-Id", "1")])
        except BusError as error:
            refusal = str(error)
        assert "`message_id`" in refusal, refusal
        for name, text in [("key", "\ud800"), ("message_id", "\ud800"), ("message_id", "a\nb: c")]:
            refusal = ""
            try:
                await bus.publish(TOPIC, b"", **{name: text})  # type: ignore[arg-type]
            except BusError as error:
                refusal = str(error)
            assert f"`{name}` must be" in refusal, (name, text)


@scenario
async def several_may_look_at_what_goes_out_and_comes_in(world: World) -> None:
    shown: list[str] = []
    async with world.open() as bus:
        seen = Seen()
        await bus.subscribe_envelope(TOPIC, seen)
        for name in ("first", "second"):
            bus.instrument(
                outgoing=lambda _, name=name: shown.append(f"{name} out"),  # type: ignore[misc]
                delivery=lambda _, name=name: shown.append(f"{name} in"),  # type: ignore[misc]
            )
        await bus.publish_envelope(TOPIC, event(1))
        await seen.count(1)

    assert shown == ["first out", "second out", "first in", "second in"]


@scenario
async def a_bus_says_how_it_is_before_and_after_it_is_open(world: World) -> None:
    bus = world.open()
    before = bus.health()
    async with bus:
        during = bus.health()
    after = bus.health()

    assert [one.connected for one in (before, during, after)] == [False, True, False]
    assert bus.snapshot().prometheus()
    refusal = ""
    try:
        bus.on(TOPIC)(Seen())
    except BusClosed as error:
        refusal = str(error)
    assert "closed" in refusal


@scenario
async def a_bus_used_on_another_loop_names_the_one_for_threads(world: World) -> None:
    async with world.open() as bus:
        await bus.publish_envelope_sync(TOPIC, event(1))

        async def elsewhere(use: Callable[[], Any]) -> None:
            result = use()
            if asyncio.iscoroutine(result):
                await result

        def refused(use: Callable[[], Any]) -> str:
            try:
                asyncio.run(elsewhere(use))
            except BusError as error:
                return str(error)
            return "it was taken"

        uses: list[Callable[[], Any]] = [
            lambda: bus.publish_envelope(TOPIC, event(2)),
            lambda: bus.subscribe_envelope(TOPIC, Seen()),
            lambda: bus.reopen("a"),
            bus.drain,
            bus.close,
        ]
        for use in uses:
            assert "`SyncEventBus`" in await asyncio.to_thread(refused, use)
        await bus.publish_envelope_sync(TOPIC, event(3))


@scenario
async def drain_returns_once_all_that_is_stored_is_handled(world: World) -> None:
    async with world.open() as bus:
        seen = Seen()
        await bus.subscribe_envelope(TOPIC, seen)
        for number in range(100):
            await bus.publish_envelope(TOPIC, event(number, f"k{number % 7}"))
        await bus.drain()

        assert len(seen.events) == 100


@scenario
async def drain_waits_for_the_last_attempt_and_not_for_keys_that_are_blocked(world: World) -> None:
    async with world.open(subscriber={"max_attempts": 3, "backoff": 0.2}) as bus:
        seen = Seen()
        seen.failing = lambda one: one.aggregate_id == "never" or len(seen.attempts) < 4
        await bus.subscribe_envelope(TOPIC, seen)
        await bus.publish_envelope_batch(TOPIC, [event(1), event(2, "never")])
        await bus.drain()

        assert (seen.numbers(), bus.metrics.dead_letters_total) == ([1], 1)
        assert (await bus.backlog()).messages == 0
    async with world.open(
        service="blocks", subscriber={"max_attempts": 1, "on_exhausted": "block"}
    ) as bus:
        seen = Seen()
        seen.failing = lambda one: one.aggregate_id == "never"
        await bus.subscribe_envelope(TOPIC, seen)
        await bus.publish_envelope_batch(TOPIC, [event(3, "never"), event(4)])
        await bus.drain()

        assert (seen.numbers(), list(bus.health().parked_keys)) == ([1, 4], ["never"])


@scenario
async def only_the_bus_stores_dead_letters(world: World) -> None:
    async with world.open(subscriber={"dead_letter_prefix": "orders", "max_attempts": 1}) as bus:
        seen = Seen()
        seen.failing = lambda _: True
        await bus.subscribe_envelope("bills", seen)
        await bus.publish_envelope_batch("bills", [event(1)])
        await until(lambda: bus.metrics.dead_letters_total == 1)
        # Its target is known by now.
        for publishing in (
            bus.publish("orders.bills", b""),
            bus.publish_envelope("orders.bills", event(2)),
            bus.publish_envelope_sync("orders.bills", event(2)),
            bus.publish_envelope_batch("orders.bills", [event(2)]),
        ):
            assert "another `subscriber.dead_letter_prefix`" in await _refused(publishing)

        assert await bus.engine.count_dead_letters() == 1


async def _refused(awaitable: Awaitable[Any]) -> str:
    try:
        await awaitable
    except (BusError, BatchFailed) as error:
        return str(error)
    return "it was taken"


@scenario
async def events_are_not_read_as_dead_letters(world: World) -> None:
    async with world.open(service="publishing") as publishing:
        await publishing.publish_envelope_sync(TOPIC, event(1))
        prefix = TOPIC.partition(".")[0]
        async with world.open(subscriber={"dead_letter_prefix": prefix}) as bus:
            if not bus.features.by_pattern:
                return  # Kafka keeps both in one topic
            for pattern in (TOPIC, f"{prefix}.*"):
                told = await _refused(bus.subscribe_envelope(pattern, Seen()))
                assert "dead letters would be read" in told, told
            seen = Seen()
            await bus.subscribe_envelope("bills", seen)
            await publishing.publish_envelope_sync("bills", event(2))
            await seen.count(1)
