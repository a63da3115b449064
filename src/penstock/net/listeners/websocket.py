"""
WebSocket between a socket and a connection: the upgrade, then frames in both directions.

A connection reads the payload of frames as it would read from a plain socket. Payload that
does not fit into the buffer waits in its frame, still compressed.

Each write becomes one message. The head of the message is fixed when its first byte is
sent, and kept until its last byte is sent. So bytes that the kernel did not take can stay
in the session's outbox unchanged.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.config.transport import WebSocketConfig
from penstock.core.session import Session
from penstock.hot.outbox import WRITE_BUFFERS
from penstock.net.connection import Channel
from penstock.net.listeners.arrival import Arrival
from penstock.net.listeners.frames import (
    BINARY,
    CLOSE,
    EMPTY_BLOCK,
    GOING_AWAY,
    NORMAL_CLOSURE,
    PING,
    POLICY_VIOLATION,
    PONG,
    PROTOCOL_ERROR,
    SERVER_ERROR,
    TOO_BIG,
    FrameError,
    FrameReader,
    close_payload,
    frame_head,
    read_close,
)
from penstock.net.listeners.upgrade import HEAD_BYTES_MAX, Agreement, UpgradeRefusal, agree

if TYPE_CHECKING:
    from penstock.net.reactor import Reactor

log = logging.getLogger("penstock")

FRAMES_MAX = 1024
"""The number of frames read before others get their turn."""
DEFLATE_BYTES_MIN = 64
"""Smaller messages are not worth compressing."""

STATUSES = {
    NORMAL_CLOSURE: ("Client Closed",),
    POLICY_VIOLATION: (
        *("Authentication Timeout", "Authentication Failure", "Authentication Expired"),
        *("Slow Consumer (Pending Bytes)", "Slow Consumer (Write Deadline)"),
        *("Maximum Connections Exceeded", "Maximum Account Connections Exceeded"),
        *("Maximum Control Line Exceeded", "Maximum Subscriptions Exceeded"),
        *("Missing Account", "Credentials Revoked"),
    ),
    PROTOCOL_ERROR: ("Parse Error", "Protocol Violation", "Bad Client Protocol Version"),
    TOO_BIG: ("Maximum Message Payload Exceeded",),
    GOING_AWAY: ("Write Error", "Read Error", "Stale Connection", "Server Shutdown"),
}
STATUS_OF = {reason: status for status, reasons in STATUSES.items() for reason in reasons}


class ControlFrame(bytes):
    """A complete frame in a session's outbox that is not part of a message."""


class FrameSocket:
    """A socket that sends frames."""

    def __init__(self, sock: Channel) -> None:
        self._sock = sock
        self._head = b""
        self._left = 0

    @property
    def is_between_frames(self) -> bool:
        """Whether a control frame may be sent now."""
        return not self._head and not self._left

    def send(self, data: Any) -> int:
        """Send one buffer."""
        return self.sendmsg((data,))

    def sendmsg(self, buffers: Sequence[Any]) -> int:
        """Send buffers as one message, or continue the current one."""
        if self.is_between_frames:
            self._head, self._left = _next_frame(buffers)
        pieces = _cut(buffers[: WRITE_BUFFERS - 1], self._left)
        sent = self._sock.sendmsg((self._head, *pieces) if self._head else pieces)
        of_head = min(sent, len(self._head))
        self._head = self._head[of_head:]
        self._left -= sent - of_head
        return sent - of_head


class DeflatingSocket:
    """
    A socket that sends compressed frames.

    Compressed and plain lengths differ, so the buffers count as sent only when their whole
    compressed message has been sent.
    """

    def __init__(self, sock: Channel) -> None:
        self._sock = sock
        self._pending = b""
        self._covers = 0

    @property
    def is_between_frames(self) -> bool:
        """Whether a control frame may be sent now."""
        return not self._pending

    def send(self, data: Any) -> int:
        """Send one buffer."""
        return self.sendmsg((data,))

    def sendmsg(self, buffers: Sequence[Any]) -> int:
        """Send buffers as one compressed message, or continue the current one."""
        if not self._pending:
            head, self._covers = _next_frame(buffers)
            data = b"".join(_cut(buffers, self._covers))
            self._pending = _deflated(head, data) if head else data
        self._pending = self._pending[self._sock.send(self._pending) :]
        if self._pending:
            raise BlockingIOError
        return self._covers


def _next_frame(buffers: Sequence[Any]) -> tuple[bytes, int]:
    """Return the head and size of the next frame; a control frame already contains its head."""
    size = 0
    for buffer in buffers:
        if type(buffer) is ControlFrame:
            if not size:
                return b"", len(buffer)
            break
        size += len(buffer)
    return frame_head(BINARY, size), size


def _cut(buffers: Sequence[Any], size: int) -> list[Any]:
    """Return the first `size` bytes of the buffers."""
    pieces = []
    for buffer in buffers:
        if len(buffer) >= size:
            pieces.append(memoryview(buffer)[:size])
            break
        pieces.append(buffer)
        size -= len(buffer)
    return pieces


def _deflated(head: bytes, data: bytes) -> bytes:
    """Return a message, compressed if that is worthwhile. Each has its own window."""
    if len(data) <= DEFLATE_BYTES_MIN:
        return head + data
    deflater = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = deflater.compress(data) + deflater.flush(zlib.Z_SYNC_FLUSH)
    packed = packed.removesuffix(EMPTY_BLOCK)
    return frame_head(BINARY, len(packed), is_compressed=True) + packed


class WebSocket:
    """The channel of one client: handles control frames, and passes payload on."""

    def __init__(
        self, sock: Channel, session: Session, agreement: Agreement, *, inflated_bytes_max: int
    ) -> None:
        self._sock = sock
        self._session = session
        self._framing = (DeflatingSocket if agreement.compresses else FrameSocket)(sock)
        self._reader = FrameReader(
            inflated_bytes_max=inflated_bytes_max if agreement.compresses else 0,
            is_masked=agreement.is_masked,
        )
        self.fileno = sock.fileno
        self.send = self._framing.send
        self.sendmsg = self._framing.sendmsg
        self.close = sock.close
        self._goodbye: bytes | None = None
        self._end: str | None = None
        """The close reason, for after the payload before it has been read."""

        self.read_on: Callable[[], None]
        """Called if there is more to read that has already left the socket."""

    def recv_into(self, buffer: bytearray | memoryview) -> int:
        """Read payload into the buffer: first from held frames, then from the socket."""
        view = memoryview(buffer)
        if not self._has_rest:
            size = self._sock.recv_into(view)
            if not size:
                return 0
            self._reader.feed(bytes(view[:size]))
        filled = self._fill(view)
        if self._end is not None and not filled:
            self._session.fail("", self._end)
        elif self._has_rest:
            self.read_on()
        if not filled:
            raise BlockingIOError
        return filled

    @property
    def _has_rest(self) -> bool:
        return self._reader.has_rest or self._end is not None

    def _fill(self, view: memoryview) -> int:
        """Read frames up to the maximum number; return the filled size of the buffer."""
        filled, ping = 0, None
        try:
            for _ in range(FRAMES_MAX):
                room = len(view) - filled
                found = self._reader.read(room) if room and self._end is None else None
                if found is None:
                    break
                opcode, payload = found
                if opcode == BINARY:
                    view[filled : filled + len(payload)] = payload
                    filled += len(payload)
                elif opcode == PING:
                    ping = payload
                elif opcode == CLOSE:
                    self._goodbye, self._end = read_close(payload), "Client Closed"
        except FrameError as error:
            log.debug("! %s %s", self._session, error)
            self._goodbye, self._end = close_payload(error.status, str(error)), "Protocol Violation"
        if ping is not None:
            # RFC 6455: of several pings, only the last need be answered.
            self._session.write(ControlFrame(frame_head(PONG, len(ping)) + ping))
        return filled

    def farewell(self, reason: str) -> None:
        """Send a close frame, unless the peer is in the middle of another frame."""
        payload = self._goodbye
        if payload is None:
            payload = close_payload(STATUS_OF.get(reason, SERVER_ERROR), reason)
        if self._framing.is_between_frames:
            try:
                self._sock.send(frame_head(CLOSE, len(payload)) + payload)
            except OSError:
                # The peer is gone, or takes nothing more.
                pass


Upgraded = Callable[[Channel, Agreement], None]
"""Called after the upgrade."""


class Upgrade(Arrival):
    """Served by the reactor until a client has requested a WebSocket."""

    what = "websocket handshake"
    failure = "Handshake Failure"

    def __init__(
        self,
        reactor: Reactor,
        sock: Channel,
        config: WebSocketConfig,
        *,
        peer: str,
        upgraded: Upgraded,
    ) -> None:
        super().__init__(reactor, sock, peer)
        self._config = config
        self._upgraded = upgraded
        self._head = b""
        self.limit_time(config.handshake_timeout)

    def advance(self) -> None:
        """Read the request as far as it has arrived."""
        buffer = bytearray(HEAD_BYTES_MAX)
        try:
            size = self.sock.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            size = 0
        if not size:
            self.close("Client Closed")
            return
        self._head += buffer[:size]
        if b"\r\n\r\n" in self._head:
            self._answer()
        elif len(self._head) >= HEAD_BYTES_MAX:
            self._refuse(UpgradeRefusal(431, "request header fields too large"))

    def _answer(self) -> None:
        head, _, rest = self._head.partition(b"\r\n\r\n")
        try:
            agreement = agree(head, self._config)
            if rest:
                raise UpgradeRefusal(400, "client sent data before handshake is complete")
        except UpgradeRefusal as refusal:
            self._refuse(refusal)
            return
        try:
            self.sock.send(agreement.answer)
        except OSError:
            self.close("Write Error")
            return
        self.go_on(lambda: self._upgraded(self.sock, agreement))

    def _refuse(self, refusal: UpgradeRefusal) -> None:
        try:
            self.sock.send(refusal.answer)
        except OSError:
            # A client that does not read the refusal does not need it.
            pass
        self.fail(str(refusal))
