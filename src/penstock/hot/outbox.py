"""
An outbox on its way to the kernel. The reference implementation.

Entries are encoded only now, as many as are worth one system call. What the kernel
does not take stays as it was put there, so that a message waiting for a thousand
slow readers is held once; only of an entry it took a part of the rest is kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from penstock.hot.fanout import Outlet

WRITE_BYTES = 1024 * 1024
"""About how much is encoded for one system call."""
WRITE_BUFFERS = 1024
"""How many buffers one system call takes (IOV_MAX)."""


def write_outbox(outlet: Outlet, fd: int, /) -> int:
    """Write the outbox as far as the kernel takes it; return how many bytes that were."""
    return drain(outlet, lambda buffers: os.writev(fd, buffers))


def drain(outlet: Outlet, send: Callable[[list[Any]], int]) -> int:
    """Hand the outbox to `send` as far as that takes it; return how many bytes that were."""
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
    """Return the first entries as buffers, as many as are worth one system call."""
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
    """Return the entries behind `buffers` that are still to be sent."""
    for index, buffer in enumerate(buffers):
        if sent < len(buffer):
            # Entries not begun go back unencoded; of the one begun only the rest is kept.
            begun = [buffer[sent:]] if sent else [outbox[index]]
            return begun + outbox[index + 1 : len(buffers)]
        sent -= len(buffer)
    raise AssertionError("called only when less than everything was sent")
