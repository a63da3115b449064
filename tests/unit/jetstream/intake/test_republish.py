"""What a stream stores under another subject, and what it publishes again."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.jetstream.world import World

from penstock.protocol import headers

EVERYTHING = {"src": ">", "dest": "_INBOX.rp.>"}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_stream_stores_under_the_subject_its_transform_makes(world: World) -> None:
    world.create("S", subjects=["s.>"], subject_transform={"src": "s.*", "dest": "t.$1"})
    world.send(b"PUB s.a 1\r\nx\r\nPUB s.a 1\r\ny\r\nPUB s.b.c 1\r\nz\r\n")
    world.ask("s.d", "w", Other="x")

    subjects = [subject for _, subject, _ in world.messages("S")]
    assert ["t.a", "t.a", "s.b.c", "t.d"] == subjects


def test_what_is_stored_is_published_again_with_where_it_is(world: World) -> None:
    world.create("S", subjects=["s.>"], republish=EVERYTHING)
    world.publish("s.a", "1")
    world.publish("s.b", "2", Other="x")
    world.publish("s.a", "3")
    assert [] == world.received()

    world.settle()

    copies = [(dict(headers.decode(header)), payload) for header, payload in world.received()]
    assert [b"1", b"2", b"3"] == [payload for _, payload in copies]
    for told, _ in copies:
        del told["Nats-Time-Stamp"]
    where = {"Nats-Stream": "S", "Nats-Subject": "s.a"}
    assert where | {"Nats-Sequence": "1", "Nats-Last-Sequence": "0"} == copies[0][0]
    assert "x" == copies[1][0]["Other"]
    assert where | {"Nats-Sequence": "3", "Nats-Last-Sequence": "1"} == copies[2][0]


def test_a_run_of_the_same_subject_knows_its_own_messages(world: World) -> None:
    world.create("S", subjects=["s.>"], republish=EVERYTHING)
    world.send(b"PUB s.a 1\r\nx\r\n" * 3)
    world.settle()

    copies = [dict(headers.decode(header)) for header, _ in world.received()]
    assert ["0", "1", "2"] == [copy["Nats-Last-Sequence"] for copy in copies]


def test_only_the_headers_of_what_is_stored(world: World) -> None:
    world.create("S", republish=EVERYTHING | {"headers_only": True})
    world.publish("S", "12345")
    world.settle()

    ((header, payload),) = world.received()
    assert (b"", b"5") == (payload, headers.get(header, b"Nats-Msg-Size"))


def test_what_the_source_does_not_match_is_not_published_again(world: World) -> None:
    world.create("S", subjects=["s.>"], republish={"src": "s.a", "dest": "_INBOX.rp"})
    world.publish("s.b", "1")
    world.publish("s.a", "2")
    world.settle()

    assert [b"2"] == [payload for _, payload in world.received()]


def test_while_the_disk_fails_nothing_is_published_again(world: World) -> None:
    world.create("S", storage="file", republish=EVERYTHING)
    world.disk.is_broken = True
    world.publish("S", "x")
    world.settle()
    assert [] == world.received()

    world.disk.is_broken = False
    world.advance(2)
    world.advance(2)
    assert [] == world.received()
    world.publish("S", "y")
    world.settle()

    assert [b"y"] == [payload for _, payload in world.received()]


def test_the_copy_leaves_before_the_ack(world: World) -> None:
    world.create("S", republish=EVERYTHING)
    world.publish("S", "x", reply="_INBOX.ack")
    world.settle()

    copy, ack = world.received()
    assert (b"x", {"stream": "S", "seq": 1}) == (copy[1], ack)
