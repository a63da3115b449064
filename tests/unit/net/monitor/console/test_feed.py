"""The event stream of the console, and what it leaves out because the page knows it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import penstock
from penstock.client import Client
from penstock.net.monitor.console.feed import FEEDS_MAX, Changes
from penstock.net.server import Server

DEAD = {
    "Dead-Letter-Topic": "orders.placed",
    "Dead-Letter-Service": "billing",
    "Dead-Letter-Cause": "ValueError: no",
}


class Reader:
    """An event stream that is read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def next(self, name: str) -> Any:
        """Return the next document of a name."""
        while True:
            line = (await asyncio.wait_for(self._reader.readline(), 60)).decode()
            assert line, "the stream has ended"
            if line == f"event: {name}\n":
                return json.loads((await self._reader.readline()).decode().removeprefix("data: "))

    async def close(self) -> None:
        """Hang up."""
        self._writer.close()
        await self._writer.wait_closed()


async def ask(server: Server, query: str) -> tuple[str, Reader]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.http_port)
    writer.write(f"GET /eventz?{query} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    status = (await reader.readline()).decode()
    return status.split()[1], Reader(reader, writer)


def play(act: Callable[[Server, Client], Awaitable[None]]) -> None:
    async def main() -> None:
        async with (
            Server(http_port=0, jetstream=True) as server,
            await penstock.connect(server.url, name="tester") as client,
        ):
            await act(server, client)

    asyncio.run(main())


def test_a_table_is_told_once_and_then_what_changes() -> None:
    async def act(server: Server, client: Client) -> None:
        js = client.jetstream()
        for name in ("A", "B"):
            await js.streams.create(name, subjects=[name.lower()])
        _, feed = await ask(server, "view=streams")
        table = await feed.next("table")
        while len(table["rows"]) < 2:
            table = await feed.next("table")
        assert ["$G\nA", "$G\nB"] == table["order"]
        await js.publish("b", b"x")
        changed = await feed.next("table")
        assert ["$G\nB"] == list(changed["rows"])
        assert 1 == changed["rows"]["$G\nB"]["messages"]
        await feed.close()

    play(act)


def test_every_event_has_the_figures() -> None:
    async def act(server: Server, client: Client) -> None:
        _, feed = await ask(server, "")
        head = await feed.next("head")
        while not head["figures"]["connections"]:
            head = await feed.next("head")
        assert server.broker.server_name == head["name"]
        assert [] == head["findings"]
        await feed.close()

    play(act)


def test_one_stream_is_told_in_detail_until_it_is_gone() -> None:
    async def act(server: Server, client: Client) -> None:
        js = client.jetstream()
        await js.streams.create("A", subjects=["a.>"])
        await js.consumers.create("A", durable_name="c", ack_policy="explicit")
        await js.publish("a.b", b"x")
        _, feed = await ask(server, "view=stream&account=$G&stream=A")
        found = await feed.next("document")
        while found.get("is_gone") or not found["consumer_rows"]:
            found = await feed.next("document")
        assert (1, 1, ["a.>"]) == (
            found["messages"],
            found["subjects"],
            found["config"]["subjects"],
        )
        await js.streams.delete("A")
        while not found.get("is_gone"):
            found = await feed.next("document")
        await feed.close()

    play(act)


def test_a_bus_is_known_by_its_streams() -> None:
    async def act(server: Server, client: Client) -> None:
        js = client.jetstream()
        for name in ("shop", "shop-dead", "shop-leases", "other"):
            await js.streams.create(name, subjects=[f"{name}.>"])
        await js.streams.create("shop-own+orders+placed", subjects=["shop-own.orders.placed"])
        await js.consumers.create("shop", durable_name="billing+orders+@", ack_policy="explicit")
        await js.publish("shop.orders.a", b"1")
        lease = {"holder": "one", "after": 0, "members": {"one": [1, 2], "two": [3]}}
        await js.publish("shop-leases.billing", json.dumps(lease).encode())
        await js.publish("shop-leases.odd", b"[" * 5000)
        await js.publish("shop-leases.odder", b'{"holder": 1, "members": {"x": 5}}')
        await js.publish("shop-dead.dead-letters.orders.placed", b"{}", headers=DEAD)
        _, feed = await ask(server, "view=bus")
        found = await feed.next("document")
        while not found["buses"] or not found["buses"][0]["dead"]:
            found = await feed.next("document")
        (bus,) = found["buses"]
        (service,) = bus["services"]
        (read,) = service["reads"]
        await feed.close()

        assert ("shop", 1, ["orders+placed"]) == (bus["name"], bus["dead"], bus["topics"])
        assert ("billing", "orders.*", 1) == (service["name"], read["pattern"], read["pending"])
        assert 0 < read["oldest_s"] < 600
        assert [("one", 2, True), ("two", 1, False)] == [
            (each["name"], each["slots"], each["leads"]) for each in service["members"]
        ]

    play(act)


def test_what_makes_no_sense_is_refused() -> None:
    async def act(server: Server, client: Client) -> None:
        for query in ("view=secrets", "view=streams&sort=colour", "view=consumers&limit=x"):
            status, feed = await ask(server, query)
            assert "400" == status
            await feed.close()

    play(act)


def test_only_so_many_pages_are_fed_and_a_closed_one_makes_room() -> None:
    async def act(server: Server, client: Client) -> None:
        feeds = []
        for _ in range(FEEDS_MAX):
            status, feed = await ask(server, "view=connections")
            assert "200" == status
            await feed.next("table")
            feeds.append(feed)
        status, refused = await ask(server, "")
        assert "503" == status
        for feed in (*feeds, refused):
            await feed.close()
        while status != "200":
            status, feed = await ask(server, "")
            await feed.close()

    play(act)


def test_nothing_new_is_no_event() -> None:
    changes = Changes()
    page = {"rows": {"a": {"n": 1}, "b": {"n": 2}}, "matched": 2, "total": 2}

    first = changes.of("table", page)
    assert first is not None
    assert changes.of("table", page) is None
    fewer = changes.of("table", page | {"rows": {"a": {"n": 1}}})
    assert fewer is not None
    assert {"rows": {}, "order": ["a"], "matched": 2, "total": 2} == json.loads(
        fewer.partition(b"data: ")[2]
    )
    assert changes.of("document", {"x": 1}) is not None
    assert changes.of("document", {"x": 1}) is None
