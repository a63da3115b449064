"""
Messages that live no longer than their `Nats-TTL` header says (ADR-43), or for ever.

Deadlines are kept in memory, in a heap. After a restart they are read back from
the messages themselves, a piece at a time while the server already works, and
only of streams with `allow_msg_ttl`, which no update takes away again.

`max_age` holds beside it, except for what is to live for ever. So a stream with
`allow_msg_ttl` grows old here, message by message, and not in its store.

With `subject_delete_marker_ttl` the last message of a subject does not go without
a trace: a marker takes its place, and goes in turn when its own time is up.
"""

from __future__ import annotations

import heapq
import logging
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.errors import JetStreamError
from penstock.jetstream.store import lookup
from penstock.jetstream.store.values import Message
from penstock.jetstream.timers import Timer
from penstock.protocol import errorcodes, headers
from penstock.protocol.times import DURATION_NS_MAX, SECOND_NS, duration, parse_duration

if TYPE_CHECKING:
    from penstock.jetstream.stream import Stream

log = logging.getLogger("penstock")

RETRY_NS = SECOND_NS
NEVER = -1
"""The time to live of a message that no age removes."""


def time_to_live_ns(header: bytes) -> int | None:
    """Return how long a message is to live, None if it says nothing; raise if that is nonsense."""
    value = headers.get(header, b"Nats-TTL") if header else None
    if not value:
        return None
    if value.lower() == b"never":
        return NEVER
    seconds = headers.number(value)
    try:
        text = value.decode(errors="replace")
        ttl_ns = parse_duration(text) if seconds is None else seconds * SECOND_NS
        ttl_ns = min(ttl_ns, DURATION_NS_MAX)
    except ValueError:
        ttl_ns = 0
    if ttl_ns < SECOND_NS:
        raise JetStreamError(errorcodes.MESSAGE_TTL_INVALID)
    return ttl_ns // SECOND_NS * SECOND_NS


def stored_time_to_live_ns(header: bytes) -> int | None:
    """As `time_to_live_ns`, of a message that is stored: if it says nonsense, it says nothing."""
    try:
        return time_to_live_ns(header)
    except JetStreamError:
        return None


def marker(ttl_ns: int) -> bytes:
    """Return the headers of what takes the place of a subject's last message."""
    ttl = duration(ttl_ns // SECOND_NS * SECOND_NS)
    pairs = (("Nats-Marker-Reason", "MaxAge"), ("Nats-TTL", ttl), ("Nats-Rollup", "sub"))
    return headers.encode(pairs)


def is_marker(header: bytes) -> bool:
    """Tell whether a message only says that there is nothing any more."""
    return bool(header) and (
        bool(headers.get(header, b"Nats-Marker-Reason"))
        or headers.get(header, b"KV-Operation") == b"PURGE"
    )


class Expiry:
    """When which messages of one stream have to go."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._heap: list[tuple[int, int]] = []
        self._timer: Timer | None = None
        self._aged_sequence = 0
        """Whatever is left below this sequence lives for ever, or has its own deadline."""

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

    def configure(self) -> None:
        """Look at all ages again: `max_age` may be another by now."""
        self._aged_sequence = 0

    def recover(self, sequence: int = 0) -> None:
        """Read the deadlines back from the store, from a sequence on, a piece at a time."""
        store = self._stream.store
        messages, sequence = store.read(
            sequence, count_max=lookup.READ_COUNT, bytes_max=lookup.READ_BYTES
        )
        for stored, time_ns, _, header, _ in messages:
            ttl_ns = stored_time_to_live_ns(header)
            if ttl_ns is not None and ttl_ns != NEVER:
                self.add(time_ns + ttl_ns, stored)
        if sequence <= store.last_sequence and not self._stream.is_closed:
            engine = self._stream.engine
            engine.timers.at(engine.clock_ns(), lambda now_ns: self.recover(sequence))

    def oldest_time_ns(self) -> int:
        """Return the time of the oldest message that can grow too old; 0 if there is none."""
        message = next(lookup.following(self._stream.store, self._aged_sequence, ()), None)
        return 0 if message is None else message[1]

    def age_out(self, now_ns: int) -> None:
        """Remove what is older than `max_age`, or some of it if that is much."""
        store, max_age_ns = self._stream.store, self._stream.config.max_age
        if not max_age_ns:
            return
        young_sequence = store.sequence_at(now_ns - max_age_ns)
        messages, self._aged_sequence = store.read(
            self._aged_sequence,
            count_max=lookup.READ_COUNT,
            bytes_max=lookup.READ_BYTES,
            last_sequence=young_sequence - 1,
        )
        old = [each for each in messages if stored_time_to_live_ns(each[3]) != NEVER]
        for sequence in self._expire(old):
            self._aged_sequence = min(self._aged_sequence, sequence)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._stream.engine.timers.at(self._heap[0][0], self._on_time)

    def _on_time(self, now_ns: int) -> None:
        due = []
        while self._heap and self._heap[0][0] <= now_ns:
            due.append(heapq.heappop(self._heap)[1])
        kept = due
        try:
            kept = self._remove(due)
        finally:
            for sequence in kept:
                heapq.heappush(self._heap, (now_ns + RETRY_NS, sequence))
            if self._heap:
                self._arm()

    def _remove(self, due: list[int]) -> list[int]:
        """Remove messages whose time has come; return what could not go."""
        if not self._marker_ttl_ns:
            self._stream.remove(due)
            return []
        found = [self._stream.store.get(sequence) for sequence in sorted(due)]
        return self._expire([message for message in found if message is not None])

    @property
    def _marker_ttl_ns(self) -> int:
        config = self._stream.config
        return 0 if config.sealed else config.subject_delete_marker_ttl

    def _expire(self, messages: Iterable[Message]) -> list[int]:
        """Remove messages, the last of their subjects for a marker; return what could not go."""
        stream, ttl_ns = self._stream, self._marker_ttl_ns
        gone: list[int] = []
        kept: list[int] = []
        counts: Counter[bytes] = Counter()
        for sequence, _, subject, header, _ in messages:
            is_last = bool(ttl_ns) and stream.store.last(subject)[1] - counts[subject] == 1
            if is_last and not is_marker(header):
                try:
                    stream.intake.take_internal(subject, marker(ttl_ns))
                    continue
                except JetStreamError as error:
                    log.warning("Stream '%s' can not store a marker: %s", stream.name, error)
                    kept.append(sequence)
            else:
                gone.append(sequence)
                counts[subject] += 1
        stream.remove(gone)
        return kept
