"""
WebSocket between a socket and a session: the upgrade, then frames in both directions.

Going out, whatever is written at once becomes one message. Its head is decided when
its first byte goes, and remembered until its last has gone, so that what the kernel
did not take may stay in the session's outbox as it was.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.core.session import Session
from penstock.net.arrival import Arrival
from penstock.net.connection import Channel
from penstock.net.frames import (
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
from penstock.net.upgrade import HEAD_BYTES_MAX, Agreement, Refusal, agree
from penstock.outbox import WRITE_BUFFERS
from penstock.transport import WebSocketConfig

if TYPE_CHECKING:
    from penstock.net.reactor import Reactor

log = logging.getLogger("penstock")

DEFLATE_BYTES_MIN = 64
"""Less than this is not worth compressing."""

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
    """A frame in a session's outbox that is not part of a message."""


class FrameSocket:
    """A socket that puts what it sends into frames."""

    def __init__(self, sock: Channel) -> None:
        self._sock = sock
        self.fileno = sock.fileno
        self.recv_into = sock.recv_into
        self.close = sock.close
        self._head = b""
        self._left = 0

    @property
    def is_between_frames(self) -> bool:
        """Whether a frame of its own may be sent now."""
        return not self._head and not self._left

    def send(self, data: Any) -> int:
        """Send one buffer."""
        return self.sendmsg((data,))

    def sendmsg(self, buffers: Sequence[Any]) -> int:
        """Send buffers as one message, or go on with the one begun."""
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
    A socket that compresses what it sends.

    What it sends has another length than what it was given, so it takes note of nothing
    as sent until all that the compressed message stands for has gone.
    """

    def __init__(self, sock: Channel) -> None:
        self._sock = sock
        self.fileno = sock.fileno
        self.recv_into = sock.recv_into
        self.close = sock.close
        self._pending = b""
        self._covers = 0

    @property
    def is_between_frames(self) -> bool:
        """Whether a frame of its own may be sent now."""
        return not self._pending

    def send(self, data: Any) -> int:
        """Send one buffer."""
        return self.sendmsg((data,))

    def sendmsg(self, buffers: Sequence[Any]) -> int:
        """Send buffers as one compressed message, or go on with the one begun."""
        if not self._pending:
            head, self._covers = _next_frame(buffers)
            data = b"".join(_cut(buffers, self._covers))
            self._pending = _deflated(head, data) if head else data
        self._pending = self._pending[self._sock.send(self._pending) :]
        if self._pending:
            raise BlockingIOError
        return self._covers


def _next_frame(buffers: Sequence[Any]) -> tuple[bytes, int]:
    """Return the head of the next frame and its size: of a control frame, which has its own."""
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
    """Return a message, compressed if it is worth it. Each has a window of its own."""
    if len(data) <= DEFLATE_BYTES_MIN:
        return head + data
    deflater = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = deflater.compress(data) + deflater.flush(zlib.Z_SYNC_FLUSH)
    packed = packed.removesuffix(EMPTY_BLOCK)
    return frame_head(BINARY, len(packed), is_compressed=True) + packed


class WebSocket:
    """The frames of one client: what it says goes to the session, control frames stay here."""

    def __init__(self, sock: Channel, session: Session, agreement: Agreement) -> None:
        framing = DeflatingSocket if agreement.compresses else FrameSocket
        self.sock = framing(sock)
        self._raw = sock
        self._session = session
        self._reader = FrameReader(inflates=agreement.compresses, is_masked=agreement.is_masked)
        self._goodbye: bytes | None = None

    def receive(self, data: memoryview) -> None:
        """Do what the frames in `data` say."""
        session = self._session
        try:
            for opcode, payload in self._reader.feed(data):
                if opcode == BINARY:
                    session.receive(payload)
                else:
                    self._control(opcode, payload)
                if session.closing:
                    return
        except FrameError as error:
            self._goodbye = close_payload(error.status, str(error))
            log.debug("! %s %s", session, error)
            session.fail("", "Protocol Violation")

    def _control(self, opcode: int, payload: bytes) -> None:
        if opcode == PING:
            self._session.write(ControlFrame(frame_head(PONG, len(payload)) + payload))
        elif opcode == CLOSE:
            self._goodbye = read_close(payload)
            self._session.fail("", "Client Closed")

    def farewell(self, reason: str) -> None:
        """Send a close frame, if the peer is at a point where it can read one."""
        payload = self._goodbye
        if payload is None:
            payload = close_payload(STATUS_OF.get(reason, SERVER_ERROR), reason)
        if self.sock.is_between_frames:
            try:
                self._raw.send(frame_head(CLOSE, len(payload)) + payload)
            except OSError:
                # It is gone, or takes nothing more.
                pass


Upgraded = Callable[[Channel, Agreement], None]
"""Called when a client has become a WebSocket."""


class Upgrade(Arrival):
    """What the reactor serves until a client has asked for WebSocket."""

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
        self.limit_time(config.handshake_timeout_s)

    def advance(self) -> None:
        """Read the request as far as it has come."""
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
            self._refuse(Refusal(431, "request header fields too large"))

    def _answer(self) -> None:
        head, _, rest = self._head.partition(b"\r\n\r\n")
        try:
            agreement = agree(head, self._config)
            if rest:
                raise Refusal(400, "client sent data before handshake is complete")
        except Refusal as refusal:
            self._refuse(refusal)
            return
        try:
            self.sock.send(agreement.answer)
        except OSError:
            self.close("Write Error")
            return
        self.go_on(lambda: self._upgraded(self.sock, agreement))

    def _refuse(self, refusal: Refusal) -> None:
        try:
            self.sock.send(refusal.answer)
        except OSError:
            # Whoever does not take it has no use for it.
            pass
        self.fail(str(refusal))
