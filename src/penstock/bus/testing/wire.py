"""
The bytes in flight between the sockets of this process, as the kernel counts them.

Bytes in flight are written at one end and have not arrived at the other. They make no socket
readable, and yet a receiver is about to get them. On a busy machine that can last for a
while. Once they have arrived, the socket is readable.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

TCP_INFO = getattr(socket, "TCP_INFO", None)
"""How Linux is asked; elsewhere nothing is known."""

INFO_BYTES = 216
RECEIVED = struct.Struct("128xQ")
UNSENT = struct.Struct("144xI")
SENT = struct.Struct("200xQQ")
"""Bytes sent, and how many of them again. The places are those of `struct tcp_info`."""


class End(NamedTuple):
    """One end of a connection."""

    local: Any
    peer: Any
    written: int
    received: int


def is_carrying(readers: Iterable[int], others: Iterable[int] = ()) -> bool:
    """Tell whether bytes are on their way to one of the descriptors that are read."""
    receiving = [end for end in map(_end, readers) if end is not None]
    ends = [*receiving, *(end for end in map(_end, others) if end is not None)]
    written = {(end.local, end.peer): end.written for end in ends}
    return any(written.get((end.peer, end.local), 0) > end.received for end in receiving)


def _end(descriptor: int) -> End | None:
    """Return one end of a TCP connection; None if the descriptor is not one."""
    if TCP_INFO is None:
        return None
    try:
        one = socket.socket(fileno=descriptor)
    except OSError:
        return None  # not a socket
    try:
        local, peer = one.getsockname(), one.getpeername()
        info = one.getsockopt(socket.IPPROTO_TCP, TCP_INFO, INFO_BYTES)
    except OSError:
        return None  # it listens, or is not of TCP
    finally:
        one.detach()  # it is not ours to close
    if len(info) < INFO_BYTES:
        return None
    sent, again = SENT.unpack_from(info)
    written = sent - again + UNSENT.unpack_from(info)[0]
    return End(local, peer, written, RECEIVED.unpack_from(info)[0])
