"""Buckets of our client, on both servers and side by side with those of nats-py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import nats
import pytest
from nats.js.api import StorageType
from nats.js.errors import KeyDeletedError, KeyNotFoundError
from tests.aio import asynchronous
from tests.conformance.natspy import listed
from tests.conftest import Servers
from tests.servers import Program

from penstock.client import JetStream, connect
from penstock.client.jetstream.keyvalue import KeyNotFound, KeyValue, WrongRevision
from penstock.errors import ClientError, JetStreamError

MEMORY = {"storage": "memory"}
"""nats-server stumbles over a file stream that comes back right after it was deleted."""

CONFIG = '# Buckets\njetstream { store_dir: "js" }'


@asynccontextmanager
async def jetstream(program: Program, servers: Servers) -> AsyncIterator[JetStream]:
    """Return JetStream on a server without buckets."""
    async with await connect(servers(program, CONFIG).url) as client:
        js = client.jetstream()
        for name in await js.streams.names():
            await js.streams.delete(name)
        yield js


@asynchronous
async def test_the_last_value_of_a_key_is_its_value(program: Program, servers: Servers) -> None:
    async with jetstream(program, servers) as js:
        bucket = await KeyValue.create(js, "b", **MEMORY, history=2)

        assert [1, 2, 3] == [await bucket.put("k", b"%d" % n) for n in range(3)]
        entry = await bucket.get("k")
        assert (entry.key, entry.value, entry.revision, entry.operation) == ("k", b"2", 3, "PUT")
        assert b"1" == (await bucket.get("k", revision=2)).value
        with pytest.raises(KeyNotFound, match="at revision 1"):
            await bucket.get("k", revision=1)
        with pytest.raises(KeyNotFound, match="no key `other`"):
            await bucket.get("other")


@asynchronous
async def test_a_bucket_without_direct_get_can_be_read(program: Program, servers: Servers) -> None:
    async with jetstream(program, servers) as js:
        bucket = await KeyValue.create(js, "b", **MEMORY, allow_direct=False)
        await bucket.put("k", b"1")

        for each in (bucket, await KeyValue.open(js, "b")):
            assert b"1" == (await each.get("k")).value
            with pytest.raises(KeyNotFound):
                await each.get("other")


@asynchronous
async def test_of_two_writers_one_is_told(program: Program, servers: Servers) -> None:
    async with jetstream(program, servers) as js:
        bucket = await KeyValue.create(js, "b", **MEMORY)

        first = await bucket.create_key("k", b"1")
        with pytest.raises(WrongRevision, match="exists, at revision 1"):
            await bucket.create_key("k", b"2")
        second = await bucket.update("k", b"2", revision=first)
        with pytest.raises(WrongRevision, match="is at revision 2, not 1"):
            await bucket.update("k", b"3", revision=first)
        with pytest.raises(WrongRevision):
            await bucket.delete("k", revision=first)
        await bucket.delete("k", revision=second)
        await bucket.create_key("k", b"4")
        assert b"4" == (await bucket.get("k")).value


@asynchronous
async def test_keys_and_history_end(program: Program, servers: Servers) -> None:
    async with jetstream(program, servers) as js:
        bucket = await KeyValue.create(js, "b", **MEMORY, history=3)

        assert [] == await bucket.keys()
        assert [] == await bucket.history()
        for key in ("a.x", "a.y", "c"):
            await bucket.put(key, b"1")
        await bucket.delete("a.y")
        assert ["a.x", "c"] == sorted(await bucket.keys())
        assert ["a.x"] == await bucket.keys("a.*")
        assert ["a.x", "c"] == sorted(await bucket.keys("a.x", "c"))
        entries = await bucket.history("a.y")
        assert [(2, "PUT", b"1"), (4, "DEL", b"")] == [
            (entry.revision, entry.operation, entry.value) for entry in entries
        ]
        await bucket.purge("a.y")
        assert ["PURGE"] == [entry.operation for entry in await bucket.history("a.y")]
        assert [] == await js.consumers.names(bucket.stream)


@pytest.mark.parametrize(
    ("reason", "operation"), [("MaxAge", "PURGE"), ("Purge", "PURGE"), ("Remove", "DEL")]
)
@asynchronous
async def test_a_marker_that_the_server_left_is_a_deletion(
    reason: str, operation: str, program: Program, servers: Servers
) -> None:
    async with jetstream(program, servers) as js:
        bucket = await KeyValue.create(js, "b", **MEMORY)
        await js.publish("$KV.b.k", headers={"Nats-Marker-Reason": reason})

        assert [operation] == [entry.operation for entry in await bucket.history("k")]
        with pytest.raises(KeyNotFound, match="was deleted"):
            await bucket.get("k")
        assert 2 == await bucket.create_key("k", b"1")


@asynchronous
async def test_more_keys_than_one_batch_are_all_listed(program: Program, servers: Servers) -> None:
    async with jetstream(program, servers) as js:
        bucket = await KeyValue.create(js, "b", **MEMORY)
        keys = [f"k.{number}" for number in range(1203)]
        await js.publish_batch([(f"$KV.b.{key}", b"v") for key in keys])

        assert keys == await bucket.keys()


@asynchronous
async def test_a_watch_goes_on_with_what_changes(program: Program, servers: Servers) -> None:
    async with jetstream(program, servers) as js:
        bucket = await KeyValue.create(js, "b", **MEMORY, history=2)
        for value in (b"1", b"2"):
            await bucket.put("k", value)
        await bucket.put("other", b"x")

        watch = bucket.watch("k")
        entry = await anext(watch)
        assert (entry.value, entry.pending) == (b"2", 0)
        await bucket.put("k", b"3")
        await bucket.delete("k")
        assert ["PUT", "DEL"] == [(await anext(watch)).operation for _ in range(2)]
        await watch.aclose()

        watch = bucket.watch(history=True)
        assert [b"3", b"", b"x"] == sorted(
            [(await anext(watch)).value for _ in range(3)], key=[b"3", b"", b"x"].index
        )
        await watch.aclose()


@asynchronous
async def test_a_bucket_is_made_like_that_of_other_clients(
    program: Program, servers: Servers
) -> None:
    async with jetstream(program, servers) as js:
        bucket = await KeyValue.create(js, "b", **MEMORY, history=7, ttl=timedelta(seconds=30))

        config = (await bucket.info())["config"]
        expected = {
            "name": "KV_b",
            "subjects": ["$KV.b.>"],
            "max_msgs_per_subject": 7,
            "max_age": 30_000_000_000,
            "duplicate_window": 30_000_000_000,
            "discard": "new",
            "allow_direct": True,
            "allow_rollup_hdrs": True,
            "deny_delete": True,
        }
        assert expected == {name: config[name] for name in expected}
        await bucket.destroy()
        with pytest.raises(JetStreamError, match="stream not found"):
            await KeyValue.open(js, "b")


@asynchronous
async def test_what_we_write_nats_py_reads(program: Program, servers: Servers) -> None:
    async with jetstream(program, servers) as js:
        ours = await KeyValue.create(js, "shared", **MEMORY, history=5)
        await ours.put("a", b"1")
        await ours.put("a", b"2")
        await ours.put("gone", b"x")
        await ours.delete("gone")
        await ours.put("purged", b"x")
        await ours.purge("purged")

        client = await nats.connect(servers(program, CONFIG).url)
        theirs = await client.jetstream().key_value("shared")
        assert b"2" == (await theirs.get("a")).value
        assert b"1" == (await theirs.get("a", revision=1)).value
        assert ["a"] == await listed(theirs.keys)
        assert [b"1", b"2"] == [entry.value for entry in await listed(lambda: theirs.history("a"))]
        for key in ("gone", "purged"):
            with pytest.raises((KeyDeletedError, KeyNotFoundError)):
                await theirs.get(key)
        await client.close()


@asynchronous
async def test_what_nats_py_writes_we_read(program: Program, servers: Servers) -> None:
    async with jetstream(program, servers) as js:
        client = await nats.connect(servers(program, CONFIG).url)
        theirs = await client.jetstream().create_key_value(
            bucket="shared", history=5, direct=True, storage=StorageType.MEMORY
        )
        await theirs.put("a", b"1")
        await theirs.update("a", b"2", last=1)
        await theirs.put("gone", b"x")
        await theirs.delete("gone")
        await theirs.put("purged", b"x")
        await theirs.purge("purged")

        ours = await KeyValue.open(js, "shared")
        assert b"2" == (await ours.get("a")).value
        assert ["a"] == await ours.keys()
        assert [b"1", b"2"] == [entry.value for entry in await ours.history("a")]
        assert ["PURGE"] == [entry.operation for entry in await ours.history("purged")]
        for key in ("gone", "purged"):
            with pytest.raises(KeyNotFound, match="was deleted"):
                await ours.get(key)
        await ours.create_key("gone", b"back")
        assert b"back" == (await theirs.get("gone")).value
        await client.close()


@pytest.mark.parametrize("name", ["", "a.b", "a b", "a*", "ä"])
@asynchronous
async def test_a_bucket_has_a_plain_name(name: str, program: Program, servers: Servers) -> None:
    async with jetstream(program, servers) as js:
        with pytest.raises(ClientError, match="not a valid bucket name"):
            await KeyValue.create(js, name)


@pytest.mark.parametrize("key", ["", ".a", "a.", "a..b", "a b", "a*", "a.>", "ä"])
@asynchronous
async def test_a_key_is_a_subject_of_plain_characters(
    key: str, program: Program, servers: Servers
) -> None:
    async with jetstream(program, servers) as js:
        bucket = await KeyValue.create(js, "b", **MEMORY)

        with pytest.raises(ClientError, match="is not a valid key"):
            await bucket.put(key, b"1")
