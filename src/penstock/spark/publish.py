"""
A window of published messages: so many may wait for their ack, then the publisher does.

A message stays in the window until its ack is here. When the connection is lost,
the whole window is sent again on a new one; the message ids let the server tell
which of them it has already.
"""

from __future__ import annotations

import json
import time
from types import TracebackType

from penstock.client.api import error_of
from penstock.client.messages import status_of
from penstock.errors import ClientError, ConnectFailed, ConnectionLost, RequestTimeout
from penstock.spark.connection import Connection
from penstock.spark.options import ConnectionOptions
from penstock.wire import MSG, Op

CHUNK_BYTES = 64 * 1024
RETRY_WAIT_S = 0.2
CONNECTION_NAME = "penstock-spark-sink"

BROKEN = (ConnectFailed, ConnectionLost, RequestTimeout)
UNAVAILABLE = 503
IN_PROCESS = 10158
"""A message of that id is being stored this very moment."""


class Window:
    """Publishes encoded messages over one connection at a time, inside a `with` block."""

    def __init__(self, options: ConnectionOptions, messages_max: int) -> None:
        self.acked = 0
        self.duplicates = 0
        """How many of the acked were in the stream already."""
        self._connection = Connection(options, CONNECTION_NAME)
        self._messages_max = messages_max
        self._retries = options.retries
        self._unacked: dict[bytes, bytes] = {}
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self.reply_prefix = f"{self._connection.inbox}.".encode()

    def __enter__(self) -> Window:
        self._connection.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._connection.close()

    @property
    def payload_bytes_max(self) -> int:
        """How large a message may be, headers included."""
        return int(self._connection.info.get("max_payload", 1 << 20))

    def add(self, token: bytes, frame: bytes) -> None:
        """Have a frame sent, whose acks come to `reply_prefix` and this token."""
        self._unacked[token] = frame
        self._unsent.append(frame)
        self._unsent_bytes += len(frame)
        if self._unsent_bytes >= CHUNK_BYTES:
            self._exchange(self._messages_max)

    def flush(self) -> None:
        """Return once everything is acked."""
        self._exchange(0)

    def _exchange(self, unacked_max: int) -> None:
        """Send what waits, and receive acks until no more than so many are missing."""
        failures = 0
        while True:
            try:
                self._send()
                while len(self._unacked) > unacked_max:
                    before = self.acked
                    self._receive()
                    failures = 0 if self.acked > before else failures
                return
            except BROKEN as error:
                failures += 1
                if failures > self._retries:
                    raise
                self._again(error, failures)

    def _send(self) -> None:
        if self._unsent:
            self._connection.send(b"".join(self._unsent))
            self._unsent, self._unsent_bytes = [], 0

    def _again(self, error: Exception, failures: int) -> None:
        """Connect anew and have the whole window sent."""
        self._connection.close()
        time.sleep(RETRY_WAIT_S * failures)
        self._connection.__enter__()
        self._unsent = list(self._unacked.values())

    def _receive(self) -> None:
        self._connection.receive()
        again: list[bytes] = []
        for operation in self._connection.inbound.take_all():
            if operation[0] == MSG:
                self._settle(operation, again)
            else:
                self._connection.attend(operation)
        if again:
            self._unsent = [self._unacked[token] for token in again]
            self._send()

    def _settle(self, operation: Op, again: list[bytes]) -> None:
        token = operation[1][len(self.reply_prefix) :]
        frame = self._unacked.get(token)
        if frame is None:
            return  # The second ack of a message that was sent twice.
        payload = operation[5]
        if operation[4] or b'"error":' in payload:
            if not self._is_passing(operation, frame):
                return
            again.append(token)
            return
        del self._unacked[token]
        self.acked += 1
        self.duplicates += b'"duplicate":true' in payload.replace(b" ", b"")

    def _is_passing(self, operation: Op, frame: bytes) -> bool:
        """Tell whether a refusal is one to try again after; raise any other."""
        subject = frame.split(b" ", 2)[1].decode(errors="replace")
        if status_of(operation)[0] == UNAVAILABLE:
            raise ClientError(
                f"no stream stores `{subject}`; hint: create one, or check the column `subject`"
            )
        error = error_of(json.loads(operation[5][operation[4] :])["error"])
        if error.err_code != IN_PROCESS:
            raise ClientError(f"`{subject}` was refused: {error}") from error
        return True
