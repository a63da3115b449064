"""
Replies to requests: one wildcard subscription for all of them, and no task for any.

Each request has a reply subject of its own below the inbox, so the last token of
a reply's subject says which request it answers.
"""

from __future__ import annotations

import asyncio
import secrets
import string

from penstock.client.connection import Connection
from penstock.errors import RequestTimeout
from penstock.wire import Op

LETTERS = string.digits + string.ascii_letters


def unique_token() -> str:
    """Return a token no other client will have: 22 letters, 131 bits."""
    return "".join(secrets.choice(LETTERS) for _ in range(22))


class Inbox:
    """The requests that wait for their reply."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._prefix = f"{connection.options.inbox_prefix}.{unique_token()}.".encode()
        self._waiting: dict[bytes, asyncio.Future[Op]] = {}
        self._count = 0
        self._subscribed = False
        connection.watchers.append(self)

    def open(self) -> tuple[bytes, bytes]:
        """Return a token and the reply subject it stands for."""
        if not self._subscribed:
            self._connection.subscribe(self._prefix + b"*", self._receive)
            self._subscribed = True
        self._count += 1
        token = b"%d" % self._count
        self._waiting[token] = self._loop.create_future()
        return token, self._prefix + token

    async def reply(self, token: bytes, *, timeout_s: float) -> Op:
        """Wait for the reply to `token`."""
        future = self._waiting[token]
        # One timer is a third of the price of `asyncio.timeout` around every request.
        timer = self._loop.call_later(timeout_s, self._expire, token, timeout_s)
        try:
            return await future
        finally:
            timer.cancel()

    def forget(self, token: bytes) -> None:
        """Take no reply to `token` any more."""
        self._waiting.pop(token, None)

    def _receive(self, operations: list[Op]) -> None:
        start = len(self._prefix)
        for operation in operations:
            future = self._waiting.pop(operation[1][start:], None)
            if future is not None and not future.done():
                future.set_result(operation)

    def _expire(self, token: bytes, timeout_s: float) -> None:
        future = self._waiting.pop(token, None)
        if future is not None and not future.done():
            future.set_exception(RequestTimeout(f"no reply within {timeout_s} s"))

    def disconnected(self, error: Exception) -> None:
        """A reply may still come on the next link, so requests go on waiting."""

    def reconnected(self) -> None:
        """The inbox is subscribed again like any other interest."""

    def closed(self, error: Exception) -> None:
        """Fail what still waits."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()
