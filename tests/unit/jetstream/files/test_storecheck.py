"""What `penstock store` finds, and what it saves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.simdisk import SimDisk

from penstock.errors import StoreError
from penstock.jetstream.files.storecheck import check, repair
from penstock.jetstream.store.file.log import FileSettings, open_file_store
from penstock.jetstream.store.file.segmentfile import segment_path
from penstock.jetstream.store.store import Store
from penstock.jetstream.store.values import complete

DIRECTORY = "streams/s/messages"
SMALL = FileSettings(segment_bytes_max=400, segment_messages_max=5, reserve_bytes=0)


def make(*, is_closed: bool = True, count: int = 23) -> SimDisk:
    disk = SimDisk()
    store, _ = open_file_store(disk, DIRECTORY, salt=5, settings=SMALL)
    for number in range(1, count + 1):
        store.append([(b"a.%d" % (number % 2), b"", b"payload %02d" % number, number)])
        complete(store.flush())
        while (work := store.maintain()) is not None:
            complete(work)
    if is_closed:
        store.close()
    return disk


def content(disk: SimDisk, number: int) -> bytearray:
    return disk.names_now[segment_path(DIRECTORY, number)].content


def reopen(disk: SimDisk) -> Store:
    return open_file_store(disk, DIRECTORY, salt=5, settings=SMALL)[0]


def sequences(store: Store) -> list[int]:
    messages, _ = store.read(1, count_max=1000, bytes_max=1 << 20)
    return [message[0] for message in messages]


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_sound_store_has_no_problems(is_closed: bool) -> None:
    report = check(make(is_closed=is_closed), DIRECTORY)
    assert report.problems == []
    assert (report.segments, report.messages) == (5, 23)
    assert (report.first_sequence, report.last_sequence) == (1, 23)


@pytest.mark.parametrize("is_closed", [True, False])
def test_repairing_a_sound_store_changes_nothing(is_closed: bool) -> None:
    disk = make(is_closed=is_closed)
    before = {path: bytes(inode.content) for path, inode in disk.names_now.items()}
    assert repair(disk, DIRECTORY) == []
    assert before == {path: bytes(inode.content) for path, inode in disk.names_now.items()}


def test_every_flipped_bit_is_found() -> None:
    original = make()
    for path, inode in original.names_now.items():
        for offset in range(len(inode.content)):
            inode.content[offset] ^= 4
            assert check(original, DIRECTORY).problems, f"{path} {offset}"
            inode.content[offset] ^= 4
    assert check(original, DIRECTORY).problems == []


def break_header_and_records(disk: SimDisk) -> None:
    content(disk, 2)[:] = b"rubbish" * 50


def mix_up_files(disk: SimDisk) -> None:
    content(disk, 3)[:] = content(disk, 2)


@pytest.mark.parametrize(
    ("damage", "left"),
    [(break_header_and_records, {*range(1, 6), *range(11, 24)}), (mix_up_files, None)],
)
def test_what_opening_refuses_is_set_aside(
    damage: Callable[[SimDisk], None], left: set[int] | None
) -> None:
    disk = make()
    damage(disk)
    with pytest.raises(StoreError, match="hint:"):
        reopen(disk)
    assert check(disk, DIRECTORY).problems
    done = repair(disk, DIRECTORY)
    assert "set aside" in done[0]
    assert any(name.endswith(".lost") for name in disk.names(DIRECTORY))
    found = sequences(reopen(disk))
    assert set(found) == (left or {*range(1, 11), *range(16, 24)})


def test_messages_behind_damage_in_the_last_segment_are_saved() -> None:
    disk = make(is_closed=False)
    last = content(disk, 5)
    last[bytes(last).index(b"payload 22")] ^= 1
    original = bytes(last)
    done = repair(disk, DIRECTORY)
    assert "2 messages saved" in done[0]
    assert bytes(disk.names_now[segment_path(DIRECTORY, 5) + ".lost"].content) == original
    store = reopen(disk)
    assert sequences(store) == [*range(1, 22), 23]
    assert store.last_sequence == 23
    assert store.append([(b"a", b"", b"new", 99)]) == 24


def test_what_was_never_synced_is_cut_off_at_a_damage_but_kept_aside() -> None:
    disk = make(is_closed=False, count=21)
    store = reopen(disk)
    for number in (22, 23):
        store.append([(b"a.1", b"", b"payload %02d" % number, number)])
    store.flush()
    last = content(disk, 5)
    last[bytes(last).index(b"payload 22")] ^= 1
    store, found = open_file_store(disk, DIRECTORY, salt=5, settings=SMALL)
    assert sequences(store) == list(range(1, 22))
    assert "set aside" in found.notes[0]
    assert b"payload 23" in disk.names_now[segment_path(DIRECTORY, 5) + ".lost"].content


def test_a_damaged_trailer_is_taken_off() -> None:
    disk = make()
    data = content(disk, 2)
    data[-70] ^= 1
    assert "trailer" in check(disk, DIRECTORY).problems[0]
    assert "trailer was taken off" in repair(disk, DIRECTORY)[0]
    store = reopen(disk)
    assert sequences(store) == list(range(1, 24))
    while (work := store.maintain()) is not None:
        complete(work)
    store.close()
    assert check(disk, DIRECTORY).problems == []
