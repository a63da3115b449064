"""Frames out of a socket and onto it, a little at a time: all comes out whole, and in order."""

from __future__ import annotations

import random
import socket
import zlib
from collections.abc import Iterator

import pytest
from tests.unit.core.peers import Peer, World
from tests.websocket import BINARY, CLOSE, PING, PONG, frame

from penstock.net.connection import Channel
from penstock.net.listeners.frames import frame_head
from penstock.net.listeners.upgrade import Agreement
from penstock.net.listeners.websocket import (
    FRAMES_MAX,
    ControlFrame,
    DeflatingSocket,
    FrameSocket,
    WebSocket,
)

PONG_FRAME = ControlFrame(frame_head(PONG, 2) + b"ok")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    ours.setblocking(False)
    theirs.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


def transmit(channel: Channel, theirs: socket.socket, entries: list[bytes]) -> bytes:
    """Send the entries the way a connection does, while more of them come; return the bytes."""
    received = bytearray()
    random_ = random.Random(7)
    outbox: list[bytes] = []
    waiting = list(entries)
    while outbox or waiting:
        while waiting and random_.random() < 0.5:
            outbox.append(waiting.pop(0))
        if outbox:
            try:
                sent = channel.sendmsg(outbox)
            except BlockingIOError:
                sent = 0
            outbox = after(outbox, sent)
        if random_.random() < 0.5:
            received += drain(theirs, random_.randrange(1, 3000))
    while piece := drain(theirs, 65536):
        received += piece
    return bytes(received)


def after(outbox: list[bytes], sent: int) -> list[bytes]:
    """Return what is left once `sent` bytes are gone; what is begun is no entry any more."""
    while outbox and sent >= len(outbox[0]):
        sent -= len(outbox[0])
        outbox = outbox[1:]
    return [bytes(outbox[0][sent:]), *outbox[1:]] if sent else outbox


def drain(sock: socket.socket, size: int) -> bytes:
    try:
        return sock.recv(size)
    except BlockingIOError:
        return b""


def payloads(data: bytes) -> tuple[bytes, list[bytes]]:
    """Return what the messages say together, and the control frames between them."""
    said, control = b"", []
    while data:
        first, size, head = data[0], data[1], 2
        if size > 125:
            head = 4 if size == 126 else 10
            size = int.from_bytes(data[2:head], "big")
        payload, data = data[head : head + size], data[head + size :]
        assert len(payload) == size, "a frame is cut short"
        if first & 0x0F == PONG:
            control.append(payload)
        elif first & 0x40:
            said += zlib.decompressobj(-15).decompress(payload + b"\x00\x00\xff\xff")
        else:
            assert first == 0x80 | BINARY
            said += payload
    return said, control


@pytest.mark.parametrize("framing", [FrameSocket, DeflatingSocket])
def test_messages_and_control_frames_come_out_whole_and_in_order(
    framing: type[FrameSocket] | type[DeflatingSocket],
    pair: tuple[socket.socket, socket.socket],
) -> None:
    noise = random.Random(3).randbytes
    messages = [noise(size) for size in (1, 60, 200, 5000, 70_000, 3, 20_000, 9)]
    entries: list[bytes] = [PONG_FRAME]
    for message in messages:
        entries += [message, PONG_FRAME]

    said, control = payloads(transmit(framing(pair[0]), pair[1], entries))

    assert said == b"".join(messages)
    assert control == [b"ok"] * (len(messages) + 1)


def test_more_buffers_than_a_system_call_takes_go_out_too(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    entries = [b"%d," % number for number in range(3000)]

    said, _ = payloads(transmit(FrameSocket(pair[0]), pair[1], entries))

    assert said == b"".join(entries)


class Reader:
    """A WebSocket as a connection reads from it, with a buffer that is small."""

    def __init__(self, ours: socket.socket, size: int) -> None:
        self.peer = Peer(World().broker.open("127.0.0.1", 1))
        self.peer.taken()
        agreement = Agreement(b"", compresses=True, is_masked=True)
        self._websocket = WebSocket(
            ours, self.peer.session, agreement, inflated_bytes_max=1_000_000
        )
        self._websocket.read_on = self._note
        self._buffer = bytearray(size)
        self.has_more = False

    def _note(self) -> None:
        self.has_more = True

    def read(self) -> bytes | None:
        """Return what is read at once, None if that is nothing."""
        self.has_more = False
        try:
            size = self._websocket.recv_into(self._buffer)
        except BlockingIOError:
            return None
        return bytes(self._buffer[:size])


def test_no_more_is_read_at_once_than_there_is_room_for(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    reader = Reader(pair[0], 100)
    text = b"0123456789" * 100
    deflater = zlib.compressobj(wbits=-15)
    packed = (deflater.compress(text) + deflater.flush(zlib.Z_SYNC_FLUSH))[:-4]
    pair[1].send(frame(BINARY, packed, reserved=0x40))

    pieces = [reader.read()]
    while reader.has_more:
        pieces.append(reader.read())

    read = [piece for piece in pieces if piece is not None]
    assert b"".join(read) == text
    assert max(map(len, read)) == 100


def test_no_more_frames_are_looked_at_at_once_than_others_can_wait_for(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    reader = Reader(pair[0], 65536)
    pair[1].send(frame(BINARY) * (FRAMES_MAX + 1) + frame(BINARY, b"last"))

    assert (reader.read(), reader.has_more) == (None, True)
    assert reader.read() == b"last"


def test_of_several_pings_the_last_is_answered(pair: tuple[socket.socket, socket.socket]) -> None:
    reader = Reader(pair[0], 65536)
    pair[1].send(frame(PING, b"one") + frame(BINARY, b"text") + frame(PING, b"two"))

    assert reader.read() == b"text"
    assert reader.peer.taken() == frame_head(PONG, 3) + b"two"


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (frame(CLOSE, b"\x03\xe8"), "Client Closed"),
        (frame(CLOSE, b"x"), "Protocol Violation"),
        (frame(3), "Protocol Violation"),
    ],
    ids=["close", "no close", "no frame"],
)
def test_what_came_before_the_end_is_read_before_it(
    last: bytes, reason: str, pair: tuple[socket.socket, socket.socket]
) -> None:
    reader = Reader(pair[0], 65536)
    pair[1].send(frame(BINARY, b"text") + last + frame(BINARY, b"more"))

    assert (reader.read(), reader.has_more, reader.peer.session.closing) == (b"text", True, None)
    assert reader.read() is None
    assert reader.peer.session.closing == reason
