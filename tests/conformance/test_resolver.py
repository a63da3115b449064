"""Accounts that come, change and go while a server runs, on the real server and on ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.contract.credentials import ACCOUNT, ACCOUNT_LIMITS, NO_LIMITS, OPERATOR, USER, Key
from tests.servers import Program, RawClient, ServerProcess

from penstock.client.connection import auth

UPDATE, LIST, DELETE = (f"$SYS.REQ.CLAIMS.{order}" for order in ("UPDATE", "LIST", "DELETE"))
STREAMING = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}


class Realm:
    """An operator, its system account, and whom that lets in."""

    def __init__(self, directory: Path) -> None:
        self.operator, self.system = Key(OPERATOR), Key(ACCOUNT)
        self.directory = directory / "accounts"
        claims = {"type": "operator", "system_account": self.system.public}
        self._token = self.operator.jwt(self.operator.public, "operator", claims)

    def account(self, key: Key, name: str = "account", iat: int = 1, **limits: Any) -> str:
        """Return the token of an account."""
        nats = {"type": "account", "limits": ACCOUNT_LIMITS | limits}
        return self.operator.jwt(key.public, name, nats, iat=iat)

    def config(self, resolver: str = "{{ type: full, dir: '{dir}', allow_delete: true }}") -> str:
        """Return the configuration of a server."""
        preload = f"{self.system.public}: {self.account(self.system, 'system')}"
        where = resolver.format(dir=self.directory)
        return (
            "jetstream { store_dir: store }\n"
            f"operator: {self._token}\nresolver: {where}\nresolver_preload {{ {preload} }}\n"
        )

    @contextmanager
    def user(self, server: ServerProcess, account: Key) -> Iterator[RawClient]:
        """Connect as a user of an account."""
        key = Key(USER)
        token = account.jwt(key.public, "user", {"type": "user", **NO_LIMITS})
        with RawClient(server.port) as client:
            sig = auth.sign(key.seed, client.info["nonce"])
            options = {"jwt": token, "sig": sig, "verbose": False, "headers": True}
            client.send(b"CONNECT %b\r\n" % json.dumps(options).encode())
            yield client

    def is_let_in(self, server: ServerProcess, account: Key) -> bool:
        with self.user(server, account) as client:
            client.send(b"PING\r\n")
            return client.line() == b"PONG"


def ask(client: RawClient, subject: str, body: str = "") -> Any:
    """Return the answer to a request: a document, or a text that is none."""
    data = body.encode()
    client.send(b"SUB answer 1\r\nPUB %b answer %d\r\n" % (subject.encode(), len(data)))
    client.send(data + b"\r\n")
    while not (line := client.line()).startswith((b"MSG", b"-ERR")):
        pass
    assert line.startswith(b"MSG"), line
    size = int(line.split()[-1])
    answer = client.read(size + 2)[:size].decode()
    client.send(b"UNSUB 1\r\n")
    return json.loads(answer) if answer.startswith("{") else answer


@pytest.fixture
def realm(tmp_path: Path) -> Realm:
    return Realm(tmp_path)


def test_an_account_that_is_pushed_is_there_at_once(realm: Realm, program: Program) -> None:
    account, token = (key := Key(ACCOUNT)), realm.account(key)
    with (
        ServerProcess(program, realm.config()) as server,
        realm.user(server, realm.system) as system,
    ):
        assert not realm.is_let_in(server, account)

        answer = ask(system, UPDATE, token)
        assert answer["data"] == {"account": key.public, "code": 200, "message": "jwt updated"}
        assert realm.is_let_in(server, account)
        assert ask(system, f"$SYS.REQ.ACCOUNT.{key.public}.CLAIMS.LOOKUP") == token
        assert ask(system, f"$SYS.REQ.ACCOUNT.{Key(ACCOUNT).public}.CLAIMS.LOOKUP") == ""
        assert set(ask(system, LIST)["data"]) == {key.public, realm.system.public}


def test_accounts_outlive_the_server(realm: Realm, program: Program) -> None:
    key = Key(ACCOUNT)
    with (
        ServerProcess(program, realm.config()) as server,
        realm.user(server, realm.system) as system,
    ):
        ask(system, f"$SYS.REQ.ACCOUNT.{key.public}.CLAIMS.UPDATE", realm.account(key))
    assert (realm.directory / f"{key.public}.jwt").read_text() == realm.account(key)
    with ServerProcess(program, realm.config()) as server:
        assert realm.is_let_in(server, key)


def test_an_account_may_get_streams_and_limits_later(realm: Realm, program: Program) -> None:
    key = Key(ACCOUNT)
    stream = '{"name":"S","subjects":["s"]}'
    with (
        ServerProcess(program, realm.config()) as server,
        realm.user(server, realm.system) as system,
    ):
        ask(system, UPDATE, realm.account(key))
        with realm.user(server, key) as user:
            refused = ask(user, "$JS.API.STREAM.CREATE.S", stream)
            assert refused["error"]["err_code"] == 10039
            ask(system, UPDATE, realm.account(key, iat=2, **STREAMING))
            assert "error" not in ask(user, "$JS.API.STREAM.CREATE.S", stream)
            ask(system, UPDATE, realm.account(key, iat=3, **STREAMING | {"streams": 1}))
            more = ask(user, "$JS.API.STREAM.CREATE.T", '{"name":"T","subjects":["t"]}')
            assert more["error"]["err_code"] == 10027


def test_an_account_that_is_deleted_is_gone(realm: Realm, program: Program) -> None:
    key = Key(ACCOUNT)
    order = realm.operator.jwt(
        realm.operator.public, "", {"type": "generic", "accounts": [key.public]}
    )
    with (
        ServerProcess(program, realm.config()) as server,
        realm.user(server, realm.system) as system,
    ):
        ask(system, UPDATE, realm.account(key))
        with realm.user(server, key) as user:
            user.settle()
            answer = ask(system, DELETE, order)
            assert answer["data"] == {"code": 200, "message": "deleted 1 accounts"}
            assert user.rest()[-1].startswith(b"-ERR")
        assert not realm.is_let_in(server, key)
        assert ask(system, LIST)["data"] == [realm.system.public]
        ask(system, UPDATE, realm.account(key, iat=2))
        assert realm.is_let_in(server, key)


def test_orders_that_may_not_be_are_refused_with_the_same_words(
    realm: Realm, program: Program
) -> None:
    operator, stranger, key = realm.operator, Key(OPERATOR), Key(ACCOUNT)

    def deletion(signer: Key, subject: Key, accounts: object) -> str:
        return signer.jwt(subject.public, "", {"type": "generic", "accounts": accounts})

    orders = {
        deletion(operator, stranger, []): "not self signed",
        deletion(stranger, stranger, []): "not trusted",
        deletion(operator, operator, "x"): "malformed request",
        deletion(operator, operator, ["x"]): "malformed request",
        deletion(operator, operator, [realm.system.public]): "not allowed to delete system account",
    }
    named = f"$SYS.REQ.ACCOUNT.{key.public}.CLAIMS.UPDATE"
    with (
        ServerProcess(program, realm.config()) as server,
        realm.user(server, realm.system) as system,
    ):
        for order, reason in orders.items():
            error = ask(system, DELETE, order)["error"]
            assert error["code"] == 500
            assert error["description"].endswith(f"failed - {reason}")
        error = ask(system, named, realm.account(Key(ACCOUNT)))["error"]
        assert error["description"] == (
            "jwt update resulted in error - subject does not match jwt content"
        )
        error = ask(system, UPDATE, "nonsense")["error"]
        assert error["description"].startswith("jwt update resulted in error - ")
        assert error["account"] == "n/a"


def test_deleting_has_to_be_allowed(realm: Realm, program: Program) -> None:
    operator = realm.operator
    order = operator.jwt(operator.public, "", {"type": "generic", "accounts": []})
    with (
        ServerProcess(program, realm.config("{{ type: full, dir: '{dir}' }}")) as server,
        realm.user(server, realm.system) as system,
    ):
        error = ask(system, DELETE, order)["error"]

        assert error["description"].endswith("failed - delete must be enabled in server config")


def test_in_memory_an_account_that_is_known_may_change(realm: Realm, program: Program) -> None:
    key, subject = realm.system, f"$SYS.REQ.ACCOUNT.{realm.system.public}.CLAIMS.UPDATE"
    with (
        ServerProcess(program, realm.config("MEMORY")) as server,
        realm.user(server, key) as system,
    ):
        changed = ask(system, subject, realm.account(key, "system", iat=2))
        assert changed["data"]["message"] == "jwt updated"
        another = Key(ACCOUNT)
        subject = f"$SYS.REQ.ACCOUNT.{another.public}.CLAIMS.UPDATE"
        skipped = ask(system, subject, realm.account(another))
        assert skipped["data"]["message"] == "jwt update skipped"
        empty = ask(system, subject)["error"]["description"]
        assert empty == "jwt update error - request body is empty"
