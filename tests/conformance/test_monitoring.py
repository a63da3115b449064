"""Monitoring over HTTP and `$SYS.REQ.USER.INFO`: what nats-server tells, Penstock tells too."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.conftest import Servers
from tests.servers import HOST, PROGRAMS, RawClient, ServerProcess, wait_until

CONFIG = """
http: "127.0.0.1:-1"
authorization {
    users: [
        {user: alice, password: pw}
        {user: bob, password: pw, permissions: {
            publish: {allow: ["a.>", "$SYS.>"], deny: "a.x"}
            subscribe: {allow: ["_INBOX.>", "q w", "b.>"], deny: "b.x"}
        }}
        {user: carol, password: pw, permissions: {
            publish: "$SYS.>", subscribe: "_INBOX.>", allow_responses: true
        }}
        {user: dave, password: pw, permissions: {
            publish: "$SYS.>", allow_responses: {max: 5, expires: "1m"}
        }}
        {user: erin, password: pw, permissions: {subscribe: "_INBOX.>"}}
    ]
}
"""
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z")
DURATION = re.compile(r"(\d+(\.\d+)?(h|m|s|ms|µs|ns))+")
NUMBER = (int, float)

VARZ = {
    "server_id": str,
    "server_name": str,
    "version": str,
    "proto": int,
    "go": str,
    "host": str,
    "port": int,
    "auth_required": bool,
    "max_connections": int,
    "ping_interval": int,
    "ping_max": int,
    "http_host": str,
    "http_port": int,
    "http_base_path": str,
    "https_port": int,
    "auth_timeout": NUMBER,
    "max_control_line": int,
    "max_payload": int,
    "max_pending": int,
    "cluster": dict,
    "gateway": dict,
    "leaf": dict,
    "mqtt": dict,
    "websocket": dict,
    "jetstream": dict,
    "write_deadline": int,
    "start": TIME,
    "now": TIME,
    "uptime": DURATION,
    "mem": int,
    "cores": int,
    "cpu": NUMBER,
    "connections": int,
    "total_connections": int,
    "routes": int,
    "remotes": int,
    "leafnodes": int,
    "in_msgs": int,
    "in_bytes": int,
    "in_client_msgs": int,
    "in_client_bytes": int,
    "out_msgs": int,
    "out_bytes": int,
    "out_client_msgs": int,
    "out_client_bytes": int,
    "slow_consumers": int,
    "stale_connections": int,
    "stalled_clients": int,
    "subscriptions": int,
    "http_req_stats": dict,
    "config_load_time": TIME,
    "slow_consumer_stats": dict,
    "stale_connection_stats": dict,
}
SAME_IN_VARZ = (
    *("proto", "host", "auth_required", "max_connections", "ping_interval", "ping_max"),
    *("http_base_path", "https_port", "auth_timeout", "max_control_line", "max_payload"),
    *("max_pending", "write_deadline", "routes", "remotes", "leafnodes", "slow_consumers"),
    *("slow_consumer_stats", "stale_connection_stats", "jetstream", "cluster"),
)
CONNZ = {
    "server_id": str,
    "now": TIME,
    "num_connections": int,
    "total": int,
    "offset": int,
    "limit": int,
    "connections": list,
}
CONNECTION = {
    "cid": int,
    "kind": str,
    "type": str,
    "ip": str,
    "port": int,
    "start": TIME,
    "last_activity": TIME,
    "rtt": DURATION,
    "uptime": DURATION,
    "idle": DURATION,
    "pending_bytes": int,
    "in_msgs": int,
    "out_msgs": int,
    "in_bytes": int,
    "out_bytes": int,
    "subscriptions": int,
    "name": str,
    "lang": str,
    "version": str,
}
CLOSED = {"stop": TIME, "reason": str}
AUTH = {"authorized_user": str, "name_tag": str}
SUBSZ = {
    "server_id": str,
    "now": TIME,
    "num_subscriptions": int,
    "num_cache": int,
    "num_inserts": int,
    "num_removes": int,
    "num_matches": int,
    "cache_hit_rate": NUMBER,
    "max_fanout": int,
    "avg_fanout": NUMBER,
    "total": int,
    "offset": int,
    "limit": int,
}
SUBSCRIPTION = {
    "account": str,
    "account_tag": str,
    "subject": str,
    "sid": str,
    "msgs": int,
    "cid": int,
}


class Monitored:
    """A server with the same clients, whichever program it is."""

    def __init__(self, server: ServerProcess, stack: ExitStack) -> None:
        self.server = server
        found = re.search(r"Starting http monitor on \S+:(\d+)", server.log)
        assert found is not None
        self.http_port = int(found[1])
        self._stack = stack
        self.one = self.client("one", b"SUB foo.* 1\r\nSUB bar q 2\r\nSUB foo.> 7\r\nUNSUB 7 9\r\n")
        self.two = self.client("two", b"SUB foo.b 1\r\nPUB foo.a 3\r\nabc\r\nPUB foo.b 1\r\nx\r\n")
        self.three = self.client("three", b"SUB gone 9\r\nPUB none 5\r\nhello\r\n")
        self.client("four", b"SUB gone 9\r\nSUB gone.too 10\r\n").close()
        wait_until(lambda: self.connz("state=closed")["total"] >= 1)
        self.client("five", b"").send(b"FOO BAR\r\n")
        wait_until(lambda: self.connz("state=closed")["total"] >= 2)

    def client(self, name: str, sent: bytes) -> RawClient:
        client = self._stack.enter_context(RawClient(self.server.port))
        client.connect(name=name, lang="test", version="1", user="alice", **{"pass": "pw"})
        client.send(sent)
        client.settle()
        return client

    def get(self, path: str) -> tuple[int, str, str]:
        url = f"http://{HOST}:{self.http_port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                return response.status, response.headers["Content-Type"], response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers["Content-Type"], error.read().decode()

    def document(self, path: str) -> dict[str, Any]:
        status, content_type, text = self.get(path)
        assert (status, content_type) == (200, "application/json"), text
        return json.loads(text)

    def connz(self, query: str) -> dict[str, Any]:
        return self.document(f"/connz?{query}")

    def names(self, query: str) -> list[str]:
        return [each["name"] for each in self.connz(query)["connections"]]

    def cid(self, name: str) -> int:
        found = self.connz("state=any")["connections"]
        return next(each["cid"] for each in found if each["name"] == name)


@pytest.fixture(scope="module", params=PROGRAMS, ids=lambda program: program.name)
def monitored(request: pytest.FixtureRequest) -> Iterator[Monitored]:
    with ExitStack() as stack:
        yield Monitored(stack.enter_context(ServerProcess(request.param, CONFIG)), stack)


def wrong_fields(document: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that are missing or of another kind."""
    return {
        name: document.get(name, "(missing)")
        for name, kind in fields.items()
        if not _is_of_kind(document.get(name), kind)
    }


def _is_of_kind(value: Any, kind: Any) -> bool:
    if isinstance(kind, re.Pattern):
        return isinstance(value, str) and kind.fullmatch(value) is not None
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def test_varz_has_the_fields(monitored: Monitored) -> None:
    assert {} == wrong_fields(monitored.document("/varz"), VARZ)


def test_varz_counts(monitored: Monitored) -> None:
    varz = monitored.document("/varz")

    assert (varz["connections"], varz["total_connections"]) == (3, 5)
    figures = [varz[name] for name in ("in_msgs", "in_bytes", "out_msgs", "out_bytes")]
    assert figures == [3, 9, 5, 9]
    assert varz["port"] == monitored.server.port
    assert varz["http_req_stats"]["/varz"] >= 1


def test_varz_says_the_same_of_the_settings(servers: Servers) -> None:
    said = []
    for program in PROGRAMS:
        log = servers(program, CONFIG).log
        port = re.search(r"Starting http monitor on \S+:(\d+)", log)
        assert port is not None
        with urllib.request.urlopen(f"http://{HOST}:{port[1]}/varz", timeout=10) as response:
            varz = json.load(response)
        said.append({name: varz[name] for name in SAME_IN_VARZ})

    assert said[0] == said[1]


def test_connz_has_the_fields(monitored: Monitored) -> None:
    document = monitored.connz("auth=1&state=any")

    assert {} == wrong_fields(document, CONNZ)
    for connection in document["connections"]:
        fields = CONNECTION | {"authorized_user": str}
        fields |= CLOSED if "stop" in connection else AUTH
        assert {} == wrong_fields(connection, fields)


def test_connz_tells_each_connection_its_own_figures(monitored: Monitored) -> None:
    names = ("in_msgs", "in_bytes", "out_msgs", "out_bytes", "subscriptions", "kind", "type")
    connections = monitored.connz("auth=1")["connections"]

    assert {each["name"]: [each[name] for name in names] for each in connections} == {
        "one": [0, 0, 4, 8, 3, "Client", "nats"],
        "two": [2, 4, 1, 1, 1, "Client", "nats"],
        "three": [1, 5, 0, 0, 1, "Client", "nats"],
    }
    assert {each["authorized_user"] for each in connections} == {"alice"}
    assert "account" not in connections[0]


def test_connz_of_a_closed_connection_says_why(monitored: Monitored) -> None:
    four, five = monitored.connz("state=closed&sort=cid&subs=1")["connections"]

    assert (four["name"], four["reason"], four["subscriptions"]) == ("four", "Client Closed", 2)
    assert sorted(four["subscriptions_list"]) == ["gone", "gone.too"]
    assert (five["name"], five["reason"]) == ("five", "Protocol Violation")
    assert "subscriptions_list" not in five


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", "one two three"),
        ("state=open", "one two three"),
        ("state=CLOSED", "four five"),
        ("state=any", "one two three four five"),
        ("state=all", "one two three four five"),
        ("sort=start", "one two three"),
        ("sort=msgs_to", "one two three"),
        ("sort=msgs_from", "two three one"),
        ("sort=bytes_to", "one two three"),
        ("sort=bytes_from", "three two one"),
        ("sort=uptime", "three two one"),
        ("sort=stop&state=closed", "five four"),
        ("sort=reason&state=closed", "four five"),
        ("limit=1", "one"),
        ("limit=1&offset=1", "two"),
        ("limit=0&offset=-2", "one two three"),
        ("offset=5", ""),
        ("user=alice", "one two three"),
        ("user=bob", ""),
        ("acc=$G", "one two three"),
        ("acc=$G&user=alice&auth=1", "one two three"),
    ],
)
def test_connz_chooses_and_sorts(monitored: Monitored, query: str, names: str) -> None:
    assert monitored.names(query) == names.split()


@pytest.mark.parametrize("sort", ["subs", "pending", "rtt", "last", "idle"])
def test_connz_sorts_by_what_changes(monitored: Monitored, sort: str) -> None:
    assert sorted(monitored.names(f"sort={sort}")) == ["one", "three", "two"]


def test_connz_sorts_the_most_first(monitored: Monitored) -> None:
    assert monitored.names("sort=subs")[0] == "one"
    assert monitored.names("sort=last")[0] == "three"
    assert monitored.names("sort=idle")[-1] == "three"


def test_connz_pages_say_where_they_are(monitored: Monitored) -> None:
    page = monitored.connz("limit=1&offset=1")

    assert [page[name] for name in ("num_connections", "total", "offset", "limit")] == [1, 3, 1, 1]


def test_connz_finds_one_by_its_cid(monitored: Monitored) -> None:
    two, four = monitored.cid("two"), monitored.cid("four")

    assert monitored.names(f"cid={two}") == ["two"]
    assert monitored.names(f"cid={four}") == []
    assert monitored.names(f"cid={four}&state=any") == ["four"]
    assert [monitored.connz(f"cid={two}")[name] for name in ("total", "limit")] == [3, 1]


def test_connz_lists_subscriptions_in_two_ways(monitored: Monitored) -> None:
    cid = monitored.cid("one")
    (plain,) = monitored.connz(f"cid={cid}&subs=1")["connections"]
    (detailed,) = monitored.connz(f"cid={cid}&subs=detail")["connections"]

    assert sorted(plain["subscriptions_list"]) == ["bar", "foo.*", "foo.>"]
    assert sorted(detailed["subscriptions_list_detail"], key=lambda each: each["sid"]) == [
        {"subject": "foo.*", "sid": "1", "msgs": 2, "cid": cid},
        {"subject": "bar", "qgroup": "q", "sid": "2", "msgs": 0, "cid": cid},
        {"subject": "foo.>", "sid": "7", "msgs": 2, "max": 9, "cid": cid},
    ]
    assert "subscriptions_list_detail" not in plain
    assert "subscriptions_list" not in detailed


@pytest.mark.parametrize(
    "path",
    [
        "/connz?subs=yes",
        "/connz?auth=maybe",
        "/connz?state=bad",
        "/connz?sort=bad",
        "/connz?sort=stop",
        "/connz?sort=reason&state=any",
        "/connz?limit=x",
        "/connz?offset=1.5",
        "/connz?cid=x",
        "/subsz?subs=yes",
        "/subsz?test=foo.*",
        "/subsz?limit=x",
        "/healthz?details=x",
        "/healthz?js-enabled-only=x",
        "/healthz?stream=S",
        "/healthz?consumer=C&account=A",
    ],
)
def test_an_option_that_makes_no_sense_is_a_bad_request(monitored: Monitored, path: str) -> None:
    assert monitored.get(path)[0] == 400


def test_subsz_has_the_fields(monitored: Monitored) -> None:
    for path in ("/subsz", "/subscriptionsz"):
        document = monitored.document(path)
        assert {} == wrong_fields(document, SUBSZ)
        assert document["total"] == 0
        assert "subscriptions_list" not in document


def test_subsz_lists_the_subscriptions_that_a_message_would_reach(monitored: Monitored) -> None:
    document = monitored.document("/subsz?subs=1&test=foo.b")
    found = document["subscriptions_list"]

    assert document["total"] == 3
    assert all(wrong_fields(each, SUBSCRIPTION) == {} for each in found)
    assert sorted(each["subject"] for each in found) == ["foo.*", "foo.>", "foo.b"]
    assert {each["account"] for each in found} == {"$G"}
    page = monitored.document("/subsz?subs=1&test=foo.b&offset=2&limit=5")
    assert [page[name] for name in ("total", "offset", "limit")] == [3, 2, 5]
    assert len(page["subscriptions_list"]) == 1


@pytest.mark.parametrize("query", ["", "js-enabled-only=1", "js-server-only=true", "details=1"])
def test_healthz_says_that_all_is_well(monitored: Monitored, query: str) -> None:
    status, content_type, text = monitored.get(f"/healthz?{query}")

    assert (status, content_type, text) == (200, "application/json", '{"status":"ok"}')


def test_a_path_that_is_not_there_is_not_found(monitored: Monitored) -> None:
    expected = (404, "text/plain; charset=utf-8", "404 page not found\n")

    assert monitored.get("/nope") == expected
    assert monitored.get("/varz/") == expected


def test_the_first_page_is_for_people(monitored: Monitored) -> None:
    status, content_type, page = monitored.get("/")

    assert (status, content_type) == (200, "text/html; charset=utf-8")
    assert "varz" in page


def user_info(server: ServerProcess, user: str) -> dict[str, Any]:
    with RawClient(server.port) as client:
        client.connect(user=user, **{"pass": "pw"})
        client.send(b"SUB _INBOX.x 1\r\nPUB $SYS.REQ.USER.INFO _INBOX.x 0\r\n\r\n")
        assert client.line().startswith(b"MSG _INBOX.x 1 ")
        return json.loads(client.line())


def sorted_lists(value: Any) -> Any:
    """Return the value with its lists sorted: nats-server puts its rules in no order."""
    if isinstance(value, dict):
        return {name: sorted_lists(each) for name, each in value.items()}
    return sorted(value) if isinstance(value, list) else value


@pytest.mark.parametrize("user", ["alice", "bob", "carol", "dave", "erin"])
def test_a_client_is_told_the_same_about_itself(servers: Servers, user: str) -> None:
    ours, theirs = (user_info(servers(program, CONFIG), user) for program in PROGRAMS)

    assert sorted_lists(ours["data"]) == sorted_lists(theirs["data"])
    assert set(theirs["server"]) <= set(ours["server"])
    assert ours["server"]["feature_flags"] == theirs["server"]["feature_flags"]
    assert all(
        type(ours["server"][name]) is type(theirs["server"][name]) for name in ours["server"]
    )
