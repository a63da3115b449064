"""
The state of a consumer, and the records of its changes. Pure functions over bytes.

A record of the consumers' log is a whole state, or one change to it. A checksum comes first, then
the name of the consumer, then a list of sequences. `consumerlog.py` has their file.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from zlib import crc32

from penstock.jetstream.store.file.segment import from_little_endian, little_endian

FORMAT_VERSION = 1
START, STATE, DELIVERED, ACKED, ADVANCED, REMOVED, GIVEN_UP = KINDS = range(1, 8)

_RECORD = struct.Struct("<IIBBHQQq")
_BODY = struct.Struct("<IBBHQQq")


@dataclass
class ConsumerState:
    """The state of a consumer. Pairs are consumer sequence and stream sequence."""

    delivered_consumer_sequence: int = 0
    delivered_stream_sequence: int = 0
    ack_floor_consumer_sequence: int = 0
    ack_floor_stream_sequence: int = 0
    pending: dict[int, tuple[int, int]] = field(default_factory=dict)
    """
    Delivered but not acknowledged: stream sequence to the consumer sequence of the first
    delivery and the time of the last.
    """
    redelivered: dict[int, int] = field(default_factory=dict)
    """Redeliveries: stream sequence to the number of deliveries after the first."""

    def deliver(
        self, consumer_sequence: int, stream_sequences: Sequence[int], time_ns: int
    ) -> None:
        """Take note of messages delivered, the first of them as `consumer_sequence`."""
        pending = self.pending
        for stream_sequence in stream_sequences:
            first = consumer_sequence
            if stream_sequence in pending:
                self.redelivered[stream_sequence] = self.redelivered.get(stream_sequence, 0) + 1
                first = pending[stream_sequence][0]
            pending[stream_sequence] = (first, time_ns)
            consumer_sequence += 1
        self.delivered_consumer_sequence = consumer_sequence - 1
        last = max(stream_sequences, default=0)
        self.delivered_stream_sequence = max(self.delivered_stream_sequence, last)

    def ack(self, stream_sequences: Sequence[int]) -> None:
        """Take note of messages acknowledged, and move the floor if possible."""
        for stream_sequence in stream_sequences:
            self.pending.pop(stream_sequence, None)
            self.redelivered.pop(stream_sequence, None)
        self._raise_floor()

    def give_up(self, stream_sequences: Sequence[int]) -> None:
        """Take note of messages that are not delivered again although they are not acked."""
        for stream_sequence in stream_sequences:
            self.pending.pop(stream_sequence, None)
            self.redelivered.setdefault(stream_sequence, 0)
        self._raise_floor()

    def advance(self, consumer_sequence: int, stream_sequence: int) -> None:
        """Take note that everything up to here was delivered and is settled."""
        for pending in [each for each in self.pending if each <= stream_sequence]:
            del self.pending[pending]
            self.redelivered.pop(pending, None)
        self.delivered_consumer_sequence = max(self.delivered_consumer_sequence, consumer_sequence)
        self.delivered_stream_sequence = max(self.delivered_stream_sequence, stream_sequence)
        self.ack_floor_consumer_sequence = max(self.ack_floor_consumer_sequence, consumer_sequence)
        self.ack_floor_stream_sequence = max(self.ack_floor_stream_sequence, stream_sequence)

    def _raise_floor(self) -> None:
        if not self.pending:
            self.ack_floor_consumer_sequence = self.delivered_consumer_sequence
            self.ack_floor_stream_sequence = self.delivered_stream_sequence
            return
        first = min(self.pending)
        lowest = min(consumer_sequence for consumer_sequence, _ in self.pending.values())
        self.ack_floor_stream_sequence = max(self.ack_floor_stream_sequence, first - 1)
        self.ack_floor_consumer_sequence = max(self.ack_floor_consumer_sequence, lowest - 1)


class RecordedChange(NamedTuple):
    """One record: its kind, its consumer, and its numbers."""

    kind: int
    name: str
    first: int
    second: int
    time_ns: int
    numbers: array[int]


def encode(change: RecordedChange) -> bytes:
    """Return the record of a change."""
    name = change.name.encode()
    length = _RECORD.size + len(name) + 8 * len(change.numbers)
    head = _BODY.pack(
        length, change.kind, FORMAT_VERSION, len(name), change.first, change.second, change.time_ns
    )
    body = b"".join((head, name, little_endian(change.numbers)))
    return struct.pack("<I", crc32(body)) + body


def scan(data: bytes) -> tuple[list[RecordedChange], int, int]:
    """
    Return the valid records, the number of bytes between them that are none, and where they end.

    The walk continues after damaged bytes. That is right even for bytes that were never synced: an
    acknowledgement holds without the record before it.
    """
    changes: list[RecordedChange] = []
    offset = damaged = good_end = 0
    while offset < len(data):
        found = _record_at(data, offset)
        if found is None:
            offset += 1
        else:
            damaged += offset - good_end
            change, offset = found
            good_end = offset
            changes.append(change)
    return changes, damaged, good_end


def _record_at(data: bytes, offset: int) -> tuple[RecordedChange, int] | None:
    """Return the record at an offset and its end; None if there is no valid record."""
    if offset + _RECORD.size > len(data):
        return None
    checksum, length, kind, version, name_length, first, second, time_ns = _RECORD.unpack_from(
        data, offset
    )
    end = offset + length
    name_at = offset + _RECORD.size
    if version != FORMAT_VERSION or kind not in KINDS or end > len(data):
        return None
    if end < name_at + name_length or crc32(data[offset + 4 : end]) != checksum:
        return None
    name = data[name_at : name_at + name_length].decode()
    numbers = from_little_endian("Q", data[name_at + name_length : end])
    return RecordedChange(kind, name, first, second, time_ns, numbers), end


def encode_state(name: str, state: ConsumerState) -> bytes:
    """Return the record of a consumer's whole state."""
    numbers = array("Q", (state.ack_floor_consumer_sequence, state.ack_floor_stream_sequence))
    numbers.extend((len(state.pending), len(state.redelivered)))
    for stream_sequence, (consumer_sequence, time_ns) in state.pending.items():
        numbers.extend((stream_sequence, consumer_sequence, time_ns))
    for stream_sequence, count in state.redelivered.items():
        numbers.extend((stream_sequence, count))
    delivered = state.delivered_consumer_sequence, state.delivered_stream_sequence
    return encode(RecordedChange(STATE, name, *delivered, 0, numbers))


def decode_state(change: RecordedChange) -> ConsumerState:
    """Return the state in a record."""
    floor_consumer, floor_stream, pending_count, _ = change.numbers[:4]
    pending_end = 4 + 3 * pending_count
    pending = change.numbers[4:pending_end]
    redelivered = change.numbers[pending_end:]
    return ConsumerState(
        change.first,
        change.second,
        floor_consumer,
        floor_stream,
        {
            stream: (consumer, time_ns)
            for stream, consumer, time_ns in zip(
                pending[::3], pending[1::3], pending[2::3], strict=True
            )
        },
        dict(zip(redelivered[::2], redelivered[1::2], strict=True)),
    )


def is_complete(changes: Sequence[RecordedChange]) -> bool:
    """Tell whether a file starts with the state of every consumer that existed then."""
    if not changes or changes[0].kind != START:
        return False
    announced = changes[0].second
    return [change.kind for change in changes[1 : 1 + announced]] == [STATE] * announced


def replay(changes: Sequence[RecordedChange]) -> dict[str, ConsumerState]:
    """Return the states that records lead to."""
    states: dict[str, ConsumerState] = {}
    for change in changes:
        if change.kind == STATE:
            states[change.name] = decode_state(change)
        elif change.kind == REMOVED:
            states.pop(change.name, None)
        elif change.name in states:
            _apply(states[change.name], change)
    return states


def _apply(state: ConsumerState, change: RecordedChange) -> None:
    if change.kind == DELIVERED:
        # After a gap the deliveries are unknown, so those messages must be delivered again.
        if change.first == state.delivered_consumer_sequence + 1:
            state.deliver(change.first, change.numbers, change.time_ns)
    elif change.kind == ACKED:
        state.ack(change.numbers)
    elif change.kind == GIVEN_UP:
        state.give_up(change.numbers)
    elif change.kind == ADVANCED:
        state.advance(change.first, change.second)
