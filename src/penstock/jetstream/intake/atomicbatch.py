"""
Messages that are stored together or not at all: `Nats-Batch-Id` (ADR-50).

The messages of a batch wait in memory until its commit. Then they are examined one after another,
each as if the ones before it were stored already. Either all of them are appended in one go, under
one record so that a power cut cannot take only some of them, or none is, and the publisher gets the
error.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from penstock.errors import JetStreamError
from penstock.jetstream.config.stream import without_api_level
from penstock.jetstream.intake.checks import Prepared, Staged, expected_pattern
from penstock.jetstream.intake.openbatches import ID_BYTES_MAX, OpenBatches, check_message
from penstock.protocol import errorcodes, headers

if TYPE_CHECKING:
    from penstock.jetstream.config.stream import StreamConfig
    from penstock.jetstream.intake.publish import Intake

MESSAGES_MAX = 1000
BATCHES_MAX = 50
"""The number of open batches of one stream."""
STAGED_BYTES_MAX = 64 * 1024 * 1024
"""The bytes that the open batches of one stream may hold in memory together."""

Message = tuple[bytes, bytes, bytes]
"""Subject, headers, payload."""


class AtomicBatch:
    """One batch that is not committed yet."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.size_bytes = 0
        self.patterns: set[bytes] = set()
        """The patterns whose last messages its commit is compared with."""


def check_allowed(config: StreamConfig) -> None:
    """Refuse batches if the stream does not allow them."""
    if not config.allow_atomic:
        raise JetStreamError(errorcodes.ATOMIC_PUBLISH_DISABLED)


class AtomicBatches:
    """The open batches of one stream."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._batches: OpenBatches[AtomicBatch] = OpenBatches(
            intake.stream.context, lambda batch_id: self._abandon(batch_id, "timeout")
        )

    def close(self) -> None:
        """Abandon all batches."""
        self._batches.close()

    def take(self, batch_id: bytes, message: Message, reply: bytes) -> None:
        """Add one message to a batch; raise JetStreamError, which ends the batch."""
        stream = self._intake.stream
        _, header, payload = message
        check_message(stream.config, header, payload)
        check_allowed(stream.config)
        if len(batch_id) > ID_BYTES_MAX:
            raise JetStreamError(errorcodes.ATOMIC_PUBLISH_INVALID_BATCH_ID)
        sequence = headers.number(headers.get(header, b"Nats-Batch-Sequence"))
        if sequence is None:
            raise JetStreamError(errorcodes.ATOMIC_PUBLISH_MISSING_SEQUENCE)
        commit = headers.get(header, b"Nats-Batch-Commit")
        batch = self._opened(batch_id, sequence, commit)
        message = self._checked(batch_id, message, commit)
        self._check_place(batch_id, batch, sequence, commit)
        if commit == b"eob":
            subject, header, payload = batch.messages[-1]
            header = headers.add(header, b"Nats-Batch-Commit", b"1")
            batch.messages[-1] = subject, header, payload
        else:
            self._stage(batch_id, batch, message)
        if commit:
            self._commit(batch_id, batch, reply)
        else:
            stream.answers.answer(reply, b"")

    def patterns(self, header: bytes) -> set[bytes]:
        """Return the patterns whose last messages have to be known for a commit."""
        batch = self._batches.get(headers.get(header, b"Nats-Batch-Id") or b"")
        return ({expected_pattern(header)} | (batch.patterns if batch else set())) - {b""}

    def give_up(self, header: bytes) -> None:
        """Abandon the batch of a message, if it is one's: its commit takes too long."""
        batch_id = headers.get(header, b"Nats-Batch-Id") or b""
        if self._batches.get(batch_id) is not None:
            self._abandon(batch_id, "unsupported")

    def _opened(self, batch_id: bytes, sequence: int, commit: bytes | None) -> AtomicBatch:
        batch = self._batches.get(batch_id)
        if batch is not None:
            return batch
        if sequence != 1:
            if sequence - (commit == b"eob") > MESSAGES_MAX:
                raise JetStreamError(errorcodes.ATOMIC_PUBLISH_TOO_LARGE_BATCH, size=MESSAGES_MAX)
            raise JetStreamError(errorcodes.ATOMIC_PUBLISH_INCOMPLETE_BATCH)
        if len(self._batches) >= BATCHES_MAX:
            raise JetStreamError(errorcodes.ATOMIC_PUBLISH_TOO_MANY_INFLIGHT)
        return self._batches.add(batch_id, AtomicBatch())

    def _checked(self, batch_id: bytes, message: Message, commit: bytes | None) -> Message:
        """Return the message as it will be stored."""
        subject, header, payload = message
        if commit is not None and commit not in (b"1", b"eob"):
            self._batches.drop(batch_id)
            raise JetStreamError(errorcodes.ATOMIC_PUBLISH_INVALID_BATCH_COMMIT)
        kept = without_api_level(header)
        if kept is None:
            self._abandon(batch_id, "unsupported")
            raise JetStreamError(errorcodes.REQUIRED_API_LEVEL)
        return subject, kept, payload

    def _stage(self, batch_id: bytes, batch: AtomicBatch, message: Message) -> None:
        """Hold a message until the commit, as long as there is room for it."""
        size_bytes = sum(map(len, message))
        if sum(each.size_bytes for each in self._batches.values()) + size_bytes > STAGED_BYTES_MAX:
            self._abandon(batch_id, "large")
            raise JetStreamError(errorcodes.ATOMIC_PUBLISH_TOO_MANY_INFLIGHT)
        batch.messages.append(message)
        batch.size_bytes += size_bytes
        batch.patterns |= {expected_pattern(message[1])} - {b""}

    def _check_place(
        self, batch_id: bytes, batch: AtomicBatch, sequence: int, commit: bytes | None
    ) -> None:
        """Check that no message is missing, and that the batch is not too long."""
        if sequence != len(batch.messages) + 1 or (sequence == 1 and commit == b"eob"):
            self._abandon(batch_id, "incomplete")
            raise JetStreamError(errorcodes.ATOMIC_PUBLISH_INCOMPLETE_BATCH)
        if sequence - (commit == b"eob") > MESSAGES_MAX:
            self._abandon(batch_id, "large")
            raise JetStreamError(errorcodes.ATOMIC_PUBLISH_TOO_LARGE_BATCH, size=MESSAGES_MAX)
        self._batches.keep(batch_id)

    def _commit(self, batch_id: bytes, batch: AtomicBatch, reply: bytes) -> None:
        self._batches.drop(batch_id)
        name = json.dumps(batch_id.decode(errors="replace"))
        suffix = f',"batch":{name},"count":{len(batch.messages)}}}'.encode()
        self._intake.append_together(self._prepared(batch), reply, suffix)

    def _prepared(self, batch: AtomicBatch) -> list[Prepared]:
        intake, staged = self._intake, Staged()
        now_ns = intake.time_ns()
        found = []
        for subject, header, payload in batch.messages:
            if headers.get(header, b"Nats-Expected-Last-Msg-Id"):
                raise JetStreamError(
                    errorcodes.ATOMIC_PUBLISH_UNSUPPORTED_HEADER, header="Nats-Expected-Last-Msg-Id"
                )
            prepared = intake.checks.examine(subject, header, payload, now_ns, staged=staged)
            staged.add(prepared, intake.stream.store.size_of(*prepared[0][:3]))
            found.append(prepared)
        return found

    def _abandon(self, batch_id: bytes, reason: str) -> None:
        """Abandon a batch, and announce that."""
        self._batches.drop(batch_id)
        stream = self._intake.stream
        stream.context.advisories.batch_abandoned(
            stream.config.name, batch_id.decode(errors="replace"), reason
        )
