"""
The tick: read everything that is ready, route it, write each dirty session once.

A tick serves all ready connections in one call. This costs less than a callback for each,
and makes larger batches the denser the traffic is. A session that has used up its turn
continues in the next tick, after the others.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from penstock.config.server import Limits
from penstock.core.broker import TURN_NS, Broker
from penstock.core.session import Session
from penstock.net.checks import CredentialChecks
from penstock.net.connection import SHARE_BYTES, Channel, Connection
from penstock.net.poller import READ, WRITE, poller_for

log = logging.getLogger("penstock")

TICK_NS = 10_000_000
"""The time that all ready connections share; but each has its minimum."""
TURN_NS_MIN = 100_000
WHOLE_TURNS = TICK_NS // TURN_NS
"""The number of connections that can each have a whole turn."""
ACCEPTS_MAX = 256
ACCEPT_PAUSE_S = 1.0


class Served(Protocol):
    """A socket that the reactor serves: a connection, or a step before it."""

    fd: int
    is_blocked: bool
    is_closed: bool

    def __str__(self) -> str:
        """Return its name for the log."""

    @property
    def session(self) -> Session | None:
        """The session, once there is one."""

    @property
    def wants_read(self) -> bool:
        """Whether we currently read from the peer."""

    def on_readable(self) -> None:
        """Read what has arrived."""

    def on_writable(self) -> None:
        """Continue after the kernel had no room."""

    def close(self, reason: str) -> None:
        """Close the socket. Idempotent."""


class Reactor:
    """All connections of one server, on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, broker: Broker) -> None:
        self.loop = loop
        self.broker = broker
        self.read_buffer = bytearray(self.limits.read_bytes_max)
        self.read_view = memoryview(self.read_buffer)
        self.small_buffer = self.read_view[:SHARE_BYTES]
        """The start of the buffer, for publishers that are held back."""
        self.checks = CredentialChecks(self)
        self.stalled_clients = 0
        self.before_flush: Callable[[], None] | None = None
        """Called before each write: messages that it publishes go out at once."""
        self._poller = poller_for(loop, self.tick)
        self._connections: dict[int, Served] = {}
        self._masks: dict[int, int] = {}
        self._kept_back: dict[int, Served] = {}
        """Connections with data or work left that is no longer in their socket."""
        self._reads_on = False
        self._is_reading = True
        self._is_drained: asyncio.Event | None = None
        """Set when everything is written, if `drain` waits for that."""
        self._listeners: dict[int, tuple[socket.socket, Callable[[socket.socket], None]]] = {}

    @property
    def limits(self) -> Limits:
        """The current limits; a reload may change them."""
        return self.broker.config.limits

    def listen(self, sock: socket.socket, accept: Callable[[socket.socket], None]) -> None:
        """Call `accept` with every new connection of a listening socket."""
        sock.setblocking(False)
        self._listeners[sock.fileno()] = (sock, accept)
        self._poller.register(sock.fileno(), READ)

    def stop_listening(self) -> None:
        """Stop accepting connections."""
        for fd, (sock, _) in self._listeners.items():
            self._poller.unregister(fd)
            sock.close()
        self._listeners.clear()

    def add(self, sock: Channel, session: Session) -> Connection:
        """Add a connected, non-blocking socket."""
        connection = Connection(self, sock, session)
        self.serve(connection)
        return connection

    def serve(self, connection: Served) -> None:
        """Start watching a socket."""
        self._connections[connection.fd] = connection
        self._masks[connection.fd] = READ
        self._poller.register(connection.fd, READ)

    def watch(self, connection: Served) -> None:
        """Watch a connection for the events it currently needs, unless it is closed."""
        if connection.is_closed:
            return
        wants_read = self._is_reading and connection.wants_read
        mask = (READ if wants_read else 0) | (WRITE if connection.is_blocked else 0)
        if mask != self._masks[connection.fd]:
            self._masks[connection.fd] = mask
            self._poller.modify(connection.fd, mask)
        if self._kept_back and connection.fd in self._kept_back and mask & READ:
            self.read_on(connection)

    def read_on(self, connection: Served) -> None:
        """Read again in the next tick, or as soon as allowed: epoll cannot see the rest."""
        if connection.is_closed:
            return
        self._kept_back[connection.fd] = connection
        if not self._reads_on:
            self._reads_on = True
            self.loop.call_soon(self._read_kept_back)

    def _read_kept_back(self) -> None:
        self._reads_on = False
        if not self._is_reading:
            return
        ready = [fd for fd, each in self._kept_back.items() if each.wants_read]
        for fd in ready:
            del self._kept_back[fd]
        self.tick([(fd, READ) for fd in ready])

    def forget(self, connection: Served) -> None:
        """Stop watching a socket."""
        self._poller.unregister(connection.fd)
        del self._connections[connection.fd]
        del self._masks[connection.fd]
        self._kept_back.pop(connection.fd, None)

    def tick(self, events: list[tuple[int, int]]) -> None:
        """Serve all ready sockets, then write the results."""
        ready = len(events)
        self.broker.turn_ns = (
            TURN_NS if ready <= WHOLE_TURNS else max(TICK_NS // ready, TURN_NS_MIN)
        )
        connections, kept_back = self._connections, self._kept_back
        for fd, mask in events:
            connection = connections.get(fd)
            if connection is None:
                self._accept(fd)
                continue
            try:
                if mask & WRITE:
                    connection.on_writable()
                    if connection.is_closed:
                        continue
                # What is kept back has its turn after the others.
                if mask & ~WRITE and not (mask & READ and fd in kept_back):
                    connection.on_readable()
            except Exception:
                self._fail(connection)
        self.flush()
        if self._is_drained is not None and not self._is_blocked:
            self._is_drained.set()

    def flush(self) -> None:
        """Write all dirty sessions. Code outside a tick must call this after it queues data."""
        if self.before_flush is not None:
            try:
                self.before_flush()
            except Exception:
                # Whatever failed, the answers to clients must not wait for it.
                log.exception("! internal error")
        broker = self.broker
        while broker.dirty:
            dirty = broker.dirty.copy()
            broker.dirty.clear()
            for session in dirty:
                session.is_dirty = False
                transport = session.transport
                if transport is not None:
                    try:
                        transport.flush()
                    except Exception:
                        self._fail(transport)
        if broker.behind:
            self._read_behind()
        # No publisher filled these, so none can be slowed down: it was a timer, or JetStream.
        broker.congested.clear()

    def _read_behind(self) -> None:
        for session in self.broker.behind:
            if session.transport is not None:
                self.read_on(session.transport)
        self.broker.behind.clear()

    def _fail(self, connection: Served) -> None:
        """Close a connection after a bug of ours: the others and the server carry on."""
        session = connection.session
        is_known = session is not None and session.identity is not None
        # A stranger gets one line in the log, not a traceback.
        error = sys.exc_info()[1]
        log.error("! %s internal error: %.200r", connection, error, exc_info=is_known)
        connection.close("Internal Error")

    def slow_down(self, publisher: Connection, size: int) -> None:
        """Hold a publisher back while its readers are congested."""
        congested = dict.fromkeys(self.broker.congested)
        self.broker.congested.clear()
        for session in congested:
            connection = session.transport
            if connection is None:
                continue
            try:
                connection.flush()
            except Exception:
                self._fail(connection)
                continue
            waiting = session.outbox_bytes > session.congested_bytes
            if waiting and not session.is_stuck and not connection.is_closed:
                connection.hold_back(publisher, size)

    def _accept(self, fd: int) -> None:
        if fd not in self._listeners:
            return
        listener, accept = self._listeners[fd]
        for _ in range(ACCEPTS_MAX):
            try:
                sock, _address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._pause_accepting(fd, error)
                return
            try:
                accept(sock)
            except Exception:
                log.exception("! a new connection: internal error")
                sock.close()

    def _pause_accepting(self, fd: int, error: OSError) -> None:
        """Wait a while when the system has no descriptors left, instead of spinning."""
        log.error("Error accepting a connection: %s", error)
        self._poller.modify(fd, 0)
        self.loop.call_later(ACCEPT_PAUSE_S, self._resume_accepting, fd)

    def _resume_accepting(self, fd: int) -> None:
        if fd in self._listeners:
            self._poller.modify(fd, READ)

    @property
    def connections(self) -> list[Connection]:
        """Every open connection."""
        return [each for each in self._connections.values() if isinstance(each, Connection)]

    def stop_reading(self) -> None:
        """Stop reading and accepting; the outboxes are still written."""
        self.stop_listening()
        self._is_reading = False
        for connection in self._connections.values():
            self.watch(connection)

    async def drain(self, timeout_s: float) -> None:
        """Return when everything is written, or when the time is over."""
        self.flush()
        if self._is_blocked:
            self._is_drained = asyncio.Event()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_drained.wait(), timeout_s)

    @property
    def _is_blocked(self) -> bool:
        return any(connection.is_blocked for connection in self._connections.values())

    def close(self) -> None:
        """Close every connection and remove everything from the event loop."""
        self.flush()
        for connection in tuple(self._connections.values()):
            connection.close("Server Shutdown")
        self.stop_listening()
        self._poller.close()
