"""What the log of consumers keeps, and when it begins anew."""

from __future__ import annotations

import errno
import os

import pytest
from tests.simdisk import SimDisk

from penstock.errors import StoreError
from penstock.jetstream.consumers import consumerlog
from penstock.jetstream.consumers.consumerlog import ConsumerLog, open_consumer_log
from penstock.jetstream.consumers.consumerrecords import ConsumerState
from penstock.jetstream.store.values import complete

DIRECTORY = "streams/s/consumers"


def open_it(disk: SimDisk) -> tuple[ConsumerLog, dict[str, ConsumerState]]:
    log, states, notes = open_consumer_log(disk, DIRECTORY)
    assert notes == ([], [])
    log.snapshot = lambda: states
    return log, states


def create(log: ConsumerLog, states: dict[str, ConsumerState], name: str) -> ConsumerState:
    states[name] = ConsumerState()
    log.put(name, states[name])
    return states[name]


def test_a_new_log_knows_nobody_and_writes_nothing() -> None:
    disk = SimDisk()
    log, states = open_it(disk)
    assert states == {}
    assert log.flush() is None
    log.close()
    assert disk.names(DIRECTORY) == []


def test_what_consumers_did_survives_a_restart() -> None:
    disk = SimDisk()
    log, states = open_it(disk)
    one, two = create(log, states, "one"), create(log, states, "two")
    one.deliver(1, [3, 5, 9], 100)
    log.delivered("one", 1, [3, 5, 9], 100)
    one.ack([3, 9])
    log.acked("one", [3, 9])
    two.advance(4, 7)
    log.advanced("two", 4, 7)
    log.close()
    assert open_it(disk)[1] == {"one": one, "two": two}
    assert one.ack_floor_stream_sequence == 4
    assert one.ack_floor_consumer_sequence == 1
    assert one.pending == {5: (2, 100)}
    assert two.delivered_stream_sequence == two.ack_floor_stream_sequence == 7


def test_a_message_that_was_given_up_on_stays_so_after_a_restart() -> None:
    disk = SimDisk()
    log, states = open_it(disk)
    one = create(log, states, "one")
    one.deliver(1, [3, 5], 100)
    log.delivered("one", 1, [3, 5], 100)
    one.give_up([3])
    log.given_up("one", [3])
    log.close()
    assert open_it(disk)[1] == {"one": one}
    assert one.pending == {5: (2, 100)}
    assert one.redelivered == {3: 0}


def test_a_removed_consumer_stays_away() -> None:
    disk = SimDisk()
    log, states = open_it(disk)
    create(log, states, "one")
    complete(log.flush())
    log.removed("one")
    del states["one"]
    create(log, states, "two")
    log.close()
    assert set(open_it(disk)[1]) == {"two"}


def test_redeliveries_are_counted_until_the_ack() -> None:
    state = ConsumerState()
    state.deliver(1, [1, 2], 10)
    state.deliver(3, [1], 20)
    state.deliver(4, [1], 30)
    assert state.redelivered == {1: 2}
    assert state.pending[1] == (1, 30)
    assert state.delivered_consumer_sequence == 4
    assert state.delivered_stream_sequence == 2
    state.ack([1])
    assert state.redelivered == {}
    assert (state.ack_floor_consumer_sequence, state.ack_floor_stream_sequence) == (1, 1)
    state.ack([2])
    assert (state.ack_floor_consumer_sequence, state.ack_floor_stream_sequence) == (4, 2)


def test_advancing_settles_what_was_pending_below() -> None:
    state = ConsumerState()
    state.deliver(1, [1, 2, 3], 10)
    state.deliver(4, [2], 10)
    state.advance(2, 2)
    assert state.pending == {3: (3, 10)}
    assert state.redelivered == {}


def test_a_log_that_has_grown_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumerlog, "LOG_BYTES_MIN", 2000)
    disk = SimDisk()
    log, states = open_it(disk)
    one = create(log, states, "one")
    for sequence in range(1, 500):
        one.deliver(sequence, [sequence], 1)
        log.delivered("one", sequence, [sequence], 1)
        one.ack([sequence])
        log.acked("one", [sequence])
        complete(log.flush())
    assert len(disk.names(DIRECTORY)) == 1
    assert disk.used_bytes < 3000
    log.close()
    assert open_it(disk)[1] == {"one": one}


def test_a_sync_covers_what_was_written_before_it_ran() -> None:
    disk = SimDisk()
    log, states = open_it(disk)
    one = create(log, states, "one")
    work = log.flush()
    assert work is not None
    one.deliver(1, [1], 1)
    log.delivered("one", 1, [1], 1)
    assert log.flush() is None
    assert log.dirty_bytes > 0
    complete(work)
    assert log.dirty_bytes == 0


def test_closing_a_log_that_cannot_write_says_so() -> None:
    disk = SimDisk()
    log, states = open_it(disk)
    create(log, states, "one")
    disk.fault_rate = 1.0
    with pytest.raises(StoreError, match="cannot store consumers"):
        log.close()


def test_a_file_that_does_not_start_completely_does_not_count() -> None:
    disk = SimDisk()
    log, states = open_it(disk)
    create(log, states, "one").deliver(1, [1], 1)
    log.close()
    file = disk.create(consumerlog.log_path(DIRECTORY, 2))
    file.write(b"\0" * 100, 0)
    log, states, _ = open_consumer_log(disk, DIRECTORY)
    assert set(states) == {"one"}
    log.snapshot = lambda: states
    log.put("one", states["one"])
    complete(log.flush())
    assert disk.names(DIRECTORY) == ["consumers-00000003.log"]


@pytest.mark.parametrize("is_changed", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_what_a_killed_server_could_not_sync_is_durable_after_a_restart(
    seed: int, is_changed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimDisk(seed)
    log, states = open_it(disk)
    one = create(log, states, "one")
    complete(log.flush())
    one.deliver(1, [1, 2, 3], 100)
    log.delivered("one", 1, [1, 2, 3], 100)
    one.ack([1])
    log.acked("one", [1])
    with monkeypatch.context() as patched:
        broken = OSError(errno.EIO, os.strerror(errno.EIO))
        patched.setattr(disk, "trouble", lambda action: broken if action == "sync" else None)
        complete(log.flush())
    # Killed: what the failed sync dropped is still in the page cache.
    log, states = open_it(disk)
    assert states == {"one": one}
    if is_changed:
        states["one"].ack([2])
        log.acked("one", [2])
    complete(log.flush())
    assert log.dirty_bytes == 0

    assert open_it(disk.crash())[1] == states


def test_a_count_of_deliveries_is_written_at_once_after_a_restart() -> None:
    disk = SimDisk()
    log, states = open_it(disk)
    create(log, states, "one")
    log.close()
    log, states = open_it(disk)
    states["one"].deliver(1, [1], 100)
    log.delivered("one", 1, [1], 100)
    log.write()
    # Killed.
    assert open_it(disk)[1] == states
