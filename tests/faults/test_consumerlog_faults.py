"""A consumer log on a disk that crashes and fails: no acknowledgement goes back."""

from __future__ import annotations

import copy
import random

import pytest
from tests.simdisk import SimDisk

from penstock.jetstream.consumers import consumerlog
from penstock.jetstream.consumers.consumerlog import open_consumer_log
from penstock.jetstream.consumers.consumerrecords import ConsumerState
from penstock.jetstream.store.values import complete

pytestmark = pytest.mark.usefixtures("each_encryption")

DIRECTORY = "streams/s/consumers"


class History:
    """A random life of two consumers, and what was promised of it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.disk = SimDisk(seed)
        self.states: dict[str, ConsumerState] = {}
        self.promised: dict[str, ConsumerState] = {}
        self.log = self.open()

    def open(self) -> consumerlog.ConsumerLog:
        log, self.states, _ = open_consumer_log(self.disk, DIRECTORY)
        log.snapshot = lambda: self.states
        return log

    def step(self) -> None:
        name = self.random.choice(("one", "two"))
        if name not in self.states:
            self.states[name] = ConsumerState()
            self.log.put(name, self.states[name])
        elif self.random.random() < 0.02:
            del self.states[name]
            self.promised.pop(name, None)
            self.log.removed(name)
        else:
            notes = (self.deliver, self.ack, self.ack, self.give_up, self.advance)
            self.random.choice((*notes, self.sync, self.sync))(name)

    def deliver(self, name: str) -> None:
        state = self.states[name]
        sequence = state.delivered_stream_sequence + self.random.randint(1, 3)
        sequences = list(range(sequence, sequence + self.random.randint(1, 5)))
        if state.pending and self.random.random() < 0.3:
            sequences = [self.random.choice(list(state.pending))]
        consumer_sequence = state.delivered_consumer_sequence + 1
        state.deliver(consumer_sequence, sequences, 7)
        self.log.delivered(name, consumer_sequence, sequences, 7)

    def ack(self, name: str) -> None:
        pending = list(self.states[name].pending)
        if pending:
            acked = self.random.sample(pending, self.random.randint(1, len(pending)))
            self.states[name].ack(acked)
            self.log.acked(name, acked)

    def give_up(self, name: str) -> None:
        pending = list(self.states[name].pending)
        if pending:
            sequences = [self.random.choice(pending)]
            self.states[name].give_up(sequences)
            self.log.given_up(name, sequences)

    def advance(self, name: str) -> None:
        state = self.states[name]
        floor = state.delivered_consumer_sequence, state.delivered_stream_sequence
        state.advance(*floor)
        self.log.advanced(name, *floor)

    def sync(self, name: str = "") -> None:
        work = self.log.flush()
        complete(work)
        if self.log.failure is None and self.log.dirty_bytes == 0:
            self.promised = copy.deepcopy(self.states)

    def crash(self) -> None:
        before = self.states
        if self.random.random() < 0.5:
            self.log.flush()
        self.disk = self.disk.crash()
        self.log = self.open()
        for name, promised in self.promised.items():
            found = self.states.get(name)
            assert found is not None
            assert_not_behind(found, promised)
        for name, found in self.states.items():
            if name in before and name in self.promised:
                assert_not_behind(before[name], found)
        self.promised = copy.deepcopy(self.states)


def assert_not_behind(later: ConsumerState, earlier: ConsumerState) -> None:
    assert later.ack_floor_stream_sequence >= earlier.ack_floor_stream_sequence
    assert later.ack_floor_consumer_sequence >= earlier.ack_floor_consumer_sequence
    assert later.delivered_stream_sequence >= earlier.delivered_stream_sequence
    assert later.delivered_consumer_sequence >= earlier.delivered_consumer_sequence
    known = set(range(1, earlier.delivered_stream_sequence + 1))
    assert later.pending.keys() & known <= earlier.pending.keys()


@pytest.fixture(autouse=True)
def tiny_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumerlog, "LOG_BYTES_MIN", 600)


@pytest.mark.parametrize("fault_rate", [0.0, 0.02, 0.2])
@pytest.mark.parametrize("first_seed", range(0, 400, 100))
def test_no_acknowledgement_that_was_synced_goes_back(first_seed: int, fault_rate: float) -> None:
    for seed in range(first_seed, first_seed + 100):
        history = History(seed)
        for _ in range(4):
            history.disk.fault_rate = fault_rate
            for _ in range(history.random.randint(1, 40)):
                history.step()
            history.disk.fault_rate = 0.0
            if history.random.random() < 0.5:
                for _ in range(3):
                    history.sync()
                assert history.log.failure is None
                assert history.log.dirty_bytes == 0
            history.crash()


def test_a_full_disk_is_reported_and_recovered_from() -> None:
    history = History(1)
    for _ in range(30):
        history.step()
    history.sync()
    history.disk.capacity_bytes = history.disk.used_bytes
    history.log.put("three", ConsumerState(1, 1))
    history.states["three"] = ConsumerState(1, 1)
    history.sync()
    assert history.log.failure is not None
    assert "No space left" in history.log.failure
    history.sync()
    history.disk.capacity_bytes = None
    history.sync()
    assert history.log.failure is None
    assert len(history.disk.names(DIRECTORY)) == 1
    history.crash()
    assert history.states["three"] == ConsumerState(1, 1)
