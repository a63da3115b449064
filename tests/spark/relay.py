"""What stands between a task and its server: passes bytes on, changes some, or goes away."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Self

from tests.servers import HOST

Rewrite = Callable[[bytes], bytes]


class Relay:
    """Listens on a loopback port inside a `with` block; what clients say may be rewritten."""

    def __init__(self, port: int, rewrite: Rewrite = bytes) -> None:
        self._server = port
        self._rewrite = rewrite
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"nats://{HOST}:{self.port}"
        self.connections = 0
        """How many connections it has passed on."""
        self._is_away = False
        self._is_mute = False

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.leave()

    def leave(self) -> None:
        """Hang up on everybody, and on whoever comes until `come_back`."""
        self._is_away = True
        for each in self._sockets:
            with_reset(each)
        self._sockets = []

    def come_back(self) -> None:
        """Pass on again what comes."""
        self._is_away = self._is_mute = False

    def dismiss(self, why: str) -> None:
        """Have clients told why they have to go; what they still say is taken, as from afar."""
        for client in self._sockets[::2]:
            client.sendall(b"-ERR '%b'\r\n" % why.encode())
            client.shutdown(socket.SHUT_WR)

    def mute(self) -> None:
        """Pass on what clients say, and nothing of what they are told."""
        self._is_mute = True

    def _answer(self, data: bytes) -> bytes:
        return b"" if self._is_mute else data

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._is_away:
                with_reset(client)
                continue
            server = socket.create_connection((HOST, self._server))
            self.connections += 1
            self._sockets += [client, server]
            for source, target, change in (
                (client, server, self._rewrite),
                (server, client, self._answer),
            ):
                threading.Thread(
                    target=_pass_on, args=(source, target, change), daemon=True
                ).start()


def _pass_on(source: socket.socket, target: socket.socket, change: Rewrite) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(change(data))
    except OSError:
        """Hung up."""
    for each in (source, target):
        with_reset(each)


def with_reset(sock: socket.socket) -> None:
    """Close a socket at once, also for whoever waits on it."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        """It was closed before."""
    sock.close()
