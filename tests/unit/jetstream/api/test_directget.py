"""Direct gets of many messages; what the answers look like is in the transcripts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.jetstream.world import World

from penstock.jetstream.api import directget
from penstock.protocol import headers


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.create("S", subjects=["s.>"], allow_direct=True)
    return world


def get(world: World, **options: Any) -> list[tuple[bytes, bytes]]:
    world.publish("$JS.API.DIRECT.GET.S", json.dumps(options), reply="_INBOX.get")
    world.settle()
    return world.received()


def fill(world: World, count: int, subjects: int) -> None:
    for number in range(count):
        world.publish(f"s.{number % subjects}", str(number))
    world.settle()


def sequences(answers: list[tuple[bytes, bytes]]) -> list[int]:
    found = [headers.get(block, b"Nats-Sequence") for block, _ in answers]
    return [int(each) for each in found if each]


@pytest.mark.parametrize("up_to", [1, 3, 5, 9, 3000])
def test_the_last_of_a_subject_is_found_however_far_back_it_lies(world: World, up_to: int) -> None:
    fill(world, 5, subjects=5)
    for _ in range(4000):
        world.publish("s.0", "x")
    for number in range(5):
        world.publish(f"s.{number}", "later")

    *answers, _ = get(world, multi_last=["s.>"], up_to_seq=up_to)

    expected = {subject: subject + 1 for subject in range(5) if subject < up_to}
    if up_to > 5:
        expected[0] = up_to
    assert sorted(expected.values()) == sequences(answers)


def test_more_subjects_than_allowed_are_refused(world: World) -> None:
    fill(world, directget.MULTI_LAST_MAX + 1, subjects=directget.MULTI_LAST_MAX + 1)

    ((status, _),) = get(world, multi_last=["s.>"])

    assert b"NATS/1.0 413 Too Many Results\r\n\r\n" == status
    assert len(get(world, multi_last=["s.1", "s.2"])) == 3


def test_a_batch_goes_on_over_as_many_reads_as_it_takes(world: World) -> None:
    fill(world, 3 * directget.READ_COUNT, subjects=2)

    *answers, (end, _) = get(world, next_by_subj="s.1", seq=1, batch=directget.READ_COUNT + 1)

    assert list(range(2, 2 * directget.READ_COUNT + 3, 2)) == sequences(answers)
    assert headers.get(end, b"Nats-Num-Pending") == b"%d" % (directget.READ_COUNT // 2 - 1)


def test_a_batch_ends_before_a_client_could_not_take_it(world: World) -> None:
    for _ in range(20):
        world.publish("s.a", "x" * (directget.BATCH_BYTES_MAX // 16))

    *answers, (end, _) = get(world, seq=1, batch=20)

    assert list(range(1, 17)) == sequences(answers)
    assert headers.get(end, b"Nats-Num-Pending") == b"4"
