"""A TCP proxy that splits and joins: its pieces have nothing to do with what was sent."""

from __future__ import annotations

import random
import select
import socket
import threading
from typing import Self

from tests.servers import HOST

PIECES = (1, 1, 2, 3, 7, 61, 1024, 65536)
"""Sizes of pieces, drawn by chance."""
JOIN_S = 0.002
"""How long a piece waits, now and then, for the next one to be joined with it."""
RECEIVE_BYTES = 65536


class SplittingProxy:
    """Forwards to one server inside a `with` block, the same way for the same seed."""

    def __init__(self, port: int, seed: int = 8) -> None:
        self._target = port
        self._random = random.Random(seed)
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        for sock in (self._listener, *self._sockets):
            _hang_up(sock)
        for thread in self._threads:
            thread.join()

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection((HOST, self._target))
            self._sockets += (client, server)
            for source, sink in ((client, server), (server, client)):
                sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._start(self._pump, source, sink, random.Random(self._random.random()))

    def _pump(self, source: socket.socket, sink: socket.socket, chance: random.Random) -> None:
        try:
            while data := source.recv(RECEIVE_BYTES):
                if chance.random() < 0.5 and select.select([source], [], [], JOIN_S)[0]:
                    data += source.recv(RECEIVE_BYTES)
                while data:
                    size = chance.choice(PIECES)
                    sink.sendall(data[:size])
                    data = data[size:]
        except (OSError, ValueError):
            pass
        _hang_up(source)
        _hang_up(sink)


def _hang_up(sock: socket.socket) -> None:
    """Close a socket, and wake whoever waits for it."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    sock.close()
