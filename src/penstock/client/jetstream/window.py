"""
Publish to JetStream with a bounded number of unacked messages.

A message is sent at once, its ack comes later, and one handler takes all acks: there is no
task or timer per message. With `messages_max` unacked messages, the next publisher waits.
Acks share one inbox; the last token of the subject identifies the message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import TypeAlias

from penstock.client.jetstream.api import CoreClient
from penstock.client.jetstream.puback import PubAck, is_ack, refusal
from penstock.errors import ConnectionClosed, RequestTimeout
from penstock.hot.wire import Op

OnAck: TypeAlias = Callable[[PubAck | None, Exception | None], None]
"""Called with the ack or with the error, never with both."""

Sink: TypeAlias = "asyncio.Future[PubAck] | OnAck"


def _ignore(ack: PubAck | None, error: Exception | None) -> None:
    """Ignore an ack that came after its timeout."""


NOBODY: tuple[Sink, float] = (_ignore, 0.0)


class PublishWindow:
    """The messages waiting for an ack, oldest first."""

    def __init__(self, client: CoreClient, *, messages_max: int, ack_timeout_s: float) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._messages_max = messages_max
        self._ack_timeout_s = ack_timeout_s
        self._prefix = f"{client.new_inbox()}.".encode()
        self._unacked: dict[bytes, tuple[Sink, float]] = {}
        self._count = 0
        self._publishers: deque[asyncio.Future[None]] = deque()
        self._drained = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        client.connection.subscribe(self._prefix + b"*", self._receive)
        client.connection.watchers.append(self)

    @property
    def unacked(self) -> int:
        """The number of messages waiting for an ack."""
        return len(self._unacked)

    @property
    def full(self) -> bool:
        """Whether a publisher has to wait for room."""
        return len(self._unacked) >= self._messages_max

    async def room(self) -> None:
        """Wait until one more message may be unacked. First come, first served."""
        while self.full:
            future: asyncio.Future[None] = self._loop.create_future()
            self._publishers.append(future)
            try:
                await future
            except asyncio.CancelledError:
                # The room this publisher may have been given goes to the next one.
                self._wake()
                raise

    def send(self, subject: bytes, payload: bytes, block: bytes, sink: Sink) -> bool:
        """
        Send a message; `sink` gets the ack. True: the caller should make room on the client
        now.
        """
        self._count += 1
        token = b"%d" % self._count
        crowded = self._client.send_nowait(subject, payload, self._prefix + token, block)
        self._unacked[token] = (sink, monotonic() + self._ack_timeout_s)
        if self._timer is None:
            self._timer = self._loop.call_later(self._ack_timeout_s, self._expire)
        return crowded

    async def drained(self) -> None:
        """Return once every message so far is acked or has failed."""
        while self._unacked:
            self._drained.clear()
            await self._drained.wait()

    def disconnected(self, error: Exception) -> None:
        """Fail all sent messages: their acks, if any, were lost with the link."""
        self._fail_all(error)

    def reconnected(self) -> None:
        """
        Do nothing: messages published in the meantime are on their way, and so are their
        acks.
        """

    def closed(self, error: Exception) -> None:
        """Fail all waiting messages."""
        self._fail_all(error)

    def _receive(self, operations: list[Op]) -> None:
        unacked = self._unacked
        start = len(self._prefix)
        for operation in operations:
            sink, _ = unacked.pop(operation[1][start:], NOBODY)
            if is_ack(operation):
                self._settle(sink, PubAck(operation[5]), None)
            else:
                self._settle(sink, None, refusal(operation))
        self._wake()

    def _expire(self) -> None:
        """Fail overdue messages. The oldest comes first, so stop at the first one still in time."""
        now = monotonic()
        self._timer = None
        for token, (sink, deadline) in list(self._unacked.items()):
            if deadline > now:
                self._timer = self._loop.call_later(deadline - now, self._expire)
                break
            del self._unacked[token]
            self._settle(sink, None, RequestTimeout(f"no ack within {self._ack_timeout_s} s"))
        self._wake()

    def _settle(self, sink: Sink, ack: PubAck | None, error: Exception | None) -> None:
        if not isinstance(sink, asyncio.Future):
            try:
                sink(ack, error)
            except Exception as failure:
                # A failing callback must not keep later acks from their callbacks.
                self._client.connection.report(failure)
        elif not sink.done():
            if error is None:
                assert ack is not None
                sink.set_result(ack)
            else:
                sink.set_exception(error)
                if isinstance(error, ConnectionClosed):
                    # The caller that closes a client knows what is unfinished; asyncio need
                    # not warn.
                    sink.exception()

    def _fail_all(self, error: Exception) -> None:
        unacked, self._unacked = self._unacked, {}
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for sink, _ in unacked.values():
            self._settle(sink, None, error)
        self._wake()

    def _wake(self) -> None:
        """Let in as many publishers as there is room for, in order of arrival."""
        room = self._messages_max - len(self._unacked)
        while self._publishers and room > 0:
            future = self._publishers.popleft()
            if not future.done():
                future.set_result(None)
                room -= 1
        if not self._unacked:
            self._drained.set()
