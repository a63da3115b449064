"""
What who may ask about the server, walked completely: each user x every request, and every page.

Both servers get the same configuration file and the same questions. Their answers are
brought to what matters (whose data, which error) and must be the same.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.conformance.matrix import CONFIG, USERS, Party, open_parties
from tests.servers import HOST, Program, RawClient, ServerProcess

from penstock.net.monitor.monitor import ALIASES, ENDPOINTS

SERVER_KINDS = (
    *("IDZ", "STATSZ", "VARZ", "SUBSZ", "CONNZ", "ROUTEZ", "GATEWAYZ", "LEAFZ", "ACCOUNTZ"),
    *("JSZ", "HEALTHZ", "EXPVARZ", "IPQUEUESZ", "RAFTZ", "PROFILEZ", "NOPE"),
)
ACCOUNT_KINDS = ("SUBSZ", "CONNZ", "LEAFZ", "JSZ", "INFO", "STATZ", "CONNS", "NOPE")
SILENT = ("$SYS.REQ.ACCOUNT.NOPE.STATZ", "$SYS.REQ.ACCOUNT.NOPE.CONNS")
"""What the system account is not answered."""
REQUESTS = (
    *("$SYS.REQ.USER.INFO", "$SYS.REQ.SERVER.PING", "$SYS.REQ.NOPE"),
    *(f"$SYS.REQ.SERVER.PING.{kind}" for kind in SERVER_KINDS),
    *(f"$SYS.REQ.SERVER.{{id}}.{kind}" for kind in SERVER_KINDS),
    *(f"$SYS.REQ.SERVER.NOPE.{kind}" for kind in ("VARZ", "KICK", "LDM", "RELOAD")),
    *(f"$SYS.REQ.ACCOUNT.{name}.{kind}" for name in ("A", "C") for kind in ACCOUNT_KINDS),
    *(f"$SYS.REQ.ACCOUNT.NOPE.{kind}" for kind in ("CONNZ", "INFO", "JSZ", "LEAFZ", "SUBSZ")),
    *("$SYS.REQ.ACCOUNT.PING.CONNZ", "$SYS.REQ.ACCOUNT.PING.STATZ"),
    *(f"$SYS.REQ.CLAIMS.{order}" for order in ("LIST", "PACK", "UPDATE", "DELETE")),
    "$SYS.REQ.ACCOUNT.A.CLAIMS.LOOKUP",
)
OF_ONE_OF_THEM = {
    *("api", "penstock", "git_commit", "gomaxprocs", "config_digest"),
    *("disk_io_wait_stats", "tls_timeout"),
}
"""Fields of a page that tell how one of the servers is built."""
OF_OURS = ("/console", "/eventz", "/historyz", "/pipelinez", "/metrics")
PATHS = (
    *("/", "/varz", "/connz", "/subsz", "/subscriptionsz", "/jsz", "/healthz", "/accountz"),
    *("/accstatz", "/leafz", "/routez", "/gatewayz", "/ipqueuesz", "/stacksz", "/debug/vars"),
    *("/raftz", "/nope"),
)
PAGES = (
    *PATHS,
    *(f"/{page}?acc={name}" for page in ("accountz", "jsz", "connz?auth=1&x=") for name in "AC"),
)


@pytest.fixture(scope="module")
def parties() -> Iterator[tuple[Party, Party]]:
    with ExitStack() as stack:
        yield open_parties(stack)


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


@pytest.mark.parametrize("request_subject", SILENT)
def test_nothing_is_said_of_accounts_that_are_not_there(
    parties: tuple[Party, Party], request_subject: str
) -> None:
    end = "$SYS.REQ.SERVER.PING.IDZ"
    answers = [party.is_silent("s", request_subject, end) for party in parties]

    assert answers == [None, None]


def test_every_page_is_walked() -> None:
    assert {*ENDPOINTS, *ALIASES} - {*PATHS, *OF_OURS} == set()


@pytest.mark.parametrize("page", PAGES)
def test_pages_tell_the_same_of_accounts(parties: tuple[Party, Party], page: str) -> None:
    expected, actual = (_shape(_page(party.server, page)) for party in parties)

    assert expected == actual


def _page(server: ServerProcess, page: str) -> Any:
    page = page.replace("&x=?acc=", "&acc=")
    try:
        with urllib.request.urlopen(f"http://{HOST}:{server.http_port}{page}") as answer:
            if page in ("/", "/stacksz"):
                return bool(answer.read())
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
    facts: dict[str, Any] = {"has": sorted(set(answer) - OF_ONE_OF_THEM)}
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


def test_one_client_may_be_told_to_go_elsewhere(parties: tuple[Party, Party]) -> None:
    for party in parties:
        with RawClient(party.server.port) as client:
            client.connect(user="d", protocol=1, **{"pass": "x"})
            client.settle()
            body = json.dumps({"cid": client.info["client_id"]}).encode()
            party.ask("s", f"$SYS.REQ.SERVER.{party.server_id}.LDM", body)

            told = json.loads(client.line().removeprefix(b"INFO "))

            assert told["ldm"] is True
            assert client.settle() == []


def test_the_system_account_may_reload(program: Program) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess(program, CONFIG))
        party = Party(server, stack)
        server.write_config(CONFIG + "max_payload: 1234\n")

        answer = party.ask("s", f"$SYS.REQ.SERVER.{party.server_id}.RELOAD")

        assert "error" not in answer
        with RawClient(server.port) as later:
            assert later.info["max_payload"] == 1234


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
