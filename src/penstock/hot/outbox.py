"""
Write an outbox to the kernel: the reference implementation.

Entries are only encoded now, as many as suit one system call. Entries that the kernel does
not take stay unencoded, so that memory holds a message for a thousand slow readers once. Of
a partly written entry, only the rest is kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from penstock.hot.fanout import Outlet

WRITE_BYTES = 1024 * 1024
"""The approximate number of bytes encoded for one system call."""
WRITE_BUFFERS = 1024
"""The number of buffers that one system call takes (IOV_MAX)."""


def write_outbox(outlet: Outlet, fd: int, /) -> int:
    """
    Write as much of the outbox as the kernel takes; return the number of bytes.

    The compiled twin is 1.8 x as fast.
    """
    return drain(outlet, lambda buffers: os.writev(fd, buffers))


def drain(outlet: Outlet, send: Callable[[list[Any]], int]) -> int:
    """Give the outbox to `send` until it takes no more; return the number of bytes."""
    outbox, sent_bytes = outlet.outbox, 0
    while outbox:
        buffers, size = _encode(outbox, outlet.outbox_bytes)
        try:
            sent = send(buffers)
        except BlockingIOError:
            sent = 0
        sent_bytes += sent
        outlet.outbox_bytes -= sent
        if sent < size:
            outbox[: len(buffers)] = _rest(outbox, buffers, sent)
            break
        del outbox[: len(buffers)]
    return sent_bytes


def _encode(outbox: list[Any], outbox_bytes: int) -> tuple[list[Any], int]:
    """Return the first entries as buffers, as many as suit one system call."""
    if outbox_bytes > WRITE_BYTES or len(outbox) > WRITE_BUFFERS:
        outbox = _first_entries(outbox)
    buffers = [entry if type(entry) is not tuple else entry[0].join(entry[1]) for entry in outbox]
    return buffers, sum(map(len, buffers))


def _first_entries(outbox: list[Any]) -> list[Any]:
    size = 0
    for index, entry in enumerate(outbox[:WRITE_BUFFERS]):
        size += len(entry) if type(entry) is not tuple else sum(map(len, entry[1]))
        if size >= WRITE_BYTES:
            return outbox[: index + 1]
    return outbox[:WRITE_BUFFERS]


def _rest(outbox: list[Any], buffers: list[Any], sent: int) -> list[Any]:
    """Return the entries of `buffers` that are still to be sent."""
    for index, buffer in enumerate(buffers):
        if sent < len(buffer):
            # Entries not yet begun go back unencoded; of the one begun, only the rest is kept.
            begun = [buffer[sent:]] if sent else [outbox[index]]
            return begun + outbox[index + 1 : len(buffers)]
        sent -= len(buffer)
    raise AssertionError("called only when less than everything was sent")
