"""
Bytes waiting to be sent.

Everything added in one turn of the loop leaves in one write. A publisher that never lets
the loop turn has to do so every `flush_bytes`. A publisher that is faster than the
connection, or publishes without one, waits once `pending_bytes_max` have collected.
"""

from __future__ import annotations

import asyncio

from penstock.client.connection.link import Link
from penstock.errors import OutboxFull

PUBLISHES = (b"PUB ", b"HPUB ")
PONG_LINE = b"PONG\r\n"


class LinkOutbox:
    """Encoded operations on their way to the current link, if there is one."""

    def __init__(self, *, flush_bytes: int, pending_bytes_max: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._flush_bytes = flush_bytes
        self._pending_bytes_max = pending_bytes_max
        self._pieces: list[bytes] = []
        self._scheduled = False
        self._link: Link | None = None
        self._writable = False
        self._room = asyncio.Event()
        self._error: Exception | None = None
        self.pending_bytes = 0
        self.limit_bytes = pending_bytes_max
        """Above this, a publisher should `make_room`; `add` itself never refuses."""

    def add(self, data: bytes) -> bool:
        """Send `data` with this turn of the loop. True: the publisher should `make_room`."""
        self._pieces.append(data)
        self.pending_bytes = pending_bytes = self.pending_bytes + len(data)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.flush)
        return pending_bytes >= self.limit_bytes

    def pong(self) -> None:
        """Answer a PING. While the link accepts nothing, one answer stands for all."""
        # Otherwise a server that sends pings and does not read would fill our memory.
        if self._writable or not self._pieces or self._pieces[-1] != PONG_LINE:
            self.add(PONG_LINE)

    def flush(self) -> None:
        """Write everything at once, if the link accepts it."""
        self._scheduled = False
        if self._writable and self._pieces:
            assert self._link is not None
            data = b"".join(self._pieces)
            self._pieces.clear()
            self.pending_bytes = 0
            self._link.write(data)

    async def make_room(self) -> None:
        """Let the loop turn, or wait until fewer bytes than the limit are pending."""
        self.flush()
        if self._writable:
            await asyncio.sleep(0)
        while self.pending_bytes >= self.limit_bytes:
            self._room.clear()
            await self._room.wait()
        if self._error is not None:
            raise self._error

    def check_room(self) -> None:
        """Raise where `make_room` would wait."""
        if self.pending_bytes >= self.limit_bytes:
            self.flush()
            if self.pending_bytes >= self._pending_bytes_max:
                raise OutboxFull(
                    f"`pending_bytes_max` is reached: {self.pending_bytes} bytes are unsent"
                )

    def attach(self, link: Link) -> None:
        """Send the collected bytes, and all that follow, to `link`."""
        self._link = link
        link.writable = self._set_writable
        self._set_writable(True)

    def detach(self) -> None:
        """Collect bytes until there is a new link. Only publishes survive the old one."""
        # The next link gets every interest again, and answers only its own pings.
        self._pieces = [piece for piece in self._pieces if piece.startswith(PUBLISHES)]
        self.pending_bytes = sum(map(len, self._pieces))
        self._link = None
        self._set_writable(False)

    def withdraw(self, reply_prefix: bytes) -> None:
        """Take back the unsent publishes with a reply subject below `reply_prefix`."""
        # The prefix is an inbox nobody can guess, so no payload contains it by chance.
        self._pieces = [piece for piece in self._pieces if reply_prefix not in piece]
        self.pending_bytes = sum(map(len, self._pieces))

    def discard(self, error: Exception) -> None:
        """Drop everything, and raise `error` in every waiting publisher."""
        self._error = error
        self.detach()
        self._pieces.clear()
        self.pending_bytes = 0
        self._room.set()

    def _set_writable(self, writable: bool) -> None:
        self._writable = writable
        # While the link accepts bytes, holding more than one write's worth only delays
        # them.
        self.limit_bytes = self._flush_bytes if writable else self._pending_bytes_max
        if writable:
            self.flush()
            self._room.set()
