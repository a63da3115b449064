"""
A store on a disk that crashes, fails and runs full, thousands of times.

Each round is a seed: a random history of a store on a simulated disk, power cuts
included. A model beside it knows what was promised.
"""

from __future__ import annotations

import errno
import os
import random
from contextlib import suppress
from dataclasses import replace

import pytest
from tests.simdisk import SimDisk
from tests.work import returned

from penstock.errors import StoreError
from penstock.jetstream.store.file.log import FileSettings, open_file_store
from penstock.jetstream.store.store import VOID, Store
from penstock.jetstream.store.values import Entry, Message, StoreLimits, complete

pytestmark = pytest.mark.usefixtures("each_encryption")

DIRECTORY = "streams/s"
SETTINGS = FileSettings(
    segment_bytes_max=700,
    segment_messages_max=12,
    index_bytes_max=600,
    tail_bytes_max=200,
    write_ahead_bytes=100,
    reserve_bytes=200,
)
RETREAT_SEEDS = int(os.environ.get("RETREAT_SEEDS", "60"))
FAILED_ONCE = [588, 1080, 1178, 1219, 1545]
SUBJECTS = [b"a.1", b"a.2", b"b.1", b"b.2.c"]


class History:
    """One random history, and what the store owes us because of it."""

    def __init__(self, seed: int, limits: StoreLimits, *, takes_back: bool = False) -> None:
        self.random = random.Random(seed)
        self.limits = limits
        self.takes_back = takes_back
        self.retreats = 0
        self.disk = SimDisk(seed)
        self.appended: dict[int, Message] = {}
        """What was appended under each sequence that is still valid."""
        self.removed: set[int] = set()
        """What we told it to remove: may be gone."""
        self.gone: set[int] = set()
        """What we told it to remove, and was synced: must be gone."""
        self.evicted: dict[int, int] = {}
        """What a limit dropped, and the first sequence of those it was dropped for."""
        self.batches: list[tuple[int, int]] = []
        """Atomic appends: first and last sequence."""
        self.durable = 0
        self.time_ns = 0
        self.store: Store = self.open()

    def open(self) -> Store:
        store, _ = open_file_store(
            self.disk, DIRECTORY, limits=self.limits, salt=7, settings=SETTINGS
        )
        # A skip is a record and its removal: what a crash leaves of it is no message.
        store.purge(VOID)
        store.options.takes_back = self.takes_back
        self.retreats = 0
        return store

    def entries(self) -> list[Entry]:
        chance = self.random
        made: list[Entry] = []
        for _ in range(chance.randint(1, 5)):
            self.time_ns += 1
            headers = b"NATS/1.0\r\n\r\n" if chance.random() < 0.2 else b""
            payload = chance.randbytes(chance.choice((0, 1, 10, 100)))
            made.append((chance.choice(SUBJECTS), headers, payload, self.time_ns))
        return made

    def step(self) -> None:
        """Do one random thing."""
        actions = [self.append] * 6 + [self.sync] * 4 + [self.remove, self.purge, self.maintain] * 2
        if not self.takes_back:
            # Only mirrors skip, and they have their sequences from elsewhere.
            actions.append(self.skip)
        self.random.choice(actions)()

    def append(self) -> None:
        entries = self.entries()
        is_limited = replace(self.limits, compresses=False) != StoreLimits()
        before = {message[0] for message in everything(self.store)} if is_limited else set()
        is_atomic = self.random.random() < 0.3
        try:
            first = self.store.append(entries, is_atomic=is_atomic)
        except StoreError:
            assert self.store.failure is not None
            return
        for sequence, (subject, headers, payload, time_ns) in enumerate(entries, first):
            self.appended[sequence] = (sequence, time_ns, subject, headers, payload)
        if is_atomic:
            self.batches.append((first, first + len(entries) - 1))
        if is_limited:
            before |= set(range(first, first + len(entries)))
            after = {message[0] for message in everything(self.store)}
            self.evicted |= dict.fromkeys(before - after, first)

    def skip(self) -> None:
        with suppress(StoreError):
            self.store.skip(self.random.choice((1, 3, 2000)))

    def remove(self) -> None:
        present = [message[0] for message in everything(self.store)]
        if present:
            chosen = self.random.sample(present, self.random.randint(1, min(4, len(present))))
            erase = self.random.random() < 0.3
            try:
                assert self.store.remove(chosen, erase=erase) == len(chosen)
            except StoreError:
                assert self.takes_back
                return
            self.removed.update(chosen)
            self.make_room()

    def purge(self) -> None:
        pattern = self.random.choice((b">", b"a.*", b"b.1"))
        keep = self.random.choice((0, 0, 1, 3))
        before = self.random.choice((0, self.random.randint(1, self.store.last_sequence + 3)))
        if pattern != b">":
            before = min(before, self.store.last_sequence)
        present = {message[0] for message in everything(self.store)}
        try:
            if keep:
                before = returned(self.store.keeping(pattern, keep))
            purged = self.store.purge(pattern, before=before) if before or not keep else 0
        except StoreError:
            assert self.takes_back
            return
        left = {message[0] for message in everything(self.store)}
        assert purged == len(present - left)
        self.removed |= present - left
        self.make_room()

    def make_room(self) -> None:
        """While the disk fails, what is removed goes at once, and all before it."""
        if self.store.failure is not None and not self.takes_back:
            self.removed |= {s for s in self.appended if s < self.store.first_sequence}

    def sync(self) -> None:
        work = self.store.flush()
        if self.random.random() < 0.2:
            self.append()
        complete(work)
        if self.store.retreats != self.retreats:
            self.go_back()
        self.note_durable()
        assert self.store.state().lost == 0

    def go_back(self) -> None:
        """See what is left after a failure: from now on it is the truth, also after a power cut."""
        self.retreats = self.store.retreats
        assert self.store.is_settled
        self.check()
        self.forget_lost()
        self.gone = self.removed.copy()
        if self.random.random() < 0.3:
            before = everything(self.store)
            self.disk = self.disk.crash()
            self.store = self.open()
            assert before == everything(self.store)

    def maintain(self) -> None:
        complete(self.store.maintain())

    def note_durable(self) -> None:
        assert self.durable <= self.store.durable_sequence <= self.store.last_sequence
        self.durable = self.store.durable_sequence
        if self.store.failure is None and self.store.dirty_bytes == 0:
            self.gone |= self.removed

    def crash(self) -> None:
        """Cut the power, start again, and see what is left."""
        work = self.store.flush() if self.random.random() < 0.5 else self.store.maintain()
        if work is not None and self.random.random() < 0.5:
            try:
                work.run()
            except OSError:
                pass
        self.disk = self.disk.crash()
        self.store = self.open()
        self.check()
        self.forget_lost()

    def forget_lost(self) -> None:
        """Take what is there for the truth."""
        last = self.store.last_sequence
        self.appended = {s: message for s, message in self.appended.items() if s <= last}
        self.batches = [pair for pair in self.batches if pair[1] <= last]
        # A removal that was not synced may not have happened.
        self.removed = {s for s in self.appended if self.store.get(s) is None}
        self.evicted = {}
        self.durable = self.store.durable_sequence

    def check(self) -> None:
        """See that everything promised is there, and nothing that never was."""
        found = everything(self.store)
        present = {message[0]: message for message in found}
        assert len(present) == len(found)
        assert list(present) == sorted(present)
        for sequence, message in present.items():
            assert message == self.appended[sequence]
        assert not self.gone & present.keys()
        assert self.store.last_sequence >= self.durable
        assert self.store.state().lost == 0
        last = self.store.last_sequence
        assert not [pair for pair in self.batches if pair[0] <= last < pair[1]], "half a batch"
        self.check_owed(present)
        check_figures(self.store, found)

    def check_owed(self, present: dict[int, Message]) -> None:
        last = self.store.last_sequence
        dropped = {sequence for sequence, by in self.evicted.items() if by <= last}
        owed = {s for s in self.appended if s <= self.durable} - self.removed - dropped
        missing = {s for s in owed - present.keys() if not self.is_surplus(s, present)}
        assert not missing, f"promised and not there: {sorted(missing)}"

    def is_surplus(self, sequence: int, present: dict[int, Message]) -> bool:
        """Tell whether a subject has its full number without a message: removals came back."""
        limit = self.limits.messages_per_subject_max
        subject = self.appended[sequence][2]
        later = [m for m in present.values() if m[0] > sequence and m[2] == subject]
        return 0 < limit <= len(later)


def everything(store: Store) -> list[Message]:
    found: list[Message] = []
    sequence = 0
    while sequence <= store.last_sequence:
        messages, sequence = store.read(sequence, count_max=50, bytes_max=1 << 20)
        found += messages
    return found


def check_figures(store: Store, found: list[Message]) -> None:
    state = store.state()
    assert state.messages == len(found)
    sizes = (30 + len(m[2]) + (len(m[3]) + 4 if m[3] else 0) + len(m[4]) for m in found)
    assert state.size_bytes == sum(sizes)
    counts: dict[bytes, tuple[int, int]] = {}
    for message in found:
        counts[message[2]] = (message[0], counts.get(message[2], (0, 0))[1] + 1)
    assert {s: (last, count) for s, last, count in store.subjects()} == counts
    first = found[0][0] if found else store.last_sequence + 1
    assert state.first_sequence == first
    gone = set(range(first, state.last_sequence + 1)) - {message[0] for message in found}
    assert store.deleted(1 << 30) == sorted(gone)
    assert state.deleted == len(gone)


LIMITS = [
    StoreLimits(),
    StoreLimits(messages_max=9),
    StoreLimits(messages_per_subject_max=1),
    StoreLimits(messages_per_subject_max=3),
    StoreLimits(messages_max=9, messages_per_subject_max=3),
    StoreLimits(compresses=True),
]


LIMIT_NAMES = ["none", "messages", "subject 1", "subject 3", "both", "compressed"]


def seeds(count: int) -> range:
    # Blocks of a hundred, so that a failure names a small range to look into.
    return range(0, count, 100)


@pytest.mark.parametrize("limits", LIMITS, ids=LIMIT_NAMES)
@pytest.mark.parametrize("first_seed", seeds(100))
def test_a_power_cut_takes_nothing_that_was_promised(first_seed: int, limits: StoreLimits) -> None:
    for seed in range(first_seed, first_seed + 100):
        history = History(seed, limits)
        for _ in range(3):
            for _ in range(history.random.randint(1, 40)):
                history.step()
            history.crash()


@pytest.mark.parametrize("limits", LIMITS, ids=LIMIT_NAMES)
@pytest.mark.parametrize("first_seed", seeds(100))
def test_a_disk_that_fails_takes_nothing_either(first_seed: int, limits: StoreLimits) -> None:
    for seed in range(first_seed, first_seed + 100):
        history = History(seed, limits)
        for _ in range(3):
            history.disk.fault_rate = history.random.choice((0.0, 0.02, 0.2))
            for _ in range(history.random.randint(1, 40)):
                history.step()
            history.disk.fault_rate = 0.0
            if history.random.random() < 0.5:
                recover(history)
            history.crash()


@pytest.mark.parametrize("limits", LIMITS, ids=LIMIT_NAMES)
@pytest.mark.parametrize("first_seed", seeds(100))
def test_a_full_disk_refuses_and_recovers_when_there_is_room(
    first_seed: int, limits: StoreLimits
) -> None:
    for seed in range(first_seed, first_seed + 100):
        history = History(seed, limits)
        for _ in range(30):
            history.disk.capacity_bytes = history.random.choice((None, 500, 1500, 4000))
            history.step()
        history.disk.capacity_bytes = None
        recover(history)
        history.crash()


@pytest.mark.parametrize("limits", LIMITS, ids=LIMIT_NAMES)
@pytest.mark.parametrize("fault_rate", [0.0, 0.1], ids=["full", "bad"])
def test_what_a_failure_took_back_never_happened(fault_rate: float, limits: StoreLimits) -> None:
    for seed in [*range(RETREAT_SEEDS), *FAILED_ONCE]:
        history = History(seed, limits, takes_back=True)
        for _ in range(3):
            for _ in range(history.random.randint(1, 30)):
                history.disk.fault_rate = history.random.choice((0.0, fault_rate))
                if not fault_rate:
                    room = history.random.choice((None, None, 500, 1500, 4000))
                    history.disk.capacity_bytes = room
                history.step()
            history.disk.fault_rate, history.disk.capacity_bytes = 0.0, None
            if history.random.random() < 0.5:
                recover(history)
            history.crash()


def recover(history: History) -> None:
    """See that a store works again once its disk does, without a restart."""
    for _ in range(4):
        history.sync()
    assert history.store.failure is None
    before = history.store.last_sequence
    history.append()
    for _ in range(3):
        complete(history.store.flush())
    history.note_durable()
    assert history.durable == history.store.last_sequence > before
    history.check()


def test_a_purge_makes_room_on_a_full_disk() -> None:
    disk = SimDisk()
    store, _ = open_file_store(disk, DIRECTORY, settings=SETTINGS)
    for _ in range(20):
        store.append([(b"a", b"", b"x" * 100, 1)] * 4)
        complete(store.flush())
    disk.capacity_bytes = disk.used_bytes
    store.append([(b"a", b"", b"x" * 100, 1)])
    assert store.flush() is None
    assert store.failure is not None
    assert "No space left" in store.failure
    with pytest.raises(StoreError, match="No space left"):
        store.append([(b"a", b"", b"y", 1)])
    store.purge()
    complete(store.flush())
    assert store.failure is None
    assert store.append([(b"a", b"", b"z", 1)]) == 82


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_purge_makes_room_where_everything_is_in_one_segment(is_cut: bool) -> None:
    disk = SimDisk()
    store, _ = open_file_store(disk, DIRECTORY)
    store.append([(b"a", b"", b"x" * 100, 1)] * 80)
    complete(store.flush())
    full = disk.capacity_bytes = disk.used_bytes
    store.append([(b"a", b"", b"x" * 100, 1)] * 9)
    store.flush()
    assert store.failure is not None

    assert 89 == store.purge()
    complete(store.flush())

    assert store.failure is None
    if is_cut:
        disk = disk.crash()
        disk.capacity_bytes = full
        store, _ = open_file_store(disk, DIRECTORY)
    assert 0 == store.messages
    assert 90 == store.append([(b"a", b"", b"z", 1)])
    for _ in range(3):
        complete(store.flush())
        complete(store.maintain())
    assert store.failure is None
    # The reserve, and a little; encrypted, each 4 KiB have a header.
    assert disk.used_bytes < (17_000 if SimDisk.keys is None else 17_300)


@pytest.mark.parametrize("failing", range(12))
def test_a_purge_that_fails_anywhere_is_made_or_not_made(failing: int) -> None:
    """Whichever call of the disk fails, and the power with it: all messages, or none."""
    for seed in range(20):
        disk = FailingDisk(seed)
        store, _ = open_file_store(disk, DIRECTORY, settings=SETTINGS)
        for _ in range(3):
            store.append([(b"a", b"", b"x" * 30, 1)] * 3)
            complete(store.flush())
        disk.capacity_bytes = disk.used_bytes
        with suppress(StoreError):
            store.append([(b"a", b"", b"x" * 30, 1)] * 3)
        store.flush()
        given = store.last_sequence
        disk.calls_left = failing
        store.purge()
        for _ in range(2):
            complete(store.flush())
            with suppress(OSError):
                complete(store.maintain())

        after = disk.crash()
        store, _ = open_file_store(after, DIRECTORY, settings=SETTINGS)

        # What was refused may be there too: a part of it was written.
        assert store.messages in (0, *range(9, given + 1))
        assert store.messages in (0, store.last_sequence)
        assert 9 <= store.last_sequence <= given
        assert store.append([(b"a", b"", b"z", 1)]) == store.last_sequence
        for _ in range(3):
            complete(store.flush())
        assert store.failure is None


class FailingDisk(SimDisk):
    """One whose calls all fail from some on."""

    calls_left: int | None = None

    def trouble(self, action: str) -> OSError | None:
        if self.calls_left is None:
            return None
        self.calls_left -= 1
        if self.calls_left >= 0:
            return None
        return OSError(errno.EIO, f"{os.strerror(errno.EIO)} ({action})")


@pytest.mark.parametrize("keep", [0, 5], ids=["all", "most"])
def test_a_purge_makes_room_where_a_failure_takes_back(keep: int) -> None:
    disk = SimDisk()
    store, _ = open_file_store(disk, DIRECTORY, settings=SETTINGS)
    store.options.takes_back = True
    for _ in range(20):
        store.append([(b"a", b"", b"x" * 100, 1)] * 4)
        complete(store.flush())
    complete(store.flush())
    disk.capacity_bytes = disk.used_bytes
    store.append([(b"a", b"", b"x" * 100, 1)])
    complete(store.flush())
    with pytest.raises(StoreError, match="No space left"):
        store.purge()
    complete(store.flush())
    assert (store.retreats, store.messages, store.last_sequence) == (1, 80, 80)
    complete(store.flush())
    with pytest.raises(StoreError, match="No space left"):
        store.append([(b"a", b"", b"y", 1)])
    with pytest.raises(StoreError, match="No space left"):
        store.remove([1])

    before = returned(store.keeping(b">", keep)) if keep else 0
    assert store.purge(before=before) == 80 - keep
    complete(store.flush())

    assert (store.failure, store.messages) == (None, keep)
    assert store.append([(b"a", b"", b"z", 1)]) == 81
    for _ in range(2):
        complete(store.flush())
        complete(store.maintain())
    assert (store.failure, store.durable_sequence) == (None, 81)


def test_the_number_of_a_merged_segment_is_not_given_again() -> None:
    """A file with a number that another one covers counts as merged, and is removed."""
    disk = SimDisk()
    store, _ = open_file_store(disk, DIRECTORY, settings=SETTINGS)
    store.options.takes_back = True
    for sequence in range(1, 6):
        assert store.append([(b"a", b"", b"x" * 10, 1)]) == sequence
        complete(store.flush())
        assert store.durable_sequence == sequence
        disk.capacity_bytes = disk.used_bytes
        store.append([(b"a", b"", b"y" * 10, 1)])
        for _ in range(2):
            # The first fails. The second cuts that off: from now on no segment takes more.
            complete(store.flush())
        assert (store.retreats, store.last_sequence) == (sequence, sequence)
        disk.capacity_bytes = None
        while (work := store.maintain()) is not None:
            complete(work)
        complete(store.flush())
        assert store.failure is None

    store, notes = open_file_store(disk.crash(), DIRECTORY, settings=SETTINGS)

    assert notes == ([], [])
    assert [message[0] for message in everything(store)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("failing", range(14))
def test_a_purge_that_is_taken_back_was_never_made(failing: int) -> None:
    """Whichever call of the disk fails: all messages or none, now and after a power cut."""
    for seed in range(20):
        disk = FailingDisk(seed)
        store, _ = open_file_store(disk, DIRECTORY, settings=SETTINGS)
        store.options.takes_back = True
        for _ in range(3):
            store.append([(b"a", b"", b"x" * 30, 1)] * 3)
            complete(store.flush())
        disk.capacity_bytes = disk.used_bytes
        store.append([(b"a", b"", b"x" * 30, 1)] * 3)
        for _ in range(3):
            complete(store.flush())
        disk.calls_left = failing
        store.purge()
        for _ in range(2):
            complete(store.flush())
            with suppress(OSError):
                complete(store.maintain())
        disk.calls_left = None
        for _ in range(3):
            complete(store.flush())
        left = store.messages

        store, _ = open_file_store(disk.crash(), DIRECTORY, settings=SETTINGS)

        assert left in (0, 9)
        assert (store.messages, store.last_sequence) == (left, 9)
