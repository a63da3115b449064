"""The bus on Kafka while brokers fail, partitions move, and processes are killed."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from tests.aio import asynchronous, until

pytest.importorskip("confluent_kafka", reason="needs the extra `kafka`")

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from tests.contract.kafkamock import (
    COORDINATOR_LOADING,
    ILLEGAL_GENERATION,
    NOT_ENOUGH_REPLICAS,
    NOT_LEADER,
    NOT_PERMITTED,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    PRODUCE,
    MockCluster,
)

from penstock.bus import BusConfig, Envelope, EventBus, PublisherConfig, SubscriberConfig
from penstock.bus.config.kafka import KafkaConfig, KafkaConsumerConfig, KafkaProducerConfig
from penstock.bus.deadletters.stored import DeadLetterBox, Selection
from penstock.bus.engine import ReplayFrom
from penstock.bus.engines.kafka import reader
from penstock.bus.engines.kafka.engine import KafkaEngine
from penstock.bus.outbox import SQLITE, Outbox, Relay, SqliteStore
from penstock.bus.testing.kafka import KafkaBroker, classpath
from penstock.errors import BusError, ConnectFailed, MissingExtra, PenstockError, RequestTimeout
from penstock.net.process import free_ports

KEYS, EVENTS = 20, 1000
REFUSALS = 20
"""How many commits are refused in a row, whoever makes them."""

WAIT_S = 50.0
"""How long what must happen may take on a machine that is busy."""


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        yield cluster


def on_mock(cluster: MockCluster, **consumer: Any) -> BusConfig:
    # The mock waits for a session, less a second, before it rebalances a group.
    settings = KafkaConsumerConfig(**{"discovery_interval": 0.3, "session_timeout": 1.3} | consumer)
    kafka = KafkaConfig(brokers=cluster.addresses, consumer=settings)
    return BusConfig(
        type="kafka",
        strategy="skip",
        namespace=f"n{uuid.uuid4().hex[:12]}",
        kafka=kafka,
        publisher=PublisherConfig(publish_timeout=30.0),
        subscriber=SubscriberConfig(backoff=0.02),
    )


def on_broker(broker: KafkaBroker, **consumer: Any) -> BusConfig:
    settings = KafkaConsumerConfig(discovery_interval=0.3, **consumer)
    return BusConfig(
        type="kafka",
        namespace=f"n{uuid.uuid4().hex[:12]}",
        kafka=KafkaConfig(brokers=(broker.address,), consumer=settings),
        subscriber=SubscriberConfig(backoff=0.02),
    )


def event(number: int) -> Envelope[Any]:
    return Envelope(aggregate_id=f"k{number % KEYS}", event_type="t", payload=number)


def in_order(events: int = EVENTS) -> dict[str, list[int]]:
    return {f"k{key}": list(range(key, events, KEYS)) for key in range(KEYS)}


def by_key(handled: list[int]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {f"k{key}": [] for key in range(KEYS)}
    for number in handled:
        found[f"k{number % KEYS}"].append(number)
    return found


class Handled:
    """A handler that remembers what came, also when several buses call it."""

    def __init__(self, wait_s: float = 0.0) -> None:
        self.numbers: list[int] = []
        self._wait_s = wait_s

    async def __call__(self, envelope: Envelope[Any]) -> None:
        await asyncio.sleep(self._wait_s)
        self.numbers.append(envelope.payload)


@asynchronous
async def test_produces_that_are_refused_for_now_are_stored_once_and_in_order(
    cluster: MockCluster,
) -> None:
    async with EventBus(on_mock(cluster)) as bus:
        await bus.publish_envelope_sync("orders", event(0))
        for number in range(1, EVENTS):
            await bus.publish_envelope("orders", event(number))
            if number % 250 == 0:
                cluster.fail(PRODUCE, NOT_ENOUGH_REPLICAS, NOT_LEADER, NOT_ENOUGH_REPLICAS)
        await bus.flush()
        stored = [envelope.payload async for _, envelope in bus.replay("orders")]

        assert in_order() == by_key(stored)
        assert 0 == bus.metrics.publish_failed_total


@asynchronous
async def test_brokers_that_are_away_for_longer_than_a_session_lose_repeat_and_reorder_nothing(
    cluster: MockCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with EventBus(on_mock(cluster, commit_interval=WAIT_S)) as bus:
        handled = Handled()
        back: list[None] = []
        bus.on_reconnected(lambda: back.append(None))
        await bus.subscribe_envelope("orders", handled)
        for number in range(EVENTS // 2):
            await bus.publish_envelope("orders", event(number))
        await until(lambda: handled.numbers)
        for broker in cluster.brokers:
            cluster.down(broker)
        publishing = asyncio.create_task(_publish(bus, range(EVENTS // 2, EVENTS)))
        await until(lambda: not bus.health().connected)
        assert bus.health().last_error
        await until(lambda: "were lost" in caplog.text, WAIT_S)
        for broker in cluster.brokers:
            cluster.up(broker)
        await publishing
        await bus.flush()
        await until(lambda: len(set(handled.numbers)) == EVENTS, 40)

        # The only process gets its partitions back, and goes on where it stood.
        assert in_order() == by_key(handled.numbers)
        assert 0 == bus.metrics.publish_failed_total
        await until(lambda: back and bus.health().connected)


@asynchronous
async def test_a_slow_cluster_makes_publishers_wait_for_the_window(cluster: MockCluster) -> None:
    base = on_mock(cluster)
    base = replace(base, publisher=PublisherConfig(max_pending=10))
    base = replace(base, kafka=replace(base.kafka, producer=KafkaProducerConfig(linger=0.0)))
    async with EventBus(base) as bus:
        await bus.publish_envelope_sync("orders", event(0))
        for broker in cluster.brokers:
            cluster.delay(broker, 100)
        started_s, highest = monotonic(), 0
        for number in range(1, 31):
            await bus.publish_envelope("orders", event(number))
            highest = max(highest, bus.health().unacked)
        await bus.flush()

        assert 10 == highest
        assert monotonic() - started_s >= 0.2
        assert 0 == bus.metrics.publish_failed_total


@asynchronous
async def test_an_ack_that_does_not_come_is_reported_in_time(cluster: MockCluster) -> None:
    base = replace(on_mock(cluster), publisher=PublisherConfig(publish_timeout=0.5))
    async with EventBus(replace(base, shutdown_timeout=0.5)) as bus:
        await bus.publish_envelope("orders", event(0), timeout_s=20)
        await bus.flush()
        for broker in cluster.brokers:
            cluster.down(broker)
        with pytest.raises(RequestTimeout, match=r"0\.5 s"):
            await bus.publish_envelope_sync("orders", event(1))


async def lose_partitions(
    bus: EventBus, cluster: MockCluster, log: pytest.LogCaptureFixture, losses: int
) -> None:
    """Have a group lose all its partitions, for the first or a later time."""
    cluster.fail(OFFSET_COMMIT, ILLEGAL_GENERATION)
    async with asyncio.timeout(WAIT_S):
        while log.text.count("partitions were lost") < losses:
            await bus.engine.flush()


@asynchronous
async def test_commits_that_are_refused_for_now_are_made_later(cluster: MockCluster) -> None:
    base = on_mock(cluster)
    async with EventBus(base) as bus:
        handled = Handled()
        await bus.subscribe_envelope("orders", handled)
        await bus.publish_envelope_batch("orders", [event(n) for n in range(100)])
        cluster.fail(OFFSET_COMMIT, COORDINATOR_LOADING)
        await until(lambda: len(handled.numbers) == 100)
    async with EventBus(base) as bus:
        again = Handled()
        await bus.subscribe_envelope("orders", again)
        await bus.publish_envelope_sync("orders", event(100))
        await until(lambda: again.numbers)

        assert [100] == again.numbers


@asynchronous
async def test_a_bus_that_closes_waits_until_its_commit_is_taken(cluster: MockCluster) -> None:
    base = on_mock(cluster, commit_interval=WAIT_S)
    async with EventBus(base) as bus:
        handled = Handled()
        await bus.subscribe_envelope("orders", handled)
        await bus.publish_envelope_batch("orders", [event(n) for n in range(100)])
        await until(lambda: len(handled.numbers) == 100, WAIT_S)
        cluster.fail(OFFSET_COMMIT, *[NOT_PERMITTED] * 5)
    async with EventBus(base) as bus:
        again = Handled()
        await bus.subscribe_envelope("orders", again)
        await bus.publish_envelope_sync("orders", event(100))
        await until(lambda: again.numbers, WAIT_S)

        assert [100] == again.numbers


@asynchronous
async def test_a_bus_that_closes_says_how_many_events_may_come_again(
    cluster: MockCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with EventBus(
        replace(on_mock(cluster, commit_interval=WAIT_S), shutdown_timeout=2.0)
    ) as bus:
        handled = Handled()
        await bus.subscribe_envelope("orders", handled)
        for numbers in (range(40), range(40, 100)):
            await bus.publish_envelope_batch("orders", [event(n) for n in numbers])
            await until(lambda: len(handled.numbers) == numbers.stop, WAIT_S)  # noqa: B023
            await until(lambda: bus.engine.untold == len(numbers), WAIT_S)  # noqa: B023
            if numbers.start == 0:
                await bus.engine.flush()
                assert 0 == bus.engine.untold
        cluster.fail(OFFSET_COMMIT, *[NOT_PERMITTED] * 10_000)

    assert "that 60 events were handled, so they may come again" in caplog.text


@asynchronous
async def test_a_bus_that_closes_does_not_wait_for_brokers_after_its_time(
    cluster: MockCluster, caplog: pytest.LogCaptureFixture
) -> None:
    base = replace(on_mock(cluster, commit_interval=WAIT_S), shutdown_timeout=2.0)
    async with EventBus(base) as bus:
        handled = Handled()
        await bus.subscribe_envelope("orders", handled)
        await bus.publish_envelope_batch("orders", [event(n) for n in range(40)])
        await until(lambda: len(handled.numbers) == 40, WAIT_S)
        for broker in cluster.brokers:
            cluster.delay(broker, 60_000)

    assert "that 40 events were handled, so they may come again" in caplog.text
    assert f"the group was not left in {reader.LEAVING_AWAY_S_MAX} s" in caplog.text


@asynchronous
async def test_commits_that_meet_a_rebalance_repeat_nothing_in_the_process_that_goes_on(
    cluster: MockCluster, caplog: pytest.LogCaptureFixture
) -> None:
    base = on_mock(cluster, commit_interval=WAIT_S)
    async with EventBus(base) as bus:
        handled = Handled()
        await bus.subscribe_envelope("orders", handled)
        await bus.publish_envelope_batch("orders", [event(n) for n in range(EVENTS // 2)])
        await until(lambda: len(handled.numbers) == EVENTS // 2, WAIT_S)
        for losses in range(1, 3):
            cluster.fail(OFFSET_FETCH, NOT_PERMITTED)  # where they stand is asked again
            await lose_partitions(bus, cluster, caplog, losses)
        await bus.publish_envelope_batch("orders", [event(n) for n in range(EVENTS // 2, EVENTS)])
        await until(lambda: len(set(handled.numbers)) == EVENTS, WAIT_S)

        assert in_order() == by_key(handled.numbers)


@asynchronous
async def test_partitions_that_come_back_while_keys_wait_for_another_attempt_repeat_nothing(
    cluster: MockCluster, caplog: pytest.LogCaptureFixture
) -> None:
    settings = SubscriberConfig(backoff=0.02, max_backoff=0.2, max_attempts=1_000_000)
    base = replace(on_mock(cluster, commit_interval=WAIT_S), subscriber=settings)
    handled: list[int] = []
    is_failing, stuck = True, range(KEYS, 3 * KEYS // 2)

    async def handle(envelope: Envelope[Any]) -> None:
        if is_failing and envelope.payload in stuck:
            raise RuntimeError("not yet")
        handled.append(envelope.payload)

    async with EventBus(base) as bus:
        await bus.subscribe_envelope("orders", handle)
        await bus.publish_envelope_batch("orders", [event(n) for n in range(EVENTS // 2)])
        for losses in range(1, 3):
            await until(lambda: len(bus.health().parked_keys) == len(stuck), WAIT_S)
            await until(lambda: len(set(handled)) == (EVENTS // 2 + KEYS) // 2, WAIT_S)
            await lose_partitions(bus, cluster, caplog, losses)
        is_failing = False
        await bus.publish_envelope_batch("orders", [event(n) for n in range(EVENTS // 2, EVENTS)])
        await until(lambda: len(set(handled)) == EVENTS, WAIT_S)

    assert in_order() == by_key(handled)


@pytest.mark.parametrize("error", [COORDINATOR_LOADING, ILLEGAL_GENERATION])
@asynchronous
async def test_a_topic_that_brokers_find_later_than_others_repeats_nothing(
    cluster: MockCluster, error: int
) -> None:
    base = on_mock(cluster, commit_interval=WAIT_S)
    async with EventBus(base) as bus:
        handled, bills = Handled(), Handled()
        await bus.subscribe_envelope("orders", handled)
        await bus.subscribe_envelope("bills", bills)
        await bus.publish_envelope_sync("bills", event(0))
        await bus.publish_envelope_batch("orders", [event(n) for n in range(EVENTS // 2)])
        await until(lambda: len(handled.numbers) == EVENTS // 2 and bills.numbers, WAIT_S)
        (all_of_them,) = bus.health().members.values()
        cluster.fail(OFFSET_COMMIT, *[error] * REFUSALS)
        cluster.hide(f"{base.namespace}.orders")
        await bus.engine.flush()
        await until(lambda: 0 < max(bus.health().members.values()) < all_of_them, WAIT_S)
        cluster.hide(f"{base.namespace}.orders", is_hidden=False)
        await bus.publish_envelope_batch("orders", [event(n) for n in range(EVENTS // 2, EVENTS)])
        await until(lambda: len(set(handled.numbers)) == EVENTS, WAIT_S)

        assert in_order() == by_key(handled.numbers)


@asynchronous
async def test_that_no_broker_is_there_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    (port,) = free_ports(1)
    kafka = KafkaConfig(brokers=(f"127.0.0.1:{port}",), connection_timeout=1.0)
    with pytest.raises(ConnectFailed):
        async with EventBus(BusConfig(type="kafka", kafka=kafka, connect_timeout=0.0)):
            pass

    refused = [one for one in caplog.messages if f"{port} failed: Connection refused" in one]
    assert 1 == len(refused), refused


@asynchronous
async def test_a_number_of_dead_letters_of_two_topics_is_not_guessed_at(
    cluster: MockCluster,
) -> None:
    async with EventBus(on_mock(cluster)) as bus:
        for topic in ("orders", "bills"):
            await bus._publisher.store(f"dead-letters.{topic}", b"x", key="k")
        box = DeadLetterBox(bus)
        number = (await anext(box.find())).number
        assert "bills" == (await box.show(number, topic="bills")).topic
        with pytest.raises(BusError, match="`bills`, `orders`; hint: name the topic"):
            await box.show(number)
        with pytest.raises(BusError, match="`bills`, `orders`; hint: name the topic"):
            await box.discard(Selection(numbers=frozenset((number,))))
        gone = await box.discard(Selection(topic="bills", numbers=frozenset((number,))))

        assert ["bills"] == [letter.topic for letter in gone]
        assert ["orders"] == [letter.topic async for letter in box.find()]


@asynchronous
async def test_the_command_replays_and_discards_dead_letters(kafka: KafkaBroker) -> None:
    base = on_broker(kafka)
    at = ("--all", "--bus", kafka.url, "--namespace", base.namespace)

    async def penstock(verb: str, *options: str) -> None:
        command = [sys.executable, "-m", "penstock", "dlq", verb, *at, *options]
        ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
        assert 0 == ended.returncode, ended.stderr

    async with EventBus(base) as bus:
        for topic in ("orders", "bills"):
            await bus._publisher.store(f"dead-letters.{topic}", bus.codec.encode(event(1)), key="k")
        await penstock("replay", "--topic", "orders")
        box = DeadLetterBox(bus)
        left = [letter.topic async for letter in box.find()]
        replayed = [envelope.payload async for _, envelope in bus.replay("orders")]
        await penstock("discard")

        assert (["bills"], [1]) == (left, replayed)
        assert [] == [letter async for letter in box.find()]


@asynchronous
async def test_a_key_may_be_parked_for_longer_than_the_poll_interval(
    cluster: MockCluster, caplog: pytest.LogCaptureFixture
) -> None:
    base = on_mock(cluster, max_poll_interval=1.5, max_ack_pending=20)
    base = replace(base, subscriber=SubscriberConfig(backoff=0.1, max_attempts=1000))
    async with EventBus(base) as bus:
        handled = Handled()
        is_healed = False

        async def handle(envelope: Envelope[Any]) -> None:
            if envelope.aggregate_id == "k0" and not is_healed:
                raise RuntimeError("not yet")
            await handled(envelope)

        await bus.subscribe_envelope("orders", handle)
        stuck = [event(number * KEYS) for number in range(100)]
        await bus.publish_envelope_batch("orders", stuck)
        await until(lambda: bus.health().in_flight == 20)
        before = list(bus.engine._partitions.values())  # type: ignore[attr-defined]
        await asyncio.sleep(3 * base.kafka.consumer.max_poll_interval)
        is_healed = True
        await until(lambda: len(handled.numbers) == 100)

        assert [one.payload for one in stuck] == handled.numbers
        assert before == list(bus.engine._partitions.values())  # type: ignore[attr-defined]
        assert "were lost" not in caplog.text


@asynchronous
async def test_partitions_move_without_loss_repetition_or_reordering(kafka: KafkaBroker) -> None:
    base = on_broker(kafka, session_timeout=6.0)
    handled = Handled(0.001)
    published, is_over = 0, False

    async def publish() -> None:
        nonlocal published
        while not is_over or published % KEYS:
            await first.publish_envelope("orders", event(published))
            published += 1
            await asyncio.sleep(0.002)

    async with EventBus(base) as first:
        await first.subscribe_envelope("orders", handled)
        publishing = asyncio.create_task(publish())
        await until(lambda: len(handled.numbers) > 50, WAIT_S)
        async with EventBus(base) as second:
            await second.subscribe_envelope("orders", handled)
            await until(lambda: second.metrics.handled_total > 50, WAIT_S)
            assert first.engine._partitions.keys().isdisjoint(  # type: ignore[attr-defined]
                second.engine._partitions.keys()  # type: ignore[attr-defined]
            )
        is_over = True
        await publishing
        await until(lambda: len(handled.numbers) >= published, WAIT_S)

    assert in_order(published) == by_key(handled.numbers)


@asynchronous
async def test_a_handler_that_comes_late_moves_no_partition(kafka: KafkaBroker) -> None:
    async with EventBus(on_broker(kafka)) as bus:
        early, late = Handled(), Handled()
        for topic in ("early", "late"):
            await bus.publish_envelope_batch(topic, [event(n) for n in range(10)])
        await bus.subscribe_envelope("early", early)
        await until(lambda: len(early.numbers) == 10, WAIT_S)
        engine: Any = bus.engine
        before = {id(partition) for partition in engine._partitions.values()}
        assert {"early", "late"} == {one.topic for one in engine._partitions.values()}
        await bus.subscribe_envelope("late", late)
        await until(lambda: len(late.numbers) == 10, WAIT_S)

        assert before == {id(partition) for partition in engine._partitions.values()}
        assert 20 == bus.metrics.received_total


@asynchronous
async def test_closing_commits_what_is_settled_and_nothing_behind_it(kafka: KafkaBroker) -> None:
    base = on_broker(kafka)
    base = replace(base, subscriber=SubscriberConfig(max_attempts=1000, backoff=0.1))
    base = replace(base, kafka=replace(base.kafka, topic=replace(base.kafka.topic, partitions=1)))
    handled: list[int] = []

    async def handle(envelope: Envelope[Any]) -> None:
        if envelope.payload == 7:
            raise RuntimeError("never")
        handled.append(envelope.payload)

    async with EventBus(base) as bus:
        await bus.publish_envelope_batch("orders", [event(n) for n in range(KEYS)])
        await bus.subscribe_envelope("orders", handle)
        await until(lambda: len(handled) == KEYS - 1, WAIT_S)

    assert 7 == _committed(kafka, base)


@asynchronous
async def test_closing_while_a_key_is_tried_again_keeps_its_order(cluster: MockCluster) -> None:
    base = replace(on_mock(cluster), subscriber=SubscriberConfig(lanes=2, backoff=0.02))
    cluster.create(f"{base.namespace}.orders", 1)
    other = next(key for key in map(str, range(100)) if hash(key) % 2 != hash("a") % 2)
    attempts: list[tuple[str, int]] = []
    may_go_on = asyncio.Event()

    async def handle(envelope: Envelope[Any]) -> None:
        attempts.append((envelope.aggregate_id, envelope.payload))
        if attempts == [("a", 0)]:
            raise RuntimeError("the first time")
        if envelope.payload == 0:
            await may_go_on.wait()

    def opened() -> EventBus:
        bus = EventBus(base)
        bus.on("orders")(handle)
        return bus

    async def publish(bus: EventBus, *places: tuple[str, int]) -> None:
        await bus.publish_envelope_batch(
            "orders", [Envelope(aggregate_id=key, event_type="t", payload=n) for key, n in places]
        )

    async with opened() as bus:
        await publish(bus, ("a", 0), ("a", 1))
        await until(lambda: len(attempts) == 2, WAIT_S)
        # One waits behind the first, one is queued, and what comes after them is done.
        await publish(bus, ("a", 2), (other, 3))
        await until(lambda: (other, 3) in attempts, WAIT_S)
        closing = asyncio.ensure_future(bus.close())
        await until(lambda: bus._lanes._is_finishing, WAIT_S)
        may_go_on.set()
        await closing
    async with opened() as bus:
        await publish(bus, ("a", 4))
        await until(lambda: ("a", 4) in attempts, WAIT_S)

    assert [0, 0, 1, 2, 4] == [number for key, number in attempts if key == "a"]


@pytest.mark.parametrize("call", ["subscribe", "resume"])
@asynchronous
async def test_what_librdkafka_refuses_once_is_asked_for_again(
    cluster: MockCluster, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nothing would be read for as long as the process lives, and nobody would know."""
    refused: list[str] = []

    class Refusing(Consumer):
        def subscribe(self, *arguments: Any, **callbacks: Any) -> None:
            self.refuse("subscribe")
            super().subscribe(*arguments, **callbacks)

        def resume(self, *arguments: Any) -> None:
            self.refuse("resume")
            super().resume(*arguments)

        def refuse(self, name: str) -> None:
            if name == call and not refused:
                refused.append(name)
                raise KafkaException(KafkaError(KafkaError._STATE))

    monkeypatch.setattr(reader, "Consumer", Refusing)
    base = on_mock(cluster, max_ack_pending=10)
    cluster.create(f"{base.namespace}.orders", 1)
    handled: list[int] = []
    may_go_on = asyncio.Event()

    async def handle(envelope: Envelope[Any]) -> None:
        await may_go_on.wait()
        handled.append(envelope.payload)

    async with EventBus(base) as bus:
        await bus.subscribe_envelope("orders", handle)
        await bus.publish_envelope_batch("orders", [event(n) for n in range(EVENTS)])
        # Nothing more is asked for by now, and all partitions are paused.
        engine: Any = bus.engine
        await until(lambda: engine._reader._is_resting and engine._reader._paused, WAIT_S)
        may_go_on.set()
        await until(lambda: len(handled) == EVENTS, WAIT_S)

    assert ([call], in_order()) == (refused, by_key(handled))


@asynchronous
async def test_a_partition_that_is_taken_while_it_is_about_to_be_paused_is_read_when_it_is_back(
    cluster: MockCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand_over = KafkaEngine._hand_over

    async def stuck_just_now(engine: Any, places: Any) -> Any:
        for place in places:
            engine._partitions[place].is_stuck = True
            engine._reader.hold(place, True)
        return await hand_over(engine, places)

    monkeypatch.setattr(KafkaEngine, "_hand_over", stuck_just_now)
    async with EventBus(on_mock(cluster, commit_interval=WAIT_S)) as bus:
        handled = Handled()
        await bus.subscribe_envelope("orders", handled)
        await bus.publish_envelope_batch("orders", [event(n) for n in range(EVENTS // 2)])
        await until(lambda: len(handled.numbers) == EVENTS // 2, WAIT_S)
        await lose_partitions(bus, cluster, caplog, 1)
        await bus.publish_envelope_batch("orders", [event(n) for n in range(EVENTS // 2, EVENTS)])
        await until(lambda: len(set(handled.numbers)) == EVENTS, WAIT_S)

        assert in_order() == by_key(handled.numbers)


@asynchronous
async def test_what_was_taken_before_partitions_came_back_is_read_again() -> None:
    engine = KafkaEngine(BusConfig(type="kafka"))
    place = "events.orders", 0
    stale, fresh = (Message(topic=place[0], partition=0, offset=one, value=b"") for one in (9, 5))
    engine._assigned([place])
    engine._take([stale])
    await engine._hand_over([place])
    engine._assigned([place])
    engine._take([fresh])

    assert [fresh] == [one.handle for one in await engine.fetch(10)]


@asynchronous
async def test_a_key_that_is_stuck_bounds_what_a_crash_repeats(kafka: KafkaBroker) -> None:
    bound = 50
    base = on_broker(kafka, max_ack_pending=bound)
    base = replace(base, kafka=replace(base.kafka, topic=replace(base.kafka.topic, partitions=1)))
    go_on = asyncio.Event()
    handled: list[int] = []

    async def handle(envelope: Envelope[Any]) -> None:
        if envelope.payload == 0:
            await go_on.wait()
        handled.append(envelope.payload)

    async with EventBus(base) as bus:
        await bus.publish_envelope_batch("orders", [event(n) for n in range(EVENTS)])
        await bus.subscribe_envelope("orders", handle)
        engine: Any = bus.engine
        await until(lambda: engine._reader._stuck & engine._reader._paused, WAIT_S)
        others = bus.health().in_flight
        # What came before the partition was paused is handled, and nothing after it.
        await until(lambda: bus.health().in_flight <= EVENTS // KEYS, WAIT_S)
        assert bound <= len(handled) + others <= 4 * bound
        go_on.set()
        await until(lambda: len(handled) == EVENTS, WAIT_S)

    assert in_order() == by_key(handled)


@asynchronous
async def test_the_first_events_of_topics_that_were_just_made_are_stored(tmp_path: Path) -> None:
    with KafkaBroker(tmp_path) as broker:  # it takes long to make the first topics
        base = on_broker(broker)
        async with EventBus(base) as bus, EventBus(base) as other:
            for number in range(5 * KEYS):
                for topic in range(5):
                    await (other if topic % 2 else bus).publish_envelope(
                        f"made.{topic}", event(number)
                    )
                await asyncio.sleep(0.002)
            for one in (bus, other):
                await one.flush()
            for topic in range(5):
                stored = [each.payload async for _, each in bus.replay(f"made.{topic}")]
                assert in_order(5 * KEYS) == by_key(stored)


@asynchronous
async def test_a_broker_that_was_restarted_answers_a_bus_that_had_asked_it_before(
    tmp_path: Path,
) -> None:
    with KafkaBroker(tmp_path) as broker:
        async with EventBus(on_broker(broker)) as bus:
            handled = Handled()
            await bus.subscribe_envelope("orders", handled)
            await bus.publish_envelope_batch("orders", [event(n) for n in range(KEYS)])
            await bus.drain()
            await asyncio.to_thread(broker.stop)
            await asyncio.to_thread(broker.start)
            await until(lambda: bus.health().connected, WAIT_S)
            await bus.publish_envelope_batch("orders", [event(n) for n in range(KEYS, 2 * KEYS)])
            await bus.drain()
            stored = [envelope.payload async for _, envelope in bus.replay("orders")]

    assert in_order(2 * KEYS) == by_key(handled.numbers) == by_key(stored)


@asynchronous
async def test_groups_that_are_joined_while_topics_are_made_wait_for_nobody(
    kafka: KafkaBroker,
) -> None:
    base = on_broker(kafka, session_timeout=4 * WAIT_S)
    async with EventBus(base) as bus, AsyncExitStack() as stack:
        await bus.configure_topic("made.0")
        handled: list[str] = []
        for number in range(8):
            await _start_hurried(stack, replace(base, service=f"s{number}"), handled)
            for topic in range(3):
                await bus.configure_topic(f"made.{number}.{topic}")
        await bus.publish_envelope_sync("last", event(1))
        await until(lambda: len(handled) == 8, WAIT_S)


async def _start_hurried(stack: AsyncExitStack, config: BusConfig, handled: list[str]) -> None:
    """Start a service that looks for topics all the time."""
    bus = await stack.enter_async_context(EventBus(config))

    async def handle(_: Envelope[Any]) -> None:
        handled.append(config.service)

    await bus.subscribe_envelope("last", handle)
    engine: Any = bus.engine
    for _ in range(50):
        engine._reader.refresh()


@asynchronous
async def test_a_record_says_with_its_key_and_headers_what_the_envelope_says(
    kafka: KafkaBroker,
) -> None:
    base = on_broker(kafka)
    async with EventBus(base) as bus:
        envelope = Envelope(
            aggregate_id="a-1", event_type="Paid", payload=1, trace_id="t", tenant_id=7
        )
        await bus.publish_envelope_sync("orders", envelope)
        await bus.publish("orders", b"raw", key="a-1", headers=[("Color", "red")])
        found = [one async for some in bus.engine.replay("orders", ReplayFrom()) for one in some]

    first, second = (one.handle for one in found)
    assert b"a-1" == first.key() == second.key()
    assert first.partition() == second.partition()
    assert {
        "X-Event-ID": envelope.event_id,
        "X-Aggregate-ID": "a-1",
        "X-Event-Type": "Paid",
        "X-Event-Version": "1",
        "X-Trace-ID": "t",
        "X-Tenant-ID": "7",
    } == dict(found[0].headers)
    assert [("Color", "red")] == found[1].headers


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_broker_restart_and_a_killed_consumer_lose_and_reorder_nothing(tmp_path: Path) -> None:
    try:
        classpath()
    except MissingExtra as error:
        pytest.skip(str(error))
    with KafkaBroker(tmp_path) as broker:
        asyncio.run(asyncio.wait_for(_go_through_it(broker, tmp_path / "handled"), 250))
    handled: dict[str, dict[int, None]] = {}
    for line in (tmp_path / "handled").read_text().splitlines():
        key, number = line.split()
        handled.setdefault(key, {})[int(number)] = None
    expected = {f"a{key}": list(range(key, MESSAGES, AGGREGATES)) for key in range(AGGREGATES)}
    assert expected == {key: list(numbers) for key, numbers in handled.items()}


AGGREGATES, MESSAGES = 1000, 10_000


async def _go_through_it(broker: KafkaBroker, path: Path) -> None:
    """Publish while one of two consumers is killed and the broker is restarted."""
    namespace = "through"
    config = BusConfig(
        type="kafka",
        namespace=namespace,
        kafka=KafkaConfig(brokers=(broker.address,)),
        publisher=PublisherConfig(publish_timeout=120.0),
    )
    workers: list[subprocess.Popen[bytes]] = []
    try:
        async with EventBus(config) as bus:
            await bus.configure_topic("orders", partitions=6)
            workers += [_worker(broker, namespace, path) for _ in range(2)]
            for number in range(MESSAGES):
                key = f"a{number % AGGREGATES}"
                await bus.publish_envelope(
                    "orders", Envelope(aggregate_id=key, event_type="t", payload=number)
                )
                if number == MESSAGES // 3:
                    await until(lambda: _lines(path) > MESSAGES // 10, 60)
                    workers[0].kill()
                elif number == MESSAGES // 2:
                    await asyncio.to_thread(broker.kill)
                    await asyncio.to_thread(broker.start)
            await bus.flush()
            await until(lambda: _lines(path) >= MESSAGES and _all_are_there(path), 120)
            assert 0 == bus.metrics.publish_failed_total
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def _worker(broker: KafkaBroker, namespace: str, path: Path) -> subprocess.Popen[bytes]:
    program = Path(__file__).with_name("kafka_worker.py")
    with path.with_name(f"worker-{uuid.uuid4().hex}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, str(program), broker.address, namespace, str(path)],
            stdout=log,
            stderr=log,
        )


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _all_are_there(path: Path) -> bool:
    return len(set(path.read_text().splitlines())) == MESSAGES


async def _publish(bus: EventBus, numbers: range) -> None:
    for number in numbers:
        await bus.publish_envelope("orders", event(number))


def _committed(kafka: KafkaBroker, config: BusConfig) -> int:
    group = f"{config.namespace}.{config.service}"
    consumer = Consumer(
        {"bootstrap.servers": kafka.address, "group.id": group}, logger=logging.getLogger("test")
    )
    try:
        place = TopicPartition(f"{config.namespace}.orders", 0)
        return consumer.committed([place], timeout=10)[0].offset
    finally:
        consumer.close()


@asynchronous
async def test_a_relay_keeps_the_order_of_an_aggregate(
    cluster: MockCluster, tmp_path: Path
) -> None:
    outbox, path = Outbox(SQLITE), tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        outbox.create_tables(connection)
        outbox.add_all(connection, "orders", [event(number) for number in range(EVENTS // 10)])
        connection.commit()
    async with EventBus(on_mock(cluster)) as bus:
        relay = Relay(bus, SqliteStore(path))
        await relay.drain()
        await relay.close()
        keys = {
            (delivery.handle.key().decode(), delivery.handle.partition())
            async for deliveries in bus.engine.replay("orders", ReplayFrom())
            for delivery in deliveries
        }

    assert KEYS == len(keys) == len(dict(keys))


@asynchronous
async def test_what_cannot_be_asked_while_brokers_are_down_is_an_error_of_ours(
    cluster: MockCluster,
) -> None:
    config = on_mock(cluster)
    config = replace(config, kafka=replace(config.kafka, request_timeout=1.0))
    async with EventBus(config) as bus:
        await bus.subscribe_envelope("orders", Handled())
        for broker in cluster.brokers:
            cluster.down(broker)
        for ask in (lambda: bus.check_topic("orders"), bus.backlog):
            with pytest.raises(PenstockError):
                await ask()
        for broker in cluster.brokers:
            cluster.up(broker)
