"""
Who may do what, walked completely: accounts x subjects x JetStream API x monitoring.

Both servers get the same configuration file and the same questions, from every user.
Their answers are brought to what matters (who heard, which error, whose data) and
must be the same.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.servers import HOST, NATS_SERVER, PENSTOCK, RawClient, ServerProcess

CONFIG = (Path(__file__).parent / "configs" / "matrix.conf").read_text()
USERS = ("a", "reader", "b", "c", "d", "s")
SUBJECTS = ("ev.1", "ask", "plain", "_INBOX.x", "$JS.EVENT.x", "$SYS.x", "$SYS.ACCOUNT.A.CONNECT")

STREAM = {"name": "S", "subjects": ["s.>"]}
CALLS: tuple[tuple[str, Any], ...] = (
    ("INFO", None),
    ("STREAM.NAMES", None),
    ("STREAM.CREATE.S", STREAM),
    ("STREAM.CREATE.M", {"name": "M", "subjects": ["m.>"], "storage": "memory"}),
    ("STREAM.CREATE.BIG", {"name": "BIG", "subjects": ["big"], "max_bytes": 2_000_000}),
    ("STREAM.INFO.S", None),
    ("STREAM.LIST", None),
    ("STREAM.UPDATE.S", STREAM | {"subjects": ["s.>", "t.>"]}),
    ("STREAM.MSG.GET.S", {"seq": 1}),
    ("STREAM.MSG.DELETE.S", {"seq": 1}),
    ("STREAM.PURGE.S", None),
    (
        "CONSUMER.CREATE.S.one",
        {"stream_name": "S", "config": {"durable_name": "one", "name": "one"}},
    ),
    (
        "CONSUMER.CREATE.S.two",
        {"stream_name": "S", "config": {"durable_name": "two", "name": "two"}},
    ),
    ("CONSUMER.INFO.S.one", None),
    ("CONSUMER.NAMES.S", None),
    ("CONSUMER.LIST.S", None),
    ("CONSUMER.DELETE.S.one", None),
    ("STREAM.DELETE.S", None),
    ("STREAM.DELETE.M", None),
    ("STREAM.INFO.S", None),
)
PREFIXES = ("$JS.API", "JS.A.API")

REQUESTS = (
    "$SYS.REQ.USER.INFO",
    *(f"$SYS.REQ.SERVER.PING{kind}" for kind in ("", ".VARZ", ".CONNZ", ".SUBSZ", ".JSZ")),
    *(f"$SYS.REQ.SERVER.PING.{kind}" for kind in ("HEALTHZ", "IDZ", "STATSZ", "ACCOUNTZ")),
    *(f"$SYS.REQ.SERVER.PING.{kind}" for kind in ("LEAFZ", "ROUTEZ", "GATEWAYZ", "NOPE")),
    *(f"$SYS.REQ.SERVER.{{id}}.{kind}" for kind in ("VARZ", "CONNZ", "NOPE")),
    *(
        f"$SYS.REQ.ACCOUNT.{name}.{kind}"
        for name in ("A", "C")
        for kind in ("CONNZ", "SUBSZ", "INFO", "JSZ", "STATZ", "LEAFZ")
    ),
    *(f"$SYS.REQ.ACCOUNT.NOPE.{kind}" for kind in ("CONNZ", "INFO", "JSZ", "LEAFZ")),
    *("$SYS.REQ.ACCOUNT.A.CONNS", "$SYS.REQ.ACCOUNT.PING.CONNZ", "$SYS.REQ.ACCOUNT.PING.STATZ"),
)
PAGES = (
    *("/accountz", "/accstatz", "/leafz", "/routez", "/gatewayz"),
    *(f"/{page}?acc={name}" for page in ("accountz", "jsz", "connz?auth=1&x=") for name in "AC"),
)


class Party:
    """One client of each user, on one server."""

    def __init__(self, server: ServerProcess, stack: ExitStack) -> None:
        self.server = server
        self.clients = {user: stack.enter_context(RawClient(server.port)) for user in USERS}
        for user, client in self.clients.items():
            client.connect(user=user, **{"pass": "x"})
            client.send(b"SUB _INBOX.%b.> inbox\r\n" % user.encode())
            client.settle()
        self.server_id = client.info["server_id"]

    def heard(self, publisher: str, subject: str) -> dict[str, list[str]]:
        """Return under which subjects who hears a message; an error is told too."""
        for client in self.clients.values():
            client.send(b"SUB > all\r\n")
            client.settle()
        self.clients[publisher].send(b"PUB %b 2\r\nhi\r\n" % subject.encode())
        found = {publisher: self.clients[publisher].settle()}
        found |= {
            user: client.settle() for user, client in self.clients.items() if user != publisher
        }
        for client in self.clients.values():
            client.send(b"UNSUB all\r\n")
            client.settle()
        return {
            user: [_told(line) for line in lines if _told(line)] for user, lines in found.items()
        }

    def ask(self, user: str, subject: str, body: bytes = b"") -> Any:
        """Return the answer to a request: a document, a status or an error."""
        client = self.clients[user]
        reply = b"_INBOX.%b.q" % user.encode()
        line = b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply, len(body), body)
        client.send(line)
        first = self._next(client)
        if first.startswith(b"-ERR"):
            return first.decode().replace(self.server_id, "ID")
        size = int(first.split()[-1])
        data = client.read(size + 2)[:size]
        return data.decode().splitlines()[0] if first.startswith(b"HMSG") else json.loads(data)

    def _next(self, client: RawClient) -> bytes:
        while (line := client.line()) == b"PING":
            client.send(b"PONG\r\n")
        return line


def _told(line: bytes) -> str:
    if line.startswith(b"-ERR"):
        return line.decode()
    return line.split()[1].decode() if line.startswith((b"MSG", b"HMSG")) else ""


@pytest.fixture(scope="module")
def parties() -> Iterator[tuple[Party, Party]]:
    """Return the same party on the real server, and on ours."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(ServerProcess(each, CONFIG)) for each in (NATS_SERVER, PENSTOCK)
        ]
        yield Party(servers[0], stack), Party(servers[1], stack)


@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize("publisher", USERS)
def test_the_same_users_hear_a_message(
    parties: tuple[Party, Party], publisher: str, subject: str
) -> None:
    expected, actual = (party.heard(publisher, subject) for party in parties)

    assert expected == actual


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("user", USERS)
def test_the_same_calls_of_jetstream_are_permitted(
    parties: tuple[Party, Party], user: str, prefix: str
) -> None:
    for call, request in CALLS:
        body = json.dumps(request).encode() if request is not None else b""
        expected, actual = (
            _outcome(party.ask(user, f"{prefix}.{call}", body)) for party in parties
        )

        assert (call, expected) == (call, actual)


def _outcome(answer: Any) -> Any:
    """Return what an answer of the API comes to."""
    if isinstance(answer, str):
        return answer
    if "error" in answer:
        return answer["error"]["err_code"], answer["error"]["description"]
    known = ("type", "streams", "consumers", "limits", "success", "total")
    found = {name: answer[name] for name in known if name in answer}
    if answer["type"].endswith("_list_response"):
        found.pop("streams", None)
        found.pop("consumers", None)
    return found


@pytest.mark.parametrize("request_subject", REQUESTS)
@pytest.mark.parametrize("user", USERS)
def test_the_same_questions_about_the_server_are_answered(
    parties: tuple[Party, Party], user: str, request_subject: str
) -> None:
    expected, actual = (
        _shape(party.ask(user, request_subject.replace("{id}", party.server_id)))
        for party in parties
    )

    assert expected == actual


@pytest.mark.parametrize("page", PAGES)
def test_pages_tell_the_same_of_accounts(parties: tuple[Party, Party], page: str) -> None:
    expected, actual = (_shape(_page(party.server, page)) for party in parties)

    assert expected == actual


def _page(server: ServerProcess, page: str) -> Any:
    page = page.replace("&x=?acc=", "&acc=")
    try:
        with urllib.request.urlopen(f"http://{HOST}:{server.http_port}{page}") as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code


SAME = (
    "account_name",
    "acc",
    "name",
    "account",
    "system_account",
    "status",
    "status_code",
    "error",
)
SAME += ("conns", "user", "authorized_user", "client_connections", "jetstream_enabled", "disabled")
SAME += ("total", "num_connections")


def _shape(answer: Any) -> Any:
    """Return the facts of an answer that both servers must agree on."""
    if not isinstance(answer, dict):
        return answer
    data = answer.get("data", answer)
    facts: dict[str, Any] = {"has": sorted(set(answer) - {"api"})}
    for document in [data, *_entries(data)] if isinstance(data, dict) else []:
        for name in SAME:
            # Inner subscriptions and the name of a host are a server's own.
            if (
                isinstance(document.get(name), str | int | bool)
                and "subscriptions_list" not in data
            ):
                facts.setdefault(name, []).append(document[name])
    if isinstance(data, dict):
        facts["accounts"] = sorted(data["accounts"]) if _is_names(data.get("accounts")) else None
    if "error" in answer:
        facts["error"] = re.sub(r"\s+", " ", answer["error"]["description"])
    return {
        name: sorted(each, key=str) if isinstance(each, list) else each
        for name, each in facts.items()
    }


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _entries(data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name in ("connections", "account_statz", "account_details"):
        listed = data.get(name) or []
        yield from listed if isinstance(listed, list) else []
    if isinstance(data.get("account_detail"), dict):
        yield data["account_detail"]


@pytest.mark.parametrize("order", ["KICK", "LDM"])
def test_orders_need_a_client_that_is_there(parties: tuple[Party, Party], order: str) -> None:
    answers = [
        party.ask("s", f"$SYS.REQ.SERVER.{party.server_id}.{order}", b'{"cid":4000000}')["error"]
        for party in parties
    ]

    assert answers[0] == answers[1]


def test_a_kicked_client_is_gone(parties: tuple[Party, Party]) -> None:
    for party in parties:
        with RawClient(party.server.port) as client:
            client.connect(user="d", **{"pass": "x"})
            body = json.dumps({"cid": client.info["client_id"]}).encode()
            party.ask("s", f"$SYS.REQ.SERVER.{party.server_id}.KICK", body)
            client.rest()


def test_the_system_account_is_told_who_comes_and_goes(parties: tuple[Party, Party]) -> None:
    stories = []
    for party in parties:
        system = party.clients["s"]
        system.send(b"SUB $SYS.ACCOUNT.D.> e1\r\nSUB $SYS.SERVER.ACCOUNT.D.CONNS e2\r\n")
        system.settle()
        with RawClient(party.server.port) as client:
            client.connect(user="d", name="guest", **{"pass": "x"})
        story = [_event(system) for _ in range(6)]
        system.send(b"UNSUB e1\r\nUNSUB e2\r\n")
        system.settle()
        stories.append(sorted(story))

    assert stories[0] == stories[1]


def _event(client: RawClient) -> tuple[str, str, str, str]:
    while not (line := client.line()).startswith(b"MSG"):
        pass
    event = json.loads(client.read(int(line.split()[-1]) + 2))
    about = event.get("client", event)
    kind = event["type"].rpartition(".")[2]
    words = json.dumps([about.get(key) for key in ("acc", "name", "user", "kind", "conns")])
    return line.split()[1].decode(), kind, words, event.get("reason", "")
