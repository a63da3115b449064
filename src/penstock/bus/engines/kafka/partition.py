"""
A partition that this process reads, and how far it is done with it.

Its messages are handled in parallel by key and end in any order, but Kafka keeps one
number for a group: where to go on. So what is stored there is the first message not
yet settled. Only this process knows which of those behind it are settled too, and skips
them when the partition comes back to it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from confluent_kafka import Message, TopicPartition

from penstock.bus.engine import Delivery, Headers
from penstock.bus.engines.kafka.layout import place_of, sequence_of


class Partition:
    """One partition, from being assigned until it is taken away."""

    def __init__(
        self, name: str, number: int, topic: str, done: Collection[int] = frozenset()
    ) -> None:
        self.name = name
        self.number = number
        self.topic = topic
        self.stream = f"{name}/{number}"
        self.held: dict[int, Delivery] = {}
        """Deliveries handed out and not settled, by sequence, lowest first."""
        self.is_stuck = False
        """Whether reading is paused: too many are settled behind the first unsettled one."""
        self._first: int | None = None
        self._next: int | None = None
        self._done = done
        """Offsets that were settled here before the partition was taken, and that come again."""

    def deliver(self, message: Message) -> Delivery | None:
        """Make a delivery of a record; None if it was settled here before."""
        offset: int = message.offset()  # type: ignore[assignment]
        if self._first is None:
            self._first = offset
        self._next = offset + 1
        if self._done and offset in self._done:
            return None
        sequence = sequence_of(self.number, offset)
        delivery = Delivery(self.topic, message.value() or b"", b"", sequence, self, message)
        self.held[sequence] = delivery
        return delivery

    @property
    def settled_offset(self) -> int | None:
        """Where to go on: the first that is not settled. None if nothing was handed out."""
        if self.held:
            return place_of(next(iter(self.held)))[1]
        return self._next

    @property
    def settled(self) -> TopicPartition | None:
        """The same as Kafka takes it."""
        offset = self.settled_offset
        return None if offset is None else TopicPartition(self.name, self.number, offset)

    @property
    def done(self) -> Collection[int]:
        """Offsets that are settled behind the first that is not."""
        first = self.settled_offset
        if first is None or self._next is None:
            return self._done
        held = {place_of(sequence)[1] for sequence in self.held}
        before = {offset for offset in self._done if offset >= first}
        return before | {offset for offset in range(first, self._next) if offset not in held}

    @property
    def ahead(self) -> int:
        """The number of settled ones behind the first unsettled: a crash would repeat them."""
        if self._next is None or self.settled_offset is None:
            return 0
        return self._next - self.settled_offset - len(self.held)

    def untold(self, committed: int) -> int:
        """Return how many are settled that are not committed: they may come again."""
        if self._first is None or self.settled_offset is None:
            return 0
        return max(0, self.settled_offset - max(self._first, committed)) + self.ahead

    def owed(self, waiting: Collection[Delivery]) -> list[Delivery]:
        """Return those that wait before one that does not."""
        first_free = self._next or 0
        for sequence, delivery in reversed(self.held.items()):
            offset = place_of(sequence)[1]
            if delivery not in waiting or offset != first_free - 1:
                break
            first_free = offset
        return [
            one
            for sequence, one in self.held.items()
            if one in waiting and place_of(sequence)[1] < first_free
        ]

    def timestamp_ns(self, handle: Message) -> int:
        """Return when a message was stored."""
        return timestamp_ns(handle)

    def deliveries(self, handle: Message) -> int:
        """Return 1: Kafka does not count."""
        return 1

    def headers(self, handle: Message) -> Headers:
        """Return every header in order."""
        return headers_of(handle)


class Stored:
    """Where a message came from that was read again."""

    def __init__(self, name: str, number: int) -> None:
        self.stream = f"{name}/{number}"

    def timestamp_ns(self, handle: Message) -> int:
        """Return when a message was stored."""
        return timestamp_ns(handle)

    def deliveries(self, handle: Message) -> int:
        """Return 1: Kafka does not count."""
        return 1

    def headers(self, handle: Message) -> Headers:
        """Return every header in order."""
        return headers_of(handle)


def stored(message: Message, topic: str, source: Stored) -> Delivery:
    """Make a delivery of a record that is not to be settled."""
    sequence = sequence_of(message.partition(), message.offset())  # type: ignore[arg-type]
    return Delivery(topic, _bytes(message), b"", sequence, source, message)


def timestamp_ns(message: Message) -> int:
    """Return when a record was stored, to the millisecond."""
    return int(message.timestamp()[1]) * 1_000_000


def headers_of(message: Message) -> Headers:
    """Return every header of a record; a value may be missing or no text."""
    pairs: Any = message.headers() or []
    return [(name, _text(value)) for name, value in pairs]


def _text(value: str | bytes | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""


def _bytes(message: Message) -> bytes:
    value = message.value()
    return value if isinstance(value, bytes) else b""
