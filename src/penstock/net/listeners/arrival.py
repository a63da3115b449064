"""
A socket that has arrived, and is not a connection yet.

A PROXY header, a TLS handshake and a WebSocket upgrade each stand in the reactor where the
connection will stand. They have two ways out: `go_on` hands the socket, and the session if
the client was greeted already, to what comes next; `close` ends both. Nothing that a stranger
sends, or leaves out, leads anywhere else.
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
    """What the reactor serves until a client can speak."""

    what: ClassVar[str]
    """What it waits for, as the log says it."""
    failure: ClassVar[str]
    """Why a session is closed for which that did not come."""
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
        """Take what has come, and go on or fail if that is enough to tell."""
        raise NotImplementedError

    def on_readable(self) -> None:
        """Take what has come. Whatever it is, it costs no more than a line in the log."""
        try:
            self.advance()
        except Exception as error:
            log.debug("! %s", self, exc_info=True)
            self.fail(f"{error!r:.200}")

    def on_writable(self) -> None:
        """Go on where the kernel had no room."""
        self.on_readable()

    def greet(self, session: Session) -> None:
        """Send what the session has to say, in clear text."""
        self.session = session
        session.transport = self
        self.flush()

    def flush(self) -> None:
        """Write the outbox; a socket nothing was written to takes this much."""
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
        """Wait no longer than this: then fail, or do what there is to do in place of it."""
        self._stop_timer()
        timed_out = expired or (lambda: self.fail("timeout"))
        self._timer = self.reactor.loop.call_later(seconds, timed_out)

    def go_on(self, step: Callable[[], None]) -> None:
        """Hand over to what comes next; what cannot even begin is closed."""
        self._leave()
        try:
            step()
        except BaseException:
            self._end("Internal Error")
            raise

    def fail(self, reason: str) -> None:
        """Say in the log what is wrong, and close."""
        log.error("! %s %s error: %s", self, self.what, reason)
        self.close(self.failure)

    def close(self, reason: str) -> None:
        """End it, and its session; twice is once."""
        if not self.is_closed:
            self._leave()
            self._end(reason)

    def _leave(self) -> None:
        """Make room in the reactor."""
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
