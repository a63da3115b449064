"""Key-value buckets and the object store of nats-py, against the real server and ours."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import nats
import pytest
from nats.js import JetStreamContext
from nats.js.errors import (
    KeyDeletedError,
    KeyNotFoundError,
    KeyWrongLastSequenceError,
    ObjectNotFoundError,
)
from tests.aio import asynchronous
from tests.conformance.jsrequests import CONFIG
from tests.conformance.natspy import first_updates, listed
from tests.conftest import Servers
from tests.servers import Program


@asynccontextmanager
async def jetstream(program: Program, servers: Servers) -> AsyncIterator[JetStreamContext]:
    client = await nats.connect(servers(program, CONFIG).url)
    try:
        yield client.jetstream()
    finally:
        await client.close()


@asynchronous
async def test_a_bucket_keeps_values_by_key(program: Program, servers: Servers) -> None:
    async with jetstream(program, servers) as js:
        bucket = await js.create_key_value(bucket="values", history=3)
        assert 1 == await bucket.put("a", b"1")
        assert 2 == await bucket.update("a", b"2", last=1)
        assert 3 == await bucket.create("b", b"x")
        with pytest.raises(KeyWrongLastSequenceError):
            await bucket.update("a", b"3", last=1)
        with pytest.raises(KeyWrongLastSequenceError):
            await bucket.create("b", b"y")

        assert b"2" == (await bucket.get("a")).value
        assert b"1" == (await bucket.get("a", revision=1)).value
        assert ["a", "b"] == sorted(await listed(bucket.keys))
        assert [b"1", b"2"] == [entry.value for entry in await listed(lambda: bucket.history("a"))]
        await js.delete_key_value("values")


@asynchronous
async def test_a_deleted_key_can_be_created_again(program: Program, servers: Servers) -> None:
    async with jetstream(program, servers) as js:
        bucket = await js.create_key_value(bucket="deleted")
        await bucket.put("a", b"1")
        await bucket.delete("a")
        with pytest.raises((KeyNotFoundError, KeyDeletedError)):
            await bucket.get("a")

        await bucket.create("a", b"2")
        assert b"2" == (await bucket.get("a")).value
        await bucket.purge("a")
        assert 1 == (await bucket.status()).values
        await js.delete_key_value("deleted")


@asynchronous
async def test_a_watcher_sees_what_is_there_and_then_what_comes(
    program: Program, servers: Servers
) -> None:
    async with jetstream(program, servers) as js:
        bucket = await js.create_key_value(bucket="watched")
        await bucket.put("a", b"1")
        await bucket.put("b", b"2")
        watcher = await bucket.watchall()
        assert ["a", "b"] == [entry.key for entry in await first_updates(watcher, 2)]

        await bucket.put("c", b"3")
        following = await watcher.updates(timeout=5)
        assert following is not None
        assert ("c", b"3") == (following.key, following.value)
        await watcher.stop()
        await js.delete_key_value("watched")


@asynchronous
async def test_an_object_comes_back_as_it_was_put(program: Program, servers: Servers) -> None:
    async with jetstream(program, servers) as js:
        store = await js.create_object_store("objects")
        content = bytes(range(256)) * 2000
        put = await store.put("large", content)
        assert (len(content), 4) == (put.size, put.chunks)
        assert content == (await store.get("large")).data
        assert ["large"] == [entry.name for entry in await store.list()]

        await store.delete("large")
        with pytest.raises(ObjectNotFoundError):
            await store.get("large")
        await store.seal()
        assert (await store.status()).sealed
        await js.delete_object_store("objects")
