"""
The demands a message makes by its headers, and the stream's room for it.

A message is examined before it is stored, and that changes nothing: its effects on storing come
back as a `Prepared`. The messages of an atomic batch are examined one after another, each as if the
ones before it were stored already; `Staged` has the changes those would make.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

from penstock.errors import JetStreamError, StoreError
from penstock.jetstream.intake import counters, schedules
from penstock.jetstream.intake.dedupe import DuplicateWindow
from penstock.jetstream.intake.expiry import NEVER, time_to_live_ns
from penstock.jetstream.store import lookup
from penstock.jetstream.store.file.keptids import id_of
from penstock.jetstream.store.values import Entry, Known
from penstock.protocol import errorcodes, headers, subjects
from penstock.protocol.strictjson import SUBJECT_CHARACTERS_MAX
from penstock.protocol.times import SECOND_NS

if TYPE_CHECKING:
    from penstock.jetstream.intake.target import PublishTarget

HEADER_BYTES_MAX = 64 * 1024 - 1

Prepared: TypeAlias = tuple[Entry, bytes | None, bytes | None, int | None]
"""A message to store, its id, the subject it rolls up, its time to live."""

OTHER_SUBJECT = b"Nats-Expected-Last-Subject-Sequence-Subject"

REQUEST_INFO = (b"Nats-Request-Info:",)
"""The server's facts about a requester are for services. Not stored: they may be forged."""


class Duplicate(Exception):
    """A message that is already stored, under this sequence."""

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence


class Staged:
    """The changes that the examined messages of a batch would make."""

    def __init__(self) -> None:
        self.subjects: Counter[bytes] = Counter()
        self.messages = 0
        self.size_bytes = 0
        self.ids: set[bytes] = set()
        self.totals: dict[bytes, counters.Total] = {}

    def add(self, prepared: Prepared, size_bytes: int) -> None:
        """Add one more message, with its size."""
        (subject, _, _, _), message_id, _, _ = prepared
        self.subjects[subject] += 1
        self.messages += 1
        self.size_bytes += size_bytes
        if message_id:
            self.ids.add(message_id)


class PublishChecks:
    """Examines what is published to one stream."""

    def __init__(self, stream: PublishTarget) -> None:
        self._stream = stream
        self._duplicates: DuplicateWindow | None = None
        stream.store.options.recall = self._known
        self.last_message_id = b""

    def configure(self) -> None:
        """Read the stream's options."""
        if self._duplicates is not None:
            self._duplicates.window_ns = self._stream.config.duplicate_window

    def go_back(self, last_sequence: int) -> None:
        """Forget the messages after a sequence: they were taken back."""
        if self._duplicates is not None:
            self._duplicates.forget_after(last_sequence)
        last = self._stream.store.get(last_sequence)
        self.last_message_id = (last and id_of(last[3])) or b""

    def examine(
        self,
        subject: bytes,
        header: bytes,
        payload: bytes,
        now_ns: int,
        *,
        is_internal: bool = False,
        staged: Staged | None = None,
    ) -> Prepared:
        """Return the message to store; raise JetStreamError, or Duplicate."""
        try:
            return self._examined(subject, header, payload, now_ns, is_internal, staged)
        except StoreError as error:
            # What it is compared with cannot be read.
            raise store_failed(str(error)) from error

    def _examined(
        self,
        subject: bytes,
        header: bytes,
        payload: bytes,
        now_ns: int,
        is_internal: bool,
        staged: Staged | None,
    ) -> Prepared:
        config = self._stream.config
        rollup = message_id = ttl_ns = None
        if config.sealed:
            raise JetStreamError(errorcodes.STREAM_SEALED)
        if config.allow_msg_counter and not is_internal:
            counters.check(header, payload)
        if b"\r\nNats-" in header:
            if not is_internal:
                header = self._check_demands(subject, header, now_ns, staged)
            message_id = headers.get(header, b"Nats-Msg-Id")
            if message_id and not config.mirror:
                self._check_duplicate(message_id, now_ns, staged)
            if not is_internal:
                self._check_last_message_id(header)
            rollup = self._rollup(subject, header, staged, is_internal=is_internal)
        if config.allow_msg_counter:
            totals = staged.totals if staged is not None else {}
            store = self._stream.store
            header, payload = counters.counted(store, subject, header, payload, totals)
        self._check_size(subject, header, payload, staged)
        if b"\r\nNats-TTL:" in header:
            ttl_ns, header = self._time_to_live(header)
        return (subject, header, payload, now_ns), message_id, rollup, ttl_ns

    def _check_demands(
        self, subject: bytes, header: bytes, now_ns: int, staged: Staged | None
    ) -> bytes:
        """Check what the publisher expects of the stream; return the headers to store."""
        stream = self._stream
        if not stream.config.allow_msg_counter and headers.get(header, b"Nats-Incr"):
            counters.increment(header)
            raise JetStreamError(errorcodes.MESSAGE_COUNTER_DISABLED)
        expected = headers.get(header, b"Nats-Expected-Stream")
        if expected and expected != stream.config.name.encode():
            raise JetStreamError(errorcodes.STREAM_NOT_MATCH)
        if not stream.config.allow_msg_ttl and _says_time_to_live(header):
            raise JetStreamError(errorcodes.MESSAGE_TTL_DISABLED)
        if b"\r\nNats-Expected-Last-" in header:
            self._check_last_subject_sequence(subject, header, staged)
            self._check_last_sequence(header, staged)
        if b"\r\nNats-Schedule" in header:
            header = schedules.checked(stream, subject, header, now_ns)
        if headers.get(header, b"Nats-Stream-Source"):
            raise JetStreamError(errorcodes.MESSAGE_SOURCE_HEADER_NOT_ALLOWED)
        return headers.without_prefixes(header, REQUEST_INFO)

    def _check_last_sequence(self, header: bytes, staged: Staged | None) -> None:
        sequence = _expected(header, b"Nats-Expected-Last-Sequence")
        if sequence is None:
            return
        last_sequence = self._stream.store.last_sequence + (staged.messages if staged else 0)
        if sequence != last_sequence:
            raise JetStreamError(errorcodes.STREAM_WRONG_LAST_SEQUENCE, seq=last_sequence)
        if staged is not None and staged.messages:
            raise JetStreamError(errorcodes.STREAM_WRONG_LAST_SEQUENCE_CONSTANT)

    def _check_last_subject_sequence(
        self, subject: bytes, header: bytes, staged: Staged | None
    ) -> None:
        sequence = _expected(header, b"Nats-Expected-Last-Subject-Sequence")
        other = headers.get(header, OTHER_SUBJECT)
        if sequence is None or len(other or b"") > SUBJECT_CHARACTERS_MAX:
            if other:
                raise JetStreamError(errorcodes.STREAM_EXPECTED_LAST_SEQUENCE_PER_SUBJECT_INVALID)
            return
        if staged is not None and (other or subject) in staged.subjects:
            raise JetStreamError(errorcodes.STREAM_WRONG_LAST_SEQUENCE_CONSTANT)
        last_sequence = lookup.last_sequence(self._stream.store, other or subject)
        if sequence != last_sequence:
            raise JetStreamError(errorcodes.STREAM_WRONG_LAST_SEQUENCE, seq=last_sequence)

    def _check_last_message_id(self, header: bytes) -> None:
        expected = headers.get(header, b"Nats-Expected-Last-Msg-Id")
        if expected and expected != self.last_message_id:
            last = self.last_message_id.decode(errors="replace")
            raise JetStreamError(errorcodes.STREAM_WRONG_LAST_MESSAGE_ID, id=last)

    def _check_duplicate(self, message_id: bytes, now_ns: int, staged: Staged | None) -> None:
        sequence = self.window(now_ns).find(message_id, now_ns)
        if staged is None:
            if sequence is not None:
                raise Duplicate(sequence)
        elif sequence is not None or message_id in staged.ids:
            raise JetStreamError(errorcodes.ATOMIC_PUBLISH_CONTAINS_DUPLICATE_MESSAGE)

    def window(self, now_ns: int) -> DuplicateWindow:
        """Return the known message ids, read back from the store on first use."""
        if self._duplicates is None:
            window = DuplicateWindow(self._stream.config.duplicate_window)
            # If this fails, nothing is known yet: an empty window would let duplicates in.
            window.recover(self._stream.store, now_ns)
            self._duplicates = window
        return self._duplicates

    def _known(self, first_sequence: int, last_sequence: int) -> list[Known] | None:
        """Return the ids of messages that are about to go; None if they were not read yet."""
        duplicates = self._duplicates
        return None if duplicates is None else duplicates.between(first_sequence, last_sequence)

    def _rollup(
        self, subject: bytes, header: bytes, staged: Staged | None, *, is_internal: bool
    ) -> bytes | None:
        """Return which older messages this one replaces: those of its subject, or all."""
        rollup = headers.get(header, b"Nats-Rollup")
        if not rollup:
            return None
        rollup = rollup.lower()
        config = self._stream.config
        if not config.allow_rollup_hdrs or config.deny_purge:
            if is_internal:
                return None
            raise _rollup_failed("rollup not permitted")
        if rollup not in (b"sub", b"all"):
            raise _rollup_failed(
                f"rollup value invalid: {json.dumps(rollup.decode(errors='replace'))}"
            )
        if staged is not None and rollup == b"sub" and subject in staged.subjects:
            raise _rollup_failed("batch rollup sub invalid")
        if staged is not None and rollup == b"all" and staged.messages:
            raise _rollup_failed("batch rollup all invalid")
        return rollup

    def _time_to_live(self, header: bytes) -> tuple[int | None, bytes]:
        """Return the message's time to live, if it has one, and the header to store for it."""
        config = self._stream.config
        ttl_ns = time_to_live_ns(header)
        if ttl_ns is None or ttl_ns == NEVER or not config.allow_msg_ttl:
            return None, header
        marker_ttl_ns = config.subject_delete_marker_ttl // SECOND_NS * SECOND_NS
        if ttl_ns < marker_ttl_ns and config.max_msgs_per_subject != 1:
            # Otherwise the message could go while the marker of the one before it still exists.
            ttl_ns = marker_ttl_ns
            header = headers.remove(header, b"Nats-TTL")
            header = headers.add(header, b"Nats-TTL", b"%d" % (ttl_ns // SECOND_NS))
        return ttl_ns, header

    def _check_size(
        self, subject: bytes, header: bytes, payload: bytes, staged: Staged | None
    ) -> None:
        """Check that the stream has room."""
        config, store = self._stream.config, self._stream.store
        size = len(header) + len(payload)
        if 0 <= config.max_msg_size < size:
            raise JetStreamError(errorcodes.STREAM_MESSAGE_EXCEEDS_MAXIMUM)
        if len(header) > HEADER_BYTES_MAX:
            raise JetStreamError(errorcodes.STREAM_HEADER_EXCEEDS_MAXIMUM)
        self._stream.context.quota.check_room(config.storage, len(subject) + size)
        if config.discard != "new":
            return
        stored = store.size_of(subject, header, payload)
        if staged is None:
            self._check_subject(subject, header)
            self._check_total(1, stored, replacing=subject)
        else:
            # Nothing makes room for a batch, not even what it would replace.
            self._check_total(staged.messages + 1, staged.size_bytes + stored)
            self._check_subject(subject, header, staged.subjects[subject])

    def _check_subject(self, subject: bytes, header: bytes, staged: int = 0) -> None:
        """Check that a subject is not full; a rollup replaces what it has, also in a copy."""
        config = self._stream.config
        if not config.discard_new_per_subject or headers.get(header, b"Nats-Rollup"):
            return
        if self._stream.store.last(subject)[1] + staged >= config.max_msgs_per_subject:
            raise store_failed("maximum messages per subject exceeded")

    def _check_total(self, messages: int, size_bytes: int, *, replacing: bytes = b"") -> None:
        """Check the room for some messages, or for one in place of the oldest of its subject."""
        config, store = self._stream.config, self._stream.store
        # Only where a subject is full, its oldest message makes room for the new one.
        replaces = replacing and 0 < config.max_msgs_per_subject <= store.last(replacing)[1]
        if 0 < config.max_msgs < store.messages + messages and not replaces:
            raise store_failed("maximum messages exceeded")
        has_room = config.max_bytes <= 0 or store.size_bytes + size_bytes <= config.max_bytes
        if not has_room and not (replaces and self._makes_room(replacing, size_bytes)):
            raise store_failed("maximum bytes exceeded")

    def _makes_room(self, subject: bytes, size_bytes: int) -> bool:
        """Tell whether a subject's oldest message is at least as large as its replacement."""
        store = self._stream.store
        oldest = next(lookup.following(store, 0, (subject,)), None)
        return oldest is not None and store.size_of(*oldest[2:]) >= size_bytes


def expected_pattern(header: bytes) -> bytes:
    """Return the pattern whose last message a message is compared with; empty without one."""
    if OTHER_SUBJECT not in header:
        return b""
    other = headers.get(header, OTHER_SUBJECT) or b""
    is_short = len(other) <= SUBJECT_CHARACTERS_MAX
    return b"" if not is_short or subjects.is_literal(other) else other


def store_failed(text: str) -> JetStreamError:
    """Return the error for a message that could not be stored."""
    return JetStreamError(errorcodes.STREAM_STORE_FAILED, err=text)


def _rollup_failed(text: str) -> JetStreamError:
    return JetStreamError(errorcodes.STREAM_ROLLUP_FAILED, err=text)


def _says_time_to_live(header: bytes) -> bool:
    try:
        return b"\r\nNats-TTL:" in header and time_to_live_ns(header) is not None
    except JetStreamError:
        return False


def _expected(header: bytes, name: bytes) -> int | None:
    """Return the sequence a header expects, -1 if not a number; None without the header."""
    value = headers.get(header, name)
    if not value:
        return None
    sequence = headers.number(value)
    return -1 if sequence is None else sequence
