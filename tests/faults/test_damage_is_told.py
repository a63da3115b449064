"""
Files that are damaged, missing or of another stream: what is left is served, the rest is told.

Told by the server, in its log, its metrics and its health, and by `penstock store check`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.aio import asynchronous
from tests.servers import HOST, PENSTOCK, ServerProcess, wait_until

from penstock.client import connect
from penstock.errors import JetStreamError
from penstock.jetstream.files.streamfiles import salt_of
from penstock.jetstream.store.file.disk import RealDisk
from penstock.jetstream.store.file.reserve import read_noted

COUNT = 1000
DELETED = range(500, 510)
SEGMENT = f"{1:016d}.seg"


def serve(store: Path) -> ServerProcess:
    return ServerProcess(PENSTOCK, "http_port: -1", "-js", "-sd", str(store))


def get(running: ServerProcess, path: str) -> str:
    """Return a page, whatever its status."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{running.http_port}{path}") as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return str(error.read().decode())


def stop(running: ServerProcess, number: signal.Signals) -> None:
    running.signal(number)
    running.process.wait()


async def fill(running: ServerProcess, name: str = "S") -> None:
    async with await connect(running.url) as client:
        jetstream = client.jetstream()
        await jetstream.streams.create(name, subjects=[f"{name}.>"])
        await jetstream.consumers.create(name, durable_name="C", ack_policy="explicit")
        for first in range(1, COUNT + 1, 100):
            numbers = range(first, first + 100)
            await jetstream.publish_batch([(f"{name}.x", b"payload %04d" % n) for n in numbers])
        for sequence in DELETED:
            await jetstream.streams.delete_message(name, sequence)


async def numbers(running: ServerProcess, name: str = "S") -> set[int]:
    """Return the numbers of the messages that are served, by their payloads."""
    async with await connect(running.url) as client:
        jetstream = client.jetstream()
        last = (await jetstream.streams.info(name))["state"]["last_seq"]
        found = set()
        for sequence in range(1, last + 1):
            with suppress(JetStreamError):
                message = await jetstream.streams.get(name, seq=sequence)
                assert message.payload == b"payload %04d" % sequence
                found.add(sequence)
        return found


def flip(path: Path, number: int) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(b"payload %04d" % number)] ^= 1
    path.write_bytes(content)


def check(store: Path) -> tuple[int, str]:
    command = [PENSTOCK.command[0], "store", "check", str(store)]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
@asynchronous
async def test_a_flipped_bit_costs_one_message_and_is_told(
    tmp_path: Path, ending: signal.Signals
) -> None:
    with serve(tmp_path) as running:
        await fill(running)
        stop(running, ending)
    flip(tmp_path / "jetstream/$G/streams/S/messages" / SEGMENT, 100)
    code, text = check(tmp_path)
    assert (code, "damaged" in text) == (1, True), text
    with serve(tmp_path) as running:
        left = await numbers(running)
        async with await connect(running.url) as client:
            following = (await client.jetstream().publish("S.x", b"payload 1001")).sequence
            state = (await client.jetstream().streams.info("S"))["state"]

        assert left == set(range(1, COUNT + 1)) - {100, *DELETED}
        assert following == COUNT + 1
        assert state["lost"]["count"] == 1
        assert "damaged" in running.log
        health = json.loads(get(running, "/healthz"))
        assert (health["status"], health["lost_messages"]) == ("ok", 1)
        assert 'penstock_stream_lost_messages{stream="S"} 1' in get(running, "/metrics")


def is_noted(store: Path) -> bool:
    """Tell whether the server has written down how far the stream is durable."""
    messages = str(store / "jetstream/$G/streams/S/messages")
    noted, _ = read_noted(RealDisk(), messages, salt_of("S"))
    return noted.last_sequence == COUNT


@pytest.mark.parametrize("share", [0.9, 0.5, 0.0])
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
@asynchronous
async def test_a_last_segment_that_is_cut_short_is_told(
    tmp_path: Path, ending: signal.Signals, share: float
) -> None:
    path = tmp_path / "jetstream/$G/streams/S/messages" / SEGMENT
    with serve(tmp_path) as running:
        await fill(running)
        wait_until(lambda: is_noted(tmp_path))
        stop(running, ending)
    os.truncate(path, int(share * path.stat().st_size / 2))
    code, text = check(tmp_path)
    assert (code, "was cut short" in text) == (1, True), text
    with serve(tmp_path) as running:
        left = await numbers(running)
        async with await connect(running.url) as client:
            following = (await client.jetstream().publish("S.x", b"payload 1001")).sequence
            state = (await client.jetstream().streams.info("S"))["state"]

        # Where the removals were at the end, what they removed counts as lost or is back.
        unknown = set(DELETED)
        assert left - unknown == set(range(1, max(left, default=0) + 1)) - unknown
        assert following == COUNT + 1
        fewest = len(set(range(1, COUNT + 1)) - unknown - left)
        assert fewest <= state["lost"]["count"] <= fewest + len(unknown)
        assert "was cut short" in running.log
        assert json.loads(get(running, "/healthz"))["lost_messages"] == state["lost"]["count"]


def remove_segment(streams: Path) -> None:
    os.remove(streams / "S/messages" / SEGMENT)


def swap_messages(streams: Path) -> None:
    (streams / "S/messages").rename(streams / "moved")
    (streams / "T/messages").rename(streams / "S/messages")
    (streams / "moved").rename(streams / "T/messages")


def remove_consumer(streams: Path) -> None:
    os.remove(streams / "S/consumers/C/consumer.json")


def remove_consumer_log(streams: Path) -> None:
    os.remove(streams / "S/consumers/consumers-00000001.log")


def remove_consumer_directory(streams: Path) -> None:
    remove_consumer(streams)
    os.rmdir(streams / "S/consumers/C")


def remove_messages(streams: Path) -> None:
    shutil.rmtree(streams / "S/messages")


def empty_messages(streams: Path) -> None:
    for path in (streams / "S/messages").iterdir():
        path.unlink()


def remove_consumers(streams: Path) -> None:
    shutil.rmtree(streams / "S/consumers")


def cut_meta(streams: Path) -> None:
    os.truncate(streams / "S/stream.json", 20)


def remove_meta(streams: Path) -> None:
    os.remove(streams / "S/stream.json")


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (remove_segment, "missing"),
        (swap_messages, "another stream"),
        (remove_consumer, "configuration"),
        (remove_consumer_directory, "configuration"),
        (remove_consumer_log, "they start over"),
        (remove_messages, "all messages with it"),
        (empty_messages, "all messages with it"),
        (remove_consumers, "all consumers with it"),
        (cut_meta, "damaged"),
        (remove_meta, "stream.json` is missing"),
    ],
)
@asynchronous
async def test_files_that_are_missing_or_foreign_are_noticed(
    tmp_path: Path, damage: Callable[[Path], Any], told: str
) -> None:
    with serve(tmp_path) as running:
        for name in ("S", "T"):
            await fill(running, name)
        async with await connect(running.url) as client:
            consumer = client.jetstream().pull_consumer("S", "C")
            for message in await consumer.fetch(10):
                await message.ack_sync()
        stop(running, signal.SIGKILL)
    assert check(tmp_path)[0] == 0
    damage(tmp_path / "jetstream/$G/streams")

    code, text = check(tmp_path)
    with serve(tmp_path) as running:
        wait_until(lambda: told in running.log)
        health, metrics = get(running, "/healthz"), get(running, "/metrics")

    is_counted = re.search(r"(stream_faults{.*}|unreadable_streams) [1-9]", metrics)
    assert '"faults"' in health or '"error"' in health
    assert is_counted
    assert (code, told in text) == (1, True), text


@asynchronous
async def test_what_is_no_stream_keeps_none_away(tmp_path: Path) -> None:
    streams = tmp_path / "jetstream/$G/streams"
    with serve(tmp_path) as running:
        await fill(running)
    (streams / ".DS_Store").write_text("x")
    (streams / "note").write_text("x")
    (streams / "S/consumers/note").write_text("x")
    (streams / "empty").mkdir()
    with serve(tmp_path) as running:
        async with await connect(running.url) as client:
            info = await client.jetstream().consumers.info("S", "C")

        assert info["num_pending"] == COUNT - len(DELETED)
        assert json.loads(get(running, "/healthz")) == {"status": "ok"}
        for name in (".DS_Store", "note"):
            assert f"streams/{name}` is not the directory of a stream" in running.log
    assert (streams / ".DS_Store").exists()
