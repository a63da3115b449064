"""Accounts that come, change and go while a server runs, on the real server and on ours."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.contract.credentials import ACCOUNT, ACCOUNT_LIMITS, NO_LIMITS, OPERATOR, USER, Key
from tests.servers import HOST, Program, RawClient, ServerProcess, wait_until

from penstock.client.connection import auth
from penstock.net.process import ServerFailed

UPDATE, LIST, DELETE = (f"$SYS.REQ.CLAIMS.{order}" for order in ("UPDATE", "LIST", "DELETE"))
STREAMING = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}


class Realm:
    """An operator, its system account, and whom that lets in."""

    def __init__(self, directory: Path) -> None:
        self.operator, self.system = Key(OPERATOR), Key(ACCOUNT)
        self.directory = directory / "accounts"
        self._token = self.operator_token()

    def operator_token(self, **nats: Any) -> str:
        """Return the token of the operator, which may say more."""
        claims = {"type": "operator", "system_account": self.system.public, **nats}
        return self.operator.jwt(self.operator.public, "operator", claims)

    def account(self, key: Key, name: str = "account", iat: int = 1, **limits: Any) -> str:
        """Return the token of an account."""
        return self.account_with(key, name, iat=iat, limits=ACCOUNT_LIMITS | limits)

    def account_with(self, key: Key, name: str, *, iat: int = 1, exp: int = 0, **nats: Any) -> str:
        """Return the token of an account that says more."""
        nats = {"type": "account", "limits": ACCOUNT_LIMITS} | nats
        expiry = {"exp": exp} if exp else {}
        return self.operator.jwt(key.public, name, nats, iat=iat, **expiry)

    def config(self, resolver: str = "{{ type: full, dir: '{dir}', allow_delete: true }}") -> str:
        """Return the configuration of a server."""
        preload = f"{self.system.public}: {self.account(self.system, 'system')}"
        return self.bare_config(resolver) + f"resolver_preload {{ {preload} }}\n"

    def bare_config(self, resolver: str) -> str:
        """Return the configuration of a server that knows no account."""
        where = resolver.format(dir=self.directory)
        return f"jetstream {{ store_dir: store }}\noperator: {self._token}\nresolver: {where}\n"

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


def message(client: RawClient) -> str:
    """Return the payload of the next message."""
    while not (line := client.line()).startswith((b"MSG", b"-ERR")):
        pass
    assert line.startswith(b"MSG"), line
    size = int(line.split()[-1])
    return client.read(size + 2)[:size].decode()


def ask(client: RawClient, subject: str, body: str = "") -> Any:
    """Return the answer to a request: a document, or a text that is none."""
    data = body.encode()
    client.send(b"SUB answer 1\r\nPUB %b answer %d\r\n" % (subject.encode(), len(data)))
    client.send(data + b"\r\n")
    answer = message(client)
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


def test_all_tokens_come_one_by_one(realm: Realm, program: Program) -> None:
    tokens = {(key := Key(ACCOUNT)).public: realm.account(key) for _ in range(3)}
    with (
        ServerProcess(program, realm.config()) as server,
        realm.user(server, realm.system) as system,
    ):
        for token in tokens.values():
            ask(system, UPDATE, token)

        system.send(b"SUB all 2\r\nPUB $SYS.REQ.CLAIMS.PACK all 0\r\n\r\n")
        packed = [pack for pack in iter(lambda: message(system), "")]

    sent = dict(pack.split("|", 1) for pack in packed)
    assert len(sent) == len(packed)
    assert sent.items() >= tokens.items()
    assert set(sent) == {*tokens, realm.system.public}


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


class AccountServer(ThreadingHTTPServer):
    """Answers with tokens by the keys of accounts, and counts how often it was asked."""

    def __init__(self) -> None:
        super().__init__((HOST, 0), _Answer)
        self.tokens: dict[str, str] = {}
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/jwt/v1"

    @property
    def resolver(self) -> str:
        return f"URL({self.url}/accounts/)"


class _Answer(BaseHTTPRequestHandler):
    server: AccountServer

    def do_GET(self) -> None:
        name = self.path.removeprefix("/jwt/v1/accounts/")
        self.server.asked.append(name)
        token = self.server.tokens.get(name, "" if name else "here")
        self.send_response(200 if token else 404)
        self.end_headers()
        self.wfile.write(token.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def account_server(realm: Realm) -> Iterator[AccountServer]:
    with AccountServer() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        server.tokens[realm.system.public] = realm.account(realm.system, "system")
        yield server
        server.shutdown()


def test_an_account_is_asked_for_when_its_first_user_comes(
    realm: Realm, program: Program, account_server: AccountServer
) -> None:
    known, stranger = Key(ACCOUNT), Key(ACCOUNT)
    account_server.tokens[known.public] = realm.account(known)
    with ServerProcess(program, realm.bare_config(account_server.resolver)) as server:
        assert known.public not in account_server.asked
        assert realm.is_let_in(server, known)
        assert realm.is_let_in(server, known)
        assert account_server.asked.count(known.public) == 1
        assert not realm.is_let_in(server, stranger)
        assert stranger.public in account_server.asked
        assert realm.is_let_in(server, realm.system)

        account_server.tokens[stranger.public] = realm.account(stranger)
        assert realm.is_let_in(server, stranger)


def test_many_users_of_a_new_account_are_all_let_in(
    realm: Realm, program: Program, account_server: AccountServer
) -> None:
    keys = [Key(ACCOUNT) for _ in range(3)]
    account_server.tokens |= {key.public: realm.account(key) for key in keys}
    let_in: list[bool] = []
    with ServerProcess(program, realm.bare_config(account_server.resolver)) as server:
        threads = [
            threading.Thread(target=lambda key=key: let_in.append(realm.is_let_in(server, key)))
            for key in keys * 5
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert let_in == [True] * len(threads)


def test_an_account_is_asked_for_with_those_it_imports_from(
    realm: Realm, program: Program, account_server: AccountServer
) -> None:
    exporter, importer = Key(ACCOUNT), Key(ACCOUNT)
    shared = {"name": "s", "subject": "ev.>", "type": "stream"}
    account_server.tokens |= {
        exporter.public: realm.account_with(exporter, "exporter", exports=[shared]),
        importer.public: realm.account_with(
            importer, "importer", imports=[shared | {"account": exporter.public}]
        ),
    }
    with (
        ServerProcess(program, realm.bare_config(account_server.resolver)) as server,
        realm.user(server, importer) as hearer,
    ):
        hearer.send(b"SUB ev.1 1\r\n")
        hearer.settle()
        with realm.user(server, exporter) as teller:
            teller.send(b"PUB ev.1 2\r\nhi\r\n")
            teller.settle()
            assert hearer.line() == b"MSG ev.1 1 2"


def test_an_account_that_has_expired_is_asked_for_again(
    realm: Realm, program: Program, account_server: AccountServer
) -> None:
    key = Key(ACCOUNT)
    with ServerProcess(program, realm.bare_config(account_server.resolver)) as server:
        soon = int(time.time()) + 4
        account_server.tokens[key.public] = realm.account_with(key, "short", exp=soon)
        assert realm.is_let_in(server, key)
        wait_until(lambda: not realm.is_let_in(server, key))
        assert time.time() > soon - 1

        account_server.tokens[key.public] = realm.account_with(key, "long", iat=2)
        wait_until(lambda: realm.is_let_in(server, key))


@pytest.mark.parametrize(
    "said",
    ["", "no token", "another account's", "a stranger's"],
)
def test_what_is_no_token_of_the_account_lets_nobody_in(
    said: str, realm: Realm, program: Program, account_server: AccountServer
) -> None:
    key, stranger = Key(ACCOUNT), Key(OPERATOR)
    nats = {"type": "account", "limits": ACCOUNT_LIMITS}
    account_server.tokens[key.public] = {
        "another account's": realm.account(Key(ACCOUNT)),
        "a stranger's": stranger.jwt(key.public, "account", nats),
    }.get(said, said)
    with ServerProcess(program, realm.bare_config(account_server.resolver)) as server:
        assert not realm.is_let_in(server, key)
        assert realm.is_let_in(server, realm.system)


def test_an_account_server_that_is_not_there_stops_the_start(
    realm: Realm, program: Program
) -> None:
    config = realm.bare_config(f"URL(http://{HOST}:1/accounts)")
    with pytest.raises(ServerFailed, match="could not fetch"), ServerProcess(program, config):
        pass


def test_accounts_that_were_asked_for_outlive_a_reload(
    realm: Realm, program: Program, account_server: AccountServer
) -> None:
    key = Key(ACCOUNT)
    account_server.tokens[key.public] = realm.account(key)
    config = realm.bare_config(account_server.resolver)
    with ServerProcess(program, config) as server, realm.user(server, key) as client:
        client.settle()
        server.reload(config + "debug: true\n")
        client.settle()
        assert realm.is_let_in(server, key)


def test_a_cache_has_its_files_and_takes_no_others(realm: Realm, program: Program) -> None:
    known, other = Key(ACCOUNT), Key(ACCOUNT)
    realm.directory.mkdir()
    (realm.directory / f"{known.public}.jwt").write_text(realm.account(known))
    config = realm.config("{{ type: cache, dir: '{dir}', ttl: '1h' }}")
    with (
        ServerProcess(program, config) as server,
        realm.user(server, realm.system) as system,
    ):
        assert realm.is_let_in(server, known)
        assert not realm.is_let_in(server, other)

        answer = ask(system, UPDATE, realm.account(other))
        assert answer["data"]["message"] == "jwt update cache skipped"
        answer = ask(system, UPDATE, realm.account(known, "newer", 2))
        assert answer["data"]["message"] == "jwt updated cache"
        assert not realm.is_let_in(server, other)
        assert ask(system, LIST)["data"] == sorted([known.public, realm.system.public])
        failed = ask(system, f"$SYS.REQ.ACCOUNT.{known.public}.CLAIMS.UPDATE", "junk")
        assert failed["error"]["account"] == known.public


def test_the_files_of_a_cache_go_when_their_time_is_over(realm: Realm, program: Program) -> None:
    key = Key(ACCOUNT)
    realm.directory.mkdir()
    (realm.directory / f"{key.public}.jwt").write_text(realm.account(key))
    config = realm.config("{{ type: cache, dir: '{dir}', ttl: '1s' }}")
    with ServerProcess(program, config) as server:
        assert realm.is_let_in(server, key)
        wait_until(lambda: not list(realm.directory.iterdir()))

        assert realm.is_let_in(server, key)


def test_an_operator_may_say_where_its_accounts_are(
    realm: Realm, program: Program, account_server: AccountServer
) -> None:
    key = Key(ACCOUNT)
    account_server.tokens[key.public] = realm.account(key)
    token = realm.operator_token(account_server_url=account_server.url)
    with ServerProcess(program, f"operator: {token}\n") as server:
        assert realm.is_let_in(server, key)
        assert not realm.is_let_in(server, Key(ACCOUNT))
