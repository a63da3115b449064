"""
The bus on Kafka: one producer, one member of one consumer group.

See `layout` for the names, `window` for publishing, `reader` and `partition` for
reading; this file puts them together behind the seam. All state lives on the loop;
what blocks runs on threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import KafkaError, Message, Producer, TopicPartition

from penstock.bus.config.bus import BusConfig, TopicOptions
from penstock.bus.engine import (
    Delivery,
    Features,
    KeyOf,
    Lag,
    LiveReceiver,
    Membership,
    OnLease,
    OnMoving,
    OnSettled,
    OnTaken,
    ReplayFrom,
    Responder,
    Sender,
    TopicState,
    ignore_connection,
    ignore_lease,
    ignore_moving,
    ignore_settled,
    ignore_taken,
    no_key,
)
from penstock.bus.engines.kafka import properties
from penstock.bus.engines.kafka.admin import KafkaAdmin
from penstock.bus.engines.kafka.layout import KafkaLayout, place_of
from penstock.bus.engines.kafka.partition import Partition
from penstock.bus.engines.kafka.properties import library_logger, logger
from penstock.bus.engines.kafka.reader import Listener, Place, Reader
from penstock.bus.engines.kafka.replay import Part, Replays, discard_key
from penstock.bus.engines.kafka.window import KafkaWindow
from penstock.bus.events.names import is_dead
from penstock.bus.operate.failures import STOPS
from penstock.errors import BusClosed, BusError, ConnectionLost, PenstockError

T = TypeVar("T")

THREADS_MAX = 4
PROBE_S = 0.5
RUNNING_LOOK_S = 0.005
HANDOVER_SHARE = 0.8
"""Part of the poll interval that handlers get when partitions move."""
HEARTBEATS_KEPT_MS = "3600000"


class KafkaEngine:
    """A Kafka cluster."""

    features = Features(
        persistent=True,
        ephemeral=False,
        deduplicates=False,
        shares_order=True,
        by_pattern=False,
        orders_topics=False,
        limits_messages=False,
        shares_storage=False,
        delays=False,
    )

    def __init__(self, config: BusConfig) -> None:
        self.config = config
        self.urls = config.kafka.brokers
        self.on_settled: OnSettled = ignore_settled
        self.on_connection: Callable[[bool, Exception | None], None] = ignore_connection
        self.on_taken: OnTaken = ignore_taken
        self.on_lease: OnLease = ignore_lease
        self.key_of: KeyOf = no_key
        self.on_moving: OnMoving = ignore_moving
        self._layout = KafkaLayout(config.namespace, config.service)
        self._threads = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="penstock-kafka")
        self._window: KafkaWindow | None = None
        self._reader: Reader | None = None
        self._patterns: dict[str, None] = {}
        self._partitions: dict[Place, Partition] = {}
        self._done: dict[Place, Collection[int]] = {}
        """Settled offsets of partitions that were taken, behind the first unsettled one."""
        self._messages: list[Message] = []
        self._is_asked = False
        self._arrived = asyncio.Event()
        self._is_open = False
        self._is_connected = False
        self._is_telling = False
        """Whether commits wait for an answer, or did until nobody waited any more."""
        self._probing: asyncio.Task[None] | None = None
        self._own: set[str] = set()

    @property
    def is_active(self) -> bool:
        return True  # partitions are shared out among all processes of a service

    @property
    def membership(self) -> Membership:
        # The broker knows the others; this process knows what it was given.
        me = self.config.kafka.consumer.instance or "this process"
        return Membership(me, members={me: len(self._partitions)})

    async def services(self) -> dict[str, Membership]:
        return await self._blocking(self._admin.services, self._layout.group_prefix)

    @property
    def unhandled(self) -> Sequence[str]:
        return ()  # a group reads what it subscribes to, and nothing else

    @property
    def connected(self) -> bool:
        return self._is_connected

    async def connect(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._producer: Producer = properties.checked(
            lambda: Producer(
                properties.producer(self.config) | {"error_cb": self._failed},
                logger=library_logger,
            )
        )
        self._window = KafkaWindow(
            self._producer,
            ack_timeout_s=self.config.publisher.publish_timeout,
            on_settled=lambda settled: self.on_settled(settled),
            on_alive=self._alive,
        )
        try:
            self._admin = KafkaAdmin(self.config, self._producer)
            await self._blocking(self._admin.topics, self.config.kafka.connection_timeout)
        except BaseException:
            await self.close()
            raise
        self._replays = Replays(
            properties.reader(self.config, self._layout.group),
            self._layout,
            self._admin,
            timeout_s=self.config.kafka.request_timeout,
        )
        self._is_open = self._is_connected = True

    async def close(self) -> None:
        is_away = self._is_telling or not self._is_connected
        self._is_open = self._is_connected = False
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)
        if self._reader is not None:
            await self._blocking(partial(self._reader.stop, is_away=is_away))
            self._reader = None
        if self._window is not None:
            self._window.close()
            self._window = None
            await self._blocking(self._admin.close)
            await self._blocking(self._producer.close)
        self._partitions.clear()
        self._threads.shutdown(wait=False)

    def target(self, topic: str, *, live: bool = False) -> bytes:
        return self._layout.name(topic).encode()

    def sender(self) -> Sender:
        return self._open_window.send

    def send_live(self, target: bytes, payload: bytes, block: bytes) -> bool:
        raise _not_promised()

    async def make_room(self) -> None:
        await self._open_window.make_room()

    async def listen(self, patterns: Sequence[str]) -> None:
        self._patterns |= dict.fromkeys(patterns)
        if self._reader is None:
            settings = self.config.kafka.consumer
            self._reader = Reader(
                properties.consumer(self.config, self._layout.group),
                self._layout,
                Listener(self._take, self._assigned, self._hand_over, self._failed),
                handover_s=settings.max_poll_interval * HANDOVER_SHARE,
                discovery_s=settings.discovery_interval,
            )
        self._reader.listen(tuple(self._patterns))

    def rest(self, pattern: str) -> None:
        self._patterns.pop(pattern, None)
        if self._reader is not None:
            self._reader.listen(tuple(self._patterns))

    async def forget(self, pattern: str) -> None:
        self.rest(pattern)  # a group keeps its place

    async def fetch(self, messages_max: int) -> list[Delivery]:
        if not self._messages:
            self._arrived.clear()
            if not self._is_asked and self._reader is not None:
                self._is_asked = True
                self._reader.ask(min(messages_max, self.config.kafka.consumer.fetch_batch))
            await self._arrived.wait()
        # From here on nothing waits, so that no partition can be taken away meanwhile.
        messages, self._messages = self._messages, []
        return self._deliveries(messages)

    def settle(self, deliveries: Collection[Delivery]) -> None:
        touched = set()
        for delivery in deliveries:
            source: Partition = delivery.source
            if source.held.pop(delivery.sequence, None) is not None:
                touched.add(source)
        self._advance(touched)

    def _advance(self, partitions: Collection[Partition]) -> None:
        """Store up to where partitions are settled, and bound what a crash would repeat."""
        for partition in partitions:
            is_ours = self._partitions.get((partition.name, partition.number)) is partition
            if is_ours and self._reader is not None and partition.settled is not None:
                self._reader.store(partition.settled)
                self._bound(partition, self._reader)

    def give_back(self, deliveries: Collection[Delivery]) -> None:
        """Do nothing: what is not settled is not committed."""

    def owed(self, waiting: Collection[Delivery]) -> Collection[Delivery]:
        kept = set(waiting)
        return [one for each in self._partitions.values() for one in each.owed(kept)]

    def retire(self) -> None:
        """Do nothing: partitions move when the group is left."""

    def extend(self, deliveries: Collection[Delivery]) -> None:
        """Do nothing: a partition is ours as long as we poll."""

    async def lag(self) -> Lag:
        if self._reader is None:
            return Lag(0, 0)
        topics = await self._blocking(self._admin.topics)
        partitions = [
            TopicPartition(name, number)
            for name, count in topics.items()
            if any(self._layout.matches(pattern, name) for pattern in self._patterns)
            for number in range(count)
        ]
        parts = await self._blocking(self._unsettled, partitions)
        held = [
            one.timestamp_ns for each in self._partitions.values() for one in each.held.values()
        ]
        unseen = [part for part in parts if not self._holds_of(part)]
        first_ns = await self._blocking(self._replays.first_ns, unseen) if unseen else 0
        times_ns = filter(None, (min(held, default=0), first_ns))
        # What is done behind one that is not cannot be committed, and yet it is done.
        done = sum(each.ahead for each in self._partitions.values())
        messages = sum(part.end - part.begin for part in parts) - done
        return Lag(max(0, messages), min(times_ns, default=0))

    async def inspect(self, topic: str) -> TopicState | None:
        return await self._blocking(self._admin.inspect, self._layout.name(topic))

    async def topics(self) -> dict[str, TopicState]:
        names = [
            name
            for name in await self._blocking(self._admin.topics)
            if self._layout.matches(">", name) and not self._is_dead(self._layout.topic(name))
        ]
        states = {}
        for name in sorted(names):
            state = await self._blocking(self._admin.inspect, name)
            if state is not None:
                count = await self._blocking(self._admin.count, name)
                states[self._layout.topic(name)] = replace(state, messages=count)
        return states

    async def create(self, topic: str, options: TopicOptions) -> None:
        # Dead letters are kept until somebody has looked at them.
        forever = self._is_dead(topic)
        name = self._layout.name(topic)
        await self._blocking(lambda: self._admin.create(name, options, forever=forever))
        if self._reader is not None:
            self._reader.refresh()

    async def update(self, topic: str, options: TopicOptions) -> None:
        await self._blocking(self._admin.update, self._layout.name(topic), options)

    async def replay(self, pattern: str, start: ReplayFrom) -> AsyncGenerator[list[Delivery], None]:
        chunks = self._replays.read(pattern, start)
        try:
            while (chunk := await self._blocking(next, chunks, None)) is not None:
                yield chunk
        finally:
            await self._blocking(chunks.close)  # type: ignore[attr-defined]

    async def discard(self, topic: str, sequence: int) -> bool:
        name, (number, offset) = self._layout.name(topic), place_of(sequence)
        topics = await self._blocking(self._admin.topics)
        if number >= topics.get(name, 0):
            return False
        ends = await self._blocking(self._admin.ends, [TopicPartition(name, number)])
        hidden = await self._blocking(self._replays.discarded)
        if not ends[0][0] <= offset < ends[0][1] or (name, number, offset) in hidden:
            return False
        await self._prepare_own(self._layout.discarded, cleanup_policy="compact")
        key = discard_key(name, number, offset)
        await self._open_window.store(self._layout.discarded, b"discarded", key=key)
        return True

    async def count_dead_letters(self) -> int:
        names = await self._blocking(self._admin.topics)
        dead = {
            name: partitions
            for name, partitions in names.items()
            if self._layout.matches(">", name) and self._is_dead(self._layout.topic(name))
        }
        return await self._blocking(self._replays.count, dead)

    async def namespaces(self) -> list[str]:
        # Topics of others look the same; those of a bus have dead letters, or services.
        topics = await self._blocking(self._admin.topics)
        groups = await self._blocking(self._admin.groups)
        mark = f".{self.config.subscriber.dead_letter_prefix}."
        kept = {name.partition(".")[0] for name in topics if "." in name}
        read = {name.partition(".")[0] for name in groups if "." in name}
        return sorted(kept & read | {name.partition(".")[0] for name in topics if mark in name})

    def listen_live(self, pattern: str, receive: LiveReceiver) -> Callable[[], None]:
        return _nothing

    async def request(self, topic: str, payload: bytes, *, timeout_s: float) -> bytes:
        raise _not_promised()

    def respond(self, pattern: str, responder: Responder) -> Callable[[], None]:
        raise _not_promised()

    async def echo(self, payload: bytes) -> None:
        name = self._layout.heartbeats
        await self._prepare_own(name, retention_ms=HEARTBEATS_KEPT_MS)
        record = await self._open_window.store(name, payload)
        number, offset = record.partition(), record.offset()
        found = await self._blocking(self._replays.at, name, number, offset)
        if found != payload:
            raise BusError(f"`{name}` holds something else than was stored there")

    @property
    def untold(self) -> int:
        if self._reader is None:
            return 0
        committed = self._reader.committed
        return sum(one.untold(committed.get(at, 0)) for at, one in self._partitions.items())

    async def flush(self) -> None:
        if self._reader is not None:
            self._is_telling = True
            await self._reader.commit()
            self._is_telling = False

    @property
    def _open_window(self) -> KafkaWindow:
        if self._window is None:
            raise BusClosed("the bus is not open")
        return self._window

    def _bound(self, partition: Partition, reader: Reader) -> None:
        """Bound what a crash would repeat: pause a partition while too much cannot be committed."""
        bound = self.config.kafka.consumer.max_ack_pending
        is_stuck = partition.ahead >= (bound // 2 if partition.is_stuck else bound)
        if is_stuck is partition.is_stuck:
            return
        partition.is_stuck = is_stuck
        reader.hold((partition.name, partition.number), is_stuck)
        if is_stuck:
            first = next(iter(partition.held.values()))
            logger.warning(
                "! `%s` waits for key %s: %d messages behind it are done and cannot be committed",
                partition.stream,
                first.key,
                partition.ahead,
            )

    def _is_dead(self, topic: str) -> bool:
        return is_dead(topic, self.config.subscriber.dead_letter_prefix)

    def _take(self, messages: list[Message]) -> None:
        self._is_asked = False
        self._messages += messages
        self._arrived.set()

    def _deliveries(self, messages: list[Message]) -> list[Delivery]:
        deliveries, skipping = [], set()
        name, number, partition = "", -1, None
        for message in messages:
            error = message.error()
            if error is not None:
                logger.info("= reading `%s`: %s", message.topic(), error.str())
                continue
            # Many of one partition come in a row.
            if number != message.partition() or name != message.topic():
                name, number = message.topic(), message.partition()  # type: ignore[assignment]
                partition = self._partitions.get((name, number))
            if partition is None:
                continue
            delivery = partition.deliver(message)
            if delivery is None:
                skipping.add(partition)
            else:
                deliveries.append(delivery)
        self._advance(skipping)
        return deliveries

    def _assigned(self, places: list[Place]) -> None:
        # What nobody has fetched since they were ours before is read again.
        again = set(places)
        self._messages = [
            one for one in self._messages if (one.topic(), one.partition()) not in again
        ]
        for name, number in places:
            topic = self._layout.topic(name)
            done = self._done.pop((name, number), frozenset())
            self._partitions[name, number] = Partition(name, number, topic, done)
        self._alive()

    async def _hand_over(self, places: list[Place]) -> list[TopicPartition]:
        """Let go of partitions; return up to where each is settled."""
        gone = [self._partitions.pop(place) for place in places if place in self._partitions]
        for one in gone:
            if one.is_stuck and self._reader is not None:
                self._reader.hold((one.name, one.number), False)  # it may come back
        while self.on_taken(lambda delivery: delivery.source in gone):  # noqa: ASYNC110  (rare)
            await asyncio.sleep(RUNNING_LOOK_S)
        self._done.update({(one.name, one.number): one.done for one in gone})
        return [one.settled for one in gone if one.settled is not None]

    def _unsettled(self, partitions: list[TopicPartition]) -> list[Part]:
        """Return what the group has before it, in each partition that has something."""
        assert self._reader is not None
        timeout_s = self.config.kafka.request_timeout
        with properties.explained("what is settled cannot be asked"):
            committed = self._reader.consumer.committed(partitions, timeout=timeout_s)
        parts = []
        for one, (first, end) in zip(committed, self._admin.ends(partitions), strict=True):
            ours = self._partitions.get((one.topic, one.partition))
            settled = ours.settled_offset if ours is not None else None
            is_new = one.offset < 0 and settled is None
            from_end = is_new and self.config.kafka.consumer.start == "latest"
            begin = end if from_end else max(first, one.offset, settled or 0)
            if begin < end:
                parts.append(Part(one.topic, one.partition, begin, end))
        return parts

    def _holds_of(self, part: Part) -> bool:
        partition = self._partitions.get((part.name, part.number))
        return partition is not None and bool(partition.held)

    async def _prepare_own(self, name: str, **settings: str) -> None:
        """Make sure once that a topic of the bus's own is there."""
        if name in self._own:
            return
        if self.config.strategy != "skip":
            await self._blocking(lambda: self._admin.create_own(name, **settings))
        self._own.add(name)

    def _failed(self, error: KafkaError) -> None:
        """Hear from librdkafka what it cannot help."""
        if error.code() in (KafkaError._TRANSPORT, KafkaError._RESOLVE):
            return  # librdkafka has logged it
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            library_logger.warning("! Kafka: %s", error.str())
        elif self._is_connected:
            self._is_connected = False
            self.on_connection(False, ConnectionLost(error.str()))
            self._probing = self._loop.create_task(self._probe())

    def _alive(self) -> None:
        if self._is_open and not self._is_connected:
            self._is_connected = True
            self.on_connection(True, None)

    async def _probe(self) -> None:
        """Find out when a broker can be reached again."""
        while not self._is_connected:
            try:
                await self._blocking(self._admin.topics)
            except STOPS:
                raise
            except BaseException as error:
                if not isinstance(error, PenstockError):
                    logger.exception("! asking whether a broker is there")
                await asyncio.sleep(PROBE_S)
            else:
                self._alive()

    async def _blocking(self, function: Callable[..., T], *arguments: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, function, *arguments)


def _not_promised() -> BusError:
    return BusError("Kafka delivers nothing that is not kept, and answers no requests")


def _nothing() -> None:
    """Stand in for what there is nothing to stop of."""
