"""
WebSocket frames (RFC 6455) without I/O: bytes in, payloads out, and frame headers.

The NATS protocol ignores the borders of WebSocket messages, so each piece of payload is
passed on as it comes, and a frame larger than any buffer is never held. Compressed messages
(RFC 7692) are inflated on demand, each with its own window: ninety kilobytes can inflate to
sixty megabytes, and stay ninety until a reader asks for more.
"""

from __future__ import annotations

import zlib

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
DATA = (TEXT, BINARY)
CONTROL = (CLOSE, PING, PONG)
FINAL, COMPRESSED, RESERVED, MASKED = 0x80, 0x40, 0x30, 0x80

CONTROL_BYTES_MAX = 125
EMPTY_BLOCK = b"\x00\x00\xff\xff"
"""The end of a compressed message, which senders leave out."""

NORMAL_CLOSURE, GOING_AWAY, PROTOCOL_ERROR = 1000, 1001, 1002
INVALID_DATA, POLICY_VIOLATION, TOO_BIG, SERVER_ERROR = 1007, 1008, 1009, 1011


class FrameError(Exception):
    """The peer broke the WebSocket protocol. It gets a close frame with `status` and the reason."""

    def __init__(self, reason: str, status: int = PROTOCOL_ERROR) -> None:
        super().__init__(reason)
        self.status = status


class FrameReader:
    """
    Reads the frames of one peer, however the bytes are cut.

    `feed` adds bytes, and `read` takes as much as there is room for.
    """

    def __init__(self, *, inflated_bytes_max: int = 0, is_masked: bool = True) -> None:
        self._inflated_bytes_max = inflated_bytes_max
        """The maximum inflated size of a message; 0 without compression."""
        self._is_masked = is_masked
        self.has_rest = False
        """Whether `read` may find something without more bytes from the peer."""
        self._data = b""
        self._position = 0
        self._left = 0
        """The missing bytes of the current frame."""
        self._key = b""
        self._is_in_message = False
        self._is_final = True
        self._inflater: zlib._Decompress | None = None
        self._packed: bytes | None = None
        """The bytes to inflate next; empty if only the inflater holds data."""
        self._inflated_bytes = 0

    def feed(self, data: bytes) -> None:
        """Add bytes from the peer."""
        self._data = self._data[self._position :] + data
        self._position = 0
        self.has_rest = True

    def read(self, size_max: int) -> tuple[int, bytes] | None:
        """
        Return (BINARY, piece of payload) or a whole control frame as (opcode, payload).

        A piece has at most `size_max` bytes, and may be empty. None: more bytes are needed.
        """
        if self._packed is not None:
            return BINARY, self._inflate(size_max)
        found = self._payload(size_max) if self._left else self._frame(size_max)
        self.has_rest = found is not None
        return found

    def _frame(self, size_max: int) -> tuple[int, bytes] | None:
        """Start a frame: return a whole control frame, or the first piece of a data frame."""
        start = self._position
        size = _head_size(self._data, start)
        if size is None or start + size > len(self._data):
            return None
        opcode = self._read_head(self._data[start : start + size])
        if opcode not in CONTROL:
            self._position += size
            return self._payload(size_max) or (BINARY, b"")
        end = start + size + self._left
        self._left = 0
        if end > len(self._data):
            # A control frame is small, so wait for all of it; its head is read again.
            return None
        self._position = end
        return opcode, self._unmasked(self._data[start + size : end])

    def _payload(self, size_max: int) -> tuple[int, bytes] | None:
        """Return the next piece of a message, inflated if it is compressed."""
        start = self._position
        piece = self._unmasked(self._data[start : start + min(self._left, size_max)])
        self._position += len(piece)
        self._left -= len(piece)
        if self._inflater is not None and (piece or not self._left):
            self._packed = piece + EMPTY_BLOCK if self._ends_message else piece
            return BINARY, self._inflate(size_max)
        return (BINARY, piece) if piece else None

    @property
    def _ends_message(self) -> bool:
        return self._is_final and not self._left

    def _inflate(self, size_max: int) -> bytes:
        inflater, packed = self._inflater, self._packed
        assert inflater is not None
        assert packed is not None
        try:
            # Ignore all data after a block that is marked as the last.
            inflated = b"" if inflater.eof else inflater.decompress(packed, size_max)
        except zlib.error:
            raise FrameError("invalid compressed data", INVALID_DATA) from None
        self._inflated_bytes += len(inflated)
        if self._inflated_bytes > self._inflated_bytes_max:
            raise FrameError("compressed message too large", TOO_BIG)
        self._packed = inflater.unconsumed_tail
        if inflater.eof or (not self._packed and len(inflated) < size_max):
            self._packed = None
            if self._ends_message:
                self._inflater = None
        return inflated

    def _read_head(self, head: bytes) -> int:
        """Read the head of a frame; return its opcode."""
        opcode, is_final = head[0] & 0x0F, bool(head[0] & FINAL)
        is_compressed = bool(head[0] & COMPRESSED)
        self._check_head(head, opcode, is_final, is_compressed)
        mask_at = len(head) - 4 if head[1] & MASKED else len(head)
        self._key = head[mask_at:]
        length = head[1] & 0x7F
        self._left = int.from_bytes(head[2:mask_at], "big") if length > 125 else length
        if self._left >> 63:
            raise FrameError("invalid 64-bit payload length")
        if opcode not in CONTROL:
            self._is_in_message = not is_final
            self._is_final = is_final
            if is_compressed:
                self._inflater = zlib.decompressobj(-zlib.MAX_WBITS)
                self._inflated_bytes = 0
        return opcode

    def _check_head(self, head: bytes, opcode: int, is_final: bool, is_compressed: bool) -> None:
        if head[0] & RESERVED:
            raise FrameError("RSV2 and RSV3 must be clear")
        if is_compressed and not self._inflated_bytes_max:
            raise FrameError("compressed frame received without negotiated permessage-deflate")
        if self._is_masked and not head[1] & MASKED:
            raise FrameError("mask bit missing")
        if opcode in CONTROL:
            if head[1] & 0x7F > CONTROL_BYTES_MAX:
                raise FrameError(f"control frame length bigger than {CONTROL_BYTES_MAX} bytes")
            if not is_final:
                raise FrameError("control frame does not have final bit set")
            if is_compressed:
                raise FrameError("control frame must not be compressed")
        elif opcode in DATA:
            if self._is_in_message:
                raise FrameError("new message started before the previous one was final")
        elif opcode != CONTINUATION:
            raise FrameError(f"unknown opcode {opcode}")
        elif not self._is_in_message or is_compressed:
            raise FrameError("invalid continuation frame")

    def _unmasked(self, piece: bytes) -> bytes:
        size = len(piece)
        if not self._key or not size:
            return piece
        mask = self._key * (size // 4 + 1)
        number = int.from_bytes(piece, "little") ^ int.from_bytes(mask[:size], "little")
        turn = size % 4
        self._key = self._key[turn:] + self._key[:turn]
        return number.to_bytes(size, "little")


def _head_size(data: bytes, position: int) -> int | None:
    """Return the size of a frame's head; None if too few bytes are there to tell."""
    if len(data) < position + 2:
        return None
    length = data[position + 1] & 0x7F
    size = {126: 4, 127: 10}.get(length, 2)
    return size + 4 if data[position + 1] & MASKED else size


def frame_head(opcode: int, size: int, *, is_compressed: bool = False) -> bytes:
    """Return the head of a complete, unmasked message."""
    first = FINAL | opcode | (COMPRESSED if is_compressed else 0)
    if size < 126:
        return bytes((first, size))
    if size < 1 << 16:
        return bytes((first, 126)) + size.to_bytes(2, "big")
    return bytes((first, 127)) + size.to_bytes(8, "big")


def close_payload(status: int, reason: str) -> bytes:
    """Return the payload of a close frame."""
    return status.to_bytes(2, "big") + reason.encode()[: CONTROL_BYTES_MAX - 2]


def read_close(payload: bytes) -> bytes:
    """Return the payload of the answer to a close frame."""
    if not payload:
        return b""
    if len(payload) == 1:
        raise FrameError("close frame payload cannot be 1 byte")
    status = int.from_bytes(payload[:2], "big")
    is_reserved = status in (1004, 1005, 1006, 1015) or 1016 <= status < 3000
    if is_reserved or not 1000 <= status < 5000:
        raise FrameError(f"invalid close status code {status}")
    try:
        payload[2:].decode()
    except UnicodeDecodeError:
        return close_payload(INVALID_DATA, "invalid utf8 body in close frame")
    return payload
