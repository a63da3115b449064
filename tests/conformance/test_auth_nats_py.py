"""Every way to say who one is, with the Python client of NATS, on the real server and on ours."""

from __future__ import annotations

import json
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import Authority, Pair
from tests.conformance.test_nats_py import connected, run
from tests.contract.credentials import USER, Key
from tests.servers import DEADLINE_S, HOST, Program, RawClient, ServerProcess

from penstock.client.connection import auth

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def assert_let_in(server: ServerProcess, **options: Any) -> None:
    """See that a client may connect and gets what it publishes."""

    async def scenario() -> None:
        async with connected(server, **options) as client:
            subscription = await client.subscribe("hello")
            await client.publish("hello", b"there")
            assert (await subscription.next_msg(DEADLINE_S)).data == b"there"

    run(scenario)


def assert_kept_out(server: ServerProcess, **options: Any) -> None:
    """See that whoever says this of itself is refused."""
    with RawClient(server.port) as client:
        client.send(b"CONNECT %b\r\nPING\r\n" % json.dumps({"verbose": False} | options).encode())
        assert client.rest() == [b"-ERR 'Authorization Violation'"]


def signed(key: Key, nonce: str) -> dict[str, str]:
    """Return what the owner of a key says of itself."""
    return {"nkey": key.public, "sig": auth.sign(key.seed, nonce)}


@pytest.fixture
def seed_file(tmp_path: Path) -> Path:
    return tmp_path / "user.nk"


def test_an_nkey_user_is_let_in_by_its_signature(program: Program, seed_file: Path) -> None:
    user = Key(USER)
    with ServerProcess(
        program, f"authorization {{ users: [ {{ nkey: {user.public} }} ] }}"
    ) as ours:
        seed_file.write_text(user.seed)
        assert_let_in(ours, nkeys_seed=str(seed_file))

        assert_kept_out(ours)
        assert_kept_out(ours, nkey=user.public)
        assert_kept_out(ours, **signed(user, "another nonce"))
        assert_kept_out(ours, **signed(Key(USER), "nonce"))
        assert_kept_out(ours, user=user.public, **{"pass": ""})


MAPPED = """
accounts {
  A { users: [ { user: "ann@acme.org" }, { user: "CN=bea,O=Acme" } ] }
  B { users: [ { user: "cid.acme.org", permissions: { publish: "hello", subscribe: "hello" } } ] }
}
"""


def test_verify_and_map_takes_the_user_from_the_certificate(
    program: Program, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    pair = authority.server()
    files = {"cert_file": str(pair.cert), "key_file": str(pair.key), "ca_file": str(authority.ca)}
    config = MAPPED + "tls " + json.dumps(files | {"verify_and_map": True})
    with ServerProcess(program, config) as server:
        for name, names, account in (
            ("ann", {"emails": ("ann@acme.org",)}, "A"),
            ("bea", {"subject": [("O", "Acme"), ("CN", "bea")]}, "A"),
            ("cid", {"dns_names": ("cid.acme.org",)}, "B"),
            ("dan", {"dns_names": ("dan.acme.org",)}, None),
        ):
            client = authority.client(name, **names)  # type: ignore[arg-type]
            with _secured(server.port, authority, client) as connection:
                assert account == _account(connection)


@contextmanager
def _secured(port: int, authority: Authority, client: Pair) -> Iterator[ssl.SSLSocket]:
    context = ssl.create_default_context(cafile=str(authority.ca))
    context.load_cert_chain(client.cert, client.key)
    with socket.create_connection((HOST, port), DEADLINE_S) as plain:
        while not plain.recv(65536).endswith(b"\r\n"):
            pass
        with context.wrap_socket(plain, server_hostname="localhost") as secured:
            yield secured


def _account(connection: ssl.SSLSocket) -> str | None:
    """Return the account that a client finds itself in; None if it is refused."""
    connection.sendall(b'CONNECT {"protocol":1,"verbose":false}\r\nPING\r\n')
    received = b""
    while b'"remote_account":' not in received and b"-ERR" not in received:
        data = connection.recv(65536)
        assert data, received
        received += data
    found = re.search(rb'"remote_account":"([^"]*)"', received)
    return found[1].decode() if found is not None else None
