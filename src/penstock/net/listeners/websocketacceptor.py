"""From an accepted socket to a WebSocket session."""

from __future__ import annotations

import socket
from functools import partial

from penstock.config.transport import WebSocketConfig
from penstock.core.broker import Broker
from penstock.core.identity.tls import TlsState
from penstock.core.session import WEBSOCKET, Session
from penstock.net.connection import Channel
from penstock.net.listeners.acceptor import Address, Door, peer_of, prepare
from penstock.net.listeners.handshake import Handshake, Tls
from penstock.net.listeners.tls import TlsSocket
from penstock.net.listeners.upgrade import Agreement
from penstock.net.listeners.websocket import Upgrade, WebSocket

INFLATED_MESSAGES_MAX = 8
"""The maximum inflated size of a compressed message, in messages of the maximum size."""


class WebSocketDoor:
    """Accepts WebSocket clients; after that they are like any others."""

    def __init__(self, door: Door, broker: Broker, config: WebSocketConfig) -> None:
        self._door = door
        self._broker = broker
        self.change(config)

    def change(self, config: WebSocketConfig) -> None:
        """Apply new settings to future clients."""
        self.tls = Tls.of(config.tls) if config.tls is not None else None
        self.config = config

    def accept(self, sock: socket.socket) -> None:
        """Accept a client, over TLS if configured."""
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
        message_bytes_max = limits.max_payload + limits.max_control_line
        websocket = WebSocket(
            sock, session, agreement, inflated_bytes_max=INFLATED_MESSAGES_MAX * message_bytes_max
        )
        connection = self._door.serve(websocket, session)
        connection.farewell = websocket.farewell
        websocket.read_on = partial(self._door.reactor.read_on, connection)
        connection.flush()
