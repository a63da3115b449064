"""
Move bytes between a socket and a session. No protocol rules here.

We own the socket: reads go into one buffer that all connections share, and writes go
straight to `send`, without a transport that would copy. Bytes that the kernel does not take
stay in the session's outbox.

A slow reader that makes progress slows down the publishers that fill its outbox: they are
not read from until it has caught up, or until their next turn, ten times a second. A
publisher that sends it little is never held back: a client with an occasional request must
not suffer from a stranger's slow reader. A reader that makes no progress, or too little for
any publisher's pace, is left to fill up. It is cut off as a slow consumer at a limit of
bytes or of time.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import socket
import sys
import termios
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from penstock import hot
from penstock.core.reports import trace
from penstock.core.session import Session
from penstock.hot.outbox import drain

if TYPE_CHECKING:
    from penstock.net.reactor import Reactor

log = logging.getLogger("penstock")

SHARE_BYTES = 32 * 1024
"""
The bytes that a publisher may send to a congested reader in a turn before it is held back.

A reader that takes less in a turn falls behind, however much its publishers are slowed.
"""


class Channel(Protocol):
    """The socket of a connection: plain, or with encryption or framing."""

    def fileno(self) -> int:
        """Return the descriptor."""

    def recv_into(self, buffer: bytearray | memoryview, /) -> int:
        """Read into the buffer; 0 is the end. If data is left inside, call `Reactor.read_on`."""

    def send(self, data: Any, /) -> int:
        """Write as much as the kernel takes."""

    def sendmsg(self, buffers: Sequence[Any], /) -> int:
        """Write as much of several buffers as the kernel takes."""

    def close(self) -> None:
        """Close the socket."""


class Connection:
    """One client's socket."""

    __slots__ = (
        "_congested_since_s",
        "_deadline",
        "_is_plain",
        "_is_slowed",
        "_ping_timer",
        "_seen_bytes",
        "_shares",
        "_turn_timer",
        "_waiting_for",
        "farewell",
        "fd",
        "is_blocked",
        "is_closed",
        "reactor",
        "sent_bytes",
        "session",
        "sock",
        "waiters",
    )

    def __init__(self, reactor: Reactor, sock: Channel, session: Session) -> None:
        self.reactor = reactor
        self.sock = sock
        self.fd = sock.fileno()
        self._is_plain = type(sock) is socket.socket
        self.session = session
        session.transport = self
        self.farewell: Callable[[str], None] | None = None
        """Sends a close message before the socket is closed, if the protocol has one."""
        self.is_blocked = self.is_closed = False
        self.sent_bytes = 0
        self.waiters: list[Connection] = []
        """Publishers that are held back until this reader has caught up, or until their turn."""
        self._shares: dict[Connection, int] = {}
        """The bytes that each publisher has sent in this turn, while this reader is congested."""
        self._waiting_for = 0
        self._is_slowed = False
        """Whether this publisher was held back: then it is read in small portions."""
        self._seen_bytes = 0
        self._congested_since_s = 0.0
        self._deadline: asyncio.TimerHandle | None = None
        self._turn_timer: asyncio.TimerHandle | None = None
        """Set while this reader is congested."""
        self._ping_timer: asyncio.TimerHandle | None = None

    def __str__(self) -> str:
        return str(self.session)

    @property
    def wants_read(self) -> bool:
        """Whether we currently read from the peer."""
        return not self._waiting_for and self.session.check is None and not self.session.closing

    def on_readable(self) -> None:
        """Read from the socket and do the operations."""
        reactor = self.reactor
        if self.session.put_off:
            self._go_on()
            return
        try:
            size = self.sock.recv_into(
                reactor.small_buffer if self._is_slowed else reactor.read_buffer
            )
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close("Read Error")
            return
        if not size:
            self.close("Client Closed")
            return
        self.session.receive(reactor.read_view[:size])
        self._after_turn(size)

    def _go_on(self) -> None:
        """Do postponed operations. They count as if the peer had sent a full share."""
        self.session.go_on()
        if not self.session.put_off:
            # There may be data left to read that epoll cannot see.
            self.reactor.read_on(self)
        self._after_turn(SHARE_BYTES)

    def _after_turn(self, size: int) -> None:
        """After a turn of `size` bytes, handle congestion, authentication and closing."""
        reactor = self.reactor
        if reactor.broker.congested:
            reactor.slow_down(self, size)
        else:
            self._is_slowed = False
        session = self.session
        if session.check is not None or session.closing:
            self._stop_reading()

    def on_writable(self) -> None:
        """Continue writing after the kernel had no room."""
        self.is_blocked = False
        self.flush()
        if not self.is_blocked and not self.is_closed:
            self.reactor.watch(self)

    def flush(self) -> None:
        """Write as much of the outbox as the kernel takes."""
        session = self.session
        if self.is_closed:
            session.outbox.clear()
        elif self.is_blocked:
            self._check_pending()
        elif self._write() and session.closing:
            self.close(session.closing)

    def _write(self) -> bool:
        """Write the outbox; return whether everything was written."""
        session = self.session
        try:
            if self._is_plain and not self.reactor.broker.traces:
                sent = hot.write_outbox(session, self.fd)
            else:
                sent = drain(session, self._send)
        except OSError:
            self.close("Write Error")
            return False
        self.sent_bytes += sent
        if self._turn_timer is not None and session.outbox_bytes < session.congested_bytes // 2:
            self._end_congestion()
        if session.outbox:
            self._block()
            return False
        return True

    def _send(self, buffers: list[Any]) -> int:
        if self.reactor.broker.traces:
            trace.sent(self.session, buffers)
        # One buffer is the common case, and `send` is the cheaper call.
        return self.sock.send(buffers[0]) if len(buffers) == 1 else self.sock.sendmsg(buffers)

    def _block(self) -> None:
        """Wait for room in the kernel, but not forever."""
        self.is_blocked = True
        self.reactor.watch(self)
        if self._deadline is None:
            self._watch_progress()
        self._check_pending()

    def _watch_progress(self) -> None:
        deadline_s = self.reactor.limits.write_deadline
        loop = self.reactor.loop
        self._deadline = loop.call_later(deadline_s, self._check_deadline, self._taken_bytes)

    @property
    def _taken_bytes(self) -> int:
        """
        The bytes that the peer has really taken.

        The kernel only lets us write again when a third of its buffer is free. So by the
        number of sent bytes alone, a slow reader would seem to make no progress at all.
        """
        waiting = fcntl.ioctl(self.fd, termios.TIOCOUTQ, bytes(4))
        return self.sent_bytes - int.from_bytes(waiting, sys.byteorder)

    def _check_deadline(self, taken_bytes: int) -> None:
        self._deadline = None
        if self.is_closed or not self.is_blocked:
            return
        if self._taken_bytes == taken_bytes:
            self._cut_off("Slow Consumer (Write Deadline)")
        else:
            self._watch_progress()

    def _check_pending(self) -> None:
        if self.session.outbox_bytes > self.reactor.limits.max_pending:
            self._cut_off("Slow Consumer (Pending Bytes)")

    def _cut_off(self, reason: str) -> None:
        self.reactor.broker.slow_consumers += 1
        self.session.account.slow_consumers += 1
        pending = self.session.outbox_bytes
        log.info("! %s %s, %d bytes pending", self.session, reason, pending)
        self.close(reason)

    def hold_back(self, publisher: Connection, size: int) -> None:
        """Stop reading from a publisher for a while, if it fills this congested reader up."""
        if self._turn_timer is None:
            self._congested_since_s = self.reactor.loop.time()
            self._begin_turn()
        share = self._shares[publisher] = self._shares.get(publisher, 0) + size
        if share < SHARE_BYTES or publisher in self.waiters:
            return
        self.waiters.append(publisher)
        publisher._waiting_for += 1
        publisher._is_slowed = True
        self.reactor.stalled_clients += 1
        self.reactor.watch(publisher)

    def _begin_turn(self) -> None:
        self._seen_bytes = self._taken_bytes
        limits = self.reactor.limits
        self._turn_timer = self.reactor.loop.call_later(limits.stuck_s, self._end_turn)

    def _end_turn(self) -> None:
        """Release the publishers, and judge the progress of this reader."""
        congested_s = self.reactor.loop.time() - self._congested_since_s
        is_stuck = self.session.is_stuck = self._taken_bytes - self._seen_bytes < SHARE_BYTES
        is_late = congested_s > self.reactor.limits.write_deadline
        if is_late and (is_stuck or self._shares):
            self._cut_off("Slow Consumer (Write Deadline)")
        else:
            self._release_waiters()
            self._begin_turn()

    def _end_congestion(self) -> None:
        self.session.is_stuck = False
        if self._turn_timer is not None:
            self._turn_timer.cancel()
            self._turn_timer = None
        self._release_waiters()

    def _release_waiters(self) -> None:
        waiters, self.waiters = self.waiters, []
        self._shares.clear()
        for publisher in waiters:
            publisher._waiting_for -= 1
            if not publisher.is_closed:
                self.reactor.watch(publisher)

    def _stop_reading(self) -> None:
        self.reactor.watch(self)
        if self.session.check is not None:
            self.reactor.checks.start(self.session)

    def start_pings(self, delay_s: float) -> None:
        """Ping after `delay_s`, and then at the configured interval."""
        self._ping_timer = self.reactor.loop.call_later(delay_s, self._ping)

    def _ping(self) -> None:
        self.session.ping()
        self.start_pings(self.reactor.limits.ping_interval)
        self.reactor.flush()

    def close(self, reason: str) -> None:
        """Close the socket and end the session. Idempotent."""
        if self.is_closed:
            return
        self.is_closed = True
        for timer in (self._deadline, self._ping_timer):
            if timer is not None:
                timer.cancel()
        self._end_congestion()
        self.reactor.forget(self)
        if self.farewell is not None:
            self.farewell(reason)
        self.sock.close()
        self.reactor.broker.close(self.session, reason)
        # Break this cycle, so that buffers are freed now and not by the garbage collector.
        self.session.transport = None
