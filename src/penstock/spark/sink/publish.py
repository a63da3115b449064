"""
A window of published messages: when it is full, the publisher waits for acks.

A message stays in the window until its ack arrives. After a lost connection the whole
window is sent again on the next one. The server recognises the messages it already has
by their ids; after an outage longer than its duplicate window, `stored` looks for them.

A task whose executor is gone has been given to another executor, so it stops sending:
see `executor`.
"""

from __future__ import annotations

import time
from math import inf

from penstock.client.jetstream.puback import is_ack, refusal
from penstock.errors import ClientError, ConnectionLost, JetStreamError, NoResponders, PenstockError
from penstock.hot.wire import MSG, Op
from penstock.protocol import errorcodes
from penstock.protocol.tokenbucket import TokenBucket
from penstock.spark.options import ConnectionOptions
from penstock.spark.patience import Patience, is_transient, persistently
from penstock.spark.pool import WorkerPool
from penstock.spark.sink.executor import Executor
from penstock.spark.sink.stored import Late, StoredRows

CHUNK_MESSAGES = 256
CHUNK_BYTES = 1 << 20
"""The most that is sent at once, so that a slow network takes it in time."""
CONNECTION_NAME = "penstock-spark-sink"

IN_PROCESS = errorcodes.STREAM_DUPLICATE_MESSAGE_CONFLICT.err_code
"""A message with this id is being stored at this moment."""


class Pace:
    """Holds a publisher to a rate, evenly and without catching up on time it lost."""

    def __init__(self, rate_per_second: int | None) -> None:
        self._bucket: TokenBucket | None = None
        self.messages_max = CHUNK_MESSAGES
        """The number of messages that may be sent at once."""
        if rate_per_second is not None:
            self.messages_max = max(1, min(CHUNK_MESSAGES, rate_per_second // 20))
            self._bucket = TokenBucket(rate_per_second, burst=self.messages_max)

    def wait(self, count: int) -> None:
        """Wait until `count` messages may be sent."""
        if self._bucket is not None:
            time.sleep(self._bucket.take(count, time.monotonic()))


class SinkWindow:
    """Publishes encoded messages over one connection at a time, inside a `with` block."""

    def __init__(
        self,
        options: ConnectionOptions,
        messages_max: int,
        rate_per_second: int | None = None,
        *,
        stored: StoredRows | None = None,
    ) -> None:
        self.acked = 0
        self.duplicates = 0
        """How many of the acked were in the stream already."""
        self.late: list[Late] = []
        """Messages acked so late that another attempt may have stored them too."""
        self._options = options
        self._messages_max = messages_max
        self._patience = Patience(options.retry_timeout_seconds)
        self._pace = Pace(rate_per_second)
        self._stored = stored
        self._executor = Executor()
        self._unacked: dict[bytes, bytes] = {}
        self._unsent: dict[bytes, bytes] = {}
        self._until_s: dict[bytes, float] = {}
        """When the server may have forgotten what was stored before that we know nothing of."""

    def __enter__(self) -> SinkWindow:
        self._connection = persistently(
            self._patience, lambda: WorkerPool.pool.take(self._options, CONNECTION_NAME)
        )
        self._patience.succeeded()
        self.reply_prefix = f"{self._connection.inbox}.".encode()
        return self

    def __exit__(self, *_: object) -> None:
        if self._unacked:
            self._connection.close()
        else:
            WorkerPool.pool.give_back(self._connection)

    @property
    def payload_bytes_max(self) -> int:
        """How large a message may be, headers included."""
        return int(self._connection.info.get("max_payload", 1 << 20))

    def add(self, tokens: list[bytes], frames: list[bytes]) -> None:
        """Have frames sent, whose acks come to `reply_prefix` and their token."""
        size = self._pace.messages_max
        for start in range(0, len(frames), size):
            end = start + size
            chunk = dict(zip(tokens[start:end], frames[start:end], strict=True))
            self._pace.wait(len(chunk))
            self._unacked.update(chunk)
            self._unsent.update(chunk)
            self._exchange(self._messages_max)

    def flush(self) -> None:
        """Return once everything is acked."""
        self._exchange(0)

    def _exchange(self, unacked_max: int) -> None:
        """Send what waits, and receive acks until at most `unacked_max` are missing."""
        while True:
            try:
                self._connect_again()
                self._send()
                while len(self._unacked) > unacked_max:
                    before = self.acked
                    self._receive()
                    if self.acked > before:
                        self._patience.succeeded()
                return
            except PenstockError as error:
                self._connection.close()
                self._patience.wait(error)

    def _connect_again(self) -> None:
        """Unless there is a connection, make one and have the whole window sent on it."""
        if not self._connection.is_open:
            self._connection.__enter__()
            self._unsent = dict(self._unacked)

    def _send(self) -> None:
        """Send what waits, little at a time, so that no look at the target is old by then."""
        while self._unsent:
            chunk = _first_of(self._unsent)
            due = self._leave_out(chunk)
            # Behind the look, which may take its time.
            self._executor.check()
            self._connection.send(b"".join(due))
            for token in chunk:
                del self._unsent[token]

    def _leave_out(self, chunk: dict[bytes, bytes]) -> list[bytes]:
        """Return the frames to send; what the stream holds already is taken for acked."""
        if self._stored is None:
            return list(chunk.values())
        known = self._stored.left_out(chunk.values())
        self._until_s |= dict.fromkeys(chunk, self._stored.until_s)
        for index, token in enumerate(chunk):
            if index in known:
                del self._unacked[token], self._until_s[token]
        self.acked += len(known)
        self.duplicates += len(known)
        return [frame for index, frame in enumerate(chunk.values()) if index not in known]

    def _receive(self) -> None:
        self._connection.receive()
        unacked, start = self._unacked, len(self.reply_prefix)
        now_s = self._stored.clock() if self._stored else 0.0
        again: dict[bytes, bytes] = {}
        for operation in self._connection.inbound.take_all():
            if operation[0] != MSG:
                self._connection.attend(operation)
                continue
            token, payload = operation[1][start:], operation[5]
            frame = unacked.get(token)
            if frame is None:
                continue  # The second ack of a message that was sent twice.
            if not is_ack(operation):
                self._refused(operation, frame)
                again[token] = frame
            else:
                del unacked[token]
                self.acked += 1
                is_late = self._until_s.pop(token, inf) < now_s
                if b'"duplicate":' in payload:
                    self.duplicates += 1
                elif is_late:
                    self.late.append(Late(now_s, frame))
        if again:
            self._unsent = again
            self._send()

    def _refused(self, operation: Op, frame: bytes) -> None:
        """Raise, unless the refusal is one to try again after."""
        subject = frame.split(b" ", 2)[1].decode(errors="replace")
        error = refusal(operation)
        if isinstance(error, NoResponders):
            if self.acked or (self._stored and self._stored.has_target(subject.encode())):
                # Its servers are about to agree on another leader.
                raise ConnectionLost(f"no stream stores `{subject}` at the moment")
            raise ClientError(
                f"no stream stores `{subject}`; hint: create one, or check the column `subject`"
            )
        if is_transient(error):
            raise error
        if not (isinstance(error, JetStreamError) and error.err_code == IN_PROCESS):
            raise ClientError(f"`{subject}` was refused: {error}") from error


def _first_of(frames: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Return as many as may be sent at once, at least one."""
    chunk: dict[bytes, bytes] = {}
    size = 0
    for token, frame in frames.items():
        size += len(frame)
        if chunk and (size > CHUNK_BYTES or len(chunk) == CHUNK_MESSAGES):
            break
        chunk[token] = frame
    return chunk
