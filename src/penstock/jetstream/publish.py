"""
From what is published to what is stored: the checks, the refusals and the PubAcks.

A message without headers, to a stream that keeps whatever it is sent, needs no
check at all: a whole batch of them is one `append`, and later one answer. Only
headers, and options that may refuse a message, make it be looked at by itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock import headers
from penstock.core.account import payloads
from penstock.errors import JetStreamError, StoreError
from penstock.jetstream import errorcodes, lookup, quota
from penstock.jetstream.dedupe import DuplicateWindow
from penstock.jetstream.expiry import NEVER, time_to_live_ns
from penstock.jetstream.republish import Republish
from penstock.times import SECOND_NS
from penstock.transforms import Transform
from penstock.wire import PUB, Op

if TYPE_CHECKING:
    from penstock.core.session import Session
    from penstock.jetstream.model import StreamConfig
    from penstock.jetstream.store import Entry
    from penstock.jetstream.stream import Stream

HEADER_BYTES_MAX = 64 * 1024 - 1

DISABLED = (
    (b"Nats-Batch-Id", errorcodes.ATOMIC_PUBLISH_DISABLED),
    (b"Nats-Incr", errorcodes.MESSAGE_COUNTER_DISABLED),
    (b"Nats-Schedule", errorcodes.MESSAGE_SCHEDULES_DISABLED),
    (b"Nats-Scheduler", errorcodes.MESSAGE_SCHEDULES_SCHEDULER_INVALID),
    (b"Nats-Schedule-Next", errorcodes.MESSAGE_SCHEDULES_SCHEDULER_INVALID),
    (b"Nats-Stream-Source", errorcodes.MESSAGE_SOURCE_HEADER_NOT_ALLOWED),
)
"""Headers that ask for something no stream does yet, and how nats-server refuses them."""


class Intake:
    """Takes in what is published to the subjects of one stream."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._duplicates: DuplicateWindow | None = None
        self._last_message_id = b""

    def configure(self) -> None:
        """Work out once what the stream's options mean for each message."""
        config = self.stream.config
        engine = self.stream.engine
        self._transform = _transform(config, engine.random)
        self._republish = _republish(config, engine.random)
        self.is_careful = (
            config.sealed
            or _may_be_full(config)
            or config.retention == "interest"
            or config.max_msg_size >= 0
            or quota.has_limit(engine, config.storage)
        )
        name = json.dumps(config.name)
        self._refused = f'"stream":{name},"seq":0}}'
        domain = f',"domain":{json.dumps(engine.domain)},' if engine.domain else ","
        self._ack = f'{{"stream":{name}{domain}"seq":'.encode()
        if self._duplicates is not None:
            self._duplicates.window_ns = config.duplicate_window

    def on_publish(self, batch: list[Op], publisher: Session | None) -> None:
        """Store what was published, in order."""
        now_ns = self.time_ns()
        if self._transform is not None:
            batch = self._transformed(batch, self._transform)
        if not self.is_careful:
            entries = [
                (subject, b"", data[:-2], now_ns)
                for _, subject, _, header_bytes, size, data in batch
                if not header_bytes and len(data) == size + 2
            ]
            if len(entries) == len(batch):
                self._append(entries, [publish[2] for publish in batch])
                return
            self._take_together(batch, now_ns)
            return
        for publish in batch:
            self._take(publish, now_ns)

    def take_internal(
        self, subject: bytes, header: bytes, payload: bytes = b"", *, time_ns: int = 0
    ) -> None:
        """Store a message of the server's own; raise JetStreamError if that can not be."""
        now_ns = time_ns or self.time_ns()
        if not self._take_one(subject, b"", header, payload, now_ns, is_internal=True):
            failure = self.stream.store.failure
            if failure is not None:
                raise store_failed(failure)

    def append_internal(self, entries: list[Entry]) -> None:
        """Store messages of the server's own that need no check; raise JetStreamError."""
        if not self._append(entries, []):
            raise store_failed(self.stream.store.failure or "not stored")

    def time_ns(self) -> int:
        """Return the time at which a message that comes now is stored."""
        # A clock that is set back must not make the stream unsorted.
        stream = self.stream
        stream.last_time_ns = max(stream.engine.clock_ns(), stream.last_time_ns)
        return stream.last_time_ns

    def _transformed(self, batch: list[Op], transform: Transform) -> list[Op]:
        return [(each[0], transform.apply(each[1]) or each[1], *each[2:]) for each in batch]

    def _take_together(self, batch: list[Op], now_ns: int) -> None:
        """Store messages in order, together as far as nothing is to be checked but their id."""
        entries: list[Entry] = []
        replies: list[bytes] = []
        ids: dict[bytes, int] = {}
        for publish in batch:
            _, subject, reply, header_bytes, size, data = publish
            message_id = _lone_id(publish)
            if message_id is None or (message_id and self._is_known(message_id, ids, now_ns)):
                self._append_with_ids(entries, replies, ids, now_ns)
                entries, replies, ids = [], [], {}
                self._take(publish, now_ns)
            elif header_bytes or len(data) == size + 2:
                if message_id:
                    ids[message_id] = len(entries)
                entries.append((subject, data[:header_bytes], data[header_bytes:-2], now_ns))
                replies.append(reply)
            else:
                starts = range(0, len(data), size + 2)
                entries += [(subject, b"", data[start : start + size], now_ns) for start in starts]
                replies += [reply] * len(starts)
        self._append_with_ids(entries, replies, ids, now_ns)

    def _is_known(self, message_id: bytes, ids: dict[bytes, int], now_ns: int) -> bool:
        return message_id in ids or self._window(now_ns).find(message_id, now_ns) is not None

    def _append_with_ids(
        self, entries: list[Entry], replies: list[bytes], ids: dict[bytes, int], now_ns: int
    ) -> None:
        """Store messages, and remember the ids that some of them have."""
        first_sequence = self._append(entries, replies) if entries else 0
        if not first_sequence or not ids:
            return
        window = self._window(now_ns)
        for message_id, index in ids.items():
            window.remember(message_id, first_sequence + index, now_ns)
            if index == len(entries) - 1:
                self._last_message_id = message_id

    def send_acks(self, first_sequence: int, replies: list[bytes]) -> None:
        """Send the PubAcks of messages stored one after another."""
        account = self.stream.engine.account
        if b"" not in replies:
            account.answer_all(replies, (self._ack, b"}"), first_sequence)
            return
        for sequence, reply in enumerate(replies, first_sequence):
            if reply:
                account.send(reply, b"%b%d}" % (self._ack, sequence))

    def refusal(self, error: JetStreamError) -> bytes:
        """Return the PubAck of a message that was not stored."""
        document = json.dumps(error_document(error), separators=(",", ":"))
        return f'{{"error":{document},{self._refused}'.encode()

    def _append(self, entries: list[Entry], replies: list[bytes]) -> int:
        """Store messages that need no further check; return the first sequence."""
        stream = self.stream
        plan = self._republish and self._republish.plan(stream.store, entries)
        try:
            first_sequence = stream.store.append(entries)
        except StoreError as error:
            refusal = self.refusal(store_failed(str(error)))
            for reply in replies:
                stream.answer(reply, refusal)
            return 0
        if plan and self._republish is not None:
            stream.announce(self._republish.copies(plan, entries, first_sequence))
        if replies and not stream.config.no_ack:
            stream.owe_acks(first_sequence, replies)
        self._last_message_id = b""
        stream.engine.touch(stream)
        return first_sequence

    def _take(self, publish: Op, now_ns: int) -> None:
        """Store the messages of a run one by one, each with all its checks."""
        _, subject, reply, header_bytes, _, _ = publish
        for message in payloads(publish):
            header, payload = message[:header_bytes], message[header_bytes:-2]
            try:
                self._take_one(subject, reply, header, payload, now_ns)
            except JetStreamError as error:
                self.stream.answer(reply, self.refusal(error))

    def _take_one(
        self,
        subject: bytes,
        reply: bytes,
        header: bytes,
        payload: bytes,
        now_ns: int,
        *,
        is_internal: bool = False,
    ) -> int:
        """Store one message; return its sequence, 0 if it was not stored."""
        rollup = message_id = ttl_ns = None
        stream = self.stream
        if stream.config.sealed:
            raise JetStreamError(errorcodes.STREAM_SEALED)
        if b"\r\nNats-" in header:
            if not is_internal:
                self._check_headers(subject, header)
                self._check_last_message_id(header)
            message_id = headers.get(header, b"Nats-Msg-Id")
            if message_id and not stream.config.mirror:
                if self._is_duplicate(message_id, reply, now_ns):
                    return 0
            rollup = self._rollup(header, is_internal=is_internal)
        self._check_size(subject, header, payload)
        if b"\r\nNats-TTL:" in header:
            ttl_ns, header = self._time_to_live(header)
        previous, count = stream.store.last(subject) if rollup == b"sub" else (0, 2)
        sequence = self._append([(subject, header, payload, now_ns)], [reply])
        if not sequence:
            return 0
        if not self._is_wanted(subject):
            stream.store.remove([sequence])
        if message_id:
            self._last_message_id = message_id
            self._window(now_ns).remember(message_id, sequence, now_ns)
        if ttl_ns is not None:
            stream.expiry.add(now_ns + ttl_ns, sequence)
        if rollup is not None and count > 1:
            stream.purge(subject if rollup == b"sub" else b">", before=sequence)
        elif count == 1:
            stream.roll_up(subject, previous)
        return sequence

    def _is_wanted(self, subject: bytes) -> bool:
        """Tell whether retention keeps the message: by interest only if somebody has any."""
        stream = self.stream
        return stream.config.retention != "interest" or any(
            reader.wants(subject) for reader in stream.readers
        )

    def _check_headers(self, subject: bytes, header: bytes) -> None:
        """Check what the publisher expects of the stream."""
        stream = self.stream
        for key, error in DISABLED:
            if headers.get(header, key):
                raise JetStreamError(error)
        expected = headers.get(header, b"Nats-Expected-Stream")
        if expected and expected != stream.name.encode():
            raise JetStreamError(errorcodes.STREAM_NOT_MATCH)
        if not stream.config.allow_msg_ttl and _says_time_to_live(header):
            raise JetStreamError(errorcodes.MESSAGE_TTL_DISABLED)
        self._check_last_subject_sequence(subject, header)
        sequence = _number(headers.get(header, b"Nats-Expected-Last-Sequence"))
        last_sequence = stream.store.last_sequence
        if sequence is not None and sequence != last_sequence:
            raise JetStreamError(errorcodes.STREAM_WRONG_LAST_SEQUENCE, seq=last_sequence)

    def _check_last_subject_sequence(self, subject: bytes, header: bytes) -> None:
        sequence = _number(headers.get(header, b"Nats-Expected-Last-Subject-Sequence"))
        other = headers.get(header, b"Nats-Expected-Last-Subject-Sequence-Subject")
        if sequence is None:
            if other:
                raise JetStreamError(errorcodes.STREAM_EXPECTED_LAST_SEQUENCE_PER_SUBJECT_INVALID)
            return
        last_sequence = lookup.last_sequence(self.stream.store, other or subject)
        if sequence != last_sequence:
            raise JetStreamError(errorcodes.STREAM_WRONG_LAST_SEQUENCE, seq=last_sequence)

    def _check_last_message_id(self, header: bytes) -> None:
        expected = headers.get(header, b"Nats-Expected-Last-Msg-Id")
        if expected and expected != self._last_message_id:
            last = self._last_message_id.decode(errors="replace")
            raise JetStreamError(errorcodes.STREAM_WRONG_LAST_MESSAGE_ID, id=last)

    def _rollup(self, header: bytes, *, is_internal: bool) -> bytes | None:
        """Return what older messages the message replaces: those of its subject, or all."""
        rollup = headers.get(header, b"Nats-Rollup")
        if not rollup:
            return None
        rollup = rollup.lower()
        config = self.stream.config
        if not config.allow_rollup_hdrs or config.deny_purge:
            if is_internal:
                return None
            raise JetStreamError(errorcodes.STREAM_ROLLUP_FAILED, err="rollup not permitted")
        if rollup not in (b"sub", b"all"):
            text = f"rollup value invalid: {json.dumps(rollup.decode(errors='replace'))}"
            raise JetStreamError(errorcodes.STREAM_ROLLUP_FAILED, err=text)
        return rollup

    def _time_to_live(self, header: bytes) -> tuple[int | None, bytes]:
        """Return how long the message is to live, if it says so, and what it is to say then."""
        config = self.stream.config
        ttl_ns = time_to_live_ns(header)
        if ttl_ns is None or ttl_ns == NEVER or not config.allow_msg_ttl:
            return None, header
        self.stream.expiry.prepare()
        marker_ttl_ns = config.subject_delete_marker_ttl // SECOND_NS * SECOND_NS
        if ttl_ns < marker_ttl_ns and config.max_msgs_per_subject != 1:
            # Otherwise one could go while the marker of the one before is still there.
            ttl_ns = marker_ttl_ns
            header = headers.remove(header, b"Nats-TTL")
            header = headers.add(header, b"Nats-TTL", b"%d" % (ttl_ns // SECOND_NS))
        return ttl_ns, header

    def _is_duplicate(self, message_id: bytes, reply: bytes, now_ns: int) -> bool:
        """Answer a message that is there already with the sequence it has."""
        sequence = self._window(now_ns).find(message_id, now_ns)
        if sequence is None:
            return False
        if reply and not self.stream.config.no_ack:
            data = b'%b%d,"duplicate": true}\r\n' % (self._ack, sequence)
            # The first one may not be safe yet, so the second waits with it.
            self.stream.owe([(PUB, reply, b"", 0, len(data) - 2, data)])
            self.stream.engine.touch(self.stream)
        return True

    def _window(self, now_ns: int) -> DuplicateWindow:
        """Return the known message ids, read back from the store at the first use."""
        if self._duplicates is None:
            self._duplicates = DuplicateWindow(self.stream.config.duplicate_window)
            self._duplicates.recover(self.stream.store, now_ns)
        return self._duplicates

    def _check_size(self, subject: bytes, header: bytes, payload: bytes) -> None:
        """Check what the stream has room for."""
        config, store = self.stream.config, self.stream.store
        size = len(header) + len(payload)
        if 0 <= config.max_msg_size < size:
            raise JetStreamError(errorcodes.STREAM_MESSAGE_EXCEEDS_MAXIMUM)
        if len(header) > HEADER_BYTES_MAX:
            raise JetStreamError(errorcodes.STREAM_HEADER_EXCEEDS_MAXIMUM)
        quota.check_room(self.stream.engine, config.storage, len(subject) + size)
        if config.discard != "new":
            return
        per_subject_max = config.max_msgs_per_subject
        # Where a subject is full, its oldest message makes room for the new one.
        replaces = 0 < per_subject_max <= store.last(subject)[1]
        if replaces and config.discard_new_per_subject:
            raise store_failed("maximum messages per subject exceeded")
        if 0 < config.max_msgs <= store.messages and not replaces:
            raise store_failed("maximum messages exceeded")
        if 0 < config.max_bytes <= store.size_bytes + size and not replaces:
            raise store_failed("maximum bytes exceeded")


def _lone_id(publish: Op) -> bytes | None:
    """
    Return the message id of a publish that asks for nothing else, b"" if it has none.

    None is for those that do ask for something, or whose run is not worth taking apart.
    """
    header_bytes, size, data = publish[3:]
    if not header_bytes:
        return b""
    header = data[:header_bytes]
    demands = header.count(b"\r\nNats-")
    if demands > 1 or header_bytes > HEADER_BYTES_MAX or len(data) != size + 2:
        return None
    return headers.get(header, b"Nats-Msg-Id") if demands else b""


def _transform(config: StreamConfig, random: Callable[[], float]) -> Transform | None:
    options = config.subject_transform
    if not options or not options.get("dest"):
        return None
    return Transform(options.get("src", "").encode(), options["dest"].encode(), random)


def _republish(config: StreamConfig, random: Callable[[], float]) -> Republish | None:
    if not config.republish or not config.republish.get("dest"):
        return None
    return Republish(config, random)


def _says_time_to_live(header: bytes) -> bool:
    try:
        return time_to_live_ns(header) is not None
    except JetStreamError:
        return False


def _may_be_full(config: StreamConfig) -> bool:
    """Tell whether a stream refuses what it has no room for; a KV bucket has no limit."""
    has_limit = config.max_msgs > 0 or config.max_bytes > 0 or config.discard_new_per_subject
    return config.discard == "new" and has_limit


def store_failed(text: str) -> JetStreamError:
    """Return the error of a message that could not be stored."""
    return JetStreamError(errorcodes.STREAM_STORE_FAILED, err=text)


def error_document(error: JetStreamError) -> dict[str, object]:
    """Return an error as API answers and PubAcks show it."""
    return {
        "code": error.code,
        "err_code": error.err_code,
        "description": error.description,
    }


def _number(value: bytes | None) -> int | None:
    return int(value) if value and value.isdigit() else None
