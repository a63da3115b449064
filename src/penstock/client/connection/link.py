"""
One open connection to one server: bytes in become operations, bytes go out.

A link knows nothing about subscriptions or reconnecting. During the handshake it keeps the
operations for `expect`; afterwards they go to `receive`, a whole read at a time.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import cast

from penstock import hot
from penstock.errors import ConnectionLost, ProtocolError
from penstock.hot.wire import Op, Parser

CONTROL_LINE_BYTES_MAX = 1 << 20
"""An INFO names every server of the cluster, so it may be long."""

WRITE_BUFFER_BYTES = 256 * 1024

HANDSHAKE_OPERATIONS_MAX = 1024
"""Nothing is subscribed yet, so a server has little to send."""


class Link(asyncio.Protocol):
    """Move bytes between a transport and the client."""

    def __init__(self) -> None:
        # No message can be for us before the handshake is over, so none may be announced.
        self._parser = Parser(hot.parse_messages, 0, CONTROL_LINE_BYTES_MAX)
        self._collected: deque[Op] = deque()
        self._arrived = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self._error: Exception | None = None
        self.closed = asyncio.Event()
        self.encrypted = False
        self.receive: Callable[[list[Op]], None] = self._collect
        self.lost: Callable[[Link, Exception | None], None] = _ignore_lost
        self.writable: Callable[[bool], None] = _ignore_writable

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        self.receive(self._parser.feed(data))

    def pause_writing(self) -> None:
        self.writable(False)

    def resume_writing(self) -> None:
        self.writable(True)

    def connection_lost(self, error: Exception | None) -> None:
        self._error = self._error or error or ConnectionLost("the server closed the connection")
        self.closed.set()
        self._arrived.set()
        self.lost(self, error)

    def write(self, data: bytes) -> None:
        """Send now as much as the socket accepts, and the rest as soon as it accepts more."""
        assert self._transport is not None
        self._transport.write(data)

    async def expect(self) -> Op:
        """Return the next operation of the handshake."""
        while not self._collected:
            if self._error is not None:
                raise ConnectionLost(
                    f"the connection broke during the handshake: {self._error}"
                ) from self._error
            self._arrived.clear()
            await self._arrived.wait()
        return self._collected.popleft()

    async def start_tls(self, context: ssl.SSLContext, hostname: str) -> None:
        """Continue with TLS on the open connection."""
        assert self._transport is not None
        if self._collected or self._parser.pending_bytes:
            # These bytes would count as received through TLS, although anybody on the path
            # can have written them. A server sends nothing between its INFO and its
            # handshake.
            raise ProtocolError("there was more than INFO before TLS: somebody tampers with it")
        try:
            transport = await asyncio.get_running_loop().start_tls(
                self._transport, self, context, server_hostname=hostname
            )
        except BaseException:
            # A cancelled handshake closes the socket, but asyncio does not tell us.
            self._transport.abort()
            self.closed.set()
            raise
        if transport is None:
            raise ConnectionLost("the connection broke during the TLS handshake")
        self.connection_made(transport)
        self.encrypted = True

    def hand_over(self, receive: Callable[[list[Op]], None], *, message_bytes_max: int) -> None:
        """End the handshake: `receive` gets all further operations, with messages up to a size."""
        self.receive = receive
        self._parser.payload_bytes_max = message_bytes_max
        collected, self._collected = list(self._collected), deque()
        if collected:
            receive(collected)

    def abort(self) -> None:
        """Close at once; unsent bytes are lost."""
        if self._transport is not None:
            self._transport.abort()

    async def close(self, *, timeout_s: float) -> None:
        """Send what is left, then close; after `timeout_s` close at once."""
        assert self._transport is not None
        self._transport.close()
        try:
            await asyncio.wait_for(self.closed.wait(), timeout_s)
        except TimeoutError:
            self.abort()
            await self.closed.wait()

    def _collect(self, operations: list[Op]) -> None:
        self._collected.extend(operations)
        self._arrived.set()
        if len(self._collected) > HANDSHAKE_OPERATIONS_MAX:
            self._error = ProtocolError("the server sends too much before the handshake is over")
            self.abort()


def _ignore_lost(link: Link, error: Exception | None) -> None:
    """Stand in until a connection takes over the link."""


def _ignore_writable(writable: bool) -> None:
    """Stand in until a connection takes over the link."""
