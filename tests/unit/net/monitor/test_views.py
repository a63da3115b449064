"""What the monitoring endpoints tell, from a broker that nobody is connected to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.core.peers import Later

from penstock.config.accounts import User
from penstock.config.server import Authorization, Limits, ServerConfig
from penstock.core.broker import Broker
from penstock.core.reports.record import SUBSCRIPTIONS_MAX
from penstock.core.session import Session
from penstock.net.monitor import monitor, usage, views
from penstock.net.monitor.connz import SORTS, connz
from penstock.net.monitor.healthz import healthz
from penstock.net.monitor.monitor import write
from penstock.net.monitor.query import QueryError
from penstock.net.server import Server

START_NS = 1_794_725_699_000_000_000
SECOND_NS = 1_000_000_000


class World:
    """A broker, and the clock it goes by."""

    def __init__(self, **settings: Any) -> None:
        self.now_ns = START_NS
        self.broker = Broker(
            ServerConfig(**settings),
            server_id="NID",
            clock_ns=lambda: self.now_ns,
            random=lambda: 0.0,
            random_bytes=bytes,
            call_later=Later,
        )

    def client(self, sent: bytes = b"", **options: Any) -> Session:
        session = self.broker.open("127.0.0.1", 4000 + self.broker.total_connections)
        options = {"headers": True, "no_responders": True, "verbose": False} | options
        session.receive(b"CONNECT %b\r\n" % json.dumps(options).encode() + sent)
        return session

    def connz(self, **query: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads("".join(write(connz(self.broker, query))))
        return document

    def cids(self, **query: str) -> list[int]:
        return [each["cid"] for each in self.connz(**query)["connections"]]

    def subsz(self, **query: str) -> dict[str, Any]:
        document = views.subsz(self.broker, query)
        return document | {"subscriptions_list": list(document.get("subscriptions_list", []))}


@pytest.fixture
def world() -> World:
    return World()


def test_an_open_connection_is_told_in_the_words_of_nats_server(world: World) -> None:
    client = world.client(b"SUB foo 1\r\nPUB foo 2\r\nhi\r\n", name="n", lang="py", version="2")
    client.outbox_bytes = 7
    client.round_trip_ns = 627_499
    world.now_ns += 62 * SECOND_NS

    document = world.connz()

    assert document == {
        "server_id": "NID",
        "now": "2026-11-15T06:56:01Z",
        "num_connections": 1,
        "total": 1,
        "offset": 0,
        "limit": 1024,
        "connections": [
            {
                "cid": 1,
                "kind": "Client",
                "type": "nats",
                "ip": "127.0.0.1",
                "port": 4000,
                "start": "2026-11-15T06:54:59Z",
                "last_activity": "2026-11-15T06:54:59Z",
                "rtt": "627µs",
                "uptime": "1m2s",
                "idle": "1m2s",
                "pending_bytes": 7,
                "in_msgs": 1,
                "out_msgs": 1,
                "in_bytes": 2,
                "out_bytes": 2,
                "subscriptions": 1,
                "name": "n",
                "lang": "py",
                "version": "2",
            }
        ],
    }


def test_subscriptions_may_end_while_they_are_listed(world: World) -> None:
    session = world.client(b"SUB foo 1\r\nSUB bar 2\r\n")
    pieces = write(connz(world.broker, {"subs": "detail"}))
    written = ""
    while "foo" not in written:
        written += next(pieces)

    session.receive(b"UNSUB 1\r\nUNSUB 2\r\n")

    (entry,) = json.loads(written + "".join(pieces))["connections"]
    assert [each["subject"] for each in entry["subscriptions_list_detail"]] == ["foo", "bar"]


def test_a_closed_connection_keeps_its_figures_and_its_reason(world: World) -> None:
    client = world.client(b"SUB foo q 1\r\nUNSUB 1 9\r\nPUB bar 2\r\nhi\r\n", name="n")
    world.now_ns += 5 * SECOND_NS
    world.broker.close(client, "Client Closed")
    world.now_ns += 100 * SECOND_NS

    (entry,) = world.connz(state="closed", subs="detail")["connections"]

    assert entry["stop"] == "2026-11-15T06:55:04Z"
    assert entry["reason"] == "Client Closed"
    assert (entry["uptime"], entry["idle"]) == ("5s", "5s")
    assert (entry["in_msgs"], entry["subscriptions"], entry["name"]) == (1, 1, "n")
    assert entry["subscriptions_list_detail"] == [
        {"subject": "foo", "qgroup": "q", "sid": "1", "msgs": 0, "max": 9, "cid": 1}
    ]


def test_a_closed_connection_keeps_nothing_of_its_session(world: World) -> None:
    client = world.client(b"".join(b"SUB foo.%d %d\r\n" % (n, n) for n in range(1, 100)))
    world.broker.close(client, "Client Closed")
    world.broker.close(client, "twice is once")

    (record,) = world.broker.closed
    (entry,) = world.connz(state="closed", subs="1")["connections"]

    assert not any(isinstance(getattr(record, name), Session) for name in record.__slots__)
    assert entry["subscriptions"] == 99
    assert len(entry["subscriptions_list"]) == SUBSCRIPTIONS_MAX


def test_only_so_many_closed_connections_are_remembered() -> None:
    world = World(limits=Limits(max_closed_clients=2))
    for _ in range(3):
        world.broker.close(world.client(), "Client Closed")

    assert world.cids(state="closed") == [2, 3]


def test_a_state_chooses_open_closed_or_both(world: World) -> None:
    world.broker.close(world.client(), "Client Closed")
    world.client()

    expected = {"": [2], "open": [2], "closed": [1], "CLOSED": [1], "any": [1, 2], "all": [1, 2]}

    assert expected == {state: world.cids(state=state) for state in expected}


def test_a_page_is_cut_out_of_the_whole(world: World) -> None:
    for _ in range(5):
        world.client()

    page = world.connz(offset="1", limit="2")

    assert [each["cid"] for each in page["connections"]] == [2, 3]
    assert [page[name] for name in ("num_connections", "total", "offset", "limit")] == [2, 5, 1, 2]
    assert world.cids(offset="-1", limit="-1") == [1, 2, 3, 4, 5]
    assert world.cids(offset="9") == []


def test_a_cid_chooses_one_connection_and_the_total_stays(world: World) -> None:
    world.client()
    world.broker.close(world.client(), "Client Closed")

    assert world.connz(cid="1")["total"] == 1
    assert world.cids(cid="1", state="any") == [1]
    assert world.cids(cid="2", state="any") == [2]
    assert world.cids(cid="2") == []


def test_connections_are_chosen_by_account_user_and_subject(world: World) -> None:
    world.client(b"SUB foo.* 1\r\n", user="alice")
    world.broker.close(world.client(b"SUB foo.bar 1\r\n", user="bob"), "Client Closed")
    world.client(b"SUB baz 1\r\n")

    assert world.cids(acc="$G", state="any") == [1, 2, 3]
    assert world.connz(acc="NOPE", state="any")["total"] == 0
    assert world.cids(user="alice") == [1]
    assert world.cids(user="bob", state="any") == [2]
    assert world.cids(filter_subject="foo.>", state="any") == [1, 2]
    assert world.cids(filter_subject="foo.bar", user="alice") == [1]


def test_with_auth_the_user_is_told_but_never_a_token(world: World) -> None:
    world.client(user="alice")
    world.client(auth_token="secret")
    world.client()

    entries = world.connz(auth="1")["connections"]

    assert [each.get("authorized_user") for each in entries] == ["alice", "[REDACTED]", None]
    assert [each["name_tag"] for each in entries] == ["$G"] * 3
    assert "name_tag" not in world.connz()["connections"][0]


def test_a_refused_connection_is_told_under_the_name_it_gave() -> None:
    users = (User(name="alice", password="right"),)
    world = World(authorization=Authorization(users=users))
    client = world.client(user="alice", **{"pass": "wrong"})
    assert client.closing is not None
    world.broker.close(client, client.closing)

    (entry,) = world.connz(state="closed", auth="true")["connections"]

    assert entry["authorized_user"] == "alice"
    assert entry["reason"] == "Authentication Failure"


def test_without_an_option_of_its_own_a_connection_is_its_default_user() -> None:
    users = (User(name="alice", password="right"),)
    world = World(authorization=Authorization(users=users, no_auth_user="alice"))
    world.client()

    assert world.cids(user="alice") == [1]


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("cid", [1, 2, 3]),
        ("start", [1, 2, 3]),
        ("subs", [2, 3, 1]),
        ("pending", [3, 1, 2]),
        ("msgs_to", [2, 3, 1]),
        ("bytes_to", [2, 3, 1]),
        ("msgs_from", [1, 3, 2]),
        ("bytes_from", [3, 1, 2]),
        ("last", [1, 3, 2]),
        ("idle", [2, 3, 1]),
        ("uptime", [3, 2, 1]),
        ("rtt", [3, 2, 1]),
    ],
)
def test_every_sort_of_open_connections_has_its_order(
    world: World, sort: str, expected: list[int]
) -> None:
    one = world.client()
    world.now_ns += SECOND_NS
    two = world.client(b"SUB a 1\r\nSUB a 2\r\n")
    world.now_ns += SECOND_NS
    three = world.client(b"SUB a 1\r\nPUB b 9\r\n123456789\r\n")
    world.now_ns += SECOND_NS
    one.receive(b"PUB a 1\r\nx\r\nPUB a 1\r\ny\r\n")
    for client, pending, round_trip_ns in ((one, 5, 10), (two, 1, 20), (three, 9, 30)):
        client.outbox_bytes, client.round_trip_ns = pending, round_trip_ns

    assert world.cids(sort=sort) == expected


@pytest.mark.parametrize(
    ("sort", "expected"),
    [("stop", [1, 2, 3]), ("reason", [2, 3, 1]), ("uptime", [3, 2, 1]), ("subs", [2, 1, 3])],
)
def test_closed_connections_sort_by_their_end_too(
    world: World, sort: str, expected: list[int]
) -> None:
    sent = (b"SUB a 1\r\n", b"SUB a 1\r\nSUB a 2\r\n", b"")
    clients = [world.client(each) for each in sent]
    for client, reason in zip(reversed(clients), ("B", "A", "C"), strict=True):
        world.now_ns += SECOND_NS
        world.broker.close(client, reason)

    assert world.cids(state="closed", sort=sort) == expected


def test_every_sort_of_nats_server_is_known() -> None:
    words = "cid start subs pending msgs_to msgs_from bytes_to bytes_from last idle uptime"

    assert set(SORTS) == {*words.split(), "stop", "reason", "rtt"}


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ({"state": "bad"}, "Error decoding state for bad"),
        ({"sort": "bad"}, "invalid sorting option: bad"),
        ({"sort": "stop"}, "sort by stop only valid on closed connections"),
        ({"sort": "reason", "state": "any"}, "sort by reason only valid on closed connections"),
        ({"subs": "yes"}, "Error decoding boolean for 'subs': yes"),
        ({"auth": "maybe"}, "Error decoding boolean for 'auth': maybe"),
        ({"limit": "x"}, "Error decoding int for 'limit': x"),
        ({"offset": "1_0"}, "Error decoding int for 'offset': 1_0"),
        ({"cid": "9" * 30}, "Error decoding int for 'cid': " + "9" * 30),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(
    world: World, query: dict[str, str], text: str
) -> None:
    with pytest.raises(QueryError, match=f"^{text}$"):
        connz(world.broker, query)


def test_the_figures_of_routes_are_those_of_the_account(world: World) -> None:
    client = world.client(b"SUB foo 1\r\nSUB foo 2\r\nSUB foo q 3\r\nSUB bar 4\r\nUNSUB 4\r\n")
    client.receive(b"PUB foo 0\r\n\r\nPUB foo 0\r\n\r\nPUB none 0\r\n\r\nPUB foo 0\r\n\r\n")
    own = world.broker.default_account.routes.inserts - 4

    figures = world.subsz(acc="$G")

    assert figures["num_subscriptions"] == 3 + own
    assert figures["num_inserts"] == 4 + own
    assert figures["num_removes"] == 1
    assert (figures["num_cache"], figures["num_matches"]) == (2, 2)
    assert figures["cache_hit_rate"] == 0.5
    assert (figures["max_fanout"], figures["avg_fanout"]) == (3, 1.5)
    assert world.subsz(acc="NOPE")["num_subscriptions"] == 0


def test_subscriptions_are_listed_if_asked_for(world: World) -> None:
    world.client(b"SUB foo.* 1\r\nSUB bar q 2\r\nUNSUB 2 3\r\n")
    world.client(b"SUB foo.bar 1\r\n")

    everything = world.subsz(subs="1")

    assert everything["total"] == 3
    assert everything["subscriptions_list"] == [
        {"subject": "foo.*", "sid": "1", "msgs": 0, "cid": 1} | account("$G"),
        {"subject": "bar", "qgroup": "q", "sid": "2", "msgs": 0, "max": 3, "cid": 1}
        | account("$G"),
        {"subject": "foo.bar", "sid": "1", "msgs": 0, "cid": 2} | account("$G"),
    ]
    assert [each["cid"] for each in world.subsz(subs="1", offset="2")["subscriptions_list"]] == [2]
    assert world.subsz(subs="1", test="foo.bar", limit="1")["total"] == 2
    assert world.subsz(subs="1", acc="NOPE")["total"] == 0
    assert world.subsz()["total"] == 0


def account(name: str) -> dict[str, str]:
    return {"account": name, "account_tag": name}


def test_a_test_subject_has_no_wildcards(world: World) -> None:
    with pytest.raises(QueryError, match="must be valid publish subject"):
        world.subsz(test="foo.*")


def test_a_document_is_written_with_an_entry_a_line() -> None:
    document = {"name": "é", "none": iter([]), "some": iter([{"a": 1}, {"b": [2]}])}

    text = "".join(monitor.write(document))

    assert text.splitlines() == [
        "{",
        '  "name": "\\u00e9",',
        '  "none": [],',
        '  "some": [',
        '    {"a": 1},',
        '    {"b": [2]}',
        "  ]",
        "}",
    ]
    assert json.loads(text) == {"name": "é", "none": [], "some": [{"a": 1}, {"b": [2]}]}


def with_server(check: Callable[[Server], None], **settings: Any) -> None:
    async def main() -> None:
        async with Server(**settings) as server:
            check(server)

    asyncio.run(main())


def test_the_settings_are_told_in_the_units_of_nats_server() -> None:
    limits = Limits(ping_interval=1.5, write_deadline=2, max_connections=0, max_subscriptions=7)

    def check(server: Server) -> None:
        server.http_requests["/varz"] = 3
        varz = views.varz(server)

        assert varz["ping_interval"] == 1_500_000_000
        assert varz["write_deadline"] == 2_000_000_000
        assert (varz["max_connections"], varz["max_subscriptions"]) == (-1, 7)
        assert (varz["port"], varz["http_port"]) == (server.port, 0)
        assert (varz["tags"], varz["metadata"]) == (["a"], {"k": "v"})
        assert (varz["cpu"], varz["http_req_stats"]) == (server.usage.cpu_percent(), {"/varz": 3})
        assert set(varz["penstock"]) == {"version", "compiled"}

    with_server(check, limits=limits, server_tags=("a",), server_metadata={"k": "v"})


def test_a_reload_is_told_by_its_time() -> None:
    def check(server: Server) -> None:
        before = views.varz(server)
        server.reload(server.config)
        after = views.varz(server)

        assert before["config_load_time"] == before["start"] == after["start"]
        assert after["config_load_time"] > before["config_load_time"]

    with_server(check)


def test_the_figures_of_closed_connections_still_count() -> None:
    def check(server: Server) -> None:
        client = server.broker.open("127.0.0.1", 1)
        client.receive(b'CONNECT {"headers":true}\r\nSUB a 1\r\nPUB a 3\r\nabc\r\n')
        server.broker.close(client, "Client Closed")
        server.broker.dirty.clear()

        varz = views.varz(server)

        assert (varz["connections"], varz["total_connections"]) == (0, 1)
        assert [varz[name] for name in ("in_msgs", "in_bytes", "out_msgs", "out_bytes")] == [
            *(1, 3),
            *(1, 3),
        ]

    with_server(check)


def test_a_server_is_healthy_while_clients_can_connect() -> None:
    def check(server: Server) -> None:
        assert healthz(server, {}) == (200, {"status": "ok"})
        server.is_ready = False
        status, document = healthz(server, {})
        assert (status, document["status"]) == (503, "error")
        assert healthz(server, {"stream": "S"})[0] == 400
        with pytest.raises(QueryError):
            healthz(server, {"details": "x"})

    with_server(check)


def test_the_memory_and_processors_of_the_process_are_known() -> None:
    assert usage.resident_bytes() > 1_000_000
    assert usage.cores() >= 1


def test_the_use_of_the_processor_is_that_since_the_last_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, used_s = 0.0, 0.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    monkeypatch.setattr("time.process_time", lambda: used_s)
    seen = usage.CpuShare()

    now_s, used_s = 2.0, 1.0
    first = seen.cpu_percent()
    now_s, used_s = 2.5, 1.5
    too_soon = seen.cpu_percent()
    now_s, used_s = 6.0, 1.0
    later = seen.cpu_percent()

    assert (first, too_soon, later) == (50.0, 50.0, 0.0)
