"""
From an accepted socket to a session and its connection.

The steps between them (a TLS handshake, before or after INFO; a WebSocket upgrade) are
chosen here for each client, so that a reload applies to the next client.
"""

from __future__ import annotations

import socket
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.config.server import ServerConfig
from penstock.core.broker import Broker
from penstock.core.session import Session
from penstock.net.connection import Channel, Connection
from penstock.net.listeners.addresses import peer_ip

if TYPE_CHECKING:
    from penstock.config.transport import WebSocketConfig
    from penstock.core.identity.tls import TlsState
    from penstock.net.listeners.handshake import Handshake, Plain, Tls
    from penstock.net.listeners.tls import TlsSocket
    from penstock.net.reactor import Reactor

Address = tuple[str, int]


class Door:
    """Accepts clients."""

    reactor: Reactor

    def __init__(self, broker: Broker, tls: Tls | None) -> None:
        self._broker = broker
        self.tls = tls
        """The TLS settings for new clients, if any."""

    def accept(self, sock: socket.socket) -> None:
        """Accept a client, over TLS if configured."""
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
        """Accept a client once the proxy's header has named it. INFO does not wait for it."""
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

        from penstock.net.listeners.proxyheader import ProxyHeader

        header = ProxyHeader(
            self.reactor, sock, peer=peer_of(address), done=done, takes_none=tls is None
        )
        if session is not None:
            header.greet(session)

    def serve(self, sock: Channel, session: Session) -> Connection:
        """Make a connection of a session and its socket."""
        connection = self.reactor.add(sock, session)
        limits = self._broker.config.limits
        connection.start_pings(limits.ping_interval)
        if self._broker.authenticator_of(session.kind).required:
            timeout_s = self._broker.auth_timeout_s(session.kind)
            self.reactor.loop.call_later(timeout_s, self._check_identified, connection)
        return connection

    def _secure(
        self, sock: socket.socket, address: Address, tls: Tls, session: Session | None = None
    ) -> None:
        from penstock.net.listeners.handshake import Handshake

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
        """Continues in clear text, if that is allowed."""
        return self._go_on if self._broker.config.allow_non_tls else None

    def _secured(
        self, address: Address, sock: TlsSocket, state: TlsState, session: Session | None
    ) -> None:
        if session is None:
            session = self._broker.open(*address)
        session.tls = state
        self.serve(sock, session).flush()

    def _go_on(self, sock: socket.socket, session: Session) -> None:
        """Continue in clear text with a client that does not want TLS."""
        self.serve(sock, session).flush()

    def _check_identified(self, connection: Connection) -> None:
        session = connection.session
        # With `no_auth_user`, everybody has an identity from the start, but has to say something.
        is_known = session.identity is not None and session.heard_ns
        if not is_known and session.check is None and not connection.is_closed:
            session.fail("Authentication Timeout", "Authentication Timeout")
            self.reactor.flush()


def prepare(sock: socket.socket) -> Address | None:
    """Set up an accepted socket; return its address, or None if the client has gone."""
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        ip, port = sock.getpeername()[:2]
    except OSError:
        sock.close()
        return None
    return peer_ip(ip), port


def peer_of(address: Address) -> str:
    """Return the name of a client without a session, for the log."""
    return f"{address[0]}:{address[1]}"


def websocket_info(config: WebSocketConfig, port: int) -> dict[str, Any]:
    """Return the INFO fields for WebSocket clients that differ from those for others."""
    info: dict[str, Any] = {"host": config.host, "port": port}
    if config.tls is not None:
        info |= {"tls_required": True, "tls_available": True}
    if config.tls is not None and config.tls.verifies:
        info["tls_verify"] = True
    if config.has_own_users:
        info["auth_required"] = True
    return info


def tls_info(config: ServerConfig) -> dict[str, bool]:
    """Return the INFO fields about TLS; none without TLS."""
    if config.tls is None:
        return {}
    info = {"tls_available" if config.allow_non_tls else "tls_required": True}
    return info | ({"tls_verify": True} if config.tls.verifies else {})
