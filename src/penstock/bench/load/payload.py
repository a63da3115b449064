"""
Messages that prove their origin, built and checked in bulk.

Every payload begins with a head: publisher, sequence, and for some messages the time of
their publish. A publisher fills a whole chunk of messages with a few strided copies, and a
subscriber checks a whole read with a few comparisons. A message costs a tenth of a
microsecond, so that the bench measures the server and not itself.

The *tag* makes that possible. It is one byte, the publisher's number in its upper bits and
the end of the sequence in its lower ones. Without the tags of all other publishers, those
of one publisher must count up in a cycle. The full sequence of the last message is compared
as well, so that no message can be missing in between.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

from penstock.bench.report.histogram import Histogram

HEAD = struct.Struct(">BBHIQ")
"""Tag, mark, publisher, sequence, time in ns."""
MARK, SEQUENCE = 1, 4
"""The positions of the fields in the head."""

TIMED_EVERY = 32
"""One in this number of messages carries its time."""

CHUNK_MESSAGES_MAX = 256
CHUNK_BYTES_MAX = 64 * 1024
TAGGED_PUBLISHERS_MAX = 128
"""With more publishers a tag has no room for a sequence, and messages are checked singly."""

NOBODY = (1 << 16, 0)
"""Publisher and sequence of a message that is not from this run."""

LOW_BYTES = bytes(range(256)) * 2


class Chunk:
    """A run of messages from one publisher, overwritten in place for each next run."""

    def __init__(
        self, prefix: bytes, size: int, suffix: bytes, tags: Tags, *, single: bool = False
    ) -> None:
        self.messages = 1 if single else chunk_messages(size)
        self._timed_every = 1 if single else TIMED_EVERY
        self._stride = len(prefix) + size + len(suffix)
        self._head = len(prefix)
        self._tags = tags
        self._checked = size >= HEAD.size
        self._data = bytearray(self.messages * (prefix + bytes(size) + suffix))
        self._timed: range = range(0)
        if self._checked:
            for start in range(self._head, len(self._data), self._stride):
                HEAD.pack_into(self._data, start, 0, 0, tags.publisher, 0, 0)

    def fill(self, sequence: int, count: int, now_ns: int) -> bytes:
        """
        Return `count` encoded messages; `sequence` is a multiple of `messages`.

        With time 0, none of them is timed.
        """
        if self._checked:
            self._number(sequence)
            if now_ns:
                self._time(sequence, now_ns)
        return bytes(memoryview(self._data)[: count * self._stride])

    def _number(self, sequence: int) -> None:
        data, stride = self._data, self._stride
        data[self._head :: stride] = self._tags.run(sequence, self.messages)
        first = self._head + SEQUENCE
        # A chunk never crosses a multiple of 256: only the lowest byte differs within it.
        for place, byte in enumerate(sequence.to_bytes(4)[:3]):
            data[first + place :: stride] = bytes((byte,)) * self.messages
        low = sequence & 255
        data[first + 3 :: stride] = LOW_BYTES[low : low + self.messages]

    def _time(self, sequence: int, now_ns: int) -> None:
        """
        Mark a few messages, at a different place in each chunk so that none is always the
        first.
        """
        for index in self._timed:
            self._data[self._head + index * self._stride + MARK] = 0
        self._timed = timed(sequence, self.messages, self._timed_every)
        for index in self._timed:
            start = self._head + index * self._stride
            self._data[start + MARK] = 1
            struct.pack_into(">Q", self._data, start + HEAD.size - 8, now_ns)


class Tags:
    """The tags of one publisher among several."""

    def __init__(self, publisher: int, publishers: int) -> None:
        bits = 8 - (publishers - 1).bit_length()
        self.publisher = publisher
        self.cycle = 1 << max(bits, 0)
        first = (publisher << max(bits, 0)) & 255
        own = bytes(range(first, first + self.cycle))
        self.others = bytes(set(range(256)) - set(own))
        """The tags to delete from a read, so that only ours are left."""
        self._own = own * (2 * CHUNK_MESSAGES_MAX // self.cycle)

    def run(self, sequence: int, count: int) -> bytes:
        """Return the tags of `count` messages from `sequence` on."""
        start = sequence % self.cycle
        own = self._own
        if start + count > len(own):
            own = own * ((start + count) // len(own) + 1)
        return own[start : start + count]


@cache
def all_tags(publishers: int) -> tuple[Tags, ...]:
    """Return the tags of every publisher; a process with many subscribers creates them once."""
    return tuple(Tags(index, publishers) for index in range(publishers))


class Checker:
    """The messages one subscriber received: counts, losses, order, delays."""

    def __init__(self, publishers: int, size: int, latency_ns: Histogram) -> None:
        self.received = 0
        self.disordered = 0
        """Messages that came after a later one of their publisher, or twice."""
        self.foreign = 0
        """Messages that are not from this run."""
        self._size = size
        self._checked = is_checked(size)
        self._in_bulk = publishers <= TAGGED_PUBLISHERS_MAX
        self._tags = all_tags(publishers)
        self._following = [0] * publishers
        self._latency_ns = latency_ns

    def take(self, operations: Sequence[Any], now_ns: int) -> None:
        """Check the messages of one read, `(MSG, subject, sid, reply, header, payload)` each."""
        if not self._checked:
            self.received += len(operations)
            return
        heads = b"".join([operation[5][:2] for operation in operations])
        tags, marks = heads[::2], heads[1::2]
        if len(heads) != 2 * len(operations) or not self._in_order(tags, operations):
            operations = self._take_singly(operations)
            marks = bytes([operation[5][MARK] for operation in operations])
        else:
            self.received += len(operations)
        at = marks.find(1)
        while at >= 0:
            sent_ns = HEAD.unpack_from(operations[at][5])[4]
            self._latency_ns.record(now_ns - sent_ns)
            at = marks.find(1, at + 1)

    def _in_order(self, tags: bytes, operations: Sequence[Any]) -> bool:
        """Check publisher by publisher; keep the new state only if everything is in order."""
        if not self._in_bulk:
            return False
        following = self._following[:]
        found = 0
        for one in self._tags:
            own = tags.translate(None, one.others) if one.others else tags
            if not own:
                continue
            found += len(own)
            sequence = following[one.publisher]
            if own != one.run(sequence, len(own)):
                return False
            following[one.publisher] = sequence + len(own)
            payload = operations[tags.rfind(own[-1])][5]
            if len(payload) != self._size:
                return False
            if HEAD.unpack_from(payload)[2:4] != (one.publisher, sequence + len(own) - 1):
                return False
        if found != len(tags):
            return False
        self._following = following
        return True

    def _take_singly(self, operations: Sequence[Any]) -> list[Any]:
        """Check a faulty read message by message; return the messages of this run."""
        own = []
        for operation in operations:
            payload = operation[5]
            ours = len(payload) == self._size
            publisher, sequence = HEAD.unpack_from(payload)[2:4] if ours else NOBODY
            if publisher >= len(self._following):
                self.foreign += 1
                continue
            own.append(operation)
            if sequence < self._following[publisher]:
                self.disordered += 1
            else:
                self._following[publisher] = sequence + 1
        self.received += len(own)
        return own


def is_checked(size: int) -> bool:
    """Tell whether payloads of this size have room for a head."""
    return size >= HEAD.size


def chunk_messages(size: int) -> int:
    """Return the number of messages in a chunk: a power of two, fewer if they are large."""
    fitting = max(CHUNK_BYTES_MAX // max(size, 1), 1)
    return min(CHUNK_MESSAGES_MAX, 1 << (fitting.bit_length() - 1))


def timed(sequence: int, count: int, timed_every: int) -> range:
    """Return which messages of a chunk carry their time."""
    every = min(timed_every, count)
    if sequence // count % max(timed_every // count, 1):
        return range(0)
    return range(sequence // count * 29 % every, count, every)
