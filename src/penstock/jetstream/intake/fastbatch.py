"""
Many messages with few answers: fast batches (ADR-50).

Each message is stored immediately and by itself, like any other; a batch saves the ack for each.
The reply subject carries all parameters, `<prefix>.<id>.<flow>.<gap
mode>.<sequence>.<operation>.$FI`. The answers are a flow ack after each `flow` messages, a report
of a gap or of an error, and one PubAck in the end.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import JetStreamError
from penstock.jetstream.config.stream import without_api_level
from penstock.jetstream.intake.checks import Duplicate
from penstock.jetstream.intake.openbatches import ID_BYTES_MAX, OpenBatches, check_message
from penstock.protocol import errorcodes, headers

if TYPE_CHECKING:
    from penstock.jetstream.intake.publish import Intake

SUFFIX = b".$FI"
BATCHES_MAX = 1000
"""The number of open batches of one stream."""
FLOW, FLOW_MAX, FLOW_SHARED = 10, 0xFFFF, 500
"""Messages for each flow ack: the default, the maximum, and for all batches together."""
START, APPEND, COMMIT, COMMIT_END, PING = range(5)
GAP_MODES = {b"ok": True, b"fail": False}


class Place(NamedTuple):
    """The place of a message in its batch, from its reply subject."""

    batch_id: bytes
    flow: int
    is_gap_ok: bool
    sequence: int
    operation: int


def place(reply: bytes) -> Place:
    """Return the place in a reply subject; raise JetStreamError."""
    tokens = reply[: -len(SUFFIX)].rsplit(b".", 5)
    if len(tokens) == 6:
        _, batch_id, flow, gap_mode, sequence, operation = tokens
        place_number, verb = headers.number(sequence), headers.number(operation)
        if place_number is not None and verb is not None and gap_mode in GAP_MODES:
            wanted = min(headers.number(flow) or FLOW, FLOW_MAX)
            found = Place(batch_id, wanted, GAP_MODES[gap_mode], place_number, verb)
            if _makes_sense(found):
                return found
    raise JetStreamError(errorcodes.BATCH_PUBLISH_INVALID_PATTERN)


def _makes_sense(found: Place) -> bool:
    if not found.sequence or found.operation > PING:
        return False
    if found.operation == START:
        return found.sequence == 1
    return found.sequence > 1 or found.operation not in (APPEND, COMMIT_END)


class FastBatch:
    """One batch that is not committed yet."""

    def __init__(self, flow_max: int, flow: int) -> None:
        self.flow_max = flow_max
        self.flow = flow
        self.last_sequence = 0
        """The last sequence of the batch that came."""
        self.acked_sequence = 0
        """The last sequence that a flow ack covered."""
        self.stream_sequence = 0


class FastBatches:
    """The open fast batches of one stream."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._batches: OpenBatches[FastBatch] = OpenBatches(
            intake.stream.context, lambda batch_id: self._batches.drop(batch_id)
        )

    def close(self) -> None:
        """Abandon all batches: stored messages stay."""
        self._batches.close()

    def take(self, message: tuple[bytes, bytes, bytes], reply: bytes) -> None:
        """Add one more message, or refuse it."""
        try:
            self._take(message, reply)
        except JetStreamError as error:
            self._owe(reply, self._intake.pubacks.refused(error))

    def _take(self, message: tuple[bytes, bytes, bytes], reply: bytes) -> None:
        config = self._intake.stream.config
        _, header, payload = message
        check_message(config, header, payload)
        if not config.allow_batched:
            raise JetStreamError(errorcodes.BATCH_PUBLISH_DISABLED)
        at = place(reply)
        if len(at.batch_id) > ID_BYTES_MAX:
            raise JetStreamError(errorcodes.BATCH_PUBLISH_INVALID_BATCH_ID)
        batch = self._opened(at)
        kept = without_api_level(header)
        if kept is None:
            self._batches.drop(at.batch_id)
            raise JetStreamError(errorcodes.REQUIRED_API_LEVEL)
        self._batches.keep(at.batch_id)
        if at.operation == PING:
            self._ping(at, batch, reply)
        elif self._is_next(at, batch, reply):
            self._go_on(at, batch, (message[0], kept, payload), reply)

    def _opened(self, at: Place) -> FastBatch:
        batch = self._batches.get(at.batch_id)
        if batch is not None:
            return batch
        if at.sequence != 1:
            raise JetStreamError(errorcodes.BATCH_PUBLISH_UNKNOWN_BATCH_ID)
        if len(self._batches) >= BATCHES_MAX:
            raise JetStreamError(errorcodes.BATCH_PUBLISH_TOO_MANY_INFLIGHT)
        # Next to other batches it starts slowly.
        flow = 1 if len(self._batches) else min(FLOW_SHARED, at.flow)
        return self._batches.add(at.batch_id, FastBatch(at.flow, flow))

    def _ping(self, at: Place, batch: FastBatch, reply: bytes) -> None:
        """Answer a client that does not know how far its batch came."""
        if at.sequence > batch.last_sequence:
            self._tell_gap(batch.last_sequence + 1, at.sequence + 1, reply)
            if not at.is_gap_ok:
                self._commit(at.batch_id, batch, reply)
                return
            batch.last_sequence = at.sequence
            if self._flow(batch, reply):
                return
        self._ack(batch, reply)

    def _is_next(self, at: Place, batch: FastBatch, reply: bytes) -> bool:
        """Tell whether a message is the next one, or a gap before it does not matter."""
        expected = batch.last_sequence + 1
        if at.sequence != expected:
            self._tell_gap(expected, at.sequence, reply)
        if at.sequence < expected or (at.sequence > expected and not at.is_gap_ok):
            self._commit(at.batch_id, batch, reply)
            return False
        batch.last_sequence = at.sequence
        return True

    def _go_on(
        self, at: Place, batch: FastBatch, message: tuple[bytes, bytes, bytes], reply: bytes
    ) -> None:
        if at.operation == COMMIT_END:
            batch.last_sequence -= 1
            self._commit(at.batch_id, batch, reply)
            return
        is_commit = at.operation == COMMIT
        if at.sequence == 1 and not is_commit:
            self._tell({"type": "ack", "seq": 0, "msgs": batch.flow}, reply)
        try:
            batch.stream_sequence = self._intake.take_examined(*message)
        except Duplicate as duplicate:
            if is_commit and at.sequence == 1 and not at.is_gap_ok:
                self._batches.drop(at.batch_id)
                suffix = b',"duplicate": true' + _suffix(at.batch_id, 1)
                self._intake.owe_ack(reply, duplicate.sequence, suffix)
                return
        except JetStreamError as error:
            self._refuse(at, batch, error, reply)
            return
        if is_commit:
            self._commit(at.batch_id, batch, reply)
        else:
            self._flow(batch, reply)

    def _refuse(self, at: Place, batch: FastBatch, error: JetStreamError, reply: bytes) -> None:
        """Report the error of a message; without gaps, that ends the batch."""
        if batch.last_sequence == 1 and not at.is_gap_ok:
            self._batches.drop(at.batch_id)
            raise error
        self._tell({"type": "err", "seq": at.sequence, "error": error.document}, reply)
        if not at.is_gap_ok or at.operation == COMMIT:
            batch.last_sequence -= 1
            self._commit(at.batch_id, batch, reply)

    def _commit(self, batch_id: bytes, batch: FastBatch, reply: bytes) -> None:
        """End a batch: its messages are stored."""
        self._batches.drop(batch_id)
        suffix = _suffix(batch_id, batch.last_sequence)
        self._intake.owe_ack(reply, batch.stream_sequence, suffix)

    def _flow(self, batch: FastBatch, reply: bytes) -> bool:
        """Send a flow ack if it is time; the pace adjusts to what all batches may have."""
        passed = batch.last_sequence - batch.acked_sequence
        if passed < batch.flow:
            return False
        batch.acked_sequence += passed // batch.flow * batch.flow
        fair = min(max(FLOW_SHARED // len(self._batches), 1), batch.flow_max)
        if batch.flow < fair:
            batch.flow = min(batch.flow * 2, fair)
        elif batch.flow > fair:
            batch.flow = max(batch.flow // 2, fair)
        self._ack(batch, reply)
        return True

    def _ack(self, batch: FastBatch, reply: bytes) -> None:
        document = {"type": "ack", "seq": batch.acked_sequence, "msgs": batch.flow}
        self._owe(reply, _encoded(document))

    def _owe(self, reply: bytes, document: bytes) -> None:
        last_sequence = self._intake.stream.store.last_sequence
        self._intake.owe_document(reply, document, last_sequence)

    def _tell_gap(self, expected: int, found: int, reply: bytes) -> None:
        self._tell({"type": "gap", "last_seq": expected, "seq": found}, reply)

    def _tell(self, document: dict[str, object], reply: bytes) -> None:
        # After the answers already owed: a client follows its batch by the order of the answers.
        self._owe(reply, _encoded(document))


def _suffix(batch_id: bytes, count: int) -> bytes:
    name = json.dumps(batch_id.decode(errors="replace"))
    return f',"batch":{name},"count":{count}}}'.encode()


def _encoded(document: dict[str, object]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
