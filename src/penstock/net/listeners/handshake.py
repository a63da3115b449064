"""
The TLS handshake of a socket.

It takes the future connection's place in the reactor. The client may start the handshake at
once, or after an INFO in clear text. Where clients without TLS are allowed too, the first
byte tells them apart.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.config.transport import TlsConfig
from penstock.core.identity.tls import TlsState
from penstock.core.session import Session
from penstock.net.listeners.arrival import Arrival
from penstock.net.listeners.tls import WANTS, TlsSocket, server_context, tls_state

if TYPE_CHECKING:
    from penstock.net.reactor import Reactor

HANDSHAKE_BYTE = b"\x16"
"""The first byte of every TLS handshake, and of no NATS protocol line."""
THROTTLED = "Connection throttling is active. Please try again later."


@dataclass
class Tls:
    """The TLS of one listener: its context, and the number of handshakes in this second."""

    config: TlsConfig
    context: ssl.SSLContext
    second: int = 0
    handshakes: int = 0

    @classmethod
    def of(cls, config: TlsConfig) -> Tls:
        """Read the files in the settings."""
        return cls(config, server_context(config))

    def allows_one_more(self, now_s: float) -> bool:
        """Count a handshake; tell whether it is within the rate limit."""
        if int(now_s) != self.second:
            self.second, self.handshakes = int(now_s), 0
        self.handshakes += 1
        limit = self.config.connection_rate_limit
        return not limit or self.handshakes <= limit

    def is_pinned(self, state: TlsState) -> bool:
        """Tell whether the client's key is pinned, if any keys are."""
        pinned = self.config.pinned_certs
        found = state.certificate.public_key_sha256 if state.certificate else ""
        return not pinned or found in map(str.lower, pinned)


Secured = Callable[[TlsSocket, TlsState, Session | None], None]
"""Called after the handshake."""
Plain = Callable[[socket.socket, Session], None]
"""Called if a client continues in clear text."""


class Handshake(Arrival):
    """Served by the reactor during the handshake."""

    what = "TLS handshake"
    failure = "TLS Handshake Failure"
    sock: socket.socket

    def __init__(
        self, reactor: Reactor, sock: socket.socket, tls: Tls, *, peer: str, secured: Secured
    ) -> None:
        super().__init__(reactor, sock, peer)
        self._tls = tls
        self._secured = secured
        self._began = self._is_admitted = False
        self._is_first = True
        self._plain: Plain | None = None

    def wait(self) -> None:
        """Wait for the client's handshake."""
        self.limit_time(self._tls.config.timeout)
        self._admit()

    def wait_or(self, greet: Callable[[], None], delay_s: float) -> None:
        """Wait for the client's handshake; call `greet` if it does not come."""
        self.limit_time(delay_s, greet)

    def invite(self, session: Session, plain: Plain | None) -> None:
        """Send INFO in clear text, and wait for the handshake, or for plain text if allowed."""
        self._is_first = False
        self._plain = plain
        self.limit_time(self._tls.config.timeout)
        self.greet(session)
        if plain is None and not self.is_closed:
            self._admit()

    def flush(self) -> None:
        """Write the outbox in clear text before the handshake; during it, the outbox waits."""
        if not self._began:
            super().flush()

    def advance(self) -> None:
        """Continue the handshake."""
        try:
            if not self._began and not self._begin():
                return
            assert isinstance(self.sock, ssl.SSLSocket)
            self.sock.do_handshake()
            self._finish(self.sock)
        except WANTS as want:
            self.is_blocked = isinstance(want, ssl.SSLWantWriteError)
            self.reactor.watch(self)
        except (ssl.SSLEOFError, ConnectionResetError, BrokenPipeError):
            # A port check: the client only connected and left.
            self.close(self.failure)
        except (OSError, ValueError) as error:
            self.fail(str(error))

    def _begin(self) -> bool:
        """Start the handshake if the client does; tell whether it started."""
        if self._plain is not None and not self._sees_handshake(self._plain):
            return False
        if not self._is_admitted and not self._admit():
            return False
        self.limit_time(self._tls.config.timeout)
        self._began = True
        self.sock = self._tls.context.wrap_socket(
            self.sock, server_side=True, do_handshake_on_connect=False
        )
        return True

    def _sees_handshake(self, plain: Plain) -> bool:
        """Look at the first byte. Without a handshake, continue in clear text."""
        try:
            first = self.sock.recv(1, socket.MSG_PEEK)
        except OSError:
            self.close("Read Error")
            return False
        if first == HANDSHAKE_BYTE:
            return True
        session = self.session
        assert session is not None
        self.go_on(lambda: plain(self.sock, session))
        return False

    def _admit(self) -> bool:
        """Tell whether the rate limit allows this handshake; if not, close."""
        self._is_admitted = self._tls.allows_one_more(self.reactor.loop.time())
        if not self._is_admitted:
            if self.session is not None:
                self.session.report(THROTTLED)
                self.flush()
            self.close("Maximum Connections Exceeded")
        return self._is_admitted

    def _finish(self, sock: ssl.SSLSocket) -> None:
        state = tls_state(sock, is_first=self._is_first)
        if self._tls.is_pinned(state):
            self.go_on(lambda: self._secured(TlsSocket(sock), state, self.session))
        else:
            self.fail("certificate not pinned")
