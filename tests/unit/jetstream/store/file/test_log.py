"""What a file store does beside what every store does: files, restarts, erasure."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.simdisk import SimDisk
from tests.work import returned

from penstock.errors import StoreError
from penstock.hot.records import RECORD_BYTES_MIN
from penstock.jetstream.store.file.disk import RealDisk
from penstock.jetstream.store.file.log import FileSettings, open_file_store
from penstock.jetstream.store.file.segment import HEADER_BYTES
from penstock.jetstream.store.store import Store
from penstock.jetstream.store.values import Entry, Message, StoreLimits, complete

DIRECTORY = "streams/s"
SMALL = FileSettings(
    segment_bytes_max=600, segment_messages_max=10, index_bytes_max=1, reserve_bytes=0
)
LARGE = FileSettings(reserve_bytes=0)


def open_it(disk: SimDisk, *, settings: FileSettings = SMALL, **limits: int) -> Store:
    store, found = open_file_store(
        disk, DIRECTORY, salt=5, settings=settings, limits=StoreLimits(**limits)
    )
    assert found == ([], [])
    return store


def entries(first: int, count: int, size: int = 20) -> list[Entry]:
    return [(b"a.%d" % (n % 4), b"", b"%0*d" % (size, n), n) for n in range(first, first + count)]


def settle(store: Store) -> None:
    while (work := store.flush()) is not None:
        complete(work)
    while (work := store.maintain()) is not None:
        complete(work)


def everything(store: Store) -> list[Message]:
    found: list[Message] = []
    sequence = 1
    while sequence <= store.last_sequence:
        messages, sequence = store.read(sequence, count_max=100, bytes_max=1 << 20)
        found += messages
    return found


def fill(store: Store, count: int) -> None:
    for first in range(1, count + 1, 5):
        store.append(entries(first, 5))
        settle(store)


def test_a_gap_too_wide_to_list_survives_a_crash_before_anything_is_sealed() -> None:
    disk = SimDisk()
    store = open_it(disk)
    store.append(entries(1, 3))
    store.skip(10**12)
    store.append(entries(4, 1))
    while (work := store.flush()) is not None:
        complete(work)
    store = open_it(disk.crash())

    assert [message[0] for message in everything(store)] == [1, 2, 3, 10**12 + 4]
    assert store.state().lost == 0


@pytest.mark.parametrize("per_subject", [0, 1, 3])
@pytest.mark.parametrize("is_closed", [True, False])
def test_a_restart_changes_nothing(is_closed: bool, per_subject: int) -> None:
    disk = SimDisk()
    store = open_it(disk, messages_per_subject_max=per_subject)
    fill(store, 60)
    store.remove([30, 31, 55])
    store.purge(b"a.1", before=returned(store.keeping(b"a.1", 1)))
    settle(store)
    before = (store.state(), everything(store), sorted(store.subjects()), store.deleted(99))
    if is_closed:
        store.close()
    store = open_it(disk, messages_per_subject_max=per_subject)
    assert before == (
        store.state(),
        everything(store),
        sorted(store.subjects()),
        store.deleted(99),
    )
    assert store.durable_sequence == 60
    assert store.append(entries(61, 1)) == 61


def test_a_store_can_be_closed_and_opened_many_times_without_growing() -> None:
    disk = SimDisk()
    for number in range(1, 30):
        store = open_it(disk, settings=LARGE)
        assert store.append(entries(number, 1)) == number
        store.close()
    assert disk.names(DIRECTORY) == ["0000000000000001.seg"]
    assert len(everything(open_it(disk, settings=LARGE))) == 29


def test_the_last_sequence_survives_a_purge_and_a_restart() -> None:
    disk = SimDisk()
    store = open_it(disk)
    fill(store, 40)
    store.purge()
    settle(store)
    store.close()
    store = open_it(disk)
    state = store.state()
    assert (state.first_sequence, state.last_sequence, state.messages) == (41, 40, 0)
    assert state.last_time_ns == 40
    assert store.append(entries(41, 1)) == 41


def test_a_torn_trailer_behind_a_purge_that_skipped_sequences_is_no_loss() -> None:
    disk = SimDisk()
    store = open_it(disk)
    store.append(entries(1, 5))
    complete(store.flush())
    store.purge(before=9)
    complete(store.flush())
    store.append(entries(9, 1))
    complete(store.flush())
    complete(store.flush())
    disk.names_now[f"{DIRECTORY}/0000000000000001.seg"].content += b"torn"

    again, _ = open_file_store(disk, DIRECTORY, salt=5, settings=SMALL)

    assert (0, 1, 9) == (again.lost, again.messages, again.last_sequence)


def test_segments_of_which_nothing_is_left_are_removed() -> None:
    disk = SimDisk()
    store = open_it(disk, messages_max=8)
    fill(store, 200)
    assert len(disk.names(DIRECTORY)) <= 3
    assert store.messages == 8


def test_segments_with_holes_are_written_again_without_them() -> None:
    disk = SimDisk()
    store = open_it(disk)
    fill(store, 200)
    before = disk.used_bytes
    store.remove(n for n in range(1, 201) if n % 10)
    settle(store)
    assert disk.used_bytes < before / 3
    assert [message[0] for message in everything(store)] == list(range(10, 201, 10))
    store.close()
    store = open_it(disk)
    assert [message[0] for message in everything(store)] == list(range(10, 201, 10))
    assert store.count(95, (b"a.2",)) == len([n for n in range(100, 201, 10) if n % 4 == 2])
    assert store.sequence_at(95) == 100
    assert store.last(b"a.2") == (190, 10)


def test_the_only_segment_with_messages_is_missed() -> None:
    disk = SimDisk()
    store = open_it(disk)
    store.append(entries(1, 5, size=200))
    settle(store)
    store.remove([2])
    settle(store)
    store.close()
    names = [name for name in disk.names(DIRECTORY) if name.endswith(".seg")]
    assert len(names) == 2
    disk.remove(f"{DIRECTORY}/{names[0]}")

    store, found = open_file_store(disk, DIRECTORY, salt=5, settings=SMALL)

    assert found.faults == [f"`{DIRECTORY}`: messages 1 to 5 are missing"]
    assert (store.messages, store.last_sequence) == (0, 5)


def test_a_purge_up_to_the_front_removes_nothing() -> None:
    store = open_it(SimDisk())
    store.append(entries(1, 8))
    store.remove([1, 2, 3, 6])
    for before in range(1, 5):
        assert sum(store.purge_in_portions(b">", before=before)) == 0
    assert sum(store.purge_in_portions(b">", before=6)) == 2
    assert [message[0] for message in everything(store)] == [7, 8]


@pytest.mark.parametrize("is_read", [False, True], ids=["by compaction", "by a reader"])
def test_a_compaction_costs_nothing_but_what_was_damaged(is_read: bool) -> None:
    disk = SimDisk()
    store = open_it(disk)
    fill(store, 30)
    content = disk.names_now[f"{DIRECTORY}/{1:016}.seg"].content
    content[content.index(b"%020d" % 5)] ^= 1
    store.remove([2, 3, 4, 6, 7, 8])
    complete(store.flush())
    work = store.maintain()
    assert work is not None
    work.run()
    assert not is_read or store.get(5) is None
    work.finish()
    settle(store)

    left = [1, *range(9, 31)]
    assert [(message[0], int(message[4])) for message in everything(store)] == [
        (n, n) for n in left
    ]
    assert (store.messages, store.lost) == (len(left), 1)


def test_what_is_removed_while_a_segment_is_compacted_stays_removed() -> None:
    disk = SimDisk()
    store = open_it(disk)
    fill(store, 30)
    store.remove([2, 3, 4, 5, 6, 7, 8])
    complete(store.flush())
    work = store.maintain()
    assert work is not None
    store.remove([9, 12])
    work.run()
    work.finish()
    assert [m[0] for m in everything(store)] == [1, 10, 11, *range(13, 31)]
    settle(store)
    store.close()
    assert [m[0] for m in everything(open_it(disk))] == [1, 10, 11, *range(13, 31)]


def test_a_compaction_waits_for_what_replaced_the_messages() -> None:
    """Else a power cut could take the old value and the new one."""
    disk = SimDisk()
    store = open_it(disk, messages_per_subject_max=1)
    store.append([(b"k.%d" % n, b"", b"old", 1) for n in range(10)])
    settle(store)
    store.append([(b"k.%d" % n, b"", b"new", 2) for n in range(9)])
    complete(store.maintain())
    after = disk.crash()
    recovered, _ = open_file_store(after, DIRECTORY, limits=store.limits, settings=SMALL)
    assert {message[2] for message in everything(recovered)} == {b"k.%d" % n for n in range(10)}


def test_an_erased_message_leaves_the_disk() -> None:
    disk = SimDisk()
    store = open_it(disk)
    store.append([(b"a", b"", b"secret", 1), (b"a", b"", b"public", 2)])
    settle(store)
    assert on_disk(disk, b"secret")
    store.remove([1], erase=True)
    settle(store)
    assert not on_disk(disk, b"secret")
    assert on_disk(disk, b"public")


def test_an_erasure_is_not_forgotten_in_a_crash() -> None:
    disk = SimDisk()
    store = open_it(disk)
    fill(store, 30)
    store.remove([7], erase=True)
    complete(store.flush())
    store = open_it(disk)
    assert on_disk(disk, b"%020d" % 7)
    settle(store)
    assert not on_disk(disk, b"%020d" % 7)
    assert on_disk(disk, b"%020d" % 8)


def test_a_removed_message_does_not_come_back_when_its_removal_is_compacted_away() -> None:
    """The removal lies in a newer segment than the message; that one may go first."""
    disk = SimDisk()
    store = open_it(disk)
    fill(store, 30)
    store.remove([3])
    store.append(entries(31, 10))
    settle(store)
    store.remove(range(25, 41))
    settle(store)
    store.close()
    store = open_it(disk)
    assert store.get(3) is None
    assert [m[0] for m in everything(store)] == [n for n in range(1, 25) if n != 3]


def test_sync_at_intervals_covers_what_was_written_until_then() -> None:
    disk = SimDisk()
    store = open_it(disk, settings=LARGE)
    store.append(entries(1, 1))
    work = store.flush()
    assert work is not None
    store.append(entries(2, 1))
    assert store.flush() is None
    complete(work)
    assert store.durable_sequence == 2


def test_messages_far_apart_are_read_one_by_one() -> None:
    disk = SimDisk()
    store = open_it(disk, settings=LARGE)
    store.append([(b"a.%d" % (n % 3), b"", b"%d" % n + b"x" * 20_000, n) for n in range(1, 20)])
    settle(store)
    messages, _ = store.read(1, count_max=9, bytes_max=1 << 20, filters=(b"a.1",))
    assert [message[0] for message in messages] == [1, 4, 7, 10, 13, 16, 19]
    assert messages[2][4] == b"7" + b"x" * 20_000


def test_a_purge_gives_back_a_large_segment_at_once() -> None:
    disk = SimDisk()
    store = open_it(disk, settings=LARGE)
    for first in range(1, 4):
        store.append(entries(first, 1, size=500_000))
        settle(store)
    store.purge()
    settle(store)
    assert disk.used_bytes < 1000
    assert store.append(entries(4, 1)) == 4


def test_a_write_that_fails_during_a_sync_is_made_good_after_it() -> None:
    disk = SimDisk()
    store = open_it(disk, settings=LARGE)
    store.append(entries(1, 1))
    work = store.flush()
    store.append(entries(2, 1))
    disk.fault_rate = 1.0
    assert store.flush() is None
    assert store.failure is not None
    assert store.flush() is None
    disk.fault_rate = 0.0
    complete(work)
    assert store.durable_sequence == 1
    assert store.failure is not None
    complete(store.flush())
    assert store.failure is None
    assert store.durable_sequence == 2
    assert [message[0] for message in everything(store)] == [1, 2]


def test_under_load_segments_are_sealed_along_with_syncs() -> None:
    """Nobody finds a quiet moment for `maintain`: memory and disk must stay level."""
    disk = SimDisk()
    store = open_it(disk, messages_max=100)
    for first in range(1, 3000, 5):
        store.append(entries(first, 5))
        complete(store.flush())
    pinned = [block for block in store._catalog.blocks if block.places is not None]
    assert len(pinned) < 8
    assert len(disk.names(DIRECTORY)) < 25


def test_memory_for_finding_messages_is_bounded() -> None:
    disk = SimDisk()
    store = open_it(disk)
    fill(store, 300)
    everything(store)
    loaded = [block for block in store._catalog.blocks if block.places is not None]
    assert len(loaded) <= 3
    assert len(store._catalog.blocks) > 20


def test_a_store_on_a_read_only_directory_refuses_and_says_why(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    store, _ = open_file_store(RealDisk(), path, settings=LARGE)
    os.rmdir(path)
    store.append(entries(1, 1))
    assert store.flush() is None
    assert store.failure is not None
    assert "No such file" in store.failure
    with pytest.raises(StoreError, match="cannot store messages"):
        store.append(entries(2, 1))
    os.mkdir(path)
    complete(store.flush())
    assert store.failure is None
    assert store.durable_sequence == 1
    store.close()


def test_closing_a_store_that_cannot_write_says_so() -> None:
    disk = SimDisk()
    store = open_it(disk)
    store.append(entries(1, 1))
    disk.fault_rate = 1.0
    with pytest.raises(StoreError, match="Input/output error"):
        store.close()


def test_segments_of_another_store_are_noticed() -> None:
    disk = SimDisk()
    store = open_it(disk)
    fill(store, 20)
    store.close()
    first, second, *_ = disk.names(DIRECTORY)
    disk.names_now[f"{DIRECTORY}/{second}"] = disk.names_now[f"{DIRECTORY}/{first}"]
    with pytest.raises(StoreError, match="hint:"):
        open_file_store(disk, DIRECTORY, salt=5, settings=SMALL)


def on_disk(disk: SimDisk, text: bytes) -> bool:
    return any(text in inode.content for inode in disk.names_now.values())


def test_a_crash_at_any_byte_leaves_a_rollup_and_what_it_replaces_together() -> None:
    disk = SimDisk()
    store = open_it(disk, settings=LARGE)
    store.append(entries(1, 4))
    settle(store)
    path = f"{DIRECTORY}/{1:016d}.seg"
    before = disk.names_now[path].content[:]
    store.append([(b"a.9", b"NATS/1.0\r\nNats-Rollup: all\r\n\r\n", b"new", 9)], replaces=True)
    store.purge(b">", before=5)
    store.flush()
    content = disk.names_now[path].content[:]

    outcomes = set()
    for end in range(len(before), len(content) + 1):
        after = SimDisk()
        after.make_directory(DIRECTORY)
        file = after.create(path)
        file.write(bytes(content[:end]), 0)
        reopened, _ = open_file_store(after, DIRECTORY, salt=5, settings=LARGE)
        outcomes.add(tuple(message[0] for message in everything(reopened)))

    assert outcomes == {(1, 2, 3, 4), (5,)}


def test_a_rollup_that_replaces_nothing_is_complete_too() -> None:
    disk = SimDisk()
    store = open_it(disk, settings=LARGE)
    store.append(entries(1, 1), replaces=True)
    store.append(entries(2, 1), replaces=True)
    settle(store)
    store.append(entries(3, 1))
    settle(store)

    assert [message[0] for message in everything(open_it(disk.crash(), settings=LARGE))] == [
        1,
        2,
        3,
    ]


def test_nothing_is_written_between_a_rollup_and_what_it_replaces() -> None:
    disk = SimDisk()
    store = open_it(disk, settings=FileSettings(reserve_bytes=0, write_ahead_bytes=1))
    store.append(entries(1, 4))
    sync = store.flush()
    store.append(entries(9, 1), replaces=True)
    complete(sync)
    survivors = everything(open_file_store(disk.crash(), DIRECTORY, salt=5)[0])
    store.purge(b">", before=5)
    settle(store)

    assert [message[0] for message in survivors] == [1, 2, 3, 4]
    assert [message[0] for message in everything(open_it(disk.crash(), settings=LARGE))] == [5]


def killed(*, damaged_at: int | None = None) -> tuple[Store, list[str], int]:
    """
    Return a store after a kill, with one bit of its only segment flipped, and the file's size.

    It had twelve messages, of which the third and the tenth were deleted.
    """
    disk = SimDisk()
    store = open_it(disk, settings=LARGE)
    for number in range(1, 13):
        store.append(entries(number, 1))
        settle(store)
        if number in (4, 11):
            store.remove([number - 1])
            settle(store)
    content = disk.names_now[f"{DIRECTORY}/{1:016d}.seg"].content
    if damaged_at is not None:
        content[damaged_at] ^= 8
    reopened, found = open_file_store(disk, DIRECTORY, salt=5, settings=LARGE)
    return reopened, found.faults + found.notes, len(content)


def test_a_flipped_bit_costs_what_it_hits_and_nothing_behind_it() -> None:
    whole, notes, size = killed()
    kept = {message[0] for message in everything(whole)}
    assert (kept, notes) == (set(range(1, 13)) - {3, 10}, [])

    for offset in range(HEADER_BYTES, size):
        store, notes, _ = killed(damaged_at=offset)
        found = {message[0] for message in everything(store)}
        # Which messages were deleted is known unless that very record is damaged.
        assert len(found ^ kept) <= 1, offset
        assert notes or size - offset <= RECORD_BYTES_MIN, offset
        lost = len(kept - found)
        assert store.state().lost >= lost, offset
        assert store.append(entries(20, 1)) == 13, offset


def test_a_store_goes_on_behind_damage_and_survives_the_next_crash() -> None:
    disk = SimDisk()
    store = open_it(disk, settings=LARGE)
    fill(store, 20)
    content = disk.names_now[f"{DIRECTORY}/{1:016d}.seg"].content
    content[bytes(content).index(b"%020d" % 7)] ^= 1
    store, found = open_file_store(disk, DIRECTORY, salt=5, settings=LARGE)
    assert "damaged" in found.faults[0]
    store.append(entries(21, 5))
    settle(store)
    after, _ = open_file_store(disk.crash(), DIRECTORY, salt=5, settings=LARGE)

    assert [message[0] for message in everything(after)] == [*range(1, 7), *range(8, 26)]


@pytest.mark.parametrize("capacity", range(0, 200, 10))
def test_a_mark_that_finds_no_room_is_left_out(capacity: int) -> None:
    disk = SimDisk()
    store = open_it(disk, settings=LARGE)
    store.append(entries(1, 1))
    complete(store.flush())
    disk.capacity_bytes = disk.used_bytes + capacity
    store.append(entries(2, 1))
    complete(store.flush())
    disk.capacity_bytes = None
    settle(store)
    settle(store)

    assert store.failure is None
    assert len(everything(open_it(disk.crash(), settings=LARGE))) == 2
