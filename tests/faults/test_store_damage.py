"""Every bit flipped, every length cut: a store opens or says why not, and never lies."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.simdisk import SimDisk

from penstock.errors import StoreError
from penstock.jetstream.consumers.consumerlog import open_consumer_log
from penstock.jetstream.consumers.consumerrecords import ConsumerState
from penstock.jetstream.store.file.encryption import frames_in
from penstock.jetstream.store.file.log import FileSettings, open_file_store
from penstock.jetstream.store.file.segmentfile import SUFFIX
from penstock.jetstream.store.store import Store
from penstock.jetstream.store.values import Message, complete

pytestmark = pytest.mark.usefixtures("each_encryption")

DIRECTORY = "streams/s"
SETTINGS = FileSettings(segment_bytes_max=400, segment_messages_max=4, reserve_bytes=0)
RESERVING = replace(SETTINGS, reserve_bytes=400)


def make(disk: SimDisk, *, closed: bool, settings: FileSettings = SETTINGS) -> dict[int, Message]:
    """Make a store of a few segments, with a hole in it; return what it holds."""
    store, _ = open_file_store(disk, DIRECTORY, salt=7, settings=settings)
    for number in range(1, 11):
        headers = b"NATS/1.0\r\nA: b\r\n\r\n" if number % 3 == 0 else b""
        store.append([(b"a.%d" % (number % 2), headers, b"payload %d" % number, number)])
        complete(store.flush())
        if number == 9:
            store.remove([2, 6])
    complete(store.flush())
    while (work := store.maintain()) is not None:
        complete(work)
    held = {message[0]: message for message in read_all(store)}
    if closed:
        store.close()
    return held


def read_all(store: Store) -> list[Message]:
    found: list[Message] = []
    sequence = 1
    while sequence <= store.last_sequence:
        messages, sequence = store.read(sequence, count_max=3, bytes_max=1 << 20)
        found += messages
    return found


def copy(disk: SimDisk) -> SimDisk:
    """Return a disk with the same bytes, all of them durable."""
    other = SimDisk()
    other.directories = set(disk.directories)
    for path, inode in disk.names_now.items():
        other.add(path, bytes(inode.content))
    return other


def places(content: bytearray) -> range:
    """Return the bytes to damage: of encrypted files not all, because they are more and alike."""
    return range(0, len(content), 1 if SimDisk.keys is None else 3)


def examine(
    disk: SimDisk, held: dict[int, Message], removed: set[int], *, is_cut: bool = False
) -> int:
    """Open a damaged store and use it; return how many messages are missing."""
    try:
        store, told = open_file_store(disk, DIRECTORY, salt=7, settings=SETTINGS)
        found = {message[0]: message for message in read_all(store)}
        reported = any(told) or store.state().lost > 0
        store.append([(b"new", b"", b"new", 99)])
        complete(store.flush())
        added = store.get(store.last_sequence)
        again = {message[0]: message for message in read_all(store)}
    except StoreError as error:
        explained = "hint:" in str(error)
        return len(held) if explained else pytest.fail(f"no hint in: {error}")
    assert added is not None
    assert added[2:] == (b"new", b"", b"new")
    assert again == found | {added[0]: added}
    for sequence, message in found.items():
        # Without a removal record its message is back; that shows unless the end was cut off.
        if sequence in removed:
            assert reported or is_cut
        else:
            assert message == held[sequence]
    missing = held.keys() - found.keys()
    # A cut between two records at the very end looks like a crash before the next one.
    is_end = missing == {sequence for sequence in held if sequence >= min(missing, default=0)}
    assert reported or not missing or (is_cut and is_end)
    return len(missing)


@pytest.mark.parametrize("closed", [False, True], ids=["crashed", "closed"])
def test_no_flipped_bit_makes_a_store_lie(closed: bool) -> None:
    original = SimDisk()
    held = make(original, closed=closed)
    for path, inode in original.names_now.items():
        for offset in places(inode.content):
            disk = copy(original)
            disk.names_now[path].content[offset] ^= 1 << offset % 8
            examine(disk, held, {2, 6})


@pytest.mark.parametrize("closed", [False, True], ids=["crashed", "closed"])
def test_no_cut_makes_a_store_lie(closed: bool) -> None:
    original = SimDisk()
    held = make(original, closed=closed)
    for path, inode in original.names_now.items():
        for length in places(inode.content):
            disk = copy(original)
            del disk.names_now[path].content[length:]
            examine(disk, held, {2, 6}, is_cut=path == max(original.names_now))


@pytest.mark.parametrize("closed", [False, True], ids=["crashed", "closed"])
def test_a_last_segment_that_is_cut_short_is_told_and_its_sequences_are_not_given_again(
    closed: bool,
) -> None:
    original = SimDisk()
    held = make(original, closed=closed, settings=RESERVING)
    path = max(name for name in original.names_now if name.endswith(SUFFIX))
    for length in places(original.names_now[path].content):
        disk = copy(original)
        del disk.names_now[path].content[length:]
        store, told = open_file_store(disk, DIRECTORY, salt=7, settings=RESERVING)
        found = {message[0]: message for message in read_all(store)}
        missing = held.keys() - found.keys()
        if missing:
            assert any("was cut short" in note for note in told.faults)
            assert store.state().lost == len(missing)
        assert store.last_sequence == 10
        # What comes now may be torn: nothing of it counts as synced before.
        store.append([(b"new", b"", b"new", 99), (b"new", b"", b"new", 99)], is_atomic=True)
        store.flush()
        again, _ = open_file_store(disk.crash(), DIRECTORY, salt=7, settings=RESERVING)
        fresh = [message[0] for message in read_all(again) if message[2] == b"new"]
        assert fresh in ([], [11, 12])
        assert again.last_sequence >= 10


def test_zeros_in_place_of_the_end_are_damage_and_no_torn_end() -> None:
    original = SimDisk()
    make(original, closed=False, settings=RESERVING)
    path = max(name for name in original.names_now if name.endswith(SUFFIX))
    disk = copy(original)
    content, at = disk.names_now[path].content, place_of(disk, path, b"payload 10")
    content[at:] = bytes(len(content) - at)
    store, _ = open_file_store(disk, DIRECTORY, salt=7, settings=RESERVING)
    assert (store.state().lost, store.last_sequence) == (1, 10)


def test_a_damaged_record_in_a_complete_segment_costs_one_message() -> None:
    original = SimDisk()
    held = make(original, closed=True)
    path = min(original.names_now)
    at = place_of(original, path, b"payload 3")
    disk = copy(original)
    disk.names_now[path].content[at] ^= 1
    assert examine(disk, held, set()) == 1


def place_of(disk: SimDisk, path: str, text: bytes) -> int:
    """Return where some bytes lie on the disk; of an encrypted file the frame with them."""
    file = disk.open(path)
    offset = file.read(0, file.size()).index(text)
    if SimDisk.keys is None:
        return offset
    frames = frames_in(bytes(disk.names_now[path].content), 0)
    return next(frame.place_end - 1 for frame in frames if offset < frame.end)


def test_a_missing_segment_costs_its_messages_only() -> None:
    original = SimDisk()
    held = make(original, closed=True)
    disk = copy(original)
    gone = sorted(disk.names_now)[1]
    disk.remove(gone)
    store, _ = open_file_store(disk, DIRECTORY, salt=7, settings=SETTINGS)
    found = {message[0]: message for message in read_all(store)}
    assert found.items() <= held.items()
    assert store.last_sequence == 10


def consumer_log(disk: SimDisk) -> ConsumerState:
    """Make a log with one consumer; return its state."""
    log, _, _ = open_consumer_log(disk, "consumers")
    state = ConsumerState()
    log.snapshot = lambda: {"one": state}
    log.put("one", state)
    for first in range(1, 40, 4):
        state.deliver(first, range(first, first + 4), 5)
        log.delivered("one", first, range(first, first + 4), 5)
        state.ack([first, first + 2])
        log.acked("one", [first, first + 2])
        complete(log.flush())
    log.close()
    return state


def test_no_flipped_bit_makes_a_consumer_log_lie() -> None:
    original = SimDisk()
    truth = consumer_log(original)
    (path,) = original.names_now
    for offset in places(original.names_now[path].content):
        disk = copy(original)
        disk.names_now[path].content[offset] ^= 1 << offset % 8
        log, states, found = open_consumer_log(disk, "consumers")
        assert any(found) or states == {"one": truth}
        state = states.get("one", ConsumerState())
        assert state.ack_floor_stream_sequence <= truth.ack_floor_stream_sequence
        assert state.delivered_stream_sequence <= truth.delivered_stream_sequence
        log.snapshot = lambda states=states: states
        log.put("two", ConsumerState(7, 7))
        states["two"] = ConsumerState(7, 7)
        complete(log.flush())
        log.close()
        assert open_consumer_log(disk, "consumers")[1:] == (states, ([], []))
