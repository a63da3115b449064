"""
Replies to requests: one wildcard subscription for all of them, and no task per request.

Each request has its own reply subject below the inbox, so the last token of a reply's
subject identifies the request.
"""

from __future__ import annotations

import asyncio
import secrets
import string

from penstock.client.connection.connection import Connection
from penstock.errors import RequestTimeout
from penstock.hot.wire import Op

LETTERS = string.digits + string.ascii_letters
NOBODY = (b"", None)


def unique_token() -> str:
    """Return a token no other client will have: 22 letters, 131 bits."""
    return "".join(secrets.choice(LETTERS) for _ in range(22))


class ReplyInbox:
    """The requests waiting for a reply."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._prefix = f"{connection.options.inbox_prefix}.{unique_token()}.".encode()
        self._waiting: dict[bytes, tuple[bytes, asyncio.Future[Op]]] = {}
        """By token: the subject of the request, and the future of its reply."""
        self._count = 0
        self._subscribed = False
        connection.watchers.append(self)
        connection.publish_denied.append(self._refuse)

    def open(self, subject: bytes) -> tuple[bytes, bytes]:
        """Return a token for a request to `subject`, and the reply subject of that token."""
        if not self._subscribed:
            self._connection.subscribe(self._prefix + b"*", self._receive)
            self._subscribed = True
        self._count += 1
        token = b"%d" % self._count
        self._waiting[token] = (subject, self._loop.create_future())
        return token, self._prefix + token

    async def reply(self, token: bytes, *, timeout_s: float) -> Op:
        """Wait for the reply to `token`."""
        _, future = self._waiting[token]
        # One timer costs a third of `asyncio.timeout` around every request.
        timer = self._loop.call_later(timeout_s, self._expire, token, timeout_s)
        try:
            return await future
        finally:
            timer.cancel()

    def forget(self, token: bytes) -> None:
        """Ignore replies to `token` from now on."""
        self._waiting.pop(token, None)

    def _receive(self, operations: list[Op]) -> None:
        start = len(self._prefix)
        for operation in operations:
            # Not forgotten yet: it may come before the request waits for it.
            _, future = self._waiting.get(operation[1][start:], NOBODY)
            if future is not None and not future.done():
                future.set_result(operation)

    def _expire(self, token: bytes, timeout_s: float) -> None:
        self._fail(token, RequestTimeout(f"no reply within {timeout_s} s"))

    def _refuse(self, subject: bytes, error: Exception) -> None:
        for token in [token for token, (to, _) in self._waiting.items() if to == subject]:
            self._fail(token, error)

    def _fail(self, token: bytes, error: Exception) -> None:
        _, future = self._waiting.get(token, NOBODY)
        if future is not None and not future.done():
            future.set_exception(error)

    def disconnected(self, error: Exception) -> None:
        """Do nothing: a reply may still come on the next link, so requests keep waiting."""

    def reconnected(self) -> None:
        """Do nothing: the connection subscribes the inbox again, like any interest."""

    def closed(self, error: Exception) -> None:
        """Fail all waiting requests."""
        for token in list(self._waiting):
            self._fail(token, error)
