"""Reading and acting as somebody who has signed in: what is there afterwards."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.console.visitor import Page
from tests.console.world import CONFIG, LOGIN, fill_bucket
from tests.servers import PENSTOCK, ServerProcess, wait_until

import penstock
from penstock.client import JetStream
from penstock.client.jetstream.streams import StoredMessage
from penstock.protocol.compression import compressor

DEAD = "shop-dead.dead-letters.orders.placed"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess(PENSTOCK, CONFIG) as server:
        yield server


@pytest.fixture
def page(server: ServerProcess) -> Page:
    return Page(server).sign_in()


class Streams:
    """The streams of a server, from outside."""

    def __init__(self, server: ServerProcess) -> None:
        self._url = server.url

    def run(self, act: Any) -> Any:
        """Do something with JetStream, as a client."""

        async def main() -> Any:
            async with await penstock.connect(self._url, **LOGIN) as client:
                return await act(client.jetstream())

        return asyncio.run(main())

    def make(self, name: str, messages: list[tuple[str, bytes]], **config: Any) -> None:
        """Make a stream anew, with these messages."""

        async def act(js: JetStream) -> None:
            if name in await js.streams.names():
                await js.streams.delete(name)
            await js.streams.create(name, **{"subjects": [f"{name.lower()}.>"], **config})
            for subject, payload in messages:
                await js.publish(subject, payload)

        self.run(act)

    def count(self, name: str) -> int:
        """Return the number of messages of a stream; -1 if there is no such stream."""

        async def act(js: JetStream) -> int:
            if name not in await js.streams.names():
                return -1
            return int((await js.streams.info(name))["state"]["messages"])

        return int(self.run(act))

    def last(self, name: str) -> StoredMessage:
        """Return the last message of a stream."""

        async def act(js: JetStream) -> StoredMessage:
            state = (await js.streams.info(name))["state"]
            return await js.streams.get(name, seq=state["last_seq"])

        found: StoredMessage = self.run(act)
        return found


@pytest.fixture
def streams(server: ServerProcess) -> Streams:
    return Streams(server)


def ok(answer: tuple[int, Any]) -> Any:
    status, found = answer
    assert 200 == status, found
    return found


def test_a_message_is_published_with_its_headers(page: Page, streams: Streams) -> None:
    streams.make("A", [])
    ok(page.do("publish", subject="a.b", payload="Zoë", headers=[["Why", "because"], ["No", ""]]))
    stored = streams.last("A")

    assert ("a.b", "Zoë".encode()) == (stored.subject, stored.payload)
    assert [("Why", "because"), ("No", "")] == list(stored.header_pairs)


def test_a_purge_takes_all_or_one_subject(page: Page, streams: Streams) -> None:
    streams.make("A", [("a.x", b"1"), ("a.y", b"2"), ("a.x", b"3")])

    assert {"purged": 2} == ok(page.do("purge", stream="A", subject="a.x", confirm="A"))
    assert 1 == streams.count("A")
    assert {"purged": 1} == ok(page.do("purge", stream="A", subject="", confirm="A"))
    assert 0 == streams.count("A")


def test_a_message_and_a_stream_are_deleted(page: Page, streams: Streams) -> None:
    streams.make("A", [("a.x", b"1"), ("a.y", b"2")])
    ok(page.do("delete_message", stream="A", sequence=1, confirm="1"))
    assert 1 == streams.count("A")
    ok(page.do("delete_stream", stream="A", confirm="A"))

    assert -1 == streams.count("A")


def test_a_consumer_is_paused_resumed_and_deleted(page: Page, streams: Streams) -> None:
    streams.make("A", [])

    async def make(js: JetStream) -> None:
        await js.consumers.create("A", durable_name="c", ack_policy="explicit")

    async def is_paused(js: JetStream) -> bool:
        return bool((await js.consumers.info("A", "c")).get("paused"))

    async def names(js: JetStream) -> list[str]:
        return await js.consumers.names("A")

    streams.run(make)
    ok(page.do("pause", stream="A", consumer="c", seconds=600, confirm="c"))
    assert streams.run(is_paused)
    ok(page.do("pause", stream="A", consumer="c", seconds=0, confirm="c"))
    assert not streams.run(is_paused)
    ok(page.do("delete_consumer", stream="A", consumer="c", confirm="c"))
    assert [] == streams.run(names)


def test_the_configuration_is_read_again(server: ServerProcess) -> None:
    operator = Page(server).sign_in("sys")
    server.write_config(CONFIG.replace("jetstream {", "max_connections: 777\njetstream {"))
    ok(operator.do("reload", confirm="reload"))

    assert 777 == server.varz()["max_connections"]
    server.write_config(CONFIG.replace("jetstream {", "nonsense: 1\njetstream {"))
    status, found = operator.do("reload", confirm="reload")
    assert 409 == status
    assert "nonsense" in found["error"]


def letters(streams: Streams, *, own: bool = False) -> None:
    """Make a bus with three dead letters."""
    home = "shop-own.orders.placed" if own else "elsewhere.orders.placed"
    streams.make("shop", [])
    streams.make("shop-own+orders+placed", [], subjects=[home])
    streams.make("shop-dead", [])

    async def act(js: JetStream) -> None:
        for number in range(1, 4):
            told = {
                "Dead-Letter-Topic": "orders.placed",
                "Dead-Letter-Cause": f"ValueError: {number}",
                "Own": "kept",
                "Nats-Msg-Id": f"dead:{number}",
            }
            await js.publish(DEAD, b'{"n": %d}' % number, headers=told)

    streams.run(act)


@pytest.mark.parametrize("own", [False, True], ids=["shared", "own stream"])
def test_letters_go_back_to_their_topic_as_they_were(
    page: Page, streams: Streams, own: bool
) -> None:
    letters(streams, own=own)
    assert {"letters": 2} == ok(page.do("replay", bus="shop", letters=[3, 1], confirm="shop"))
    home = "shop-own+orders+placed" if own else "shop"
    back = streams.last(home)

    assert (2, 1) == (streams.count(home), streams.count("shop-dead"))
    assert b'{"n": 3}' == back.payload
    assert ("shop-own." if own else "shop.") + "orders.placed" == back.subject
    assert {"Own": "kept"} == {
        name: value for name, value in back.header_pairs if name != "Nats-Msg-Id"
    }


def test_a_letter_is_sent_back_once_also_if_it_is_done_again(page: Page, streams: Streams) -> None:
    letters(streams)
    ok(page.do("replay", bus="shop", letters=[1], confirm="shop"))
    status, found = page.do("replay", bus="shop", letters=[1, 2], confirm="shop")

    assert 409 == status
    assert found["error"].startswith("0 are done; letter 1")
    assert 1 == streams.count("shop")


def test_a_letter_claims_no_topic_but_its_own(page: Page, streams: Streams) -> None:
    letters(streams)

    async def forge(js: JetStream) -> None:
        await js.publish(DEAD, b"x", headers={"Dead-Letter-Topic": "payments.approved"})

    streams.run(forge)
    ok(page.do("replay", bus="shop", letters=[4], confirm="shop"))

    assert "shop.orders.placed" == streams.last("shop").subject


def test_a_letter_that_was_cut_is_not_sent_back(page: Page, streams: Streams) -> None:
    letters(streams)

    async def cut(js: JetStream) -> None:
        headers = {"Dead-Letter-Topic": "orders.placed", "Dead-Letter-Cut": "100"}
        await js.publish(DEAD, b"x", headers=headers)

    streams.run(cut)
    status, found = page.do("replay", bus="shop", letters=[2, 4], confirm="shop")

    assert 409 == status
    assert "1 are done; letter 4: " in found["error"]
    assert 1 == streams.count("shop")


def test_letters_are_listed_and_discarded(page: Page, streams: Streams) -> None:
    letters(streams)
    listed = ok(page.read("letters", bus="shop"))
    assert [3, 2, 1] == [each["sequence"] for each in listed["letters"]]
    ok(page.do("discard", bus="shop", letters=[1, 3], confirm="shop"))
    listed = ok(page.read("letters", bus="shop"))

    assert ([2], 1) == ([each["sequence"] for each in listed["letters"]], listed["total"])
    assert 0 == streams.count("shop")


MESSAGES = [(f"a.{'odd' if n % 2 else 'even'}", b"%d" % n) for n in range(1, 41)]


@pytest.mark.parametrize(
    ("asked", "sequences"),
    [
        ({"count": 3}, [40, 39, 38]),
        ({"count": 3, "before": 20}, [19, 18, 17]),
        ({"count": 3, "sequence": "20"}, [20, 21, 22]),
        ({"count": 3, "sequence": 39}, [39, 40]),
        ({"count": 2, "subject": "a.odd"}, [39, 37]),
        ({"count": 2, "subject": "a.odd", "before": 37}, [35, 33]),
        ({"count": 2, "subject": "a.odd", "sequence": 4}, [5, 7]),
        ({"count": 3, "subject": "a.once"}, []),
        ({"count": 2, "time": "2001-01-01T00:00:00Z"}, [1, 2]),
        ({"count": 2, "time": "2999-01-01T00:00:00+00:00"}, []),
    ],
    ids=str,
)
def test_messages_are_found(
    page: Page, streams: Streams, asked: dict[str, Any], sequences: list[int]
) -> None:
    streams.make("A", MESSAGES)
    found = ok(page.read("messages", stream="A", **asked))

    assert sequences == [each["sequence"] for each in found["messages"]]
    assert (1, 40) == (found["first"], found["last"])


def test_rare_messages_are_found_far_back(page: Page, streams: Streams) -> None:
    streams.make("A", [("a.rare", b"1"), *[("a.often", b"x")] * 400])
    found = ok(page.read("messages", stream="A", subject="a.rare"))

    assert [1] == [each["sequence"] for each in found["messages"]]


def test_payloads_are_text_or_base64_and_long_ones_are_cut(page: Page, streams: Streams) -> None:
    text, binary = "ä" * 20_000, b"\xff\x00"
    compress = compressor("zstd", bytes_min=0)
    assert compress is not None
    squeezed = compress(b'{"a": 1}')
    streams.make("A", [("a.t", text.encode()), ("a.b", binary), ("a.z", squeezed)])
    found = ok(page.read("messages", stream="A", sequence=1))["messages"]
    whole = ok(page.read("message", stream="A", sequence=1))

    assert (40_000, True) == (found[0]["size"], found[0]["is_cut"])
    assert text[:16_384] == found[0]["text"]
    assert (text, False) == (whole["text"], whole["is_cut"])
    assert ("/wA=", False) == (found[1]["base64"], found[1]["is_cut"])
    assert ('{"a": 1}', "decompressed") == (found[2]["text"], found[2]["opened"])


def test_subjects_are_counted_and_searched(page: Page, streams: Streams) -> None:
    streams.make("A", MESSAGES)
    found = ok(page.read("subjects", stream="A"))
    assert [["a.even", 20], ["a.odd", 20]] == found["subjects"]
    found = ok(page.read("subjects", stream="A", search="ODD"))
    assert ([["a.odd", 20]], 1, 2) == (found["subjects"], found["matched"], found["total"])
    assert 1 == ok(page.read("subjects", stream="A", search="*.even"))["matched"]


def test_a_key_has_its_history(page: Page, streams: Streams) -> None:
    streams.run(fill_bucket)
    found = ok(page.read("history", stream="KV_settings", subject="$KV.settings.theme"))
    deleted = ok(page.read("history", stream="KV_settings", subject="$KV.settings.limits.eu"))

    assert [2, 1, 0] == [json.loads(each["text"])["revision"] for each in found["messages"]]
    assert ["KV-Operation", "DEL"] in deleted["messages"][0]["headers"]


def test_objects_are_listed_and_odd_ones_left_out(page: Page, streams: Streams) -> None:
    meta = {"name": "cat.png", "size": 5, "chunks": 1, "secret": "x"}
    subjects = ["$O.pics.C.>", "$O.pics.M.>"]
    messages = [("$O.pics.M.YQ", json.dumps(meta).encode()), ("$O.pics.M.Yg", b"[" * 5000)]
    streams.make("OBJ_pics", messages, subjects=subjects)
    found = ok(page.read("objects", stream="OBJ_pics"))

    assert ["cat.png"] == [each["name"] for each in found["objects"]]
    assert "secret" not in found["objects"][0]


def test_what_is_not_there_is_said(page: Page) -> None:
    for answer in (
        page.read("messages", stream="NOPE"),
        page.do("purge", stream="NOPE", confirm="NOPE"),
        page.read("letters", bus="nope"),
    ):
        assert (409, {"error": "stream not found"}) == answer


def test_a_console_without_use_is_signed_out_with_the_server(server: ServerProcess) -> None:
    page = Page(server).sign_in()
    ok(page.send("sign-out"))

    wait_until(lambda: page.do("publish", subject="a")[0] == 401)
