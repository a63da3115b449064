"""
The server without its sockets: accounts, sessions, and reports about them.

Time, randomness and the server's identity are injected, so that a test can repeat
everything that happens here.
"""

from __future__ import annotations

import base64
import json
import logging
import sys
from collections import deque
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from penstock.config.accounts import GLOBAL
from penstock.config.server import ServerConfig
from penstock.core.account import Account, Figures, sum_figures
from penstock.core.directory import Directory
from penstock.core.host import ScheduledCall
from penstock.core.identity.auth import Authenticator, Elsewhere, Verified
from penstock.core.identity.authenticators import authenticator_for, websocket_authenticator
from penstock.core.reports import trace
from penstock.core.reports.record import SessionRecord
from penstock.core.reports.system import System
from penstock.core.session import WEBSOCKET, Session
from penstock.keys import nkeys
from penstock.protocol.version import API_LEVEL, NATS_VERSION

if TYPE_CHECKING:
    from penstock.core.identity.callout import Callouts
    from penstock.core.identity.tokenauth import TokenAuthenticator

log = logging.getLogger("penstock")

OF_LISTENER = ("tls_required", "tls_available", "tls_verify")
"""The INFO fields that depend on the client's listener."""

DONE = object()
TURN_NS = 2_000_000
"""The longest time for one peer's requests before the others get their turn."""
NONCE_BYTES = 12
"""The size of a nonce before base64."""


class Broker:
    """Accounts and sessions. The `Host` of its sessions."""

    elsewhere: Elsewhere | None = None
    """Fetches accounts that the server has not loaded yet; None if there is no such source."""

    def __init__(
        self,
        config: ServerConfig,
        *,
        server_id: str,
        key: nkeys.KeyPair | None = None,
        clock_ns: Callable[[], int],
        random: Callable[[], float],
        random_bytes: Callable[[int], bytes],
        call_later: Callable[[float, Callable[[], None]], ScheduledCall],
    ) -> None:
        self.config = config
        self.server_id = server_id
        self.server_name = config.server_name or server_id
        self.clock_ns = clock_ns
        self.start_ns = clock_ns()
        self._key = key
        self._random_bytes = random_bytes
        self.call_later = call_later
        """Call a function after a delay in seconds."""
        self.verified = Verified()
        """Passwords that need no second bcrypt check, not even after a reload."""
        self.authenticator = authenticator_for(config.authorization, self.verified)
        self.websocket_authenticator = websocket_authenticator(config.websocket, self.verified)
        self.system = System(self)
        self.directory = Directory(
            config.authorization,
            route_cache_size=config.limits.route_cache_size,
            random=random,
            random_bytes=random_bytes,
            clock_ns=clock_ns,
            install=self.system.install,
            call_later=call_later,
        )
        self.default_account = self.accounts[GLOBAL]

        self.sessions: dict[int, Session] = {}
        self.closed: deque[SessionRecord] = deque(maxlen=config.limits.max_closed_clients)
        self.total_connections = 0
        self.slow_consumers = self.stale_connections = 0
        self._closed_figures: Figures = (0, 0, 0, 0)

        self.traces = trace.is_on()

        self.dirty: list[Session] = []
        """Sessions whose outbox has grown since it was last written."""
        self.congested: list[Session] = []
        """Sessions that got a message while they already had too many waiting."""
        self.behind: list[Session] = []
        """Sessions with postponed operations."""
        self.turn_ns = TURN_NS
        """How long one session may currently keep the others waiting."""

        self.info: dict[str, Any] = {
            "server_id": server_id,
            "server_name": self.server_name,
            "version": NATS_VERSION,
            "proto": 1,
            "api_lvl": API_LEVEL,
            "go": f"python{sys.version.split()[0]}",
            "host": config.host,
            "port": config.port,
            "headers": True,
            "max_payload": config.limits.max_payload,
        }
        if self.authenticator.required:
            self.info["auth_required"] = True
        self.websocket_info: dict[str, Any] = {}
        """The values of the `OF_LISTENER` fields for WebSocket clients."""

    @property
    def accounts(self) -> dict[str, Account]:
        """Every account by its name."""
        return self.directory.accounts

    @property
    def system_account(self) -> Account:
        """The account that receives the server's events."""
        return self.directory.system

    @cached_property
    def callouts(self) -> Callouts | None:
        """Asks the auth callout service about users, where one is configured."""
        if self._key is None:
            return None
        from penstock.core.identity.callout import Callouts

        return Callouts(self, self._key, self._random_bytes)

    def authenticator_of(self, kind: str) -> Authenticator | TokenAuthenticator:
        """Return the authenticator for the clients of a listener."""
        if kind == WEBSOCKET and self.websocket_authenticator is not None:
            return self.websocket_authenticator
        return self.authenticator

    def auth_timeout_s(self, kind: str) -> float:
        """Return the authentication timeout for the clients of a listener."""
        websocket = self.config.websocket if kind == WEBSOCKET else None
        own_s = websocket.auth_timeout if websocket is not None else 0
        return own_s or self.config.limits.auth_timeout

    def open(self, ip: str, port: int, *, kind: str = "nats") -> Session:
        """Open a session and send it INFO."""
        self.total_connections += 1
        session = Session(self, self.total_connections, ip=ip, port=port, kind=kind)
        session.write(self.info_line(session, **self._challenge(session)))
        if len(self.sessions) >= self.config.limits.max_connections > 0:
            session.fail("maximum connections exceeded", "Maximum Connections Exceeded")
        self.sessions[session.client_id] = session
        return session

    def close(self, session: Session, reason: str) -> None:
        """End a session: remove its subscriptions, keep its figures."""
        if self.sessions.pop(session.client_id, None) is None:
            return
        self._go_through(session.account.routes.withdraw(session))
        session.leave_account()
        session.stop_expiry()
        account = session.account
        account.closed_figures = sum_figures((account.closed_figures, session.figures))
        self._closed_figures = sum_figures((self._closed_figures, session.figures))
        self.system.disconnected(session, reason)
        self.closed.append(SessionRecord.of_closed(session, reason, self.clock_ns()))
        session.subscriptions = {}
        session.outbox.clear()
        session.closing = session.closing or reason
        log.debug("x %s closed: %s", session, reason)

    def _go_through(self, portions: Iterator[None]) -> None:
        """Do a portion of something now, and each of the others when everybody had a turn."""
        if next(portions, DONE) is not DONE:
            self.call_later(0, lambda: self._go_through(portions))

    def info_line(self, session: Session, **extra: Any) -> bytes:
        """Return the INFO for one session. Like nats-server, it has a space before the CRLF."""
        info = self.info
        if session.kind != "nats":
            info = {name: info[name] for name in info if name not in OF_LISTENER}
        if session.kind == WEBSOCKET:
            info |= self.websocket_info
        info = info | {"client_id": session.client_id, "client_ip": session.ip} | extra
        return b"INFO " + json.dumps(info, separators=(",", ":")).encode() + b" \r\n"

    def _challenge(self, session: Session) -> dict[str, str]:
        """Give a session its own nonce, if any user signs one."""
        if not self.authenticator.needs_nonce:
            return {}
        session.nonce = base64.urlsafe_b64encode(self._random_bytes(NONCE_BYTES)).decode()
        return {"nonce": session.nonce}

    def totals(self) -> Figures:
        """Return the figures of all connections since the start."""
        open_figures = [session.figures for session in self.sessions.values()]
        return sum_figures((self._closed_figures, *open_figures))

    def describe(self) -> dict[str, Any]:
        """Return the description of this server, with the time, as events carry it."""
        return self.system.server()

    def connected(self, session: Session) -> None:
        """Report a new client to the system account."""
        self.system.connected(session)

    def refused(self, session: Session) -> None:
        """Note a connection that failed to authenticate."""
        log.error("! %s authentication error", session)
        self.system.refused(session)

    def violation(self, session: Session, what: str) -> None:
        """Note an attempt at something not permitted."""
        log.error("! %s permissions violation for %s", session, what)
