"""
The PROXY protocol: a proxy first sends the address of its client.

Reads both versions, the text line and the binary header. Bytes after the header stay in the
socket, because they may be a TLS handshake. Without a header, the peer is the client
itself.
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
"""The number of bytes that tells a header from a client's data."""
V1_BYTES_MAX = 107
V2_BYTES = 16
TIMEOUT_S = 5.0
LOCAL, PROXY = 0x20, 0x21
"""Version 2 with the command: the proxy's own connection, or one on behalf of a client."""
TCP4, TCP6, UNSPECIFIED = 0x11, 0x21, 0x00
SIZES = {TCP4: 4, TCP6: 16}
FAMILIES = {"TCP4": 4, "TCP6": 6}

Address = tuple[str, int]


class InvalidHeader(ValueError):
    """An invalid header; the text is the reason."""


def wanted(data: bytes) -> int:
    """Return the minimum length of a PROXY header with this prefix; 0 if it is not one."""
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
    """Return the client's address in a complete header; None for the proxy's own connection."""
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
"""Called with the client's address, and with bytes that were read but are not a header."""


class ProxyHeader(Arrival):
    """Served by the reactor until the header has arrived."""

    what = "PROXY protocol header"
    failure = "Protocol Violation"
    sock: socket.socket

    def __init__(
        self, reactor: Reactor, sock: socket.socket, *, peer: str, done: Done, takes_none: bool
    ) -> None:
        super().__init__(reactor, sock, peer)
        self._done = done
        self._takes_none = takes_none
        """Whether the caller can use bytes that are not a header."""
        self._read = b""
        self.limit_time(TIMEOUT_S)

    def advance(self) -> None:
        """Take the bytes that certainly belong to the header, and no more."""
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
