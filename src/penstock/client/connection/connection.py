"""
The connection a client keeps up: one link at a time, and the client's interests.

When a link is lost, the client dials the next server, sends it every interest, and then
everything published in the meantime. This module does not interpret messages.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

from penstock.client.connection.complaints import Complaints
from penstock.client.connection.handshake import dial
from penstock.client.connection.info import read_info
from penstock.client.connection.interest import Interest
from penstock.client.connection.link import Link
from penstock.client.connection.outbox import LinkOutbox
from penstock.client.connection.pings import Pings
from penstock.client.connection.servers import Server, ServerPool, parse_url
from penstock.client.options import ClientOptions
from penstock.errors import (
    ConfigError,
    ConnectFailed,
    ConnectionClosed,
    ConnectionLost,
    PenstockError,
    PermissionDenied,
    ProtocolError,
    ServerError,
)
from penstock.hot.wire import ERR, FAIL, INFO, MSG, PAYLOAD_VIOLATION, PING, PONG, Op

logger = logging.getLogger("penstock.client")

CLOSE_TIMEOUT_S = 2.0
DIAL_ERRORS = (OSError, PenstockError, ValueError)
"""Errors that dialling may raise; `ssl.SSLError` is an OSError, bad JSON a ValueError."""
REFUSALS = (PermissionDenied, ProtocolError, ConfigError, ssl.SSLError, ValueError)
"""The dial errors that are a server's decision, or our own fault."""

SUBSCRIPTION_DENIED = re.compile(
    r'permissions violation for subscription to "(.+?)"(?: using queue "(.+)")?', re.IGNORECASE
)
PUBLISH_DENIED = re.compile(r'permissions violation for publish to "(.+)"', re.IGNORECASE)


Dial: TypeAlias = Callable[[Server, ClientOptions], Awaitable[tuple[Link, dict[str, Any]]]]
"""Turns the address of a server into a link on which it has accepted us."""


class Watcher(Protocol):
    """Keeps state that becomes invalid when the link is lost."""

    def disconnected(self, error: Exception) -> None:
        """Replies to anything sent so far will not come."""

    def reconnected(self) -> None:
        """A server is connected again, and knows our interests."""

    def closed(self, error: Exception) -> None:
        """Nothing more will arrive."""


class Connection:
    """Keeps one link up, and sends our interests to it and to its successors."""

    def __init__(self, options: ClientOptions, dial: Dial = dial) -> None:
        self.options = options
        self._dial = dial
        self.info: dict[str, Any] = {}
        self.payload_bytes_max = -1
        """The server's `max_payload`; -1, less than any payload, when nothing can be sent."""
        self.outbox = LinkOutbox(
            flush_bytes=options.flush_bytes, pending_bytes_max=options.pending_bytes_max
        )
        self.pings = Pings(
            self.outbox,
            interval_s=options.ping_interval_s,
            outstanding_max=options.pings_outstanding_max,
            stale=self._stale,
        )
        self.pool = ServerPool(
            [parse_url(url) for url in options.servers],
            attempts_max=options.reconnect_attempts_max,
            randomize=options.randomize_servers,
        )
        self.connected = asyncio.Event()
        self.closed = False
        self.reconnects = 0
        self.watchers: list[Watcher] = []
        self.publish_denied: list[Callable[[bytes, Exception], None]] = []
        """Listeners for subjects that the server does not let us publish to."""
        self.interests: dict[bytes, Interest] = {}
        self.server: Server | None = None
        self._sids = 0
        self._link: Link | None = None
        self._adopted_s = 0.0
        self._last_error: Exception | None = None
        self._reconnecting: asyncio.Task[None] | None = None
        self._failures: list[BaseException] = []
        self._complaints = Complaints(options.name or "client")

    async def open(self) -> None:
        """Connect to the first server that accepts us."""
        errors = await self._dial_round()
        if errors:
            raise self._failure(errors)

    async def close(self, error: Exception | None = None) -> None:
        """Send what is left and close for good."""
        if self.closed:
            return
        self.outbox.flush()
        link = self._link
        self._finish(error or ConnectionClosed("the client was closed"))
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.gather(self._reconnecting, return_exceptions=True)
        if link is not None:
            await link.close(timeout_s=CLOSE_TIMEOUT_S)

    def check_open(self) -> None:
        """Raise if nothing can be sent any more."""
        if self.closed:
            raise ConnectionClosed(f"the client is closed: {self._last_error}")

    def subscribe(
        self,
        subject: bytes,
        receive: Callable[[list[Op]], None],
        *,
        queue: bytes = b"",
        ended: Callable[[Exception | None], None] | None = None,
    ) -> Interest:
        """Pass messages on `subject` to `receive`."""
        self.check_open()
        self._sids += 1
        sid = b"%d" % self._sids
        interest = Interest(subject, sid, queue=queue, receive=receive, ended=ended or _no_end)
        self.interests[sid] = interest
        if self._link is not None:
            self.outbox.add(interest.subscribe_lines())
        return interest

    def unsubscribe(self, interest: Interest, *, messages_max: int = 0) -> None:
        """End an interest now, or once it has received `messages_max` messages in total."""
        if interest.sid not in self.interests:
            return
        interest.messages_max = messages_max
        if self._link is not None:
            limit = b" %d" % messages_max if messages_max > interest.received else b""
            self.outbox.add(b"UNSUB %b%b\r\n" % (interest.sid, limit))
        if messages_max == 0 or interest.complete:
            self._remove(interest)

    async def drain(self, interest: Interest) -> None:
        """End an interest once everything the server has sent for it is delivered."""
        if interest.sid not in self.interests:
            return
        interest.draining = True
        if self._link is not None:
            self.outbox.add(b"UNSUB %b\r\n" % interest.sid)
        try:
            # Messages that left the server before it saw the UNSUB are ahead of the pong.
            await self.flush()
        except ConnectionLost:
            logger.info("= messages in flight to `%s` are lost", interest.subject.decode())
        self._remove(interest)

    async def flush(self) -> None:
        """Return once the server has processed everything sent so far."""
        await self.connected.wait()
        self.check_open()
        await self.pings.send()

    def report(self, error: Exception) -> None:
        """Report an asynchronous error. All of them end up here."""
        self._complaints.log(error)
        if self.options.on_error is not None:
            self._call(self.options.on_error, error)

    def _receive(self, operations: list[Op]) -> None:
        """Deliver consecutive messages of one subscription together."""
        sid, start = b"", 0
        for index, operation in enumerate(operations):
            if operation[0] == MSG:
                if operation[2] != sid:
                    if sid:
                        self._deliver(sid, operations[start:index])
                    sid, start = operation[2], index
                continue
            if sid:
                self._deliver(sid, operations[start:index])
                sid = b""
            self._control(operation)
        if sid:
            self._deliver(sid, operations[start:] if start else operations)

    def _deliver(self, sid: bytes, run: list[Op]) -> None:
        interest = self.interests.get(sid)
        if interest is None:
            return
        try:
            interest.receive(interest.admit(run))
        except Exception as error:
            # A receiver that fails must not take the connection down.
            logger.exception(
                "! the receiver of `%s` failed; its messages are lost", interest.subject.decode()
            )
            self.report(error)
        if interest.complete:
            self._remove(interest)

    def _control(self, operation: Op) -> None:
        kind = operation[0]
        if kind == PING:
            self.outbox.pong()
        elif kind == PONG:
            self.pings.pong()
        elif kind == INFO:
            self._read_info(operation[1])
        elif kind == ERR:
            self._server_said(operation[1].decode(errors="replace"))
        elif kind == FAIL:
            self._give_up_link(self._nonsense(operation[1]))

    def _nonsense(self, text: bytes) -> ProtocolError:
        if text == PAYLOAD_VIOLATION:
            size = self.options.message_bytes_max
            return ProtocolError(
                f"the server announced a message of more than {size} bytes; "
                "hint: `message_bytes_max` is the limit"
            )
        return ProtocolError(f"the server broke the protocol: {text.decode()}")

    def _server_said(self, text: str) -> None:
        denied = text.lower().startswith("permissions violation")
        error = PermissionDenied(text) if denied else ServerError(text)
        if not denied:
            self._last_error = error
        match = SUBSCRIPTION_DENIED.match(text)
        if match:
            self._end_denied(match[1].encode(), (match[2] or "").encode(), error)
        match = PUBLISH_DENIED.match(text)
        if match:
            for refused in self.publish_denied:
                refused(match[1].encode(), error)
        self.report(error)

    def _end_denied(self, subject: bytes, queue: bytes, error: Exception) -> None:
        for interest in list(self.interests.values()):
            if (interest.subject, interest.queue) == (subject, queue):
                self._remove(interest, error)

    def _remove(self, interest: Interest, error: Exception | None = None) -> None:
        if self.interests.pop(interest.sid, None) is not None:
            interest.ended(error)

    def _read_info(self, text: bytes) -> None:
        try:
            self._take_info(read_info(text))
        except ProtocolError as error:
            self._give_up_link(error)

    def _take_info(self, info: dict[str, Any]) -> None:
        self.info = info
        self.payload_bytes_max = info.get("max_payload", 1024 * 1024)
        assert self.server is not None
        if self.pool.discovered(info.get("connect_urls", ()), via=self.server):
            self._call(self.options.on_discovered)
        if info.get("ldm"):
            logger.info("= %s is in lame duck mode", self.server.address)
            self._call(self.options.on_lame_duck)

    def _stale(self) -> None:
        self._give_up_link(ConnectionLost("stale connection: the server does not answer pings"))

    def _give_up_link(self, error: Exception) -> None:
        self._last_error = error
        if self._link is not None:
            self._link.abort()

    def _lost(self, link: Link, error: Exception | None) -> None:
        if link is not self._link or self.closed:
            return
        reason = self._last_error or error or ConnectionLost("the server closed the connection")
        lost = ConnectionLost(f"connection lost: {reason}")
        self._link = None
        self.connected.clear()
        self.outbox.detach()
        self.pings.stop(lost)
        logger.warning("x %s: %s", self.server and self.server.address, lost)
        self._call(self.options.on_disconnected, lost)
        for watcher in list(self.watchers):
            watcher.disconnected(lost)
        if self.options.reconnect:
            self._reconnecting = asyncio.get_running_loop().create_task(self._reconnect())
        else:
            self._finish(lost)

    async def _reconnect(self) -> None:
        """Try the servers in turn until one accepts us or none is left."""
        wait_s = self.options.reconnect_wait_s
        if asyncio.get_running_loop().time() - self._adopted_s < wait_s:
            # A server that accepts and then drops us must not keep us busy.
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
        while errors := await self._dial_round():
            if not len(self.pool):
                self._finish(ConnectFailed("gave up on every server: " + "; ".join(errors)))
                return
            # Half of the wait is random, so that a cluster's clients do not all return at
            # once.
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
            wait_s = min(wait_s * 2, self.options.reconnect_wait_s_max)
        self.reconnects += 1
        self._call(self.options.on_reconnected)
        for watcher in list(self.watchers):
            watcher.reconnected()

    async def _dial_round(self) -> list[str]:
        """Try every server once. An empty list means that we are connected."""
        errors = []
        self._failures = []
        for server in self.pool.servers:
            try:
                link, info = await self._dial(server, self.options)
            except DIAL_ERRORS as error:
                errors.append(f"{server.address}: {error}")
                # With TLS 1.3 the client learns only after the handshake that its
                # certificate was refused.
                self._failures.append(error.__cause__ or error)
                self.pool.failed(server, refused=isinstance(error, PermissionDenied))
                continue
            if self._adopt(server, link, info):
                return []
            errors.append(f"{server.address}: closed after the handshake")
            self._failures.append(ConnectionLost("closed after the handshake"))
        return errors or ["there is no server to try"]

    def _failure(self, errors: list[str]) -> ConnectFailed:
        causes = self._failures
        denied = bool(causes) and all(isinstance(error, PermissionDenied) for error in causes)
        what = "login refused" if denied else "no server could be reached"
        failure = ConnectFailed(f"{what}: {'; '.join(errors)}")
        failure.is_final = bool(causes) and all(isinstance(error, REFUSALS) for error in causes)
        failure.causes = causes
        return failure

    def _adopt(self, server: Server, link: Link, info: dict[str, Any]) -> bool:
        if link.closed.is_set():
            return False
        self._link, self._last_error = link, None
        self._adopted_s = asyncio.get_running_loop().time()
        self.server = self.pool.connected(server, encrypted=link.encrypted)
        self._take_info(info)
        link.lost = self._lost
        lines = b"".join(interest.subscribe_lines() for interest in self.interests.values())
        if lines:
            link.write(lines)
        self.outbox.attach(link)
        self.pings.start()
        self.connected.set()
        link.hand_over(self._receive, message_bytes_max=self.options.message_bytes_max)
        logger.info("= connected to %s", server.address)
        return True

    def _finish(self, error: Exception) -> None:
        self.closed = True
        self.payload_bytes_max = -1
        self._last_error = error
        self._link = None
        self.connected.set()
        self.outbox.discard(error)
        self.pings.stop(error)
        for interest in list(self.interests.values()):
            self._remove(interest, error)
        for watcher in list(self.watchers):
            watcher.closed(error)
        self._call(self.options.on_closed)

    def _call(self, listener: Callable[..., None] | None, *arguments: object) -> None:
        """Call a user's listener, and log its errors."""
        if listener is None:
            return
        try:
            listener(*arguments)
        except Exception:
            logger.exception("! %s: a listener failed", self.options.name or "client")


def _no_end(error: Exception | None) -> None:
    """Do nothing: for owners that ignore the end of an interest."""
