"""A broker with a clock of the test's own, and peers that talk to it without sockets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.config.accounts import Permissions as PermissionRules
from penstock.config.accounts import User
from penstock.config.server import Authorization, Limits, ServerConfig
from penstock.core.broker import Broker
from penstock.core.session import Session

SECOND_NS = 1_000_000_000
CONNECT = (
    b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,'
    b'"user":"%b","pass":"x"}\r\n'
)


class Later:
    """Something a broker has put off, until the test does it."""

    def __init__(self, delay_s: float, action: Callable[[], None]) -> None:
        self.delay_s = delay_s
        self.action = action
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class World:
    """A broker, its time and its dice."""

    def __init__(self, *, users: dict[str, PermissionRules] | None = None, **settings: Any) -> None:
        self.now_ns = 1_000 * SECOND_NS
        self.dice = 0.0
        self.put_off: list[Later] = []
        self._drawn = 0
        members = tuple(
            User(name=name, password="x", permissions=rules)
            for name, rules in (users or {}).items()
        )
        limits = settings.pop("limits", Limits())
        authorization = settings.pop("authorization", Authorization(users=members))
        self.broker = Broker(
            ServerConfig(limits=limits, authorization=authorization, **settings),
            server_id="NID",
            clock_ns=lambda: self.now_ns,
            random=lambda: self.dice,
            random_bytes=self._random_bytes,
            call_later=self._call_later,
        )

    def _call_later(self, delay_s: float, action: Callable[[], None]) -> Later:
        self.put_off.append(Later(delay_s, action))
        return self.put_off[-1]

    def _random_bytes(self, count: int) -> bytes:
        """Return bytes that are new each time, in an order of their own."""
        self._drawn += 1
        return self._drawn.to_bytes(count, "little")

    def stranger(self) -> Peer:
        """Return a peer that has said nothing yet, and has read its INFO."""
        peer = Peer(self.broker.open("127.0.0.1", 4000))
        assert peer.taken().startswith(b"INFO {")
        return peer

    def peer(self, user: str = "") -> Peer:
        """Return a peer that has introduced itself, quiet and with headers."""
        peer = self.stranger()
        peer.says(CONNECT % user.encode())
        assert peer.taken() == b""
        return peer


class Peer:
    """The other end of a session."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def says(self, data: bytes) -> bytes:
        """Send bytes, and return what comes back at once."""
        self.session.receive(data)
        return self.taken()

    def taken(self) -> bytes:
        """Return what the session owes the peer, as a connection would write it."""
        session = self.session
        data = b"".join(
            entry[0].join(entry[1]) if type(entry) is tuple else bytes(entry)
            for entry in session.outbox
        )
        assert len(data) == session.outbox_bytes, "the sizes that were noted are those to be sent"
        session.outbox.clear()
        session.outbox_bytes = 0
        return data
