"""
Messages that make other messages: `Nats-Schedule` (ADR-51).

A message with that header is a schedule. When it is due, its payload, or that of the last message
of another subject, is stored under its target; the new message names its schedule and the next time
it is due. A schedule is due once (`@at`) and then gone, or again and again. Each subject has one
schedule: the newest.

Schedules are kept in memory, and read back from the messages after a restart, a piece at a time;
nothing is due before that is done.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.errors import JetStreamError, cause
from penstock.jetstream.intake.cron import next_time_ns
from penstock.jetstream.intake.expiry import time_to_live_ns
from penstock.jetstream.intake.readback import ReadBack
from penstock.jetstream.store.values import Message
from penstock.jetstream.timers import Timer
from penstock.protocol import errorcodes, headers
from penstock.protocol import subjects as patterns
from penstock.protocol.rfc3339 import format_time, parse_time
from penstock.protocol.times import SECOND_NS

if TYPE_CHECKING:
    from penstock.jetstream.intake.target import PublishTarget

log = logging.getLogger("penstock")

RETRY_NS = SECOND_NS
PURGE = b"purge"
NOT_TAKEN_OVER = (b"Nats-Schedule", b"Nats-Expected-")
"""Prefixes of headers that describe the schedule, not the messages it makes."""
ZONE_CHARACTERS_MAX = 256
NOT_TAKEN_OVER_KEYS = (b"Nats-Msg-Id", b"Nats-TTL", b"Nats-Rollup")


def checked(stream: PublishTarget, subject: bytes, header: bytes, now_ns: int) -> bytes:
    """Check the headers of a message about a schedule; return those to store."""
    config = stream.config
    if headers.get(header, b"Nats-Schedule"):
        try:
            _next(header, now_ns, now_ns)
        except JetStreamError:
            if not config.allow_msg_schedules:
                raise JetStreamError(errorcodes.MESSAGE_SCHEDULES_DISABLED) from None
            raise
        if not config.allow_msg_schedules:
            raise JetStreamError(errorcodes.MESSAGE_SCHEDULES_DISABLED)
        header = _checked_schedule(stream, subject, header)
    scheduler = headers.get(header, b"Nats-Scheduler") or b""
    following = headers.get(header, b"Nats-Schedule-Next")
    if following:
        _check_purge(stream, subject, scheduler, following)
    elif scheduler:
        raise JetStreamError(errorcodes.MESSAGE_SCHEDULES_SCHEDULER_INVALID)
    return header


def _checked_schedule(stream: PublishTarget, subject: bytes, header: bytes) -> bytes:
    ttl = headers.get(header, b"Nats-Schedule-TTL")
    if ttl:
        try:
            time_to_live_ns(headers.add(b"", b"Nats-TTL", ttl))
        except JetStreamError:
            raise JetStreamError(errorcodes.MESSAGE_SCHEDULES_TTL_INVALID) from None
    if headers.get(header, b"Nats-Schedule-Rollup") not in (None, b"", b"sub"):
        raise JetStreamError(errorcodes.MESSAGE_SCHEDULES_ROLLUP_INVALID)
    if ttl and not stream.config.allow_msg_ttl:
        raise JetStreamError(errorcodes.MESSAGE_TTL_DISABLED)
    target = headers.get(header, b"Nats-Schedule-Target") or b""
    if target == subject or not _is_stored(stream, target):
        raise JetStreamError(errorcodes.MESSAGE_SCHEDULES_TARGET_INVALID)
    source = headers.get(header, b"Nats-Schedule-Source")
    if source and (source in (target, subject) or not _is_stored(stream, source)):
        raise JetStreamError(errorcodes.MESSAGE_SCHEDULES_SOURCE_INVALID)
    rollup = headers.get(header, b"Nats-Rollup")
    if not rollup:
        return headers.add(header, b"Nats-Rollup", b"sub")
    if rollup.lower() != b"sub":
        raise JetStreamError(errorcodes.MESSAGE_SCHEDULES_ROLLUP_INVALID)
    return header


def _is_stored(stream: PublishTarget, subject: bytes) -> bool:
    """Tell whether a stream would store messages of a subject."""
    return patterns.is_valid_literal(subject) and any(
        patterns.matches(each.encode(), subject) for each in stream.config.subjects
    )


def _check_purge(stream: PublishTarget, subject: bytes, scheduler: bytes, following: bytes) -> None:
    """Check a message that removes a schedule."""
    invalid = JetStreamError(errorcodes.MESSAGE_SCHEDULES_SCHEDULER_INVALID)
    if following != PURGE or scheduler == subject or not patterns.is_valid_literal(scheduler):
        raise invalid
    if not stream.config.allow_msg_schedules:
        raise JetStreamError(errorcodes.MESSAGE_SCHEDULES_DISABLED)
    message = stream.store.get(stream.store.last(scheduler)[0])
    if message is not None and not headers.get(message[3], b"Nats-Schedule"):
        raise invalid


def _next(header: bytes, since_ns: int, now_ns: int) -> tuple[int, bool]:
    """Return when a schedule is due next, and whether it repeats."""
    zone = headers.get(header, b"Nats-Schedule-Time-Zone")
    zone_name = None if zone is None else zone.decode(errors="replace")
    if zone_name is not None and not _is_zone(zone_name):
        raise JetStreamError(errorcodes.MESSAGE_SCHEDULES_TIME_ZONE_INVALID)
    pattern = (headers.get(header, b"Nats-Schedule") or b"").decode(errors="replace")
    try:
        return next_time_ns(pattern, zone_name, since_ns, now_ns)
    except (ValueError, OverflowError):
        raise JetStreamError(errorcodes.MESSAGE_SCHEDULES_PATTERN_INVALID) from None


def _is_zone(name: str) -> bool:
    from zoneinfo import ZoneInfo

    try:
        return len(name) <= ZONE_CHARACTERS_MAX and bool(ZoneInfo(name))
    except (ValueError, KeyError, OSError):
        return False


class Schedules:
    """The schedules of one stream."""

    def __init__(
        self, stream: PublishTarget, store_made: Callable[[bytes, bytes, bytes], None]
    ) -> None:
        """`store_made` stores a subject, headers and a payload; raises JetStreamError."""
        self._stream = stream
        self._store_made = store_made
        self._due: dict[bytes, tuple[int, int]] = {}
        """By subject: sequence of the schedule, and when it is due."""
        self._heap: list[tuple[int, bytes]] = []
        self._timer: Timer | None = None
        self._is_recovering = False
        self._read_back = ReadBack(stream, "schedules", self._note_all)

    def close(self) -> None:
        """Stop making messages."""
        self._heap.clear()
        self._read_back.cancel()
        if self._timer is not None:
            self._timer.cancel()

    def go_back(self) -> None:
        """Begin again with the existing messages: they may have changed."""
        self._heap.clear()
        self._due.clear()
        if self._stream.config.allow_msg_schedules:
            self.recover()

    def recover(self) -> None:
        """Read the schedules back from the store; nothing is due before all of them are."""
        self._is_recovering = True
        self._read_back.begin(self._recovered)

    def _note_all(self, messages: Sequence[Message]) -> None:
        for sequence, time_ns, subject, header, _ in messages:
            self.note(sequence, subject, header, time_ns)

    def _recovered(self) -> None:
        self._is_recovering = False
        self._arm()

    def note(self, sequence: int, subject: bytes, header: bytes, time_ns: int) -> None:
        """Take note of a stored message: it may be a schedule, or come from one."""
        if b"\r\nNats-Schedule" not in header:
            self._due.pop(subject, None)
            return
        if headers.get(header, b"Nats-Schedule"):
            try:
                due_ns, _ = _next(header, time_ns, self._stream.context.clock_ns())
            except JetStreamError:
                # A stream that did not allow schedules then stored it verbatim.
                return
            self._put(subject, sequence, due_ns)
            return
        scheduler = headers.get(header, b"Nats-Scheduler")
        following = headers.get(header, b"Nats-Schedule-Next")
        if scheduler in self._due and following and following != PURGE:
            # It may have been stored verbatim too, with any value.
            with suppress(ValueError, OverflowError):
                next_ns = parse_time(following.decode(errors="replace"))
                self._put(scheduler, self._due[scheduler][0], next_ns)

    def purged_subject(self, header: bytes) -> bytes | None:
        """Return the subject of the schedule that a stored message removes, if it does."""
        if headers.get(header, b"Nats-Schedule-Next") != PURGE:
            return None
        return headers.get(header, b"Nats-Scheduler")

    def _put(self, subject: bytes, sequence: int, due_ns: int) -> None:
        self._due[subject] = sequence, due_ns
        heapq.heappush(self._heap, (due_ns, subject))
        self._arm()

    def _arm(self) -> None:
        if self._is_recovering or not self._heap:
            return
        due_ns = self._heap[0][0]
        if self._timer is not None and self._timer.is_armed:
            if self._timer.deadline_ns <= due_ns:
                return
            self._timer.cancel()
        self._timer = self._stream.context.timers.at(due_ns, self._on_time)

    def _on_time(self, now_ns: int) -> None:
        due = []
        while self._heap and self._heap[0][0] <= now_ns:
            due_ns, subject = heapq.heappop(self._heap)
            sequence, wanted_ns = self._due.get(subject, (0, 0))
            if wanted_ns == due_ns and sequence:
                due.append((sequence, subject))
        for sequence, subject in sorted(set(due)):
            try:
                self._make(sequence, subject, now_ns)
            except Exception as error:
                # The stream's other schedules are still due.
                name = self._stream.config.name
                log.error("Stream '%s': schedule %d failed: %s", name, sequence, cause(error))
                if isinstance(error, JetStreamError):
                    # The next time would fail in the same way.
                    self._due.pop(subject, None)
                else:
                    self._put(subject, sequence, now_ns + RETRY_NS)
        self._arm()

    def _make(self, sequence: int, subject: bytes, now_ns: int) -> None:
        """Store the message that a schedule makes."""
        schedule = self._stream.store.get(sequence)
        if schedule is None:
            self._due.pop(subject, None)
            return
        due_ns, repeats = _next(schedule[3], self._due[subject][1], now_ns)
        try:
            self._store_made(*self._made(schedule, due_ns if repeats else 0))
        except JetStreamError as error:
            log.warning("Stream '%s' cannot do as scheduled: %s", self._stream.config.name, error)
            self._put(subject, sequence, now_ns + RETRY_NS)

    def _made(self, schedule: Message, next_ns: int) -> tuple[bytes, bytes, bytes]:
        """Return the subject, the headers and the payload of the message that a schedule makes."""
        _, _, subject, own, payload = schedule
        header = own
        source = headers.get(own, b"Nats-Schedule-Source")
        latest = self._stream.store.get(self._stream.store.last(source)[0]) if source else None
        if latest is not None:
            header, payload = latest[3], latest[4]
        header = headers.without_prefixes(header, NOT_TAKEN_OVER)
        for key in NOT_TAKEN_OVER_KEYS:
            header = headers.remove(header, key)
        following = format_time(next_ns).encode() if next_ns else PURGE
        header = headers.add(header, b"Nats-Scheduler", subject)
        header = headers.add(header, b"Nats-Schedule-Next", following)
        for key, made in (
            (b"Nats-Schedule-TTL", b"Nats-TTL"),
            (b"Nats-Schedule-Rollup", b"Nats-Rollup"),
        ):
            told = headers.get(own, key)
            if told:
                header = headers.add(header, made, told)
        return headers.get(own, b"Nats-Schedule-Target") or b"", header, payload
