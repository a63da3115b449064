"""Frames of WebSocket: cut anywhere, masked, in pieces, compressed, and against the rules."""

from __future__ import annotations

import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.websocket import BINARY, CLOSE, PING, TEXT, frame

from penstock.net.listeners.frames import (
    FrameError,
    FrameReader,
    close_payload,
    frame_head,
    read_close,
)

COMPRESSED = 0x40


def deflated(data: bytes) -> bytes:
    deflater = zlib.compressobj(1, zlib.DEFLATED, -15)
    return (deflater.compress(data) + deflater.flush(zlib.Z_SYNC_FLUSH))[:-4]


ROOM = 1 << 20


def read(reader: FrameReader, *pieces: bytes, room: int = ROOM) -> list[tuple[int, bytes]]:
    """Return the data joined, and control frames where they stand in it."""
    events: list[tuple[int, bytes]] = []
    for piece in pieces:
        reader.feed(piece)
        while (found := reader.read(room)) is not None:
            opcode, payload = found
            assert opcode != BINARY or len(payload) <= room
            if opcode == BINARY and events and events[-1][0] == BINARY:
                payload = events.pop()[1] + payload
            if opcode != BINARY or payload:
                events.append((opcode, payload))
        assert not reader.has_rest
    return events


TRANSCRIPT = b"".join(
    (
        frame(BINARY, b"PUB a 2\r\n"),
        frame(PING, b"there?"),
        frame(TEXT, b"hi", is_final=False),
        frame(PING),
        frame(0, b"\r\nPI", is_final=False),
        frame(0, b"NG\r\n"),
        frame(BINARY),
        frame(BINARY, bytes(300)),
        frame(BINARY, deflated(b"x" * 500), reserved=COMPRESSED),
        frame(BINARY, deflated(b"y" * 500)[:5], reserved=COMPRESSED, is_final=False),
        frame(0, deflated(b"y" * 500)[5:]),
        frame(BINARY, deflated(b"z" * 9), reserved=COMPRESSED, is_final=False),
        frame(0),
        frame(CLOSE, close_payload(1000, "bye")),
    )
)
EVENTS = [
    (BINARY, b"PUB a 2\r\n"),
    (PING, b"there?"),
    (BINARY, b"hi"),
    (PING, b""),
    (BINARY, b"\r\nPING\r\n" + bytes(300) + b"x" * 500 + b"y" * 500 + b"z" * 9),
    (CLOSE, b"\x03\xe8bye"),
]


@pytest.mark.parametrize("room", [1, 2, 3, 7, 100])
def test_little_room_changes_nothing(room: int) -> None:
    reader = FrameReader(inflated_bytes_max=ROOM)

    assert read(reader, TRANSCRIPT, room=room) == EVENTS


@pytest.mark.parametrize("cut", range(len(TRANSCRIPT) + 1))
def test_a_cut_anywhere_changes_nothing(cut: int) -> None:
    reader = FrameReader(inflated_bytes_max=ROOM)

    assert read(reader, TRANSCRIPT[:cut], TRANSCRIPT[cut:]) == EVENTS


def test_bytes_may_come_one_by_one() -> None:
    reader = FrameReader(inflated_bytes_max=ROOM)

    assert read(reader, *(bytes([byte]) for byte in TRANSCRIPT)) == EVENTS


@given(st.binary(max_size=70_000), st.lists(st.integers(0, 70_100), max_size=4))
def test_every_payload_comes_out_as_it_went_in(payload: bytes, cuts: list[int]) -> None:
    whole = frame(BINARY, payload)
    ends = sorted({*cuts, len(whole)})
    pieces = [whole[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    assert b"".join(data for _, data in read(FrameReader(), *pieces)) == payload


@given(st.lists(st.binary(max_size=300), max_size=5), st.integers(1, 200))
def test_whatever_comes_is_frames_or_against_the_rules(pieces: list[bytes], room: int) -> None:
    try:
        read(FrameReader(inflated_bytes_max=ROOM, is_masked=False), *pieces, room=room)
    except FrameError:
        """Named, and nothing else."""


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536, 3_000_000])
def test_what_the_server_frames_can_be_read(size: int) -> None:
    reader = FrameReader(is_masked=False)
    payload = bytes(size)

    events = read(reader, frame_head(BINARY, size) + payload)

    assert events == ([(BINARY, payload)] if size else [])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (frame(BINARY, reserved=0x20), "RSV2 and RSV3 must be clear"),
        (frame(BINARY, b"x", is_masked=False), "mask bit missing"),
        (frame(BINARY, b"x", reserved=COMPRESSED), "without negotiated permessage-deflate"),
        (frame(PING, bytes(126)), "control frame length bigger than 125 bytes"),
        (frame(PING, is_final=False), "control frame does not have final bit set"),
        (frame(0, b"x"), "invalid continuation frame"),
        (frame(BINARY, is_final=False) + frame(BINARY), "before the previous one was final"),
        (frame(3), "unknown opcode 3"),
        (b"\x82\xff" + b"\xff" * 8 + bytes(4), "invalid 64-bit payload length"),
    ],
    # Masks are random, and a test keeps its name.
    ids=lambda value: value if isinstance(value, str) else "frame",
)
def test_what_is_against_the_rules_is_named(data: bytes, reason: str) -> None:
    with pytest.raises(FrameError, match=reason):
        read(FrameReader(), data)


def test_compressed_data_that_makes_no_sense_is_named() -> None:
    with pytest.raises(FrameError, match="invalid compressed data"):
        read(FrameReader(inflated_bytes_max=ROOM), frame(BINARY, b"\xff" * 9, reserved=COMPRESSED))


def test_a_message_does_not_grow_without_bound() -> None:
    data = frame(BINARY, deflated(bytes(ROOM + 1)), reserved=COMPRESSED)

    with pytest.raises(FrameError, match="compressed message too large"):
        read(FrameReader(inflated_bytes_max=ROOM), data)


def test_pieces_of_one_message_do_not_grow_without_bound_together() -> None:
    packed = deflated(bytes(ROOM + 1))
    first = frame(BINARY, packed[:1], reserved=COMPRESSED, is_final=False)
    pieces = [frame(0, packed[at : at + 1], is_final=False) for at in range(1, len(packed))]

    with pytest.raises(FrameError, match="compressed message too large"):
        read(FrameReader(inflated_bytes_max=ROOM), first, *pieces)


def test_what_is_compressed_stays_so_until_somebody_has_room_for_it() -> None:
    reader = FrameReader(inflated_bytes_max=64 * ROOM)
    reader.feed(frame(BINARY, deflated(bytes(60 * ROOM)), reserved=COMPRESSED))
    tracemalloc.start()
    try:
        pieces = [reader.read(4096) for _ in range(100)]
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert pieces == [(BINARY, bytes(4096))] * 100
    assert peak_bytes < ROOM


def test_behind_a_last_block_nothing_counts_and_nothing_is_kept() -> None:
    deflater = zlib.compressobj(wbits=-15)
    packed = deflater.compress(b"PING") + deflater.flush()
    reader = FrameReader(inflated_bytes_max=ROOM)
    tracemalloc.start()
    try:
        events = read(reader, frame(BINARY, packed, reserved=COMPRESSED, is_final=False))
        for _ in range(100):
            assert read(reader, frame(0, bytes(ROOM // 10), is_final=False)) == []
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert events == [(BINARY, b"PING")]
    assert held_bytes < ROOM
    assert read(reader, frame(0), frame(BINARY, b"PONG")) == [(BINARY, b"PONG")]


@given(st.binary(max_size=5_000), st.integers(1, 5_000))
def test_what_was_deflated_comes_out_in_pieces_of_any_size(data: bytes, room: int) -> None:
    packed = frame(BINARY, deflated(data * 3), reserved=COMPRESSED)

    events = read(FrameReader(inflated_bytes_max=ROOM), packed, room=room)

    assert b"".join(payload for _, payload in events) == data * 3


@pytest.mark.parametrize(
    ("payload", "answer"),
    [
        (b"", b""),
        (close_payload(1000, "done"), close_payload(1000, "done")),
        (b"\x03\xe8\xff", close_payload(1007, "invalid utf8 body in close frame")),
    ],
)
def test_a_close_frame_is_answered_in_kind(payload: bytes, answer: bytes) -> None:
    assert read_close(payload) == answer


@pytest.mark.parametrize("payload", [b"x", close_payload(1005, ""), close_payload(999, "")])
def test_a_close_frame_that_makes_no_sense_is_an_error(payload: bytes) -> None:
    with pytest.raises(FrameError):
        read_close(payload)
