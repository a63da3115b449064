"""
Publishes on their way: sent, and not yet acked.

They are kept in order. When the connection breaks, or the stream is away for an
election, nothing is sent until it is back; then the oldest goes first and alone,
and once that is acked the others follow. So messages are stored in the order they
were handed over, whatever happens in between. A message with an event id is sent
again although it may have been stored; one without is reported as lost.
"""

from __future__ import annotations

import asyncio
from time import monotonic

from penstock.bus.engine import OnSettled, Outgoing, Settlement
from penstock.client import Client
from penstock.client.jetstream.puback import is_ack, refusal
from penstock.errors import (
    ConnectionLost,
    JetStreamError,
    MessageTooLarge,
    NoResponders,
    RequestTimeout,
)
from penstock.hot.wire import CRLF, Op
from penstock.protocol import errorcodes

RETRY_WAIT_S = 0.1
PASSED_POLL_S = 0.005
UNAVAILABLE = 503
NOT_STORED = errorcodes.STREAM_STORE_FAILED.err_code
FULL = "maximum"
"""The start of the error description when a stream is full until something is deleted."""


class Window:
    """The messages that wait for their ack, oldest first."""

    def __init__(self, client: Client, *, ack_timeout_s: float, on_settled: OnSettled) -> None:
        self._client = client
        self._connection = client.connection
        self._outbox = client.connection.outbox
        self._loop = asyncio.get_running_loop()
        self._ack_timeout_s = ack_timeout_s
        self._on_settled = on_settled
        self._prefix = f"{client.new_inbox()}.".encode()
        self._unacked: dict[int, Outgoing] = {}
        self._count = 0
        self._probe_token = 0
        """The message sent alone to see whether the stream is back."""
        self._is_held = False
        self._refusal = ""
        """Why the stream takes nothing at the moment."""
        self._expiry: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None
        client.connection.subscribe(self._prefix + b"*", self._receive)
        client.connection.watchers.append(self)

    def send(self, message: Outgoing) -> bool:
        """Hand a message over. True: better make room on the client now."""
        if len(message.payload) + len(message.block) > self._connection.payload_bytes_max:
            # As late as any other failure, so that it is counted and reported like one.
            self._loop.call_soon(self._on_settled, [self._too_large(message)])
            return False
        token = self._count = self._count + 1
        message.deadline_s = monotonic() + self._ack_timeout_s
        crowded = False
        if self._is_held:
            message.is_unstored = True
        else:
            crowded = self._write(token, message)
        self._unacked[token] = message
        if self._expiry is None:
            self._expiry = self._loop.call_later(self._ack_timeout_s, self._expire)
        return crowded

    async def passed(self) -> None:
        """Return once every message handed over so far is acked or has failed."""
        last = self._count
        while self._unacked and next(iter(self._unacked)) <= last:  # noqa: ASYNC110  (rare)
            await asyncio.sleep(PASSED_POLL_S)

    def disconnected(self, error: Exception) -> None:
        """Hold everything; fail messages that may be stored and cannot be recognised."""
        self._hold()
        self._outbox.withdraw(self._prefix)
        lost = [
            token
            for token, message in self._unacked.items()
            if not message.is_unstored and not message.is_recognisable
        ]
        self._fail(lost, ConnectionLost(f"may be stored or not: {error}"))

    def reconnected(self) -> None:
        """See whether the stream is there."""
        self._probe()

    def closed(self, error: Exception) -> None:
        """Fail all waiting messages."""
        for timer in (self._expiry, self._retry):
            if timer is not None:
                timer.cancel()
        self._is_held = True
        self._fail(list(self._unacked), error)

    def _receive(self, operations: list[Op]) -> None:
        unacked, start = self._unacked, len(self._prefix)
        settled: list[Settlement] = []
        for operation in operations:
            token = int(operation[1][start:])
            if not is_ack(operation):
                self._refused(token, operation, settled)
                continue
            message = unacked.pop(token, None)
            if message is not None:
                settled.append(Settlement(message, operation[5], None))
            if token == self._probe_token:
                self._resume()
        if settled:
            self._on_settled(settled)

    def _refused(self, token: int, operation: Op, settled: list[Settlement]) -> None:
        message = self._unacked.get(token)
        if message is None:
            return
        error = refusal(operation)
        if _is_passing(error):
            message.is_unstored = True
            self._refusal = f": {error}"
            if not self._is_held or token == self._probe_token:
                self._hold()
                self._retry = self._loop.call_later(RETRY_WAIT_S, self._probe)
            return
        del self._unacked[token]
        settled.append(Settlement(message, b"", error))
        if token == self._probe_token:
            self._resume()

    def _hold(self) -> None:
        self._is_held = True
        self._probe_token = 0
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _probe(self) -> None:
        """Send the oldest message, alone."""
        self._retry = None
        if not self._client.connected:
            return
        if not self._unacked:
            self._is_held = False
            return
        self._probe_token = next(iter(self._unacked))
        self._send_again(self._probe_token, self._unacked[self._probe_token])

    def _resume(self) -> None:
        """Send all the others, in order."""
        self._probe_token = 0
        self._is_held = False
        for token, message in self._unacked.items():
            if message.is_unstored or message.is_recognisable:
                self._send_again(token, message)

    def _too_large(self, message: Outgoing) -> Settlement:
        size, size_max = (
            len(message.payload) + len(message.block),
            self._connection.payload_bytes_max,
        )
        error = MessageTooLarge(
            f"{size} bytes are more than `max_payload` of the server, {size_max}; hint: compress "
            "it with `publisher.compression`, or keep it elsewhere and publish where it is"
        )
        return Settlement(message, b"", error)

    def _send_again(self, token: int, message: Outgoing) -> None:
        message.is_unstored = False
        self._write(token, message)

    def _write(self, token: int, message: Outgoing) -> bool:
        payload, block = message.payload, message.block
        size = len(payload)
        if block:
            line = b"HPUB %b %b%d %d %d\r\n" % (
                message.target,
                self._prefix,
                token,
                len(block),
                size + len(block),
            )
            return self._outbox.add(line + block + payload + CRLF)
        line = b"PUB %b %b%d %d\r\n" % (message.target, self._prefix, token, size)
        return self._outbox.add(line + payload + CRLF)

    def _expire(self) -> None:
        """Fail overdue messages. They are in order, so the first one in time ends the search."""
        now_s = monotonic()
        overdue = []
        self._expiry = None
        for token, message in self._unacked.items():
            if message.deadline_s > now_s:
                self._expiry = self._loop.call_later(message.deadline_s - now_s, self._expire)
                break
            overdue.append(token)
        reason = self._refusal if self._is_held else ""
        behind = self._followers(overdue)
        self._fail(overdue, RequestTimeout(f"no ack within {self._ack_timeout_s} s{reason}"))
        self._fail(behind, RequestTimeout("an earlier event of its aggregate was not stored"))
        if self._probe_token in overdue:
            self._probe()

    def _followers(self, overdue: list[int]) -> list[int]:
        """Return unstored messages of the same aggregates: storing them would leave a hole."""
        keys = {_key(self._unacked[token]) for token in overdue} - {None}
        failed = set(overdue)
        return [
            token
            for token, message in self._unacked.items()
            if message.is_unstored and token not in failed and _key(message) in keys
        ]

    def _fail(self, tokens: list[int], error: Exception) -> None:
        if tokens:
            messages = [self._unacked.pop(token) for token in tokens]
            self._on_settled([Settlement(message, b"", error) for message in messages])


def _key(message: Outgoing) -> tuple[str, str] | None:
    """Return the ordering key of a message; None if it has none."""
    key = message.envelope.aggregate_id if message.envelope is not None else message.key
    return (message.topic, key) if key else None


def _is_passing(error: Exception) -> bool:
    """Return whether the message is not stored now, but may be in a moment."""
    return isinstance(error, NoResponders) or (
        isinstance(error, JetStreamError) and error.code == UNAVAILABLE and not is_full(error)
    )


def is_full(error: JetStreamError) -> bool:
    """Tell whether a stream has as many messages or bytes as it may have."""
    return error.err_code == NOT_STORED and error.description.startswith(FULL)
