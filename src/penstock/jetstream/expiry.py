"""
Messages that live no longer than their `Nats-TTL` header says (ADR-43).

Deadlines are kept in memory, in a heap. After a restart they are read back from
the messages themselves, a piece at a time while the server already works, and
only of streams that ever stored such a message: the stream's file says so.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from penstock import headers
from penstock.errors import JetStreamError
from penstock.jetstream import errorcodes
from penstock.jetstream.timers import Timer
from penstock.jetstream.times import parse_duration
from penstock.times import SECOND_NS

if TYPE_CHECKING:
    from penstock.jetstream.stream import Stream

READ_COUNT = 1000
READ_BYTES = 1024 * 1024


def time_to_live_ns(header: bytes) -> int | None:
    """Return how long a message is to live, None if it says nothing; raise if that is nonsense."""
    value = headers.get(header, b"Nats-TTL") if header else None
    if not value or value.lower() == b"never":
        return None
    text = value.decode(errors="replace")
    try:
        ttl_ns = int(text) * SECOND_NS if text.isdigit() else parse_duration(text)
    except ValueError:
        ttl_ns = 0
    if ttl_ns < SECOND_NS:
        raise JetStreamError(errorcodes.MESSAGE_TTL_INVALID)
    return ttl_ns // SECOND_NS * SECOND_NS


class Expiry:
    """When which messages of one stream have to go."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._heap: list[tuple[int, int]] = []
        self._timer: Timer | None = None
        self._is_marked = False

    def prepare(self) -> None:
        """See that the deadlines of this stream will be looked for after a restart."""
        stream = self._stream
        if self._is_marked or stream.config.storage == "memory":
            return
        try:
            stream.engine.files.mark_expiring(stream.name)
        except OSError as error:
            raise JetStreamError(errorcodes.STREAM_STORE_FAILED, err=str(error)) from error
        self._is_marked = True

    def add(self, deadline_ns: int, sequence: int) -> None:
        """Have a message removed at a time."""
        heapq.heappush(self._heap, (deadline_ns, sequence))
        if self._heap[0][1] == sequence:
            self._arm()

    def close(self) -> None:
        """Remove nothing any more."""
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()

    def recover(self, sequence: int = 0) -> None:
        """Read the deadlines back from the store, from a sequence on, a piece at a time."""
        store = self._stream.store
        messages, sequence = store.read(sequence, count_max=READ_COUNT, bytes_max=READ_BYTES)
        for stored, time_ns, _, header, _ in messages:
            ttl_ns = time_to_live_ns(header)
            if ttl_ns is not None:
                self.add(time_ns + ttl_ns, stored)
        if sequence <= store.last_sequence and not self._stream.is_closed:
            engine = self._stream.engine
            engine.timers.at(engine.clock_ns(), lambda now_ns: self.recover(sequence))

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._stream.engine.timers.at(self._heap[0][0], self._on_time)

    def _on_time(self, now_ns: int) -> None:
        due = []
        while self._heap and self._heap[0][0] <= now_ns:
            due.append(heapq.heappop(self._heap)[1])
        self._stream.remove(due)
        if self._heap:
            self._arm()
