"""What streams do with messages by themselves, in time: the real server and ours, by nats-py."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import nats
from nats.aio.client import Client
from tests.aio import asynchronous
from tests.conformance.jsrequests import CONFIG
from tests.conftest import Servers
from tests.servers import Program

T = TypeVar("T")
SECOND_NS = 1_000_000_000
PATIENCE_S = 20.0


@asynccontextmanager
async def connected(program: Program, servers: Servers) -> AsyncIterator[Client]:
    client = await nats.connect(servers(program, CONFIG).url)
    try:
        yield client
    finally:
        await client.close()


async def call(client: Client, name: str, /, **fields: Any) -> Any:
    """Make an API call that must work."""
    js = client.jetstream()
    answer = await js._api_request(f"$JS.API.{name}", json.dumps(fields).encode(), timeout=10)
    assert "error" not in answer, answer
    return answer


@asynccontextmanager
async def stream(client: Client, name: str, /, **options: Any) -> AsyncIterator[None]:
    """Have a stream for as long as it is needed."""
    await call(client, f"STREAM.CREATE.{name}", name=name, **options)
    try:
        yield
    finally:
        await client.jetstream().delete_stream(name)


async def until(ask: Callable[[], Awaitable[T]], holds: Callable[[T], bool]) -> T:
    """Ask until the answer is the one that is waited for."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds(answer := await ask()):
        assert time.monotonic() < deadline, answer
        await asyncio.sleep(0.05)
    return answer


async def held(client: Client, name: str) -> list[int]:
    """Return the sequences a stream has."""
    info = await call(client, f"STREAM.INFO.{name}", deleted_details=True)
    state = info["state"]
    every = range(state["first_seq"], state["last_seq"] + 1)
    return [each for each in every if each not in (state.get("deleted") or ())]


@asynchronous
async def test_the_last_message_of_a_subject_leaves_a_marker_that_goes(
    program: Program, servers: Servers
) -> None:
    options = {"subjects": ["lm.*"], "subject_delete_marker_ttl": SECOND_NS}
    async with connected(program, servers) as client, stream(client, "LM", **options):
        js = client.jetstream()
        for subject in ("lm.a", "lm.b", "lm.a"):
            await js.publish(subject, b"x", headers={"Nats-TTL": "1s"})

        await until(lambda: held(client, "LM"), lambda found: found == [4, 5])
        markers = [await js.get_msg("LM", sequence) for sequence in (4, 5)]
        assert {"lm.a", "lm.b"} == {marker.subject for marker in markers}
        told = {"Nats-Marker-Reason": "MaxAge", "Nats-TTL": "1s", "Nats-Rollup": "sub"}
        assert [told, told] == [marker.headers for marker in markers]
        await until(lambda: held(client, "LM"), lambda found: found == [])


@asynchronous
async def test_what_lives_for_ever_outlives_max_age(program: Program, servers: Servers) -> None:
    options = {"subjects": ["le.*"], "allow_msg_ttl": True, "max_age": SECOND_NS}
    async with connected(program, servers) as client, stream(client, "LE", **options):
        js = client.jetstream()
        for ttl in ("never", "1h", "never"):
            await js.publish("le.a", b"x", headers={"Nats-TTL": ttl})
        await js.publish("le.a", b"x")

        await until(lambda: held(client, "LE"), lambda found: found == [1, 3])


@asynchronous
async def test_what_is_stored_is_published_again(program: Program, servers: Servers) -> None:
    options = {"subjects": ["rs.>"], "republish": {"src": "rs.*", "dest": "rd.{{wildcard(1)}}"}}
    async with connected(program, servers) as client, stream(client, "RS", **options):
        copies = await client.subscribe("rd.>")
        await client.flush()
        js = client.jetstream()
        await js.publish("rs.a", b"1")
        await js.publish("rs.b.c", b"2")
        await js.publish("rs.a", b"3", headers={"Other": "x"})

        first, second = [await copies.next_msg(timeout=10) for _ in range(2)]
        assert ("rd.a", b"1", "rd.a", b"3") == (
            *(first.subject, first.data),
            *(second.subject, second.data),
        )
        assert ["RS", "rs.a", "3", "1", "x"] == [
            second.headers[name]
            for name in (
                *("Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Last-Sequence", "Other"),
            )
        ]


@asynchronous
async def test_a_copy_of_headers_only_says_how_much_is_missing(
    program: Program, servers: Servers
) -> None:
    options = {"subjects": ["ho.>"], "republish": {"dest": "hd.>", "headers_only": True}}
    async with connected(program, servers) as client, stream(client, "HO", **options):
        copies = await client.subscribe("hd.>")
        await client.flush()
        await client.jetstream().publish("ho.a", b"12345")

        copy = await copies.next_msg(timeout=10)
        assert ("hd.ho.a", b"", "5") == (copy.subject, copy.data, copy.headers["Nats-Msg-Size"])
