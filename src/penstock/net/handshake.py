"""
A socket on its way to TLS.

Until the handshake is done it stands in the reactor where its connection will stand.
It may begin with the handshake, or with an INFO in clear text after which the client
begins; where clients without TLS are welcome too, the first byte tells which it is.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.session import Session
from penstock.core.tls import TlsState
from penstock.net.tls import WANTS, TlsSocket, server_context, tls_state
from penstock.transport import TlsConfig

if TYPE_CHECKING:
    from penstock.net.reactor import Reactor

log = logging.getLogger("penstock")

HANDSHAKE_BYTE = b"\x16"
"""What every TLS handshake begins with, and no NATS protocol line does."""
THROTTLED = "Connection throttling is active. Please try again later."


@dataclass
class Tls:
    """The TLS of one listener: its context, and how many handshakes this second has seen."""

    config: TlsConfig
    context: ssl.SSLContext
    second: int = 0
    handshakes: int = 0

    @classmethod
    def of(cls, config: TlsConfig) -> Tls:
        """Read the files the settings name."""
        return cls(config, server_context(config))

    def allows_one_more(self, now_s: float) -> bool:
        """Count a handshake; tell whether it is within the rate."""
        if int(now_s) != self.second:
            self.second, self.handshakes = int(now_s), 0
        self.handshakes += 1
        limit = self.config.connection_rate_limit
        return not limit or self.handshakes <= limit

    def is_pinned(self, state: TlsState) -> bool:
        """Tell whether the client's key is one of those that may connect, if any are named."""
        pinned = self.config.pinned_certs
        found = state.certificate.public_key_sha256 if state.certificate else ""
        return not pinned or found in map(str.lower, pinned)


Secured = Callable[[TlsSocket, TlsState, Session | None], None]
"""Called when the handshake is done."""
Plain = Callable[[socket.socket, Session], None]
"""Called when a client goes on in clear text."""


class Handshake:
    """What the reactor serves until TLS is agreed on."""

    wants_read = True

    def __init__(
        self, reactor: Reactor, sock: socket.socket, tls: Tls, *, peer: str, secured: Secured
    ) -> None:
        self.reactor = reactor
        self.peer = peer
        self.fd = sock.fileno()
        self.session: Session | None = None
        self.is_blocked = self.is_closed = False
        self._sock = sock
        self._tls = tls
        self._secured = secured
        self._began = self._is_admitted = False
        self._is_first = True
        self._plain: Plain | None = None
        self._timer: asyncio.TimerHandle | None = None
        reactor.serve(self)

    def __str__(self) -> str:
        return str(self.session or self.peer)

    def wait(self) -> None:
        """Wait for the client to begin."""
        self._limit_time(self._tls.config.timeout_s)
        self._admit()

    def wait_or(self, greet: Callable[[], None], delay_s: float) -> None:
        """Wait for the client to begin; greet it when it does not."""
        self._timer = self.reactor.loop.call_later(delay_s, greet)

    def greet(self, session: Session, plain: Plain | None) -> None:
        """Send INFO in clear text, and wait for the client to begin, or to go on with `plain`."""
        self.session = session
        session.transport = self
        self._is_first = False
        self._plain = plain
        self._limit_time(self._tls.config.timeout_s)
        self.flush()
        if plain is None and not self.is_closed:
            self._admit()

    def flush(self) -> None:
        """Write in clear text what there is to say before the handshake; the rest waits."""
        session = self.session
        if session is None or self.is_closed or self._began:
            return
        data = b"".join(session.outbox)
        try:
            # A socket nothing was written to takes this much.
            self._sock.send(data)
        except OSError:
            self.close("Write Error")
            return
        session.outbox.clear()
        session.outbox_bytes = 0
        if session.closing:
            self.close(session.closing)

    def on_readable(self) -> None:
        """Go on with the handshake."""
        try:
            if not self._began and not self._begin():
                return
            assert isinstance(self._sock, ssl.SSLSocket)
            self._sock.do_handshake()
        except WANTS as want:
            self.is_blocked = isinstance(want, ssl.SSLWantWriteError)
            self.reactor.watch(self)
        except (ssl.SSLEOFError, ConnectionResetError, BrokenPipeError):
            # Somebody who only looked whether there is a server here.
            self.close("TLS Handshake Failure")
        except (OSError, ValueError) as error:
            self._fail(str(error))
        else:
            self._finish(self._sock)

    def on_writable(self) -> None:
        """Go on where the kernel had no room."""
        self.on_readable()

    def close(self, reason: str) -> None:
        """Give up; twice is once."""
        if self.is_closed:
            return
        self._leave()
        self._sock.close()
        if self.session is not None:
            self.session.transport = None
            self.reactor.broker.close(self.session, reason)

    def _begin(self) -> bool:
        """Tell whether what comes is a handshake, and start it."""
        if self._plain is not None and not self._sees_handshake():
            return False
        if not self._is_admitted and not self._admit():
            return False
        self._limit_time(self._tls.config.timeout_s)
        self._began = True
        self._sock = self._tls.context.wrap_socket(
            self._sock, server_side=True, do_handshake_on_connect=False
        )
        return True

    def _sees_handshake(self) -> bool:
        """Look at the first byte. Without a handshake, the connection goes on in clear text."""
        assert self._plain is not None
        assert self.session is not None
        try:
            first = self._sock.recv(1, socket.MSG_PEEK)
        except OSError:
            self.close("Read Error")
            return False
        if first == HANDSHAKE_BYTE:
            return True
        self._leave()
        self._plain(self._sock, self.session)
        return False

    def _admit(self) -> bool:
        """Tell whether there are few enough handshakes this second; if not, turn it away."""
        self._is_admitted = self._tls.allows_one_more(self.reactor.loop.time())
        if not self._is_admitted:
            if self.session is not None:
                self.session.report(THROTTLED)
                self.flush()
            self.close("Maximum Connections Exceeded")
        return self._is_admitted

    def _finish(self, sock: ssl.SSLSocket) -> None:
        state = tls_state(sock, is_first=self._is_first)
        if not self._tls.is_pinned(state):
            self._fail("certificate not pinned")
            return
        self._leave()
        self._secured(TlsSocket(sock), state, self.session)

    def _leave(self) -> None:
        """Make room in the reactor."""
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.reactor.forget(self)

    def _limit_time(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.reactor.loop.call_later(seconds, self._fail, "timeout")

    def _fail(self, reason: str) -> None:
        log.error("! %s TLS handshake error: %s", self, reason)
        self.close("TLS Handshake Failure")
