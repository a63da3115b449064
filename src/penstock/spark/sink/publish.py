"""
A window of published messages: so many may wait for their ack, then the publisher does.

A message stays in the window until its ack is here. When the connection is lost,
the whole window is sent again on a new one, as soon as there can be one; the
message ids let the server tell which of them it has already.
"""

from __future__ import annotations

import json
import time

from penstock.client.jetstream.api import error_of
from penstock.client.messages import status_of
from penstock.errors import ClientError, ConnectionLost, PenstockError
from penstock.hot.wire import MSG, Op
from penstock.spark.connection import Connection
from penstock.spark.options import ConnectionOptions
from penstock.spark.patience import Patience, is_transient, persistently

CHUNK_MESSAGES = 256
CONNECTION_NAME = "penstock-spark-sink"

UNAVAILABLE = 503
IN_PROCESS = 10158
"""A message of that id is being stored this very moment."""


class Pace:
    """Holds a publisher to a rate, evenly and without catching up on time it lost."""

    def __init__(self, rate_per_second: int | None) -> None:
        self._rate = rate_per_second
        self._next_s = 0.0
        self.messages_max = CHUNK_MESSAGES
        """How many messages may go at once."""
        if rate_per_second is not None:
            self.messages_max = max(1, min(CHUNK_MESSAGES, rate_per_second // 20))

    def wait(self, count: int) -> None:
        """Return when so many messages may go."""
        if self._rate is None:
            return
        now_s = time.monotonic()
        start_s = max(now_s, self._next_s)
        self._next_s = start_s + count / self._rate
        time.sleep(start_s - now_s)


class Window:
    """Publishes encoded messages over one connection at a time, inside a `with` block."""

    def __init__(
        self, options: ConnectionOptions, messages_max: int, rate_per_second: int | None = None
    ) -> None:
        self.acked = 0
        self.duplicates = 0
        """How many of the acked were in the stream already."""
        self._connection = Connection(options, CONNECTION_NAME)
        self._messages_max = messages_max
        self._patience = Patience(options.retry_timeout_seconds)
        self._pace = Pace(rate_per_second)
        self._unacked: dict[bytes, bytes] = {}
        self._unsent: list[bytes] = []
        self.reply_prefix = f"{self._connection.inbox}.".encode()

    def __enter__(self) -> Window:
        persistently(self._patience, self._connection.__enter__)
        self._patience.succeeded()
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    @property
    def payload_bytes_max(self) -> int:
        """How large a message may be, headers included."""
        return int(self._connection.info.get("max_payload", 1 << 20))

    def add(self, tokens: list[bytes], frames: list[bytes]) -> None:
        """Have frames sent, whose acks come to `reply_prefix` and their token."""
        size = self._pace.messages_max
        for start in range(0, len(frames), size):
            chunk = frames[start : start + size]
            self._pace.wait(len(chunk))
            self._unacked.update(zip(tokens[start : start + size], chunk, strict=True))
            self._unsent += chunk
            self._exchange(self._messages_max)

    def flush(self) -> None:
        """Return once everything is acked."""
        self._exchange(0)

    def _exchange(self, unacked_max: int) -> None:
        """Send what waits, and receive acks until no more than so many are missing."""
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
            self._unsent = list(self._unacked.values())

    def _send(self) -> None:
        if self._unsent:
            self._connection.send(b"".join(self._unsent))
            self._unsent = []

    def _receive(self) -> None:
        self._connection.receive()
        unacked, start, again = self._unacked, len(self.reply_prefix), []
        for operation in self._connection.inbound.take_all():
            if operation[0] != MSG:
                self._connection.attend(operation)
                continue
            token, payload = operation[1][start:], operation[5]
            frame = unacked.pop(token, None)
            if frame is None:
                continue  # The second ack of a message that was sent twice.
            # A quote inside a JSON string is escaped, so neither can be part of a name.
            if operation[4] or b'"error":' in payload:
                unacked[token] = frame
                self._refused(operation, frame)
                again.append(frame)
            else:
                self.acked += 1
                self.duplicates += b'"duplicate":' in payload
        if again:
            self._unsent = again
            self._send()

    def _refused(self, operation: Op, frame: bytes) -> None:
        """Raise, unless the refusal is one to try again after."""
        subject = frame.split(b" ", 2)[1].decode(errors="replace")
        if status_of(operation)[0] == UNAVAILABLE:
            if self.acked:
                # It stored before, so its servers are about to agree on another leader.
                raise ConnectionLost(f"no stream stores `{subject}` any more")
            raise ClientError(
                f"no stream stores `{subject}`; hint: create one, or check the column `subject`"
            )
        error = error_of(json.loads(operation[5][operation[4] :])["error"])
        if is_transient(error):
            raise error
        if error.err_code != IN_PROCESS:
            raise ClientError(f"`{subject}` was refused: {error}") from error
