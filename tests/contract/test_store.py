"""What every store promises, whatever it keeps messages in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.work import returned

from penstock.jetstream.store.file.disk import RealDisk
from penstock.jetstream.store.file.log import FileSettings, open_file_store
from penstock.jetstream.store.memory import open_memory_store
from penstock.jetstream.store.store import Store
from penstock.jetstream.store.values import Entry, StoreLimits, complete

SECOND = 1_000_000_000
SMALL = FileSettings(segment_bytes_max=512, index_bytes_max=1, tail_bytes_max=64, files_max=2)

Open = Callable[..., Store]


def entry(number: int, subject: bytes = b"", headers: bytes = b"", payload: bytes = b"") -> Entry:
    return (
        subject or b"orders.%d" % (number % 3),
        headers,
        payload or b"%d" % number,
        number * SECOND,
    )


def fill(store: Store, count: int, *, batch: int = 3) -> None:
    first = store.last_sequence + 1
    for start in range(first, first + count, batch):
        store.append([entry(number) for number in range(start, min(start + batch, first + count))])
        settle(store)


def settle(store: Store) -> None:
    """Do what the server does between ticks, until there is nothing left to do."""
    while (work := store.flush()) is not None:
        complete(work)
    while (work := store.maintain()) is not None:
        complete(work)


def numbers(store: Store, first: int = 1, **options: object) -> list[int]:
    """Return the sequences of all messages from one on, whatever it takes to read them."""
    found: list[int] = []
    bounds: dict[str, object] = {"count_max": 7, "bytes_max": 1 << 20, **options}
    while first <= store.last_sequence:
        messages, following = store.read(first, **bounds)  # type: ignore[arg-type]
        assert following > first
        found += [message[0] for message in messages]
        first = following
    return found


@pytest.fixture(params=["file", "tiny segments", "compressed", "memory", "tiny blocks"])
def open_store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Open]:
    opened: list[Store] = []
    if request.param == "tiny blocks":
        monkeypatch.setattr("penstock.jetstream.store.memory.BLOCK_MESSAGES_MAX", 8)

    def open_it(**limits: int) -> Store:
        wanted = StoreLimits(**limits, compresses=request.param == "compressed")
        if request.param in ("memory", "tiny blocks"):
            store: Store = open_memory_store(limits=wanted)
        else:
            settings = None if request.param == "file" else SMALL
            path = str(tmp_path / "stream")
            store, notes = open_file_store(RealDisk(), path, limits=wanted, settings=settings)
            assert notes == ([], [])
        opened.append(store)
        return store

    yield open_it
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: Open) -> Store:
    return open_store()


def test_a_new_store_is_empty(store: Store) -> None:
    assert (store.first_sequence, store.last_sequence, store.messages) == (1, 0, 0)
    assert store.get(1) is None
    assert store.last(b"orders.1") == (0, 0)
    assert store.read(1, count_max=10, bytes_max=100) == ([], 1)
    assert store.state().first_time_ns == 0
    assert store.subjects() == []


def test_what_is_appended_can_be_read_at_once(store: Store) -> None:
    assert store.append([entry(1), entry(2, headers=b"NATS/1.0\r\nA: b\r\n\r\n")]) == 1
    assert store.append([entry(3)]) == 3
    assert store.get(2) == (2, 2 * SECOND, b"orders.2", b"NATS/1.0\r\nA: b\r\n\r\n", b"2")
    assert store.read(1, count_max=9, bytes_max=999)[1] == 4
    assert [m[4] for m in store.read(1, count_max=9, bytes_max=999)[0]] == [b"1", b"2", b"3"]


def test_appending_nothing_changes_nothing(store: Store) -> None:
    assert store.append([]) == 1
    assert store.last_sequence == 0


def test_what_is_synced_is_durable(store: Store) -> None:
    fill(store, 50)
    assert store.durable_sequence == store.last_sequence == 50
    assert store.dirty_bytes == 0
    assert store.failure is None


def test_empty_payloads_and_large_ones_come_back_as_they_were(store: Store) -> None:
    large = bytes(range(256)) * 5000
    store.append([(b"a", b"", b"", 1), (b"b", b"H" * 60_000, large, 2), (b"c", b"H", b"", 3)])
    settle(store)
    assert store.get(1) == (1, 1, b"a", b"", b"")
    assert store.get(2) == (2, 2, b"b", b"H" * 60_000, large)
    assert store.get(3) == (3, 3, b"c", b"H", b"")


def test_a_read_stops_at_its_count(store: Store) -> None:
    fill(store, 30)
    messages, following = store.read(5, count_max=10, bytes_max=1 << 20)
    assert [m[0] for m in messages] == list(range(5, 15))
    assert following == 15


def test_a_read_stops_at_its_bytes_but_returns_at_least_one(store: Store) -> None:
    fill(store, 30)
    size = store.size_bytes // 30
    messages, following = store.read(1, count_max=10, bytes_max=1)
    assert ([m[0] for m in messages], following) == ([1], 2)
    messages, following = store.read(1, count_max=10, bytes_max=4 * size)
    assert ([m[0] for m in messages], following) == ([1, 2, 3, 4], 5)


def test_a_read_stops_at_its_last_sequence(store: Store) -> None:
    fill(store, 30)
    messages, following = store.read(25, count_max=10, bytes_max=9999, last_sequence=27)
    assert ([m[0] for m in messages], following) == ([25, 26, 27], 28)


def test_filters_choose_by_subject(store: Store) -> None:
    fill(store, 60)
    assert numbers(store, filters=(b"orders.1",)) == list(range(1, 61, 3))
    assert numbers(store, filters=(b"orders.*",)) == list(range(1, 61))
    assert numbers(store, filters=(b"orders.0", b"orders.2")) == [
        n for n in range(1, 61) if n % 3 != 1
    ]
    assert numbers(store, filters=(b"other.>",)) == []


def test_the_last_of_a_subject_is_known(store: Store) -> None:
    fill(store, 20)
    assert store.last(b"orders.0") == (18, 6)
    assert store.last(b"orders.1") == (19, 7)
    assert store.last(b"orders.9") == (0, 0)
    assert sorted(store.subjects(b"orders.*")) == [
        (b"orders.0", 18, 6),
        (b"orders.1", 19, 7),
        (b"orders.2", 20, 7),
    ]
    assert store.subjects(b"orders.2") == [(b"orders.2", 20, 7)]


def test_removing_the_last_of_a_subject_uncovers_the_one_before(store: Store) -> None:
    fill(store, 20)
    assert store.remove([19, 16]) == 2
    assert store.last(b"orders.1") == (13, 5)


def test_removed_messages_are_gone_and_counted(store: Store) -> None:
    fill(store, 30)
    before = store.removals
    assert store.remove([2, 3, 10, 10, 99]) == 3
    assert store.remove([10]) == 0
    assert store.removals != before
    settle(store)
    assert store.get(10) is None
    assert numbers(store) == [n for n in range(1, 31) if n not in (2, 3, 10)]
    assert store.deleted(100) == [2, 3, 10]
    assert store.deleted(2) == [2, 3]
    state = store.state()
    assert (state.messages, state.deleted, state.first_sequence) == (27, 3, 1)


def test_removing_the_first_moves_the_front(store: Store) -> None:
    fill(store, 30)
    store.remove(range(1, 20))
    settle(store)
    assert store.first_sequence == 20
    assert store.state().first_time_ns == 20 * SECOND
    assert store.deleted(10) == []


def test_size_goes_back_to_nothing(store: Store) -> None:
    fill(store, 30)
    store.remove(range(1, 31))
    settle(store)
    assert (store.messages, store.size_bytes, store.first_sequence) == (0, 0, 31)
    assert store.subjects() == []
    fill(store, 1)
    assert numbers(store) == [31]


def test_a_purge_takes_everything(store: Store) -> None:
    fill(store, 30)
    assert store.purge() == 30
    settle(store)
    state = store.state()
    assert (state.messages, state.first_sequence, state.last_sequence) == (0, 31, 30)
    assert state.last_time_ns == 30 * SECOND
    assert numbers(store) == []


def test_a_purge_by_pattern_leaves_the_others(store: Store) -> None:
    fill(store, 30)
    assert store.purge(b"orders.1") == 10
    settle(store)
    assert numbers(store) == [n for n in range(1, 31) if n % 3 != 1]
    assert store.last(b"orders.1") == (0, 0)
    assert store.first_sequence == 2


@pytest.mark.parametrize("per_subject_max", [0, 3])
@pytest.mark.parametrize("times", [1, 2])
def test_a_purge_of_a_few_subjects_among_many_finds_them(
    times: int, per_subject_max: int, open_store: Open
) -> None:
    store = open_store(messages_per_subject_max=per_subject_max)
    subjects = [b"key.%d.%d" % (n % 25, n) for n in range(100)] * times
    for number, subject in enumerate(subjects, 1):
        store.append([entry(number, subject)])
    settle(store)
    gone = [n for n, subject in enumerate(subjects, 1) if subject.startswith(b"key.7.")]

    assert store.purge(b"key.7.*", before=gone[-1]) == len(gone) - 1
    settle(store)

    assert store.messages == len(subjects) - len(gone) + 1
    assert [each[2] for each in store.subjects(b"key.7.*")] == [1]
    assert store.purge(b"key.7.*") == 1
    assert store.last(b"key.7.7") == (0, 0)


def purge_but(store: Store, pattern: bytes, keep: int) -> int:
    """Purge all that matches but the last `keep`."""
    before = returned(store.keeping(pattern, keep))
    return store.purge(pattern, before=before) if before else 0


def test_a_purge_keeps_as_many_as_told(store: Store) -> None:
    fill(store, 30)
    assert purge_but(store, b">", 4) == 26
    assert numbers(store) == [27, 28, 29, 30]
    assert purge_but(store, b">", 4) == 0


def test_a_purge_by_pattern_keeps_the_last_of_it(store: Store) -> None:
    fill(store, 30)
    assert purge_but(store, b"orders.1", 2) == 8
    assert numbers(store, filters=(b"orders.1",)) == [25, 28]
    assert purge_but(store, b"orders.1", 2) == 0
    assert purge_but(store, b"*.1", 1) == 1
    assert numbers(store, filters=(b"orders.1",)) == [28]


def test_a_purge_stops_below_a_sequence(store: Store) -> None:
    fill(store, 30)
    assert store.purge(before=11) == 10
    assert store.first_sequence == 11
    assert store.purge(b"orders.2", before=20) == 3
    assert numbers(store, filters=(b"orders.2",)) == [20, 23, 26, 29]


def test_a_purge_above_the_end_moves_the_next_sequence(store: Store) -> None:
    fill(store, 5)
    assert store.purge(before=100) == 5
    settle(store)
    assert (store.first_sequence, store.last_sequence) == (100, 99)
    assert store.append([entry(7)]) == 100
    settle(store)
    assert numbers(store) == [100]


def test_pending_messages_are_counted(store: Store) -> None:
    fill(store, 60)
    store.remove([30, 31, 32])
    expected = [n for n in range(1, 61) if n not in (30, 31, 32)]
    for first in (0, 1, 2, 29, 30, 31, 33, 59, 60, 61, 99):
        assert store.count(first) == len([n for n in expected if n >= first])
        ones = [n for n in expected if n >= first and n % 3 == 1]
        assert store.count(first, (b"orders.1",)) == len(ones)
        assert store.count(first, (b"*.1", b"orders.7")) == len(ones)


def test_messages_are_found_by_time(store: Store) -> None:
    fill(store, 40)
    store.remove([20, 21])
    assert store.sequence_at(0) == 1
    assert store.sequence_at(17 * SECOND) == 17
    assert store.sequence_at(17 * SECOND + 1) == 18
    assert store.sequence_at(20 * SECOND) == 22
    assert store.sequence_at(41 * SECOND) == 41


def test_a_limit_on_messages_drops_the_oldest(open_store: Open) -> None:
    store = open_store(messages_max=10)
    fill(store, 45, batch=7)
    assert numbers(store) == list(range(36, 46))
    assert store.state().messages == 10
    assert sum(count for _, _, count in store.subjects()) == 10


def test_a_batch_larger_than_the_limit_keeps_its_end(open_store: Open) -> None:
    store = open_store(messages_max=3)
    store.append([entry(number) for number in range(1, 11)])
    assert numbers(store) == [8, 9, 10]


def test_a_limit_on_bytes_drops_the_oldest(open_store: Open) -> None:
    store = open_store()
    store.append([entry(10)])
    size = store.size_bytes
    store.limits = StoreLimits(bytes_max=5 * size + 1)
    for number in range(11, 40):
        store.append([entry(number)])
        settle(store)
    assert store.messages == 5
    assert store.size_bytes == 5 * size


def test_a_limit_on_age_drops_what_is_too_old(open_store: Open) -> None:
    store = open_store(age_ns_max=10 * SECOND)
    fill(store, 30)
    assert store.enforce(35 * SECOND) == 24
    assert store.first_sequence == 25
    assert store.enforce(60 * SECOND) == 6
    assert (store.first_sequence, store.last_sequence) == (31, 30)


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_a_limit_per_subject_drops_the_oldest_of_it(open_store: Open, keep: int) -> None:
    store = open_store(messages_per_subject_max=keep)
    fill(store, 50, batch=4)
    store.append([entry(51), entry(51), entry(51)])
    settle(store)
    counts = {subject: count for subject, _, count in store.subjects()}
    assert counts == {b"orders.0": keep, b"orders.1": keep, b"orders.2": keep}
    assert len(numbers(store)) == 3 * keep
    assert store.last(b"orders.0") == (53, keep)
    assert len(numbers(store, filters=(b"orders.1",))) == keep


def test_a_limit_per_subject_can_be_set_changed_and_lifted(open_store: Open) -> None:
    store = open_store()
    fill(store, 30)
    store.limits = StoreLimits(messages_per_subject_max=4)
    assert store.enforce(0) == 0
    assert numbers(store) == list(range(19, 31))
    store.limits = StoreLimits(messages_per_subject_max=2)
    assert len(numbers(store)) == 6
    store.limits = StoreLimits()
    assert store.enforce(0) == 0
    fill(store, 6)
    assert len(numbers(store)) == 12
    assert store.last(b"orders.0") == (36, 4)


def test_limits_that_are_lowered_take_effect_when_enforced(open_store: Open) -> None:
    store = open_store()
    fill(store, 30)
    store.limits = StoreLimits(messages_max=5)
    assert store.enforce(0) == 25
    assert numbers(store) == [26, 27, 28, 29, 30]


def test_an_unfindable_filter_gives_up_for_now(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.jetstream.store.reading.MATCHED_MAX", 10)
    fill(store, 30)
    messages, following = store.read(1, count_max=5, bytes_max=999, filters=(b"other.*",))
    assert messages == []
    assert following == 11
    assert numbers(store, filters=(b"orders.2",)) == list(range(2, 31, 3))


def test_single_subjects_are_found_without_a_search(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.jetstream.store.reading.MATCHED_MAX", 10)
    fill(store, 30)
    store.append([(b"one", b"", b"", 1), (b"two", b"", b"", 1)])
    fill(store, 30)
    bounds = {"count_max": 5, "bytes_max": 999}

    assert store.read(1, filters=(b"other",), **bounds) == ([], 63)
    for filters in ((b"two", b"one"), (b"one", b"two", b"other")):
        messages, following = store.read(1, filters=filters, **bounds)
        assert [message[0] for message in messages] == [31, 32]
        assert store.read(following, filters=filters, **bounds) == ([], 63)
    assert store.read(1, filters=(b"two",), last_sequence=31, **bounds) == ([], 32)
    assert store.read(1, filters=(b"two",), **bounds) == ([(32, 1, b"two", b"", b"")], 63)
    assert store.read(62, filters=(b"other.*",), **bounds) == ([], 63)
    assert [message[0] for message in store.read(62, filters=(b"orders.*",), **bounds)[0]] == [62]


def test_hot_keys_among_cold_ones_leave_no_litter(open_store: Open) -> None:
    """A cold key every now and then must not keep alive everything around it."""
    store = open_store(messages_per_subject_max=1)
    for number in range(400):
        store.append([entry(number, b"cold.%d" % number)] if number % 40 == 0 else [entry(number)])
        settle(store)
    assert store.messages == 10 + 3
    assert len(store.subjects(b"cold.*")) == 10
    assert len(store._catalog.blocks) < 8  # type: ignore[attr-defined]
    for subject, sequence, _ in store.subjects():
        message = store.get(sequence)
        assert message is not None
        assert message[2] == subject


@pytest.mark.parametrize("count", [1, 10, 1001])
def test_sequences_can_be_skipped(open_store: Open, count: int) -> None:
    store = open_store(messages_max=5)
    fill(store, 4)
    store.skip(count)
    assert numbers(store) == [1, 2, 3, 4]
    assert store.last_sequence == 4 + count
    fill(store, 2)
    store.skip(2)

    assert numbers(store) == [2, 3, 4, 5 + count, 6 + count]
    assert store.last_sequence == 8 + count
    assert store.deleted(2000) == [*range(5, 5 + count), 7 + count, 8 + count]
    assert store.state().lost == 0
    assert {subject for subject, _, _ in store.subjects()} <= {b"orders.%d" % n for n in range(3)}
