"""The console: who may read and act there, and which requests are really theirs."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from tests.conftest import Servers
from tests.console.visitor import Page
from tests.console.world import CONFIG
from tests.servers import HOST, PENSTOCK, ServerProcess, wait_until

import penstock
from penstock.errors import ConfigError
from penstock.net.monitor.console.signing import ATTEMPTS_MAX
from penstock.net.server import Server

SIGN_IN = {"user": "ann", "password": "pw"}
PAYLOAD = b"for ann and bob"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess(PENSTOCK, CONFIG) as server:
        asyncio.run(fill(server.url))
        yield server


async def fill(url: str) -> None:
    async with await penstock.connect(url, user="ann", password="pw") as client:
        js = client.jetstream()
        for name in ("ORDERS", "PRIVATE"):
            await js.streams.create(name, subjects=[f"{name.lower()}.>"])
            await js.publish(f"{name.lower()}.a", PAYLOAD)
        await js.consumers.create("ORDERS", durable_name="c", ack_policy="explicit")


@pytest.fixture
def page(server: ServerProcess) -> Page:
    return Page(server)


@pytest.mark.parametrize("path", ["sign-in", "sign-out", "read", "do"])
def test_without_the_setting_nothing_can_be_posted(servers: Servers, path: str) -> None:
    off = servers(PENSTOCK, CONFIG.replace("actions: true", "actions: false"))
    page = Page(off)

    assert 405 == page.send(path, SIGN_IN)[0]
    with urllib.request.urlopen(f"http://{HOST}:{off.http_port}/console/session") as answer:
        assert {"is_offered": False} == json.load(answer)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"http_port": 0}, "needs users"),
        ({}, "needs the monitoring"),
    ],
)
def test_a_console_that_everybody_could_sign_in_to_is_refused(
    settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        Server(monitor_actions=True, **settings)


@pytest.mark.parametrize("path", ["read", "do"])
def test_who_has_not_signed_in_reads_and_does_nothing(page: Page, path: str) -> None:
    fields = {"what": "messages", "action": "purge", "stream": "ORDERS", "confirm": "ORDERS"}

    assert 401 == page.send(path, fields)[0]


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "ann", "password": "wrong"},
        {"user": "nobody", "password": "pw"},
        {"user": "ann"},
        {"user": "", "password": "pw"},
    ],
)
def test_wrong_credentials_are_refused(page: Page, fields: dict[str, str]) -> None:
    status, found = page.send("sign-in", fields)

    assert (401, "") == (status, page.set_cookie)
    assert "wrong user or password" in found["error"]
    assert "wrong" not in page.server.log.replace("wrong user", "")


@pytest.mark.parametrize(
    "fields", [{}, {"user": 5, "password": "x"}, {"user": "x" * 2000, "password": ""}]
)
def test_credentials_that_are_none_are_no_attempt(page: Page, fields: dict[str, Any]) -> None:
    assert 400 == page.send("sign-in", fields)[0]


def test_the_cookie_is_for_no_script_and_no_other_site(page: Page) -> None:
    page.sign_in()

    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(page.set_cookie.split("; "))
    assert re.match(r"penstock-\w+=[\w-]{32};", page.set_cookie)


@pytest.mark.parametrize(
    "headers",
    [
        {"X_Penstock_Token": ""},
        {"X_Penstock_Token": "guessed"},
        {"Origin": "http://elsewhere.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
    ids=str,
)
def test_a_request_that_another_site_could_have_sent_is_refused(
    page: Page, headers: dict[str, str]
) -> None:
    page.sign_in()

    for path in ("read", "do", "sign-out"):
        assert 403 == page.send(path, {"what": "messages", "stream": "ORDERS"}, **headers)[0]
    assert 200 == page.read("messages", stream="ORDERS")[0]


def test_other_sites_may_not_ask_to_sign_in(page: Page) -> None:
    page.token = ""

    assert 403 == page.send("sign-in", SIGN_IN)[0]
    page.token = "none"
    assert 403 == page.send("sign-in", SIGN_IN, Origin="http://elsewhere.example")[0]


def test_no_page_of_another_origin_may_read_who_is_signed_in(server: ServerProcess) -> None:
    with urllib.request.urlopen(f"http://{HOST}:{server.http_port}/console/session") as answer:
        assert "Access-Control-Allow-Origin" not in answer.headers
        assert "no-store" == answer.headers["Cache-Control"]


def test_a_user_reads_what_its_permissions_allow(page: Page) -> None:
    page.sign_in("bob")
    status, found = page.read("messages", stream="ORDERS")

    assert (200, PAYLOAD.decode()) == (status, found["messages"][0]["text"])
    status, found = page.read("messages", stream="PRIVATE")
    assert 409 == status
    assert "Permissions Violation" in found["error"]
    assert PAYLOAD.decode() not in str(found)


@pytest.mark.parametrize(
    ("action", "fields"),
    [
        ("purge", {"stream": "ORDERS", "confirm": "ORDERS"}),
        ("delete_stream", {"stream": "ORDERS", "confirm": "ORDERS"}),
        ("delete_message", {"stream": "ORDERS", "sequence": 1, "confirm": "1"}),
        ("delete_consumer", {"stream": "ORDERS", "consumer": "c", "confirm": "c"}),
        ("pause", {"stream": "ORDERS", "consumer": "c", "seconds": 60, "confirm": "c"}),
        ("publish", {"subject": "orders.a", "payload": "x"}),
        ("discard", {"bus": "shop", "letters": [1], "confirm": "shop"}),
    ],
)
def test_a_user_does_only_what_its_permissions_allow(
    page: Page, action: str, fields: dict[str, Any]
) -> None:
    page.sign_in("bob")
    status, found = page.do(action, **fields)

    assert 409 == status, found
    assert "Permissions Violation" in found["error"]


@pytest.mark.parametrize("user", ["tim", "sys"])
def test_an_account_sees_nothing_of_another(page: Page, user: str) -> None:
    page.sign_in(user)

    for what in ("messages", "subjects"):
        status, found = page.read(what, stream="ORDERS")
        assert 409 == status
        assert PAYLOAD.decode() not in str(found)


@pytest.mark.parametrize(
    ("action", "fields"), [("kick", {"cid": 1, "confirm": "1"}), ("reload", {"confirm": "reload"})]
)
def test_only_the_system_account_commands_the_server(
    page: Page, action: str, fields: dict[str, Any]
) -> None:
    status, found = page.sign_in().do(action, **fields)

    assert (403, "only a user of the system account may do this; sign in as one") == (
        status,
        found["error"],
    )


def test_nothing_is_done_without_the_name(page: Page) -> None:
    page.sign_in()

    for confirm in ("", "orders", None):
        assert 400 == page.do("purge", stream="ORDERS", confirm=confirm)[0]
    assert 1 == len(page.read("messages", stream="ORDERS")[1]["messages"])


def test_it_is_logged_who_did_what(page: Page) -> None:
    page.sign_in().do("publish", subject="orders.b\r\nforged", payload="secret payload")
    page.do("publish", subject="orders.b", payload="secret payload")

    line = "Console: user 'ann' of account 'SHOP' from 127.0.0.1: publish 'orders.b'"
    assert line in page.server.log
    assert "\nforged" not in page.server.log
    assert "secret payload" not in page.server.log


def test_a_kicked_or_signed_out_user_is_gone(servers: Servers) -> None:
    server = servers(PENSTOCK, CONFIG)
    ann, operator = Page(server).sign_in(), Page(server).sign_in("sys")
    assert 200 == ann.do("publish", subject="a", payload="")[0]
    (cid,) = [each["cid"] for each in connections(server) if each["account"] == "SHOP"]
    status, found = operator.do("kick", cid=cid, confirm=str(cid))
    assert 200 == status, found
    wait_until(lambda: ann.do("publish", subject="a")[0] == 401)

    assert 200 == operator.send("sign-out")[0]
    assert 401 == operator.send("sign-out")[0]
    wait_until(lambda: connections(server) == [])


def connections(server: ServerProcess) -> list[dict[str, Any]]:
    url = f"http://{HOST}:{server.http_port}/connz?auth=1"
    with urllib.request.urlopen(url, timeout=20) as answer:
        found: list[dict[str, Any]] = json.load(answer)["connections"]
    return [each for each in found if each["type"] == "console"]


def test_a_user_that_a_reload_removes_is_signed_out(servers: Servers) -> None:
    server = servers(PENSTOCK, CONFIG)
    page = Page(server).sign_in("tim")
    server.reload(CONFIG.replace("user: tim", "user: tom"))

    wait_until(lambda: page.do("publish", subject="a")[0] == 401)


def test_strangers_may_send_little_and_members_not_everything(page: Page) -> None:
    assert 413 == page.send("sign-in", data=b"x" * 5000)[0]
    page.sign_in()
    payload = "x" * 100_000
    assert 200 == page.do("publish", subject="orders.c", payload=payload)[0]
    assert b" 413 " in head_only(page, 1 << 21)
    for data in (b"[]", b"{", b"[" * 5000, b""):
        assert 400 == page.send("do", data=data)[0]


def head_only(page: Page, length: int) -> bytes:
    """Return the answer to a request that announces a body, and does not send it."""
    head = f"POST /console/do HTTP/1.1\r\nHost: x\r\nCookie: {page.cookie}\r\n"
    with socket.create_connection((HOST, page.server.http_port), 20) as sock:
        sock.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode())
        return sock.recv(4096)


def test_guesses_are_few_and_slow(page: Page) -> None:
    async def guess() -> list[int]:
        wrong = {"user": "ann", "password": "guess"}
        asked = [
            asyncio.to_thread(lambda: Page(page.server).send("sign-in", wrong)[0])
            for _ in range(ATTEMPTS_MAX * 3)
        ]
        return await asyncio.gather(*asked)

    assert {401, 503} >= set(asyncio.run(guess())) >= {401}
    assert page.sign_in()


@pytest.mark.parametrize(
    "what", ["messages", "message", "subjects", "history", "objects", "letters"]
)
def test_fields_that_make_no_sense_are_refused(page: Page, what: str) -> None:
    page.sign_in()

    assert 400 == page.read(what, stream=5, bus=[], subject={})[0]
    assert page.read(what, stream="a.b", bus="a.b", subject="x", sequence=1)[0] in (400, 409)
    assert 400 == page.read("secrets")[0]
    assert 400 == page.do("shutdown")[0]


def test_the_page_runs_no_foreign_script(server: ServerProcess) -> None:
    for path in ("/console", "/console/main.js", "/console/style.css"):
        with urllib.request.urlopen(f"http://{HOST}:{server.http_port}{path}") as answer:
            policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'; script-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy


@pytest.mark.parametrize("name", ["../watched.py", "%2e%2e/watched.py", "", "index.html/x"])
def test_only_files_of_the_page_are_served(server: ServerProcess, name: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://{HOST}:{server.http_port}/console/{name}")
