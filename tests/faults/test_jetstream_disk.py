"""A disk that is full, read-only or broken: refused in words, reported, and nothing lost."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.aio import asynchronous
from tests.servers import HOST, PENSTOCK, ServerProcess, wait_until

from penstock.client import JetStream, connect
from penstock.config.jetstream import JetStreamConfig
from penstock.errors import BatchFailed, JetStreamError, RequestTimeout
from penstock.net.server import Server

STORE_FAILED = 10077
PAYLOAD = bytes(10_000)
SEGMENT = 32 << 20
SMALL, LARGE = 4 << 20, 16 << 20
STARTS_S_MAX = 30


def get(port: int, path: str) -> tuple[int, Any]:
    """Return the status and the document of a monitoring endpoint."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}{path}") as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


async def publish_until_refused(jetstream: JetStream, acked: list[int]) -> JetStreamError:
    """Publish, note what was acked, and return why it ended."""
    try:
        while True:
            # Where nothing can be synced it is not known of the first one whether it is stored.
            with suppress(RequestTimeout):
                acked.append((await jetstream.publish("s.x", PAYLOAD)).sequence)
    except JetStreamError as error:
        return error


async def sequences(jetstream: JetStream) -> set[int]:
    """Return the sequences of what is stored; each message is read and compared."""
    state = (await jetstream.streams.info("S"))["state"]
    found = set()
    for sequence in range(state["first_seq"], state["last_seq"] + 1):
        assert (await jetstream.streams.get("S", seq=sequence)).payload == PAYLOAD
        found.add(sequence)
    return found


class SmallDisk:
    """A file system of its own that can be full, and can grow."""

    reason = "No space left on device"

    def __init__(self, path: Path, size: int = SMALL) -> None:
        self.path = path
        self.size = size
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], check=True)

    def limit(self, process: subprocess.Popen[bytes]) -> None:
        """It is small from the start."""

    def lift(self, process: subprocess.Popen[bytes]) -> None:
        subprocess.run(["mount", "-o", f"remount,size={LARGE}", self.path], check=True)

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", self.path], check=True)


class SmallFiles:
    """A limit on the size of each file, which needs no rights."""

    reason = "File too large"

    def __init__(self, path: Path) -> None:
        self.path = path

    def limit(self, process: subprocess.Popen[bytes]) -> None:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (SMALL, resource.RLIM_INFINITY))

    def lift(self, process: subprocess.Popen[bytes]) -> None:
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, unlimited)

    def close(self) -> None:
        """Nothing is left of it."""


@pytest.fixture(params=[SmallDisk, SmallFiles])
def bounded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallDisk | SmallFiles]:
    if request.param is SmallDisk and os.geteuid() != 0:
        pytest.skip("only root may mount")
    made = request.param(tmp_path)
    yield made
    made.close()


def server(store: Path) -> ServerProcess:
    return ServerProcess(PENSTOCK, "http_port: -1", "-js", "-sd", str(store))


@asynchronous
async def test_a_full_disk_refuses_says_so_and_recovers(bounded: SmallDisk | SmallFiles) -> None:
    acked: list[int] = []
    with server(bounded.path) as running:
        bounded.limit(running.process)
        async with await connect(running.url) as client:
            jetstream = client.jetstream()
            await jetstream.streams.create("S", subjects=["s.>"])
            error = await publish_until_refused(jetstream, acked)
            assert error.err_code == STORE_FAILED
            assert bounded.reason in error.description
            status, health = get(running.http_port, "/healthz")
            assert status == 503
            assert bounded.reason in health["error"]

            bounded.lift(running.process)
            wait_until(lambda: get(running.http_port, "/healthz") == (200, {"status": "ok"}))
            acked.append((await jetstream.publish("s.x", PAYLOAD)).sequence)
            # What was refused is not there, and nothing else is missing.
            assert set(acked) == await sequences(jetstream)
    assert len(acked) > SMALL // len(PAYLOAD) // 2
    await check_after_restart(bounded.path, acked)


async def check_after_restart(store: Path, acked: list[int]) -> None:
    with server(store) as running:
        async with await connect(running.url) as client:
            assert set(acked) <= await sequences(client.jetstream())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
@pytest.mark.parametrize("size", [SMALL, SEGMENT + SMALL], ids=["one segment", "more"])
@asynchronous
async def test_a_purge_makes_a_full_disk_work_again(tmp_path: Path, size: int) -> None:
    disk = SmallDisk(tmp_path, size)
    try:
        with server(tmp_path) as running:
            async with await connect(running.url) as client:
                jetstream = client.jetstream(window_messages_max=50)
                await jetstream.streams.create("S", subjects=["s.>"])
                with pytest.raises(BatchFailed):
                    await jetstream.publish_batch([("s.x", PAYLOAD)] * (disk.size // len(PAYLOAD)))

                await jetstream.streams.purge("S")

                wait_until(lambda: get(running.http_port, "/healthz")[0] == 200)
                last = (await jetstream.publish("s.x", PAYLOAD)).sequence
                assert len(await sequences(jetstream)) == 1
                wait_until(lambda: used_bytes(tmp_path) < SMALL // 4)
        await check_after_restart(tmp_path, [last])
    finally:
        disk.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
@asynchronous
async def test_what_a_full_disk_refused_never_happens(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path)
    acked: list[int] = []
    try:
        with server(tmp_path) as running:
            async with await connect(running.url) as client:
                jetstream = client.jetstream()
                await jetstream.streams.create("S", subjects=["s.>"])
                await publish_until_refused(jetstream, acked)
                for _ in range(3):
                    with pytest.raises(JetStreamError, match="No space left"):
                        await jetstream.publish("s.x", PAYLOAD)
                with pytest.raises(JetStreamError, match="No space left"):
                    await jetstream.streams.delete_message("S", 10)
                # Reads are answered, and show what is durable.
                assert await sequences(jetstream) == set(acked)
                running.process.kill()
                running.process.wait()
        disk.lift(running.process)
        with server(tmp_path) as running:
            async with await connect(running.url) as client:
                jetstream = client.jetstream()
                assert await sequences(jetstream) == set(acked)
                assert (await jetstream.publish("s.x", PAYLOAD)).sequence == acked[-1] + 1
    finally:
        disk.close()


def used_bytes(path: Path) -> int:
    usage = os.statvfs(path)
    return (usage.f_blocks - usage.f_bfree) * usage.f_frsize


def health_of(running: Server) -> tuple[int, Any]:
    assert running.http_port is not None
    return get(running.http_port, "/healthz")


def broken(number: int) -> Any:
    """Return a system call that fails."""

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


def read_only(path: str, flags: int, *rest: Any, **named: Any) -> int:
    if flags & os.O_CREAT:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))
    return OPEN(path, flags, *rest, **named)


OPEN = os.open
FAULTS = {
    "a failing fsync": ("fdatasync", broken(errno.EIO), "Input/output error"),
    "a failing write": ("pwrite", broken(errno.ENOSPC), "No space left on device"),
}


@pytest.mark.parametrize(("call", "failing", "reason"), FAULTS.values(), ids=FAULTS)
@asynchronous
async def test_a_disk_that_breaks_is_reported_and_used_again(
    call: str, failing: Any, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acked: list[int] = []
    config = JetStreamConfig(store_dir=str(tmp_path))
    async with Server(jetstream=config, http_port=0) as running:
        async with await connect(running.url) as client:
            jetstream = client.jetstream(ack_timeout_s=1.0)
            await jetstream.streams.create("S", subjects=["s.>"])
            acked.append((await jetstream.publish("s.x", PAYLOAD)).sequence)
            with monkeypatch.context() as patched:
                patched.setattr(os, call, failing)
                error = await publish_until_refused(jetstream, acked)
                assert (error.err_code, reason in error.description) == (STORE_FAILED, True)
                status, health = await asyncio.to_thread(health_of, running)
                assert (status, reason in health["error"]) == (503, True)

            await asyncio.to_thread(wait_until, lambda: health_of(running)[0] == 200)
            acked.append((await jetstream.publish("s.x", PAYLOAD)).sequence)
            assert set(acked) == await sequences(jetstream)
    await check_after_restart(tmp_path, acked)


@asynchronous
async def test_a_read_only_directory_refuses_new_streams_and_keeps_the_old_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Server(jetstream=JetStreamConfig(store_dir=str(tmp_path))) as running:
        async with await connect(running.url) as client:
            jetstream = client.jetstream()
            await jetstream.streams.create("S", subjects=["s.>"])
            await jetstream.publish("s.x", PAYLOAD)
            with monkeypatch.context() as patched:
                patched.setattr(os, "open", read_only)
                with pytest.raises(JetStreamError, match="Read-only file system"):
                    await jetstream.streams.create("T", subjects=["t.>"])
                with pytest.raises(JetStreamError, match="Read-only file system"):
                    await jetstream.consumers.create("S", durable_name="C", ack_policy="explicit")
                assert await sequences(jetstream) == {1}

            await jetstream.streams.create("T", subjects=["t.>"])
            await jetstream.consumers.create("S", durable_name="C", ack_policy="explicit")


def start_and_fail(store: Path) -> str:
    """Return what a server says that does not start."""
    ended = subprocess.run(
        [*PENSTOCK.command, "-a", HOST, "-p", "-1", "-js", "-sd", str(store)],
        capture_output=True,
        text=True,
        timeout=STARTS_S_MAX,
        check=False,
    )
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    return ended.stderr


def test_a_second_server_on_the_same_store_is_refused(tmp_path: Path) -> None:
    with server(tmp_path) as running:
        said = start_and_fail(tmp_path)

        assert f"is in use by process {running.process.pid}" in said
        assert "hint:" in said
        with server(tmp_path / "other"):
            assert get(running.http_port, "/healthz")[0] == 200


def test_a_store_that_is_no_directory_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "jetstream").write_text("a file")

    assert f"`{tmp_path}/jetstream`" in start_and_fail(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_read_only_store_is_refused_in_words(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path)
    try:
        subprocess.run(["mount", "-o", "remount,ro", tmp_path], check=True)

        assert "read-only file system" in start_and_fail(tmp_path)
    finally:
        disk.close()
