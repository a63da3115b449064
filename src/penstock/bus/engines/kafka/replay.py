"""
Reading a part of a topic again, and hiding what was discarded.

A replay is a consumer of no group: partition after partition, from where it begins to
where the partition ended when it began. Kafka deletes no single record, so what is
discarded is written down on a compacted topic, and replays leave it out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from penstock.bus.engine import Delivery, ReplayFrom
from penstock.bus.engines.kafka.admin import KafkaAdmin
from penstock.bus.engines.kafka.layout import KafkaLayout, offset_from
from penstock.bus.engines.kafka.partition import Stored, stored, timestamp_ns
from penstock.bus.engines.kafka.properties import (
    Properties,
    checked,
    explained,
    library_logger,
)
from penstock.errors import BusError

CHUNK_MESSAGES = 500
POLL_S = 0.1


class Part(NamedTuple):
    """Records of one partition, the last excluded."""

    name: str
    number: int
    begin: int
    end: int


class Replays:
    """Replays records. All methods block."""

    def __init__(
        self, properties: Properties, layout: KafkaLayout, admin: KafkaAdmin, *, timeout_s: float
    ) -> None:
        self._properties = properties
        self._layout = layout
        self._admin = admin
        self._timeout_s = timeout_s
        self._counted: tuple[list[tuple[int, int]], int] = ([], 0)
        """The ends of partitions, and the count that was found with them."""

    def read(self, pattern: str, start: ReplayFrom) -> Iterator[list[Delivery]]:
        """Iterate over the records stored now, a chunk at a time."""
        topics = self._admin.topics()
        names = {name: topics[name] for name in topics if self._layout.matches(pattern, name)}
        hidden = self.discarded()
        consumer = self._consumer()
        try:
            for part in self._parts(consumer, names, start):
                source = Stored(part.name, part.number)
                topic = self._layout.topic(part.name)
                for messages in self._chunks(consumer, part):
                    yield [
                        stored(message, topic, source)
                        for message in messages
                        if (part.name, part.number, message.offset()) not in hidden
                    ]
        finally:
            consumer.close()

    def first_ns(self, parts: list[Part]) -> int:
        """Return when the oldest of the first records of these parts was stored; 0: none is."""
        consumer = self._consumer()
        try:
            times = []
            for part in parts:
                first = next(iter(self._chunks(consumer, part, messages_max=1)), [])
                times += [timestamp_ns(message) for message in first]
            return min(times, default=0)
        finally:
            consumer.close()

    def at(self, name: str, number: int, offset: int) -> bytes:
        """Return the value of one record."""
        consumer = self._consumer()
        try:
            for messages in self._chunks(consumer, Part(name, number, offset, offset + 1)):
                for message in messages:
                    return _key_or_value(message.value())
        finally:
            consumer.close()
        raise BusError(f"`{name}` has no record {offset} in partition {number}")

    def discarded(self) -> set[tuple[str, int, int]]:
        """Return the name, partition and offset of each discarded record."""
        name = self._layout.discarded
        partitions = self._admin.topics().get(name)
        if partitions is None:
            return set()
        found: set[tuple[str, int, int]] = set()
        consumer = self._consumer()
        try:
            for part in self._parts(consumer, {name: partitions}, ReplayFrom()):
                for messages in self._chunks(consumer, part):
                    found.update(_place(_key_or_value(message.key())) for message in messages)
        finally:
            consumer.close()
        return found

    def count(self, topics: dict[str, int]) -> int:
        """Return how many records these topics have that are not discarded."""
        discarded = self._admin.topics().get(self._layout.discarded, 0)
        names = topics | {self._layout.discarded: discarded}
        parts = [(name, number) for name, count in names.items() for number in range(count)]
        ends = self._admin.ends(TopicPartition(*part) for part in parts)
        kept = {
            part: end
            for part, end in zip(parts, ends, strict=True)
            if part[0] in topics and end[0] < end[1]
        }
        if not kept:
            return 0
        if self._counted[0] == ends:
            return self._counted[1]
        hidden = [
            offset
            for name, number, offset in (self.discarded() if discarded else ())
            if (end := kept.get((name, number))) and end[0] <= offset < end[1]
        ]
        count = sum(behind - first for first, behind in kept.values()) - len(hidden)
        self._counted = ends, count
        return count

    def _parts(
        self, consumer: Consumer, topics: dict[str, int], start: ReplayFrom
    ) -> Iterator[Part]:
        partitions = [
            TopicPartition(name, number)
            for name, count in topics.items()
            for number in range(count)
        ]
        begins = self._begins(consumer, partitions, start)
        for one, begin, (first, end) in zip(
            partitions, begins, self._admin.ends(partitions), strict=True
        ):
            if max(begin, first) < end:
                yield Part(one.topic, one.partition, max(begin, first), end)

    def _begins(
        self, consumer: Consumer, partitions: list[TopicPartition], start: ReplayFrom
    ) -> list[int]:
        if start.sequence is not None:
            return [offset_from(start.sequence, one.partition) for one in partitions]
        if start.time is None or not partitions:
            return [0] * len(partitions)
        since_ms = int(start.time.timestamp() * 1000)
        wanted = [TopicPartition(one.topic, one.partition, since_ms) for one in partitions]
        with explained("offsets of that time cannot be asked"):
            found = consumer.offsets_for_times(wanted, timeout=self._timeout_s)
        # Behind the end: nothing is that young.
        return [one.offset if one.offset >= 0 else 2**62 for one in found]

    def _chunks(
        self, consumer: Consumer, part: Part, *, messages_max: int = CHUNK_MESSAGES
    ) -> Iterator[list[Message]]:
        consumer.assign([TopicPartition(part.name, part.number, part.begin)])
        at = part.begin
        while at < part.end:
            chunk: list[Message] = []
            first = consumer.poll(POLL_S)
            batch = [] if first is None else [first]
            if messages_max > 1 and batch:
                batch += consumer.consume(messages_max - 1, timeout=0)
            for message in batch:
                error = message.error()
                if error is None and message.offset() < part.end:  # type: ignore[operator]
                    chunk.append(message)
                elif error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise BusError(f"`{part.name}` cannot be read: {error.str()}")
                # The last records may be markers of transactions, which nobody gets.
                at = part.end if error is not None else message.offset() + 1  # type: ignore[operator]
            if chunk:
                yield chunk

    def _consumer(self) -> Consumer:
        return checked(lambda: Consumer(self._properties, logger=library_logger))


def discard_key(name: str, number: int, offset: int) -> bytes:
    """Return what a discarded record is called on the topic that says so."""
    return f"{name}/{number}/{offset}".encode()


def _place(key: bytes) -> tuple[str, int, int]:
    name, number, offset = key.decode().split("/")
    return name, int(number), int(offset)


def _key_or_value(data: str | bytes | None) -> bytes:
    return data if isinstance(data, bytes) else (data or "").encode()
