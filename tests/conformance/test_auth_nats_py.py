"""Every way to say who one is, with the Python client of NATS, on the real server and on ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.test_nats_py import connected, run
from tests.contract.credentials import USER, Key
from tests.servers import DEADLINE_S, Program, RawClient, ServerProcess

from penstock.client import auth

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
