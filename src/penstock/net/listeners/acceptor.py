"""
Where clients come in: from an accepted socket to a session and its connection.

What stands between the two (a TLS handshake, before INFO or after it; a WebSocket upgrade)
is decided here, anew for each client, so that a reload counts from the next client on.
"""

from __future__ import annotations

import socket
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.config.server import ServerConfig
from penstock.config.transport import WebSocketConfig
from penstock.core.broker import Broker
from penstock.core.identity.tls import TlsState
from penstock.core.session import WEBSOCKET, Session
from penstock.net.connection import Channel, Connection
from penstock.net.listeners.handshake import Handshake, Plain, Tls
from penstock.net.listeners.proxyheader import ProxyHeader
from penstock.net.listeners.tls import TlsSocket
from penstock.net.listeners.upgrade import Agreement
from penstock.net.listeners.websocket import Upgrade, WebSocket

if TYPE_CHECKING:
    from penstock.net.reactor import Reactor

Address = tuple[str, int]
INFLATED_MESSAGES_MAX = 8
"""As many of the largest messages one compressed message of WebSocket may grow to."""


class Door:
    """Lets clients in."""

    reactor: Reactor

    def __init__(self, broker: Broker, tls: Tls | None) -> None:
        self._broker = broker
        self.tls = tls
        """How new clients are secured, if they are."""

    def accept(self, sock: socket.socket) -> None:
        """Let a client in, over TLS if that is asked for."""
        address = prepare(sock)
        if address is None:
            return
        if self._broker.config.proxy_protocol:
            self._ask_proxy(sock, address)
        elif self.tls is None:
            self.serve(sock, self._broker.open(*address))
        else:
            self._secure(sock, address, self.tls)

    def _ask_proxy(self, sock: socket.socket, address: Address) -> None:
        """Let a client in when the proxy before it has said who it is; INFO does not wait."""
        tls = self.tls
        is_greeted = tls is None or tls.config.handshake_first is None
        session = self._broker.open(*address) if is_greeted else None

        def done(found: Address | None, read: bytes) -> None:
            if session is not None and found is not None:
                session.ip, session.port = found
            if tls is not None:
                self._secure(sock, found or address, tls, session)
                return
            assert session is not None
            connection = self.serve(sock, session)
            if read:
                connection.session.receive(read)

        header = ProxyHeader(
            self.reactor, sock, peer=peer_of(address), done=done, takes_none=tls is None
        )
        if session is not None:
            header.greet(session)

    def serve(self, sock: Channel, session: Session) -> Connection:
        """Make a connection of a session and its socket."""
        connection = self.reactor.add(sock, session)
        limits = self._broker.config.limits
        connection.start_pings(limits.ping_interval_s)
        if self._broker.authenticator_of(session.kind).required:
            timeout_s = self._broker.auth_timeout_s(session.kind)
            self.reactor.loop.call_later(timeout_s, self._check_identified, connection)
        return connection

    def _secure(
        self, sock: socket.socket, address: Address, tls: Tls, session: Session | None = None
    ) -> None:
        first = tls.config.handshake_first
        handshake = Handshake(
            self.reactor,
            sock,
            tls,
            peer=peer_of(address),
            secured=partial(self._secured, address),
        )
        if session is not None:
            handshake.invite(session, self._plainly)
        elif first is None:
            self._greet(handshake, address)
        elif first == 0:
            handshake.wait()
        else:
            handshake.wait_or(partial(self._greet, handshake, address), first)

    def _greet(self, handshake: Handshake, address: Address) -> None:
        handshake.invite(self._broker.open(*address), self._plainly)

    @property
    def _plainly(self) -> Plain | None:
        """How a client goes on in clear text, if it may."""
        return self._go_on if self._broker.config.allow_non_tls else None

    def _secured(
        self, address: Address, sock: TlsSocket, state: TlsState, session: Session | None
    ) -> None:
        if session is None:
            session = self._broker.open(*address)
        session.tls = state
        self.serve(sock, session).flush()

    def _go_on(self, sock: socket.socket, session: Session) -> None:
        """Go on in clear text with a client that does not want TLS."""
        self.serve(sock, session).flush()

    def _check_identified(self, connection: Connection) -> None:
        session = connection.session
        if session.identity is None and session.check is None and not connection.is_closed:
            session.fail("Authentication Timeout", "Authentication Timeout")
            self.reactor.flush()


class WebSocketDoor:
    """Lets WebSocket clients in; from there on they are like any others."""

    def __init__(self, door: Door, broker: Broker, config: WebSocketConfig) -> None:
        self._door = door
        self._broker = broker
        self.change(config)

    def change(self, config: WebSocketConfig) -> None:
        """Take over new settings for the clients to come."""
        self.tls = Tls.of(config.tls) if config.tls is not None else None
        self.config = config

    def accept(self, sock: socket.socket) -> None:
        """Let a client in, over TLS if that is asked for."""
        address = prepare(sock)
        if address is None:
            return
        if self.tls is None:
            self._upgrade(address, sock, None)
        else:
            secured = partial(self._secured, address)
            peer = peer_of(address)
            Handshake(self._door.reactor, sock, self.tls, peer=peer, secured=secured).wait()

    def _secured(
        self, address: Address, sock: TlsSocket, state: TlsState, _: Session | None
    ) -> None:
        self._upgrade(address, sock, state)

    def _upgrade(self, address: Address, sock: Channel, state: TlsState | None) -> None:
        upgraded = partial(self._upgraded, address, state)
        peer = peer_of(address)
        Upgrade(self._door.reactor, sock, self.config, peer=peer, upgraded=upgraded)

    def _upgraded(
        self, address: Address, state: TlsState | None, sock: Channel, agreement: Agreement
    ) -> None:
        ip, port = address
        session = self._broker.open(ip, port, kind=WEBSOCKET)
        session.forwarded_for = agreement.forwarded_for
        session.tls = state
        session.connect_options |= agreement.credentials
        limits = self._broker.config.limits
        message_bytes_max = limits.payload_bytes_max + limits.control_line_bytes_max
        websocket = WebSocket(
            sock, session, agreement, inflated_bytes_max=INFLATED_MESSAGES_MAX * message_bytes_max
        )
        connection = self._door.serve(websocket, session)
        connection.farewell = websocket.farewell
        websocket.read_on = partial(self._door.reactor.read_on, connection)
        connection.flush()


def prepare(sock: socket.socket) -> Address | None:
    """Set up an accepted socket; return who it is, or None if it has gone meanwhile."""
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        ip, port = sock.getpeername()[:2]
    except OSError:
        sock.close()
        return None
    return ip, port


def peer_of(address: Address) -> str:
    """Return how the log calls a client that has no session yet."""
    return f"{address[0]}:{address[1]}"


def websocket_info(config: WebSocketConfig, port: int) -> dict[str, Any]:
    """Return what INFO says to WebSocket clients in place of what it says to others."""
    info: dict[str, Any] = {"host": config.host, "port": port}
    if config.tls is not None:
        info |= {"tls_required": True, "tls_available": True}
    if config.tls is not None and config.tls.verifies:
        info["tls_verify"] = True
    if config.has_own_users:
        info["auth_required"] = True
    if config.advertise:
        info["connect_urls"] = [config.advertise]
    return info


def tls_info(config: ServerConfig) -> dict[str, bool]:
    """Return what INFO says about TLS: nothing, if there is none."""
    if config.tls is None:
        return {}
    info = {"tls_available" if config.allow_non_tls else "tls_required": True}
    return info | ({"tls_verify": True} if config.tls.verifies else {})
