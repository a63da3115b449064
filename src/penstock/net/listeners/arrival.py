"""
An accepted socket that is not a connection yet.

A PROXY header, a TLS handshake and a WebSocket upgrade each take the future connection's
place in the reactor. They end in one of two ways: `go_on` passes the socket, and the
session if INFO was already sent, to the next step; `close` ends both. Nothing that a
stranger sends, or fails to send, leads anywhere else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from penstock.core.session import Session
from penstock.net.connection import Channel

if TYPE_CHECKING:
    from penstock.net.reactor import Reactor

log = logging.getLogger("penstock")


class Arrival:
    """Served by the reactor until a client can speak NATS."""

    what: ClassVar[str]
    """The awaited step, for the log."""
    failure: ClassVar[str]
    """The close reason of a session if the step fails."""
    wants_read = True

    def __init__(self, reactor: Reactor, sock: Channel, peer: str) -> None:
        self.reactor = reactor
        self.sock = sock
        self.peer = peer
        self.fd = sock.fileno()
        self.session: Session | None = None
        self.is_blocked = self.is_closed = False
        self._timer: asyncio.TimerHandle | None = None
        reactor.serve(self)

    def __str__(self) -> str:
        return str(self.session or self.peer)

    def advance(self) -> None:
        """Read what has arrived; continue or fail as soon as that is decided."""
        raise NotImplementedError

    def on_readable(self) -> None:
        """Read what has arrived. Whatever it is, it costs at most one line in the log."""
        try:
            self.advance()
        except Exception as error:
            log.debug("! %s", self, exc_info=True)
            self.fail(f"{error!r:.200}")

    def on_writable(self) -> None:
        """Continue after the kernel had no room."""
        self.on_readable()

    def greet(self, session: Session) -> None:
        """Send the session's outbox in clear text."""
        self.session = session
        session.transport = self
        self.flush()

    def flush(self) -> None:
        """Write the outbox. A fresh socket has room for all of it."""
        session = self.session
        if session is None or self.is_closed:
            return
        try:
            self.sock.send(b"".join(session.outbox))
        except OSError:
            self.close("Write Error")
            return
        session.outbox.clear()
        session.outbox_bytes = 0
        if session.closing:
            self.close(session.closing)

    def limit_time(self, seconds: float, expired: Callable[[], None] | None = None) -> None:
        """Set the time limit; at its end call `expired`, or fail."""
        self._stop_timer()
        timed_out = expired or (lambda: self.fail("timeout"))
        self._timer = self.reactor.loop.call_later(seconds, timed_out)

    def go_on(self, step: Callable[[], None]) -> None:
        """Pass the socket to the next step; close it if that step cannot begin."""
        self._leave()
        try:
            step()
        except BaseException:
            self._end("Internal Error")
            raise

    def fail(self, reason: str) -> None:
        """Log the reason, and close."""
        log.error("! %s %s error: %s", self, self.what, reason)
        self.close(self.failure)

    def close(self, reason: str) -> None:
        """Close the socket and end the session. Idempotent."""
        if not self.is_closed:
            self._leave()
            self._end(reason)

    def _leave(self) -> None:
        """Leave the reactor."""
        self.is_closed = True
        self._stop_timer()
        self.reactor.forget(self)

    def _end(self, reason: str) -> None:
        self.sock.close()
        if self.session is not None:
            self.session.transport = None
            self.reactor.broker.close(self.session, reason)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
