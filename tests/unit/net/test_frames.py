"""Frames of WebSocket: cut anywhere, masked, in pieces, compressed, and against the rules."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.websocket import BINARY, CLOSE, PING, TEXT, frame

from penstock.net.frames import (
    INFLATED_BYTES_MAX,
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


def read(reader: FrameReader, *pieces: bytes) -> list[tuple[int, bytes]]:
    """Return the data joined, and control frames where they stand in it."""
    events: list[tuple[int, bytes]] = []
    for piece in pieces:
        for opcode, payload in reader.feed(piece):
            if opcode == BINARY and events and events[-1][0] == BINARY:
                payload = events.pop()[1] + payload
            events.append((opcode, payload))
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


@pytest.mark.parametrize("cut", range(len(TRANSCRIPT) + 1))
def test_a_cut_anywhere_changes_nothing(cut: int) -> None:
    reader = FrameReader(inflates=True)

    assert read(reader, TRANSCRIPT[:cut], TRANSCRIPT[cut:]) == EVENTS


def test_bytes_may_come_one_by_one() -> None:
    reader = FrameReader(inflates=True)

    assert read(reader, *(bytes([byte]) for byte in TRANSCRIPT)) == EVENTS


@given(st.binary(max_size=70_000), st.lists(st.integers(0, 70_100), max_size=4))
def test_every_payload_comes_out_as_it_went_in(payload: bytes, cuts: list[int]) -> None:
    whole = frame(BINARY, payload)
    ends = sorted({*cuts, len(whole)})
    pieces = [whole[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    assert b"".join(data for _, data in read(FrameReader(inflates=False), *pieces)) == payload


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536, 3_000_000])
def test_what_the_server_frames_can_be_read(size: int) -> None:
    reader = FrameReader(inflates=False, is_masked=False)
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
        read(FrameReader(inflates=False), data)


def test_compressed_data_that_makes_no_sense_is_named() -> None:
    with pytest.raises(FrameError, match="invalid compressed data"):
        read(FrameReader(inflates=True), frame(BINARY, b"\xff" * 9, reserved=COMPRESSED))


def test_a_message_does_not_grow_without_bound() -> None:
    data = frame(BINARY, deflated(bytes(INFLATED_BYTES_MAX + 1)), reserved=COMPRESSED)

    with pytest.raises(FrameError, match="compressed message too large"):
        for _ in FrameReader(inflates=True).feed(data):
            pass


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
