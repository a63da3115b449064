"""What streams do with messages by themselves, in time: the real server and ours, by nats-py."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any, TypeVar

import nats
from nats.aio.client import Client
from nats.js.errors import NotFoundError
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


async def stored(client: Client, name: str) -> list[tuple[int, str, bytes, Any]]:
    """Return the messages of a stream: sequence, subject, payload, headers."""
    js = client.jetstream()
    found = []
    for sequence in await held(client, name):
        # A schedule takes messages away by its own clock, also between the list and the reading.
        with suppress(NotFoundError):
            found.append(await js.get_msg(name, sequence))
    return [(each.seq, each.subject, each.data, each.headers) for each in found]


async def origin(client: Client, name: str) -> None:
    """Fill a stream: six messages with ids, of which the third is gone."""
    js = client.jetstream()
    for number in range(1, 7):
        told = {"Nats-Msg-Id": str(number), "Nats-Expected-Last-Sequence": str(number - 1)}
        await js.publish(f"{name.lower()}.{number % 2}", b"%d" % number, headers=told)
    await js.delete_msg(name, 3)


def described(info: Any) -> Any:
    """Return what StreamInfo says of an origin, without what differs from time to time."""
    told = dict(info["mirror"] if "mirror" in info else info["sources"][0])
    assert told.pop("active") >= 0
    return told


async def caught_up(client: Client, name: str, messages: int) -> Any:
    """Wait until a copy has so many messages, and has heard of its origin."""

    def holds(info: Any) -> bool:
        origin = info["mirror"] if "mirror" in info else info["sources"][0]
        return info["state"]["messages"] == messages and origin["active"] >= 0

    return await until(lambda: call(client, f"STREAM.INFO.{name}"), holds)


@asynchronous
async def test_a_mirror_is_a_copy_of_its_origin(program: Program, servers: Servers) -> None:
    renamed = {"name": "MO", "subject_transforms": [{"src": "mo.*", "dest": "mp.$1"}]}
    later = {"name": "MO", "filter_subject": "mo.0", "opt_start_seq": 3}
    async with connected(program, servers) as client, stream(client, "MO", subjects=["mo.*"]):
        await origin(client, "MO")
        async with (
            stream(client, "M1", mirror={"name": "MO"}),
            stream(client, "M2", mirror=renamed),
            stream(client, "M3", mirror=later),
        ):
            expected = [
                (number, f"mo.{number % 2}", b"%d" % number, {"Nats-Msg-Id": str(number)})
                for number in (1, 2, 4, 5, 6)
            ]
            assert {"name": "MO", "lag": 0} == described(await caught_up(client, "M1", 5))
            assert expected == await stored(client, "M1")
            await caught_up(client, "M2", 5)
            assert {"mp.0", "mp.1"} == {subject for _, subject, *_ in await stored(client, "M2")}
            told = {"name": "MO", "lag": 0, "filter_subject": "mo.0"}
            assert told == described(await caught_up(client, "M3", 2))
            assert [4, 6] == await held(client, "M3")


@asynchronous
async def test_sources_say_where_they_are_from(program: Program, servers: Servers) -> None:
    renamed = {"name": "SO", "subject_transforms": [{"src": "so.1", "dest": "sp"}]}
    async with connected(program, servers) as client, stream(client, "SO", subjects=["so.*"]):
        await origin(client, "SO")
        async with (
            stream(client, "S1", sources=[{"name": "SO", "filter_subject": "so.0"}]),
            stream(client, "S2", sources=[renamed]),
        ):
            told = {"name": "SO", "lag": 0, "seq": 6, "filter_subject": "so.0"}
            assert told == described(await caught_up(client, "S1", 3))
            found = await stored(client, "S1")
            assert [(1, "so.0", b"2"), (2, "so.0", b"4"), (3, "so.0", b"6")] == [
                each[:3] for each in found
            ]
            source = found[0][3]["Nats-Stream-Source"].split()
            assert ["SO", "2", "so.0", ">", "so.0"] == source[:5]
            assert 6 == len(source)
            await caught_up(client, "S2", 2)
            first = (await stored(client, "S2"))[0]
            assert ("sp", b"1") == first[1:3]
            assert first[3]["Nats-Stream-Source"].startswith("SO 1 so.1 sp so.1 ")


@asynchronous
async def test_a_mirror_without_its_origin_says_so(program: Program, servers: Servers) -> None:
    async with (
        connected(program, servers) as client,
        stream(client, "MX", mirror={"name": "Nowhere"}),
    ):

        def holds(info: Any) -> bool:
            return "error" in info["mirror"]

        info = await until(lambda: call(client, "STREAM.INFO.MX"), holds)
        assert (-1, 10059) == (info["mirror"]["active"], info["mirror"]["error"]["err_code"])


def in_a_second() -> str:
    """Return a schedule for a time that comes soon."""
    return datetime.fromtimestamp(time.time() + 1, UTC).strftime("@at %Y-%m-%dT%H:%M:%SZ")


@asynchronous
async def test_a_schedule_makes_a_message_when_it_is_due(
    program: Program, servers: Servers
) -> None:
    options = {"subjects": ["sc.>"], "allow_msg_schedules": True}
    async with connected(program, servers) as client, stream(client, "SC", **options):
        js = client.jetstream()
        told = {"Nats-Schedule-Target": "sc.target", "Other": "x"}
        await js.publish("sc.once", b"once", headers=told | {"Nats-Schedule": in_a_second()})
        await js.publish("sc.ever", b"tick", headers=told | {"Nats-Schedule": "@every 1s"})

        async def made() -> list[Any]:
            return [each for each in await stored(client, "SC") if each[1] == "sc.target"]

        found = await until(made, lambda found: len(found) >= 3)
        once = next(each for each in found if each[2] == b"once")
        expected = {"Other": "x", "Nats-Scheduler": "sc.once", "Nats-Schedule-Next": "purge"}
        assert expected == once[3]
        ticks = [each for each in found if each[2] == b"tick"]
        assert {"Other", "Nats-Scheduler", "Nats-Schedule-Next"} == set(ticks[0][3])
        assert ticks[0][3]["Nats-Schedule-Next"] < ticks[1][3]["Nats-Schedule-Next"]
        subjects = [subject for _, subject, *_ in await stored(client, "SC")]
        assert "sc.once" not in subjects
        assert "sc.ever" in subjects


@asynchronous
async def test_a_stream_sums_the_counters_of_others(program: Program, servers: Servers) -> None:
    counter = {"allow_msg_counter": True}
    sources = [
        {"name": name, "subject_transforms": [{"src": f"{name}.>", "dest": "CS.>"}]}
        for name in ("CA", "CB")
    ]
    async with (
        connected(program, servers) as client,
        stream(client, "CA", subjects=["CA.>"], **counter),
        stream(client, "CB", subjects=["CB.>"], **counter),
        stream(client, "CS", sources=sources, **counter),
    ):
        for subject, by in (("CA.x", "5"), ("CB.x", "7"), ("CA.x", "-1")):
            await client.jetstream().publish(subject, b"", headers={"Nats-Incr": by})

        async def total() -> Any:
            messages = await stored(client, "CS")
            return messages[-1] if messages else None

        last = await until(total, lambda found: found is not None and found[2] == b'{"val":"11"}')
        assert "CS.x" == last[1]
        sums = json.loads(last[3]["Nats-Counter-Sources"])
        assert {"CA": {"CA.x": "4"}, "CB": {"CB.x": "7"}} == sums
