"""The plainest of WebSocket clients: frames one by one, as wrong as a test wants them."""

from __future__ import annotations

import asyncio
import base64
import gc
import os
import socket
import ssl
import warnings
from collections.abc import Coroutine
from typing import Any, Self

from tests.servers import DEADLINE_S, HOST

KEY = base64.b64encode(bytes(range(16))).decode()
REQUEST = {
    "Host": "localhost",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": KEY,
    "Sec-WebSocket-Version": "13",
}
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


def frame(
    opcode: int,
    payload: bytes = b"",
    *,
    is_final: bool = True,
    is_masked: bool = True,
    reserved: int = 0,
) -> bytes:
    """Return one frame of a client's."""
    first = (0x80 if is_final else 0) | reserved | opcode
    size, mask_bit = len(payload), 0x80 if is_masked else 0
    if size < 126:
        head = bytes((first, mask_bit | size))
    elif size < 1 << 16:
        head = bytes((first, mask_bit | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((first, mask_bit | 127)) + size.to_bytes(8, "big")
    if not is_masked:
        return head + payload
    key = os.urandom(4)
    mask = int.from_bytes((key * (size // 4 + 1))[:size], "big")
    return head + key + (int.from_bytes(payload, "big") ^ mask).to_bytes(size, "big")


def request(headers: dict[str, str | None], method: str = "GET") -> bytes:
    """Return an upgrade request; a header that is None is left out."""
    lines = [f"{method} / HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers.items() if value is not None]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


class RawWebSocket:
    """A socket to a WebSocket listener, up to the upgrade or beyond it."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        sock = socket.create_connection((HOST, port), timeout=DEADLINE_S)
        self.sock = context.wrap_socket(sock, server_hostname="localhost") if context else sock
        self._received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def ask(self, method: str = "GET", **changes: str | None) -> bytes:
        """Send a request, the usual one but for `changes`; return the head of the answer."""
        headers: dict[str, str | None] = {**REQUEST}
        headers |= {name.replace("_", "-"): value for name, value in changes.items()}
        self.sock.sendall(request(headers, method))
        return self._until(b"\r\n\r\n")

    def upgrade(self, **changes: str | None) -> Self:
        """Become a WebSocket."""
        head = self.ask(**changes)
        assert head.startswith(b"HTTP/1.1 101"), head
        return self

    def send(self, opcode: int, payload: bytes = b"") -> None:
        """Send one frame."""
        self.sock.sendall(frame(opcode, payload))

    def say(self, text: bytes) -> None:
        """Send protocol lines as one message."""
        self.send(BINARY, text)

    def frame(self) -> tuple[int, bytes]:
        """Return the first byte and the payload of the next frame; an end is (0, b"")."""
        try:
            first, second = self._exactly(2)
        except (EOFError, ConnectionResetError):
            return 0, b""
        assert not second & 0x80, "a server does not mask"
        size = second & 0x7F
        if size > 125:
            size = int.from_bytes(self._exactly(2 if size == 126 else 8), "big")
        return first, self._exactly(size)

    def read_until(self, end: bytes) -> bytes:
        """Return what binary messages say until they say `end`."""
        said = b""
        while not said.endswith(end):
            first, payload = self.frame()
            assert first == 0x80 | BINARY, (first, payload, said)
            said += payload
        return said

    def closing(self) -> tuple[int, bytes]:
        """Return status and reason of the close frame that must come."""
        while True:
            first, payload = self.frame()
            assert first, "the connection ended without a close frame"
            if first == 0x80 | CLOSE:
                return int.from_bytes(payload[:2], "big"), payload[2:]

    def _exactly(self, size: int) -> bytes:
        while len(self._received) < size:
            self._receive()
        data, self._received = self._received[:size], self._received[size:]
        return data

    def _until(self, end: bytes) -> bytes:
        while end not in self._received:
            self._receive()
        data, _, self._received = self._received.partition(end)
        return data

    def _receive(self) -> None:
        data = self.sock.recv(65536)
        if not data:
            raise EOFError
        self._received += data


def run_nats_py(scenario: Coroutine[Any, Any, None]) -> None:
    """Run a scenario with nats-py over WebSocket, which aiohttp does for it.

    It uses what aiohttp is about to drop, and leaves sockets for the garbage collector.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        asyncio.run(scenario)
        gc.collect()
