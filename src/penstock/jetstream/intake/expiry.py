"""
Messages that live as long as their `Nats-TTL` header says (ADR-43), or for ever.

Deadlines are kept in memory, in a heap. After a restart they are read back from the messages, a
piece at a time while the server already works, and only for streams with `allow_msg_ttl`, which no
update can take away.

`max_age` applies too, except to messages that live for ever. So for a stream with `allow_msg_ttl`
this module checks the age of each message, and the store does not.

With `subject_delete_marker_ttl` the last message of a subject leaves a trace: a marker takes its
place, and goes in turn when its own time is up.
"""

from __future__ import annotations

import heapq
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from penstock.errors import JetStreamError
from penstock.jetstream.intake.readback import ReadBack
from penstock.jetstream.store import lookup
from penstock.jetstream.store.values import Message
from penstock.jetstream.timers import Timer
from penstock.protocol import errorcodes, headers
from penstock.protocol.times import DURATION_NS_MAX, SECOND_NS, duration, parse_duration

if TYPE_CHECKING:
    from penstock.jetstream.intake.target import PublishTarget

log = logging.getLogger("penstock")

RETRY_NS = SECOND_NS
EXPIRED_AT_ONCE = 1024
"""The number of messages to remove before others have their turn."""
NEVER = -1
"""The time to live of a message that no age removes."""


def time_to_live_ns(header: bytes) -> int | None:
    """Return a message's time to live, None without one; raise if it is invalid."""
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
    """Like `time_to_live_ns`, for a stored message: an invalid value counts as none."""
    try:
        return time_to_live_ns(header)
    except JetStreamError:
        return None


def marker(ttl_ns: int) -> bytes:
    """Return the headers of the marker that replaces a subject's last message."""
    ttl = duration(ttl_ns // SECOND_NS * SECOND_NS)
    pairs = (("Nats-Marker-Reason", "MaxAge"), ("Nats-TTL", ttl), ("Nats-Rollup", "sub"))
    return headers.encode(pairs)


def is_marker(header: bytes) -> bool:
    """Tell whether a message is a marker."""
    return bool(header) and (
        bool(headers.get(header, b"Nats-Marker-Reason"))
        or headers.get(header, b"KV-Operation") == b"PURGE"
    )


class Expiry:
    """The deadlines of one stream's messages."""

    def __init__(self, stream: PublishTarget, store_marker: Callable[[bytes, bytes], None]) -> None:
        """`store_marker` stores a message with a subject and headers; raises JetStreamError."""
        self._stream = stream
        self._store_marker = store_marker
        self._heap: list[tuple[int, int]] = []
        self._timer: Timer | None = None
        self._read_back = ReadBack(stream, "deadlines", self._add_all)
        self._aged_sequence = 0
        """Below this sequence, every remaining message lives for ever or has its own deadline."""

    def add(self, deadline_ns: int, sequence: int) -> None:
        """Schedule the removal of a message."""
        heapq.heappush(self._heap, (deadline_ns, sequence))
        if self._heap[0][1] == sequence:
            self._arm()

    def go_back(self) -> None:
        """Begin again with the existing messages: they may have changed."""
        self._heap.clear()
        self._aged_sequence = 0
        if self._stream.config.allow_msg_ttl:
            self.recover()

    def close(self) -> None:
        """Stop removing."""
        self._heap.clear()
        self._read_back.cancel()
        if self._timer is not None:
            self._timer.cancel()

    def configure(self) -> None:
        """Check all ages again: `max_age` may have changed."""
        self._aged_sequence = 0

    def recover(self) -> None:
        """Read the deadlines back from the store."""
        self._read_back.begin()

    def _add_all(self, messages: Sequence[Message]) -> None:
        for sequence, time_ns, _, header, _ in messages:
            ttl_ns = stored_time_to_live_ns(header)
            if ttl_ns is not None and ttl_ns != NEVER:
                self.add(time_ns + ttl_ns, sequence)

    def oldest_time_ns(self) -> int:
        """Return the time of the oldest message that can grow too old; 0 if there is none."""
        message = next(lookup.following(self._stream.store, self._aged_sequence, ()), None)
        return 0 if message is None else message[1]

    def age_out(self, now_ns: int) -> None:
        """Remove messages older than `max_age`, or a part of them if they are many."""
        store, max_age_ns = self._stream.store, self._stream.config.max_age
        if not max_age_ns or self._stream.is_failing:
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
        self._timer = self._stream.context.timers.at(self._heap[0][0], self._on_time)

    def _on_time(self, now_ns: int) -> None:
        due: list[int] = []
        while self._heap and self._heap[0][0] <= now_ns and len(due) < EXPIRED_AT_ONCE:
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
        """Remove messages whose time has come; return those that could not be removed."""
        if self._stream.is_failing:
            return due
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
        """Remove messages, the last of a subject for a marker; return those that could not go."""
        stream, ttl_ns = self._stream, self._marker_ttl_ns
        gone: list[int] = []
        kept: list[int] = []
        counts: Counter[bytes] = Counter()
        for sequence, _, subject, header, _ in messages:
            is_last = bool(ttl_ns) and stream.store.last(subject)[1] - counts[subject] == 1
            if is_last and not is_marker(header):
                try:
                    self._store_marker(subject, marker(ttl_ns))
                    continue
                except JetStreamError as error:
                    log.warning("Stream '%s' cannot store a marker: %s", stream.config.name, error)
                    kept.append(sequence)
            else:
                gone.append(sequence)
                counts[subject] += 1
        stream.remove(gone)
        return kept
