"""A server with a domain: its API has two names in every account, and both servers agree."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.servers import NATS_SERVER, PENSTOCK, RawClient, ServerProcess

CONFIG = """
server_name: domains
jetstream { store_dir: store, domain: hub }
accounts {
  A { users: [ { user: a, password: x } ], jetstream: enabled }
  NONE { users: [ { user: none, password: x } ] }
  SYS { users: [ { user: system, password: x } ] }
}
system_account: SYS
"""
CALLS = (
    *("INFO", "STREAM.NAMES", "STREAM.INFO.X", "STREAM.PURGE.X", "CONSUMER.MSG.NEXT.X.Y"),
    "DIRECT.GET.X",
)

COUNTED = re.compile(rb',"total":\d+')
"""The requests so far, which are others each time."""


@pytest.fixture(scope="module")
def servers() -> Iterator[list[ServerProcess]]:
    with ExitStack() as stack:
        yield [stack.enter_context(ServerProcess(each, CONFIG)) for each in (NATS_SERVER, PENSTOCK)]


def answer(server: ServerProcess, user: str, subject: str) -> list[bytes]:
    """Return the headers and the payload of an answer."""
    with RawClient(server.port).connect(user=user, **{"pass": "x"}) as client:
        client.send(f"SUB inbox 1\r\nPUB {subject} inbox 0\r\n\r\n".encode())
        while not (line := client.line()).startswith((b"MSG", b"HMSG")):
            pass
        content = client.read(int(line.split()[-1]))
    return COUNTED.sub(b"", content).split(b"\r\n")


@pytest.mark.parametrize(
    ("user", "call"),
    [
        *((user, call) for user in ("a", "none", "system") for call in CALLS),
        *(("system", f"ACCOUNT.PURGE.{name}") for name in ("A", "NONE")),
    ],
)
def test_both_names_of_the_api_are_answered(
    call: str, user: str, servers: list[ServerProcess]
) -> None:
    expected, actual = (answer(each, user, f"$JS.hub.API.{call}") for each in servers)

    assert expected == actual == answer(servers[1], user, f"$JS.API.{call}")


def test_nobody_answers_for_another_domain(servers: list[ServerProcess]) -> None:
    expected, actual = (answer(each, "system", "$JS.other.API.INFO") for each in servers)

    assert expected == actual


def test_the_server_names_its_domain_and_its_version(servers: list[ServerProcess]) -> None:
    told = []
    for server in servers:
        [ping] = answer(server, "system", "$SYS.REQ.SERVER.PING")
        told.append({name: json.loads(ping)["server"][name] for name in ("domain", "ver")})
        with RawClient(server.port) as client:
            assert client.info["version"] == told[-1]["ver"]

    assert told[0] == told[1]
