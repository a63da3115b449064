"""JetStream in a running server: commits in a thread, timers on the loop, restarts."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.aio import asynchronous, until

from penstock.config.jetstream import JetStreamConfig
from penstock.errors import StoreError
from penstock.jetstream.files.rubbish import SWEPT_MAX
from penstock.jetstream.store.file import disk
from penstock.net import committer
from penstock.net.monitor.healthz import healthz
from penstock.net.server import Server


class Client:
    """Requests, one after another, on a plain connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.info: dict[str, Any] = {}
        self._reader = reader
        self._writer = writer

    async def start(self) -> None:
        self.info = json.loads((await self._reader.readline()).removeprefix(b"INFO "))
        options = b'{"verbose":false,"headers":true,"no_responders":true}'
        self._writer.write(b"CONNECT %b\r\nSUB _INBOX.r 1\r\n" % options)

    def send(self, subject: str, payload: str = "") -> None:
        body = payload.encode()
        self._writer.write(b"PUB %b _INBOX.r %d\r\n%b\r\n" % (subject.encode(), len(body), body))

    async def answer(self) -> Any:
        fields = (await self._reader.readline()).split()
        return json.loads(await self._reader.readexactly(int(fields[-1]) + 2))

    async def ask(self, subject: str, payload: str = "") -> Any:
        self.send(subject, payload)
        return await self.answer()


def settings(directory: Path, **options: Any) -> JetStreamConfig:
    return JetStreamConfig(store_dir=str(directory), **options)


@asynccontextmanager
async def serving(config: JetStreamConfig) -> AsyncIterator[tuple[Server, Client]]:
    async with Server(jetstream=config) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        client = Client(reader, writer)
        await client.start()
        try:
            yield server, client
        finally:
            writer.close()


async def create(client: Client, name: str, **options: Any) -> None:
    answer = await client.ask(f"$JS.API.STREAM.CREATE.{name}", json.dumps({"name": name} | options))
    assert "error" not in answer, answer


@pytest.fixture
def break_syncs(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Return a switch that makes the disk fail, and well again."""
    sync = disk.RealFile.sync

    def fail(file: disk.RealFile) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def switch(is_broken: bool) -> None:
        monkeypatch.setattr(disk.RealFile, "sync", fail if is_broken else sync)

    return switch


@asynchronous
async def test_clients_are_told_that_there_is_jetstream(tmp_path: Path) -> None:
    async with serving(settings(tmp_path, domain="hub")) as (_, client):
        assert client.info["jetstream"] is True
        assert "hub" == client.info["domain"]


@asynchronous
async def test_without_jetstream_its_api_has_no_responders() -> None:
    async with Server() as server:
        assert server.journal is None
        assert "jetstream" not in server.broker.info


@pytest.mark.parametrize("sync", ["always", 0.01, 60.0])
@asynchronous
async def test_what_was_acked_is_there_after_a_restart(tmp_path: Path, sync: Any) -> None:
    async with serving(settings(tmp_path, sync_interval=sync)) as (_, client):
        await create(client, "S")
        assert {"stream": "S", "seq": 1} == await client.ask("S", "x")

    async with serving(settings(tmp_path, sync_interval=sync)) as (server, client):
        assert server.journal is not None
        assert 1 == server.journal.engines["$G"].streams["S"].store.messages
        assert {"stream": "S", "seq": 2} == await client.ask("S", "y")


@pytest.mark.parametrize("storage", ["file", "memory"])
@asynchronous
async def test_many_publishes_in_flight_are_all_acked_in_order(
    tmp_path: Path, storage: str
) -> None:
    async with serving(settings(tmp_path)) as (_, client):
        await create(client, "S", storage=storage)
        for number in range(5000):
            client.send("S", str(number))

        acks = [await client.answer() for _ in range(5000)]

        assert list(range(1, 5001)) == [ack["seq"] for ack in acks]


@asynchronous
async def test_one_sync_covers_what_arrived_meanwhile(tmp_path: Path) -> None:
    async with serving(settings(tmp_path)) as (server, client):
        await create(client, "S")
        assert server.journal is not None
        before = server.journal.commits
        for _ in range(10_000):
            client.send("S", "x")
        for _ in range(10_000):
            await client.answer()

        assert 0 < server.journal.commits - before < 1000


@asynchronous
async def test_a_second_server_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    async with serving(settings(tmp_path)):
        with pytest.raises(StoreError, match="in use"):
            await Server(jetstream=settings(tmp_path)).start()
    async with serving(settings(tmp_path)) as (_, client):
        await create(client, "S")


@asynchronous
async def test_messages_age_without_anybody_asking(tmp_path: Path) -> None:
    async with serving(settings(tmp_path)) as (server, client):
        await create(client, "S", max_age=100_000_000, duplicate_window=100_000_000)
        await client.ask("S", "x")
        assert server.journal is not None
        store = server.journal.engines["$G"].streams["S"].store

        await until(lambda: store.messages == 0)


@asynchronous
async def test_a_failing_sync_is_an_error_until_the_disk_is_well(
    tmp_path: Path, break_syncs: Callable[[bool], None]
) -> None:
    async with serving(settings(tmp_path)) as (server, client):
        await create(client, "S")
        await client.ask("S", "before")

        break_syncs(True)
        client.send("S", "during")
        await until(lambda: healthz(server, {})[0] == 503)
        assert "JetStream stream 'S' cannot store" in healthz(server, {})[1]["error"]
        answer = await client.ask("S", "refused")
        assert 10077 == answer["error"]["err_code"]

        break_syncs(False)
        # Only now is it known that the first one is not stored.
        assert 10077 == (await client.answer())["error"]["err_code"]
        await until(lambda: healthz(server, {})[0] == 200)
        assert "error" not in await client.ask("S", "after")


@asynchronous
async def test_a_synced_interval_fails_openly_too(
    tmp_path: Path, break_syncs: Callable[[bool], None]
) -> None:
    async with serving(settings(tmp_path, sync_interval=0.02)) as (server, client):
        await create(client, "S")
        break_syncs(True)
        await client.ask("S", "x")

        await until(lambda: healthz(server, {})[0] == 503)
        break_syncs(False)
        await until(lambda: healthz(server, {})[0] == 200)


@asynchronous
async def test_consumers_that_can_not_be_kept_are_told_of_until_the_disk_is_well(
    tmp_path: Path, break_syncs: Callable[[bool], None]
) -> None:
    async with serving(settings(tmp_path)) as (server, client):
        await create(client, "S")
        config = {"durable_name": "C", "ack_policy": "explicit"}
        request = json.dumps({"stream_name": "S", "config": config})
        assert "error" not in await client.ask("$JS.API.CONSUMER.CREATE.S.C", request)
        await client.ask("S", "{}")

        break_syncs(True)
        assert {} == await client.ask("$JS.API.CONSUMER.MSG.NEXT.S.C", "1")
        await until(lambda: healthz(server, {})[0] == 503)
        error = healthz(server, {})[1]["error"]
        assert "JetStream stream 'S' cannot store how far its consumers are" in error

        break_syncs(False)
        await until(lambda: healthz(server, {})[0] == 200)


@asynchronous
async def test_a_commit_that_does_not_end_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    sync = disk.RealFile.sync

    def wait(file: disk.RealFile) -> None:
        answers.wait()
        sync(file)

    monkeypatch.setattr(committer, "STUCK_S", 0.01)
    async with serving(settings(tmp_path)) as (server, client):
        await create(client, "S")
        assert 200 == healthz(server, {})[0]
        monkeypatch.setattr(disk.RealFile, "sync", wait)
        try:
            client.send("S", "x")
            await until(lambda: healthz(server, {})[0] == 503)
            assert "JetStream waits for its disk" in healthz(server, {})[1]["error"]
        finally:
            answers.set()
        assert 1 == (await client.answer())["seq"]
        await until(lambda: healthz(server, {})[0] == 200)


@asynchronous
async def test_what_a_deleted_stream_leaves_goes_between_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is never idle gives the room back too."""
    monkeypatch.setattr(committer, "HOUSEKEEPING_S", 3600.0)
    monkeypatch.setattr(committer, "HOUSEKEEPING_LATEST_S", 3600.0)
    async with serving(settings(tmp_path)) as (server, client):
        await create(client, "KEPT")
        await create(client, "GONE")
        for number in range(2 * SWEPT_MAX):
            config = {"name": f"c{number}", "durable_name": f"c{number}"}
            document = json.dumps({"stream_name": "GONE", "config": config})
            client.send(f"$JS.API.CONSUMER.CREATE.GONE.c{number}", document)
        for _ in range(2 * SWEPT_MAX):
            assert "error" not in await client.answer()
        assert server.journal is not None
        files = next(iter(server.journal.engines.values())).files

        assert (await client.ask("$JS.API.STREAM.DELETE.GONE"))["success"]

        sequence = 0
        while files.disk.names(files.root) != ["KEPT"]:
            sequence += 1
            assert (await client.ask("KEPT", "x"))["seq"] == sequence
