"""An outbox on its way to the kernel: all of it, or as much as there is room for, in both twins."""

from __future__ import annotations

import gc
import os
import random
import socket
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from tests.compiled import compiled_twin

from penstock.hot import fanout, outbox
from penstock.hot.outbox import WRITE_BUFFERS, WRITE_BYTES, _encode, _first_entries, drain

Pair = tuple[socket.socket, socket.socket]
Entries = list[Any]


@pytest.fixture(params=["reference", "compiled"])
def twin(request: pytest.FixtureRequest) -> ModuleType:
    return outbox if request.param == "reference" else compiled_twin()


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


def outlet_of(twin: ModuleType, entries: Entries) -> Any:
    made_by = fanout if twin is outbox else twin
    outlet = made_by.Outlet(1, [], [])
    outlet.outbox.extend(entries)
    outlet.outbox_bytes = len(encoded(entries))
    return outlet


def encoded(entries: Entries) -> bytes:
    return b"".join(
        entry[0].join(entry[1]) if type(entry) is tuple else bytes(entry) for entry in entries
    )


def some_entries() -> Entries:
    return [
        b"PONG\r\n",
        (b"7", [b"MSG a ", b" 1\r\nx\r\nMSG a ", b" 1\r\ny\r\n"]),
        memoryview(b"end"),
    ]


def test_entries_are_encoded_when_they_are_written(twin: ModuleType, pair: Pair) -> None:
    ours, theirs = pair
    outlet = outlet_of(twin, some_entries())

    assert twin.write_outbox(outlet, ours.fileno()) == 37

    assert theirs.recv(100) == b"PONG\r\nMSG a 7 1\r\nx\r\nMSG a 7 1\r\ny\r\nend"
    assert (outlet.outbox, outlet.outbox_bytes) == ([], 0)
    assert twin.write_outbox(outlet, ours.fileno()) == 0


@pytest.mark.parametrize("size", [1, 40, 511, 512, 513, 2000])
@pytest.mark.parametrize("messages", [1, 2, 3, 600])
def test_pieces_of_any_size_and_number_are_put_together(
    twin: ModuleType, size: int, messages: int
) -> None:
    between = b"x" * size
    entry = (b"sid", [b"MSG a ", *[between] * (messages - 1), between])
    outlet = outlet_of(twin, [b"before", entry, b"", b"behind"])
    wanted = encoded(outlet.outbox)

    assert read_in_turns(twin, outlet) == wanted


def read_in_turns(twin: ModuleType, outlet: Any, room: int = 1 << 16) -> bytes:
    """Write and read until everything has gone through a socket with little room."""
    ours, theirs = socket.socketpair()
    data = b""
    with ours, theirs:
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)
        while outlet.outbox:
            left = outlet.outbox_bytes
            sent = twin.write_outbox(outlet, ours.fileno())
            assert outlet.outbox_bytes == left - sent == len(encoded(outlet.outbox))
            while sent:
                got = theirs.recv(sent)
                data += got
                sent -= len(got)
    return data


def test_whatever_waits_all_of_it_arrives_once_and_in_order(twin: ModuleType) -> None:
    rng = random.Random(4222)
    for _ in range(20):
        entries = [random_entry(rng) for _ in range(rng.randrange(1, 20))]
        outlet = outlet_of(twin, entries)

        assert read_in_turns(twin, outlet, room=4096) == encoded(entries)


def random_entry(rng: random.Random) -> Any:
    data = rng.randbytes(rng.choice([1, 30, 700, 5000, 70_000]))
    if rng.random() < 0.4:
        return data
    if rng.random() < 0.3:
        return memoryview(data)
    pieces = [rng.randbytes(rng.choice([20, 600])) for _ in range(rng.choice([2, 10, 700]))]
    return rng.choice([b"1", b"sid"]), pieces


def test_more_entries_than_one_system_call_takes_are_written(twin: ModuleType, pair: Pair) -> None:
    ours, theirs = pair
    outlet = outlet_of(twin, [b"%04d" % number for number in range(WRITE_BUFFERS + 5)])
    wanted = encoded(outlet.outbox)

    assert twin.write_outbox(outlet, ours.fileno()) == len(wanted)
    assert theirs.recv(2 * len(wanted)) == wanted


def test_what_there_is_no_room_for_stays_as_it_is(twin: ModuleType, pair: Pair) -> None:
    ours, _ = pair
    fill(ours)
    entries = some_entries()
    outlet = outlet_of(twin, entries)

    assert twin.write_outbox(outlet, ours.fileno()) == 0
    assert (outlet.outbox, outlet.outbox_bytes) == (entries, 37)


def fill(sock: socket.socket) -> None:
    try:
        while True:
            sock.send(bytes(4096))
    except BlockingIOError:
        pass


def test_a_peer_that_is_gone_is_an_error(twin: ModuleType, pair: Pair) -> None:
    ours, theirs = pair
    theirs.close()

    with pytest.raises(BrokenPipeError):
        twin.write_outbox(outlet_of(twin, [b"x"]), ours.fileno())


@pytest.mark.parametrize("entry", [7, "text", (b"1",), (b"1", 7), ("1", [b"x"]), (b"1", [7, 7])])
def test_an_entry_that_is_none_is_an_error(twin: ModuleType, pair: Pair, entry: Any) -> None:
    outlet = outlet_of(twin, [])
    outlet.outbox += [b"x", entry]

    with pytest.raises((TypeError, IndexError, AttributeError)):
        twin.write_outbox(outlet, pair[0].fileno())


def test_the_compiled_twin_keeps_no_memory() -> None:
    compiled = compiled_twin()
    rng = random.Random(1)
    entries = [random_entry(rng) for _ in range(30)]

    def use_everything() -> int:
        with open(os.devnull, "wb") as null:
            with pytest.raises(OSError, match="socket"):
                compiled.write_outbox(outlet_of(compiled, entries), null.fileno())
        read_in_turns(compiled, outlet_of(compiled, entries), room=4096)
        gc.collect()
        return sys.getallocatedblocks()

    use_everything()
    before = use_everything()

    assert min(use_everything() for _ in range(3)) - before < 50


@pytest.mark.parametrize("arguments", [(), (7, 1), (b"", 1, 2)])
def test_only_outlets_are_written(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        compiled_twin().write_outbox(*arguments)


@pytest.mark.parametrize("room", range(37))
def test_of_an_entry_that_was_begun_the_rest_is_kept(room: int) -> None:
    outlet = outlet_of(outbox, some_entries())
    whole = encoded(outlet.outbox)

    assert drain(outlet, lambda buffers: room) == room

    assert encoded(outlet.outbox) == whole[room:]
    assert outlet.outbox_bytes == 37 - room
    left = len(outlet.outbox)
    assert outlet.outbox[1:] == some_entries()[4 - left :], "entries not begun are as they were"


def test_one_system_call_gets_about_so_many_bytes() -> None:
    piece = bytes(WRITE_BYTES // 4)

    assert len(_first_entries([piece] * 10)) == 4
    assert len(_first_entries([(b"1", [piece, piece])] * 10)) == 2
    assert _encode([piece] * 10, 10 * len(piece)) == ([piece] * 4, WRITE_BYTES)


def test_one_system_call_gets_so_many_buffers() -> None:
    assert len(_first_entries([b"x"] * (WRITE_BUFFERS + 5))) == WRITE_BUFFERS
