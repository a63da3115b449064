"""Snapshots and restores: the archive, and what happens when a peer does not do its part."""

from __future__ import annotations

import io
import json
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tests.unit.jetstream.consuming import consume, info, publish, received, request
from tests.unit.jetstream.world import START_NS, World, error

from penstock.core import snappy
from penstock.jetstream.snapshots import archive
from penstock.jetstream.snapshots import restore as restore_module
from penstock.jetstream.snapshots.archive import ArchiveEntry, ArchiveReader
from penstock.jetstream.snapshots.restore import ENTRIES_MAX

ENTRIES = [
    ArchiveEntry(archive.STATE, 1, payload=b"{}"),
    ArchiveEntry(b"a.b", -5, 1 << 60, b"NATS/1.0\r\n\r\n", b"payload"),
    ArchiveEntry(b"a.c", 1_800_000_000_000_000_000, 7),
]
ARCHIVE = archive.STREAM_IDENTIFIER + snappy.frames(
    archive.MAGIC + b"".join(map(archive.encode_entry, [*ENTRIES, archive.END]))
)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.create("S", storage="file")
    world.send(b"SUB snap 5\r\nSUB $JS.EVENT.ADVISORY.STREAM.SNAPSHOT_COMPLETE.S 6\r\n")
    publish(world, "S", "a", "b", "c")
    return world


def large_texts() -> list[str]:
    """Return what takes some room, compressed too."""
    chance = random.Random(1)
    return [chance.randbytes(500).hex() for _ in range(10)]


def snapshot(world: World, **options: Any) -> None:
    options = {"deliver_subject": "snap"} | options
    world.publish("$JS.API.STREAM.SNAPSHOT.S", json.dumps(options))


def chunks(world: World) -> list[bytes]:
    """Return the chunks of a snapshot of any size."""
    found: list[bytes] = []
    while True:
        for message in received(world):
            if message.subject != "snap":
                return found
            if message.payload:
                found.append(message.payload)
            if message.reply:
                world.publish(message.reply)


def start_restore(world: World, name: str = "S", **config: Any) -> str:
    answer = world.call(f"STREAM.RESTORE.{name}", config={"name": name, **config})
    subject: str = answer["deliver_subject"]
    return subject


def restore(world: World, parts: list[bytes], **config: Any) -> Any:
    subject = start_restore(world, **config)
    for part in parts:
        answer = world.ask(subject, part)
        if answer != b"":
            return answer
    return world.ask(subject)


@pytest.mark.parametrize("cut", range(0, len(ARCHIVE), 3))
def test_an_archive_may_be_cut_anywhere(cut: int) -> None:
    reader = ArchiveReader()

    assert ENTRIES == [*reader.feed(ARCHIVE[:cut]), *reader.feed(ARCHIVE[cut:])]
    assert reader.is_complete


def test_an_archive_is_compressed_where_that_helps() -> None:
    pytest.importorskip("cramjam")
    large = ArchiveEntry(b"a", 1, 1, payload=b"same " * 100_000)
    dense = ArchiveEntry(b"b", 1, 2, payload=random.Random(1).randbytes(100_000))
    data = archive.MAGIC + b"".join(map(archive.encode_entry, [large, dense, archive.END]))
    framed = archive.STREAM_IDENTIFIER + snappy.frames(data, snappy.compressor())
    reader = ArchiveReader()

    assert [large, dense] == list(reader.feed(framed))
    assert 100_000 < len(framed) < 150_000


@pytest.mark.parametrize("position", range(10, len(ARCHIVE)))
def test_a_damaged_archive_is_refused_or_not_complete(position: int) -> None:
    reader = ArchiveReader()
    damaged = bytearray(ARCHIVE)
    damaged[position] ^= 0x41
    try:
        list(reader.feed(bytes(damaged)))
    except ValueError:
        return

    assert not reader.is_complete


def test_a_stream_comes_back_as_it_was(world: World) -> None:
    world.call("STREAM.MSG.DELETE.S", seq=2)
    consume(world, "S", "C")
    request(world, "S", "C", batch=1)
    before = info(world, "S", "C")
    snapshot(world)
    parts = chunks(world)
    world.call("STREAM.DELETE.S")
    answer = restore(world, parts)
    world.restart()

    assert 2 == answer["state"]["messages"]
    assert [(1, "S", b"a"), (3, "S", b"c")] == world.messages("S")
    after = info(world, "S", "C")
    for name in ("num_ack_pending", "num_pending", "config"):
        assert before[name] == after[name]


def test_a_reader_that_acks_nothing_is_told_so(world: World) -> None:
    publish(world, "S", *large_texts())
    snapshot(world, chunk_size=1024, window_size=2048)
    first = received(world)
    world.advance(5.1)
    *_, status, advisory = received(world)

    assert 2 == len(first)
    assert "408 No Flow Response" == status.status
    assert "no flow response" == json.loads(advisory.payload)["error"]


def test_a_reader_that_goes_away_gets_no_more(world: World) -> None:
    publish(world, "S", *large_texts())
    snapshot(world, chunk_size=1024, window_size=2048)
    received(world)
    world.send(b"UNSUB 5\r\n")

    assert "no interest" == json.loads(received(world)[-1].payload)["error"]


def test_a_reader_may_come_a_little_later(world: World) -> None:
    snapshot(world, deliver_subject="later")
    nothing = received(world)
    world.send(b"SUB later 8\r\n")

    assert [] == nothing
    assert [True, False] == [bool(each.payload) for each in received(world)[:2]]


def test_a_reader_with_all_its_inboxes_behind_a_wildcard_comes_later_too(world: World) -> None:
    world.send(b"SUB box.* 7\r\n")
    snapshot(world, deliver_subject="box.1")
    assert [] == [message for message in received(world) if message.subject == "box.1"]

    world.send(b"SUB box.1 8\r\n")

    assert any(message.subject == "box.1" and message.payload for message in received(world))


def test_a_restore_that_stalls_leaves_nothing_behind(world: World) -> None:
    snapshot(world)
    parts = chunks(world)
    world.call("STREAM.DELETE.S")
    subject = start_restore(world)
    assert world.ask(subject, parts[0]) == b""
    world.advance(5.1)

    assert {} == world.engine.streams
    world.publish(subject, parts[0], reply="_INBOX.x")
    assert ["503 "] == [each.status for each in received(world)]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"x" * 100, "this is no snapshot of a stream"),
        (archive.STREAM_IDENTIFIER + snappy.frames(archive.MAGIC), "backup was truncated"),
        (ARCHIVE[:-1], "backup was truncated"),
        (ARCHIVE[:-1] + b"y", "the snapshot is damaged: a checksum is wrong"),
    ],
)
def test_what_is_no_snapshot_is_refused(world: World, data: bytes, problem: str) -> None:
    world.call("STREAM.DELETE.S")
    code, text = error(restore(world, [data]))

    assert (10062, f"restore failed: {problem}") == (code, text)
    assert {} == world.engine.streams


def test_an_archive_of_an_older_server_is_refused_with_the_remedy(world: World) -> None:
    world.call("STREAM.DELETE.S")
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("meta.inf"))
    data = archive.STREAM_IDENTIFIER + snappy.frames(file.getvalue())

    _, text = error(restore(world, [data]))

    assert "nats-server before 2.15: restore it there" in text


def test_a_restore_in_the_way_of_another_stream_is_refused(world: World) -> None:
    snapshot(world)
    parts = chunks(world)
    world.call("STREAM.DELETE.S")
    world.create("T", subjects=["S"])

    assert 10065 == error(restore(world, parts))[0]
    assert ["T"] == list(world.engine.streams)


def test_a_chunk_of_many_messages_is_taken_in_turns(tmp_path: Path) -> None:
    world, count, step = World(tmp_path), 3 * ENTRIES_MAX, 2000
    state = {"first_seq": 1, "last_seq": 1 + (count - 1) * step}
    entries = [ArchiveEntry(archive.STATE, 1, payload=json.dumps(state).encode())]
    entries += [ArchiveEntry(b"S", START_NS, 1 + n * step) for n in range(count)]
    encoded = archive.MAGIC + b"".join(map(archive.encode_entry, [*entries, archive.END]))
    subject = start_restore(world, subjects=["S"], storage="file")

    world.publish(subject, archive.STREAM_IDENTIFIER + snappy.frames(encoded), reply="_INBOX.1")
    world.settle()
    turns = 0
    while not (acked := world.received()):
        turns += 1
        before = world.engine.streams["S"].store.messages
        world.advance(0)
        assert world.engine.streams["S"].store.messages - before <= ENTRIES_MAX

    assert (turns, acked) == (3, [b""])
    answer = world.ask(subject)
    assert answer["state"]["messages"] == count
    assert answer["state"]["last_seq"] == state["last_seq"]
    # The gaps are in one segment: its file, the reserve, and no more.
    assert len(list((tmp_path / "jetstream/$G/streams/S/messages").iterdir())) == 2
    world.restart()
    assert world.state("S")["messages"] == count


def test_chunks_that_wait_for_no_ack_are_refused_at_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    subject = start_restore(world, storage="memory")
    state = ArchiveEntry(archive.STATE, 1, payload=b'{"first_seq":1,"last_seq":1}')
    entries = [state, *(ArchiveEntry(b"S", START_NS, 1 + n) for n in range(2 * ENTRIES_MAX))]
    encoded = archive.MAGIC + b"".join(map(archive.encode_entry, entries))
    data = archive.STREAM_IDENTIFIER + snappy.frames(encoded)
    monkeypatch.setattr(restore_module, "WAITING_BYTES_MAX", len(data) + 10_000)
    world.publish(subject, data, reply="_INBOX.1")
    assert "S" in world.engine.streams

    world.publish(subject, bytes(10_001), reply="_INBOX.2")
    world.settle()

    assert "S" not in world.engine.streams


@pytest.mark.parametrize("is_replaced", [False, True])
def test_one_that_is_deleted_meanwhile_is_restored_no_further(
    world: World, is_replaced: bool
) -> None:
    publish(world, "S", *large_texts())
    snapshot(world, chunk_size=1024)
    parts = chunks(world)
    world.call("STREAM.DELETE.S")
    subject = start_restore(world, storage="file")
    half = len(parts) // 2
    for part in parts[:half]:
        assert b"" == world.ask(subject, part)
    world.call("STREAM.DELETE.S")
    if is_replaced:
        world.create("S", storage="file")

    answer = world.ask(subject, parts[half])

    assert (10062, "restore failed: the stream was deleted") == error(answer)
    assert is_replaced == ("S" in world.engine.streams)
    if is_replaced:
        assert [] == world.messages("S")
        world.restart()
        assert [] == world.messages("S")


def test_schedules_go_on_in_a_stream_that_was_restored(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("S", subjects=["s.>"], storage="file", allow_msg_schedules=True)
    told = {"Nats_Schedule": "@every 10s", "Nats_Schedule_Target": "s.made"}
    world.ask("s.every", "tick", **told)
    world.send(b"SUB snap 5\r\nSUB $JS.EVENT.ADVISORY.STREAM.SNAPSHOT_COMPLETE.S 6\r\n")
    snapshot(world)
    parts = chunks(world)
    world.call("STREAM.DELETE.S")
    options = {"subjects": ["s.>"], "storage": "file", "allow_msg_schedules": True}
    assert "error" not in restore(world, parts, **options)

    for _ in range(12):
        world.advance(1)

    assert [(1, "s.every", b"tick"), (2, "s.made", b"tick")] == world.messages("S")
