"""
A stream that is restored when the server is killed is there whole, or not at all.

The archive is taken from a server, and sent to another one chunk by chunk; the kill
comes after each of the steps in turn, and at moments in between. What was left out
must leave nothing behind, and the same archive is restored by the next attempt.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import threading
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.faults.outsider import GONE, Outsider
from tests.servers import PENSTOCK, ServerProcess

MESSAGES = 60
CONSUMERS = 20
"""More than one commit makes."""
CHUNK_BYTES = 16_384
KILLS_IN_BETWEEN = int(os.environ.get("RESTORE_KILLS", "4"))


class Archive(NamedTuple):
    """A snapshot as its taker has it, and what was in the stream."""

    answer: dict[str, Any]
    chunks: list[bytes]
    content: Any


def server(store: Path) -> ServerProcess:
    return ServerProcess(PENSTOCK, "", "-js", "-sd", str(store))


def fill(client: Outsider) -> None:
    """Make a stream with gaps and headers, and consumers in the middle of it."""
    config = {"subjects": ["s.>"], "allow_direct": True, "allow_msg_ttl": True}
    client.do("STREAM.CREATE.S", name="S", compression="s2", **config)
    chance = random.Random(1)
    for number in range(MESSAGES):
        payload = b"%d %b" % (number, chance.randbytes(1500))
        client.store(f"s.{number % 7}", payload, Number=str(number))
    for sequence in (1, 2, 50, 51, MESSAGES):
        client.do("STREAM.MSG.DELETE.S", seq=sequence)
    for number in range(CONSUMERS):
        consumer = {"durable_name": f"C{number}", "ack_policy": "explicit", "ack_wait": 10**12}
        client.do(f"CONSUMER.CREATE.S.C{number}", stream_name="S", config=consumer)
        for told in fetch(client, f"C{number}", 1 + number):
            if told.sequence % 3:
                client.request(told.reply, b"+ACK")


def fetch(client: Outsider, consumer: str, count: int) -> list[Any]:
    inbox = client.inbox()
    body = json.dumps({"batch": count, "expires": 10**10}).encode()
    client.publish(f"$JS.API.CONSUMER.MSG.NEXT.S.{consumer}", body, reply=inbox)
    return [client.wait() for _ in range(count)]


def content(client: Outsider) -> Any:
    """Return all that is to come back."""
    info = client.do("STREAM.INFO.S")
    state = {key: info["state"][key] for key in ("messages", "bytes", "first_seq", "last_seq")}
    consumers = {
        each["name"]: (
            each["delivered"]["stream_seq"],
            each["ack_floor"]["stream_seq"],
            each["num_ack_pending"],
            each["num_pending"],
        )
        for each in client.do("CONSUMER.LIST.S")["consumers"]
    }
    return client.messages("S"), state, consumers


def snapshot(client: Outsider, acks_max: int = 1 << 30) -> tuple[dict[str, Any], list[bytes]]:
    """Return what is said of the stream, and the chunks; leave after so many."""
    inbox = client.inbox()
    answer = client.do("STREAM.SNAPSHOT.S", deliver_subject=inbox, chunk_size=CHUNK_BYTES)
    chunks: list[bytes] = []
    while len(chunks) < acks_max:
        told = client.answer(inbox)
        if not told.payload:
            break
        chunks.append(told.payload)
        if told.reply:
            client.publish(told.reply)
    return answer, chunks


def steps(client: Outsider, archive: Archive) -> Any:
    """Restore step by step, and yield in between; the last value says whether it is done."""
    fields = {"config": archive.answer["config"], "state": archive.answer["state"]}
    subject = client.do("STREAM.RESTORE.S", **fields)["deliver_subject"]
    yield False
    for chunk in archive.chunks:
        assert client.request(subject, chunk).payload == b""
        yield False
    inbox = client.inbox()
    client.publish(subject, b"", reply=inbox)
    yield False
    document = json.loads(client.answer(inbox).payload)
    assert "error" not in document, document
    yield True


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    with server(tmp_path_factory.mktemp("origin")) as running, Outsider(running) as client:
        fill(client)
        answer, chunks = snapshot(client)
        assert len(chunks) > 3
        return Archive(answer, chunks, content(client))


def streams(store: Path) -> list[Path]:
    return list(store.glob("jetstream/*/streams/*"))


def check(store: Path, archive: Archive, *, is_done: bool) -> bool:
    """See that the stream is whole or not there, and can be restored then."""
    with server(store) as running, Outsider(running) as client:
        is_there = "error" not in client.call("STREAM.INFO.S")
        assert is_there or not is_done, "it was said to be restored"
        if not is_there:
            assert streams(store) == []
            assert list(steps(client, archive))[-1]
        assert content(client) == archive.content
        assert client.store("s.1", b"one more") == MESSAGES + 1
        return is_there


def test_a_restore_is_killed_at_each_of_its_stages(tmp_path: Path, archive: Archive) -> None:
    last = len(archive.chunks)
    for step in (0, 1, last // 2, last, last + 1, last + 2):
        store = tmp_path / str(step)
        with server(store) as running, Outsider(running) as client:
            *_, is_done = islice(steps(client, archive), step + 1)
            running.process.kill()
        check(store, archive, is_done=is_done)


def test_a_restore_is_killed_at_any_moment(tmp_path: Path, archive: Archive) -> None:
    chance = random.Random(1)
    for kill in range(KILLS_IN_BETWEEN):
        store = tmp_path / str(kill)
        is_done = False
        with server(store) as running, Outsider(running) as client:
            begun = steps(client, archive)
            for _ in range(chance.randrange(len(archive.chunks) + 2)):
                next(begun)
            # The rest in one go: the kill comes while the server is at it.
            threading.Timer(chance.uniform(0, 0.03), running.process.kill).start()
            try:
                *_, is_done = begun
            except GONE:
                pass
            running.process.wait()
        check(store, archive, is_done=is_done)


def test_a_stream_is_as_it_was_after_a_kill_in_the_middle_of_its_snapshot(
    tmp_path: Path, archive: Archive
) -> None:
    with server(tmp_path) as running, Outsider(running) as client:
        assert list(steps(client, archive))[-1]
        running.process.kill()
    for acks in (0, len(archive.chunks) // 2):
        with server(tmp_path) as running, Outsider(running) as client:
            before = content(client)
            snapshot(client, acks)
            running.process.kill()
        with server(tmp_path) as running, Outsider(running) as client:
            assert content(client) == before
            assert len(streams(tmp_path)) == 1
            answer, chunks = snapshot(client)
            client.do("STREAM.DELETE.S")
            assert list(steps(client, Archive(answer, chunks, before)))[-1]
            assert content(client) == before


def test_one_that_stopped_in_order_in_the_middle_is_not_there_either(
    tmp_path: Path, archive: Archive
) -> None:
    with server(tmp_path) as running, Outsider(running) as client:
        begun = steps(client, archive)
        for _ in range(3):
            next(begun)
        running.process.terminate()
        running.process.wait()

    command = [PENSTOCK.command[0], "store", "check", str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode != 0
    assert "was not restored completely" in said.stdout + said.stderr
    assert not check(tmp_path, archive, is_done=False)
