"""
The PROXY protocol: a proxy says whom it speaks for before anything else is said.

Both versions are read, the line of the first and the bytes of the second. Nothing behind
the header is taken from the socket, for it may be a TLS handshake. Who sends no header
is taken for who it is.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.net.listeners.addresses import read_ip, readable
from penstock.net.listeners.arrival import Arrival

if TYPE_CHECKING:
    from penstock.net.reactor import Reactor

V1 = b"PROXY "
V2 = b"\r\n\r\n\x00\r\nQUIT\n"
DETECT_BYTES = 6
"""How much tells a header from what a client sends."""
V1_BYTES_MAX = 107
V2_BYTES = 16
TIMEOUT_S = 5.0
LOCAL, PROXY = 0x20, 0x21
"""Version 2, and what the proxy does: ask for itself, or speak for another."""
TCP4, TCP6, UNSPECIFIED = 0x11, 0x21, 0x00
SIZES = {TCP4: 4, TCP6: 16}
FAMILIES = {"TCP4": 4, "TCP6": 6}

Address = tuple[str, int]


class InvalidHeader(ValueError):
    """A header that says nothing; the text says why."""


def wanted(data: bytes) -> int:
    """Return how long a header is at least that begins like this; 0 if it is none."""
    start = data[:DETECT_BYTES]
    if not (V1.startswith(start) or V2.startswith(start)):
        return 0
    if len(data) < DETECT_BYTES:
        return DETECT_BYTES
    if data.startswith(V1):
        end = data.find(b"\r\n")
        if end < 0 and len(data) >= V1_BYTES_MAX:
            raise InvalidHeader("its line is too long")
        return end + 2 if end >= 0 else len(data) + 1
    if not V2.startswith(data[: len(V2)]):
        raise InvalidHeader("its signature is wrong")
    if len(data) < V2_BYTES:
        return V2_BYTES
    return V2_BYTES + int.from_bytes(data[14:16], "big")


def source(header: bytes) -> Address | None:
    """Return whom a whole header speaks for; None if the proxy speaks for itself."""
    return _line(header) if header.startswith(V1) else _binary(header)


def _line(header: bytes) -> Address | None:
    kind, *rest = header.removeprefix(V1).decode("latin-1").split() or [""]
    if kind == "UNKNOWN":
        return None
    if kind not in FAMILIES or len(rest) != 4:
        raise InvalidHeader("its line makes no sense")
    try:
        ips = [read_ip(text) for text in rest[:2]]
        ports = [int(text) for text in rest[2:]]
    except ValueError as error:
        raise InvalidHeader(str(error)) from None
    if any(ip.version != FAMILIES[kind] for ip in ips) or not all(0 <= p <= 65535 for p in ports):
        raise InvalidHeader("its addresses are of another kind")
    return readable(ips[0]), ports[0]


def _binary(header: bytes) -> Address | None:
    command, kind = header[12], header[13]
    if command == LOCAL or (command == PROXY and not kind & 0xF0 and kind & 0x0F == 1):
        return None
    if command != PROXY or kind not in SIZES:
        raise InvalidHeader("it asks for what is not supported")
    size, data = SIZES[kind], header[V2_BYTES:]
    if len(data) < 2 * size + 4:
        raise InvalidHeader("its addresses are too short")
    port = int.from_bytes(data[2 * size : 2 * size + 2], "big")
    return readable(ipaddress.ip_address(data[:size])), port


Done = Callable[[Address | None, bytes], None]
"""Called with whom the proxy speaks for, and with what was read that is no header."""


class ProxyHeader(Arrival):
    """What the reactor serves until the header is there."""

    what = "PROXY protocol header"
    failure = "Protocol Violation"
    sock: socket.socket

    def __init__(
        self, reactor: Reactor, sock: socket.socket, *, peer: str, done: Done, takes_none: bool
    ) -> None:
        super().__init__(reactor, sock, peer)
        self._done = done
        self._takes_none = takes_none
        """Whether what was read of no header can be put to use."""
        self._read = b""
        self.limit_time(TIMEOUT_S)

    def advance(self) -> None:
        """Take what is surely part of the header, and no more."""
        try:
            seen = self.sock.recv(V1_BYTES_MAX + V2_BYTES, socket.MSG_PEEK)
            if not seen:
                self.close("Client Closed")
                return
            size = wanted(self._read + seen)
            missing = size - len(self._read)
            if size:
                self._read += self.sock.recv(min(max(missing, 1), len(seen)))
            self._find(size)
        except BlockingIOError:
            return
        except OSError:
            self.close("Read Error")
        except InvalidHeader as error:
            self.fail(str(error))

    def _find(self, size: int) -> None:
        if not size:
            if self._read and not self._takes_none:
                raise InvalidHeader("it is neither a header nor a TLS handshake")
            self.go_on(lambda: self._done(None, self._read))
        elif len(self._read) >= size and wanted(self._read) == len(self._read):
            found = source(self._read)
            self.go_on(lambda: self._done(found, b""))
