"""
From publishing to storing: the checks, the refusals and the PubAcks.

A message without headers, to a stream that refuses nothing, needs no check at all: a whole batch of
them is one `append`, and later one answer. Only messages with headers, or for a stream with options
that may refuse them, are examined one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock import hot
from penstock.core.reports import messagetrace
from penstock.core.runs import new_message, single_messages
from penstock.errors import JetStreamError, StoreError
from penstock.hot.wire import DATA, HEADER_BYTES, KIND, REPLY, SIZE, SUBJECT, Op
from penstock.jetstream.intake import counters, fastbatch, traced
from penstock.jetstream.intake.atomicbatch import AtomicBatches, check_allowed
from penstock.jetstream.intake.checks import (
    HEADER_BYTES_MAX,
    OTHER_SUBJECT,
    Duplicate,
    Prepared,
    PublishChecks,
    expected_pattern,
    store_failed,
)
from penstock.jetstream.intake.expiry import Expiry
from penstock.jetstream.intake.fastbatch import FastBatches
from penstock.jetstream.intake.republish import Republish
from penstock.jetstream.intake.schedules import Schedules
from penstock.jetstream.intake.waiting import WaitingMessages
from penstock.protocol import headers, subjects
from penstock.protocol.transforms import Transform

if TYPE_CHECKING:
    from penstock.core.reports.messagetrace import MessageTrace
    from penstock.core.session import Session
    from penstock.jetstream.config.stream import StreamConfig
    from penstock.jetstream.intake.pubacks import PubAcks
    from penstock.jetstream.intake.target import PublishTarget
    from penstock.jetstream.store.values import Entry


DUPLICATE = b',"duplicate": true}'
"""The end of the PubAck of a message that is already stored."""


class Intake:
    """Takes in the messages published to the subjects of one stream."""

    def __init__(self, stream: PublishTarget, pubacks: PubAcks) -> None:
        self.stream = stream
        self.checks = PublishChecks(stream)
        self.expiry = Expiry(stream, self.take_internal)
        self.schedules = Schedules(stream, self._take_scheduled)
        self.pubacks = pubacks
        self._atomic = AtomicBatches(self)
        self._fast = FastBatches(self)
        self._waiting = WaitingMessages(stream, self._take_found)

    def configure(self) -> None:
        """Work out once how the stream's options affect each message."""
        config = self.stream.config
        context = self.stream.context
        self._transform = _transform(config, context.random)
        self._republish = _republish(config, context.random)
        self.is_careful = (
            config.sealed
            or _may_be_full(config)
            or config.retention == "interest"
            or config.max_msg_size >= 0
            or config.allow_msg_counter
            or config.allow_msg_schedules
            or config.allow_batched
            or context.quota.has_limit(config.storage)
        )
        self.pubacks.configure(config)
        self.checks.configure()
        self.expiry.configure()

    def go_back(self, last_sequence: int) -> None:
        """Forget everything after a sequence: it was taken back."""
        self.checks.go_back(last_sequence)
        self._fast.close()
        self.expiry.go_back()
        self.schedules.go_back()

    def close(self) -> None:
        """Abandon incomplete batches, and stop all timers."""
        self.expiry.close()
        self.schedules.close()
        self._atomic.close()
        self._fast.close()

    def on_publish(self, batch: list[Op], publisher: Session | None) -> None:
        """Store published messages, in order."""
        now_ns = self.time_ns()
        if self._transform is not None:
            batch = [(each[KIND], self.transformed(each[SUBJECT]), *each[REPLY:]) for each in batch]
        if self._waiting.batches and self._waiting.takes(batch, publisher):
            return
        # A client sends the messages of a fast batch together, so one look is enough.
        if not self.is_careful and not batch[0][REPLY].endswith(fastbatch.SUFFIX):
            plain = hot.plain_entries(batch, now_ns)
            if plain is None:
                self._take_together(batch, now_ns, publisher)
            else:
                self._append(*plain)
            return
        self._take_all(batch, now_ns, publisher)

    def _take_all(self, batch: list[Op], now_ns: int, publisher: Session | None) -> None:
        for index, publish in enumerate(batch):
            if not self._take(publish, now_ns, publisher):
                self._waiting.takes(batch[index + 1 :], publisher)
                return

    def _take_found(self, batch: list[Op], publisher: Session | None, is_found: bool) -> None:
        """Store messages that waited for what the first of them has to be compared with."""
        first, *rest = single_messages(batch[0])
        now_ns = self.time_ns()
        if is_found:
            self._take_message(first, now_ns)
        else:
            self._atomic.give_up(first[DATA][: first[HEADER_BYTES]])
            self._refuse(first[REPLY], store_failed("too much is published to compare it with"))
        self._take_all([*rest, *batch[1:]], now_ns, publisher)

    def on_traced(self, message: Op, publisher: Session, trace: MessageTrace) -> None:
        """Store a traced message, perhaps after a search for what it has to be compared with."""

        def take(batch: list[Op], publisher: Session | None, is_found: bool) -> None:
            if is_found:
                self._take_traced(message, trace)
            else:
                self._take_found(batch, publisher, is_found)
            trace.release()

        patterns, waiting = self._patterns(message), WaitingMessages(self.stream, take)
        if patterns and not waiting.find(patterns, publisher):
            trace.hold()
            waiting.takes([message], publisher)
        else:
            self._take_traced(message, trace)

    def _take_traced(self, message: Op, trace: MessageTrace) -> None:
        """Store a traced message, unless it is a dry run, and report it in the trace."""
        _, subject, reply, header_bytes, _, data = message
        subject, now_ns = self.transformed(subject), self.time_ns()
        header, payload = data[:header_bytes], data[header_bytes:-2]
        note = trace.stored(self.stream.config.name)
        objection = self._objection(subject, header, payload, now_ns)
        is_full = traced.is_full(objection)
        if objection is None or is_full:
            note["subject"] = subject.decode(errors="replace")
            if not self._is_wanted(subject):
                note["nointerest"] = True
        if objection is not None and not (trace.is_only and is_full):
            # Only storing finds out whether there is room, and a dry run stores nothing.
            note["error"] = traced.words_of(
                objection, self.stream.store, self.checks.last_message_id, subject, header
            )
        if not trace.is_only:
            header = headers.put(header, messagetrace.DEST, messagetrace.DISABLED)
            self._take_message(new_message(subject, payload, reply=reply, header=header), now_ns)
        elif isinstance(objection, Duplicate):
            self.owe_ack(reply, objection.sequence, DUPLICATE)
        elif isinstance(objection, JetStreamError) and not is_full:
            self.stream.answers.answer(reply, self.pubacks.refused(objection))

    def _objection(
        self, subject: bytes, header: bytes, payload: bytes, now_ns: int
    ) -> traced.Objection | None:
        """Return why a message would not be stored, as far as that is known beforehand."""
        try:
            if headers.get(header, b"Nats-Batch-Id"):
                check_allowed(self.stream.config)
            self.checks.examine(subject, header, payload, now_ns)
        except (Duplicate, JetStreamError) as objection:
            return objection
        return None

    def take_internal(
        self, subject: bytes, header: bytes, payload: bytes = b"", *, time_ns: int = 0
    ) -> None:
        """Store a message of the server itself; raise JetStreamError if that fails."""
        now_ns = time_ns or self.time_ns()
        if not self._take_one(subject, b"", header, payload, now_ns, is_internal=True):
            failure = self.stream.store.failure
            if failure is not None:
                raise store_failed(failure)

    def _take_scheduled(self, subject: bytes, header: bytes, payload: bytes) -> None:
        self.take_internal(self.transformed(subject), header, payload)

    def append_together(self, batch: list[Prepared], reply: bytes, suffix: bytes) -> None:
        """Store messages of one batch, all or none; the answer ends with `suffix`."""
        first_sequence = self._append(
            [each[0] for each in batch],
            [],
            is_atomic=True,
            replaces=any(map(self._replaces, batch)),
        )
        if not first_sequence:
            raise store_failed(self.stream.store.failure or "not stored")
        for sequence, prepared in enumerate(batch, first_sequence):
            self._finish(prepared, sequence)
        self.owe_ack(reply, first_sequence + len(batch) - 1, suffix)

    def append_internal(self, entries: list[Entry]) -> None:
        """Store messages of the server itself that need no check; raise JetStreamError."""
        if not self._append(entries, []):
            raise store_failed(self.stream.store.failure or "not stored")

    def time_ns(self) -> int:
        """Return the storage time of a message that comes now."""
        stream = self.stream
        now_ns = stream.context.clock_ns()
        # A clock that is set back must not make the stream unsorted.
        if now_ns < stream.last_time_ns:
            return stream.last_time_ns
        stream.last_time_ns = now_ns
        return now_ns

    def transformed(self, subject: bytes) -> bytes:
        """Return the subject under which a message is stored."""
        return (self._transform and self._transform.apply(subject)) or subject

    def _take_together(self, batch: list[Op], now_ns: int, publisher: Session | None) -> None:
        """Store messages in order, together as long as only their ids need a check."""
        entries: list[Entry] = []
        replies: list[bytes] = []
        ids: dict[bytes, int] = {}
        for index, publish in enumerate(batch):
            _, subject, reply, header_bytes, size, data = publish
            message_id = _lone_id(publish)
            if message_id is None or (message_id and self._is_known(message_id, ids, now_ns)):
                self._append_with_ids(entries, replies, ids, now_ns)
                entries, replies, ids = [], [], {}
                if not self._take(publish, now_ns, publisher):
                    self._waiting.takes(batch[index + 1 :], publisher)
                    return
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
        """Tell whether an id may be known: its message then needs a look of its own."""
        try:
            known = self.checks.window(now_ns).find(message_id, now_ns)
        except StoreError:
            return True
        return message_id in ids or known is not None

    def _append_with_ids(
        self, entries: list[Entry], replies: list[bytes], ids: dict[bytes, int], now_ns: int
    ) -> None:
        """Store messages, and remember the ids of those that have one."""
        first_sequence = self._append(entries, replies) if entries else 0
        if not first_sequence or not ids:
            return
        window = self.checks.window(now_ns)
        for message_id, index in ids.items():
            window.remember(message_id, first_sequence + index, now_ns)
            if index == len(entries) - 1:
                self.checks.last_message_id = message_id

    def _append(
        self,
        entries: list[Entry],
        replies: list[bytes],
        *,
        is_atomic: bool = False,
        replaces: bool = False,
    ) -> int:
        """Store messages that need no further check; return the first sequence."""
        stream = self.stream
        store = stream.store
        plan = self._republish and self._republish.plan(store, entries)
        try:
            first_sequence = store.append(entries, is_atomic=is_atomic, replaces=replaces)
        except StoreError as error:
            refusal = self.pubacks.refused(store_failed(str(error)))
            for reply in replies:
                stream.answers.answer(reply, refusal)
            return 0
        if plan and self._republish is not None:
            copies = self._republish.copies(plan, entries, first_sequence)
            stream.answers.announce(copies, first_sequence + len(entries) - 1)
        if replies and not stream.config.no_ack:
            stream.answers.owe_acks(first_sequence, replies)
        self.checks.last_message_id = b""
        stream.touch()
        return first_sequence

    def _take(self, publish: Op, now_ns: int, publisher: Session | None) -> bool:
        """
        Store the messages of a run one by one, each with all its checks.

        False if that takes more than a turn: then the rest of the run waits.
        """
        data = publish[DATA]
        messages = [publish] if len(data) == publish[SIZE] + 2 else single_messages(publish)
        may_wait = OTHER_SUBJECT in data or b"\r\nNats-Batch-Commit:" in data
        for index, message in enumerate(messages):
            patterns = self._patterns(message) if may_wait else None
            if patterns and not self._waiting.find(patterns, publisher):
                self._waiting.takes(messages[index:], publisher)
                return False
            self._take_message(message, now_ns)
        return True

    def _patterns(self, message: Op) -> set[bytes]:
        """Return the patterns whose last messages have to be known to store a message."""
        header = message[DATA][: message[HEADER_BYTES]]
        if b"\r\nNats-Batch-Commit:" in header:
            return self._atomic.patterns(header)
        pattern = expected_pattern(header)
        return {pattern} if pattern else set()

    def _take_message(self, message: Op, now_ns: int) -> None:
        """Store one message, with all its checks."""
        _, subject, reply, header_bytes, _, data = message
        header, payload = data[:header_bytes], data[header_bytes:-2]
        try:
            batch_id = headers.get(header, b"Nats-Batch-Id") if header_bytes else None
            if reply.endswith(fastbatch.SUFFIX):
                self._fast.take((subject, header, payload), reply)
            elif batch_id:
                self._atomic.take(batch_id, (subject, header, payload), reply)
            else:
                self._take_one(subject, reply, header, payload, now_ns)
        except JetStreamError as error:
            self._refuse(reply, error)

    def _refuse(self, reply: bytes, error: JetStreamError) -> None:
        """Report why a message is not stored; the reason may show stored messages."""
        failure = self.stream.store.failure
        if failure is None:
            self.stream.answers.tell(reply, self.pubacks.refused(error))
        else:
            self.stream.answers.answer(reply, self.pubacks.refused(store_failed(failure)))

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
        try:
            prepared = self.checks.examine(
                subject, header, payload, now_ns, is_internal=is_internal
            )
        except Duplicate as duplicate:
            # The first message may not be safe yet, so the answer waits for it.
            self.owe_ack(reply, duplicate.sequence, DUPLICATE)
            return 0
        if not self.stream.config.allow_msg_counter:
            return self._append_one(prepared, [reply])
        sequence = self._append_one(prepared, [])
        if sequence:
            value = counters.value(prepared[0][2])
            self.owe_ack(reply, sequence, b',"val":"%b"}' % value.encode())
        return sequence

    def take_examined(self, subject: bytes, header: bytes, payload: bytes) -> int:
        """Store one message that nobody waits for; raise JetStreamError, or Duplicate."""
        prepared = self.checks.examine(subject, header, payload, self.time_ns())
        sequence = self._append_one(prepared, [])
        if not sequence:
            raise store_failed(self.stream.store.failure or "not stored")
        return sequence

    def _append_one(self, prepared: Prepared, replies: list[bytes]) -> int:
        entry, _, rollup, _ = prepared
        is_lone = rollup == b"sub" and subjects.is_literal(entry[0])
        previous = self.stream.store.last(entry[0]) if is_lone else None
        sequence = self._append([entry], replies, replaces=self._replaces(prepared))
        if sequence:
            self._finish(prepared, sequence, previous)
        return sequence

    def _replaces(self, prepared: Prepared) -> bool:
        """Tell whether storing a message removes others, by a rollup or the end of a schedule."""
        (_, header, _, _), _, rollup, _ = prepared
        if rollup is not None:
            return True
        stream = self.stream
        return stream.config.allow_msg_schedules and bool(self.schedules.purged_subject(header))

    def _finish(
        self, prepared: Prepared, sequence: int, previous: tuple[int, int] | None = None
    ) -> None:
        """
        Apply the effects of a message that is stored now.

        `previous` is what its subject had before, unless it is a pattern: a rollup of a pattern
        covers every match.
        """
        (subject, header, _, time_ns), message_id, rollup, ttl_ns = prepared
        stream = self.stream
        if not self._is_wanted(subject):
            stream.store.remove([sequence])
        if message_id:
            self.checks.last_message_id = message_id
            self.checks.window(time_ns).remember(message_id, sequence, time_ns)
        if ttl_ns is not None:
            self.expiry.add(time_ns + ttl_ns, sequence)
        if rollup is not None:
            self._roll_up(subject, rollup, sequence, previous)
        if stream.config.allow_msg_schedules:
            self.schedules.note(sequence, subject, header, time_ns)
            purged = self.schedules.purged_subject(header)
            if purged:
                stream.purge(purged)

    def _roll_up(
        self, subject: bytes, rollup: bytes, sequence: int, previous: tuple[int, int] | None
    ) -> None:
        if rollup == b"all":
            self.stream.purge(b">", before=sequence)
        elif previous is None or previous[1] > 1:
            self.stream.purge(subject, before=sequence)
        elif previous[1]:
            self.stream.roll_up(previous[0])

    def owe_ack(self, reply: bytes, sequence: int, suffix: bytes) -> None:
        """Answer with more than a sequence once everything stored so far is safe."""
        self.owe_document(reply, self.pubacks.stored(sequence, suffix), sequence)

    def owe_document(self, reply: bytes, document: bytes, last_sequence: int) -> None:
        """Answer once everything stored so far is safe; if the disk fails, up to a sequence."""
        stream = self.stream
        if reply and not stream.config.no_ack:
            stream.answers.owe_document(reply, document, last_sequence)
        stream.touch()

    def _is_wanted(self, subject: bytes) -> bool:
        """Tell whether retention keeps the message: interest retention needs a reader for it."""
        stream = self.stream
        return stream.config.retention != "interest" or any(
            reader.wants(subject) for reader in stream.readers
        )


def _lone_id(publish: Op) -> bytes | None:
    """
    Return the message id of a publish that asks for nothing else, b"" without an id.

    None is for a publish that asks for more, or a run that is not worth splitting.
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


def _may_be_full(config: StreamConfig) -> bool:
    """Tell whether a stream refuses messages when it is full; a KV bucket has no limit."""
    has_limit = config.max_msgs > 0 or config.max_bytes > 0 or config.discard_new_per_subject
    return config.discard == "new" and has_limit
