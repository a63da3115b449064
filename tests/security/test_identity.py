"""
Somebody who claims to be another: the server decides by what it has seen for itself.

Each case is put to the real server too.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.test_auth_callout import Service, serving
from tests.conformance.test_nats_py import run
from tests.contract.credentials import ACCOUNT, NO_LIMITS, USER, Key, Realm, write_credentials
from tests.servers import HOST, PROGRAMS, Program, RawClient, ServerProcess
from tests.websocket import RawWebSocket

from penstock.client.connection import auth

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

REFUSED = b"-ERR 'Authorization Violation'"
Scenario = Callable[[Service], Awaitable[None]]
WEBSOCKET = f"websocket {{ listen: '{HOST}:-1', no_tls: true }}\n"


class World:
    """An operator with two accounts, of which one has a service that says who its users are."""

    def __init__(self) -> None:
        self.plain, self.asking, self.app = Key(ACCOUNT), Key(ACCOUNT), Key(ACCOUNT)
        self.service, self.revoked = Key(USER), Key(USER)
        system = Key(ACCOUNT)
        self.realm = Realm(system_account=system.public)
        self.realm.sign(system, "system")
        self.realm.sign(self.plain, "plain")
        self.realm.sign(self.app, "app")
        self.realm.sign(
            self.asking,
            "asking",
            authorization={
                "auth_users": [self.service.public],
                "allowed_accounts": [self.app.public],
            },
            revocations={self.revoked.public: 2_000},
            limits={"disallow_bearer": True},
        )

    @property
    def config(self) -> str:
        """The configuration of a server that trusts the operator."""
        return f"http_port: -1\nauthorization {{ timeout: 3 }}\n{WEBSOCKET}{self.realm.config}"

    def user(self, issuer: Key, user: Key, **nats: Any) -> str:
        """Return a user's token; claims such as `exp` may be among what it says."""
        claims = {key: nats.pop(key) for key in ("exp", "nbf") if key in nats}
        return issuer.jwt(user.public, "ann", {"type": "user", **NO_LIMITS, **nats}, **claims)


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(scope="module", params=PROGRAMS, ids=lambda program: program.name)
def server(request: pytest.FixtureRequest, world: World) -> Iterator[ServerProcess]:
    with ServerProcess(request.param, world.config) as running:
        yield running


def connect_line(jwt: str, seed: str | None, nonce: str) -> bytes:
    options = {"verbose": False, "name": "sesame", "jwt": jwt}
    if seed is not None:
        options["sig"] = auth.sign(seed, nonce)
    return b"CONNECT %b\r\nPING\r\n" % json.dumps(options).encode()


def connz_ip(server: ServerProcess, client_id: int) -> str:
    url = f"http://{HOST}:{server.http_port}/connz?cid={client_id}"
    with urllib.request.urlopen(url) as answer:
        return str(json.load(answer)["connections"][0]["ip"])


@pytest.mark.parametrize(
    ("networks", "is_let_in"),
    [(["10.1.0.0/16"], False), (["127.0.0.0/8"], True)],
    ids=["of the header", "of the socket"],
)
def test_the_address_of_the_socket_decides_whatever_a_header_says(
    networks: list[str], is_let_in: bool, server: ServerProcess, world: World
) -> None:
    user = Key(USER)
    token = world.user(world.plain, user, src=networks)
    with RawWebSocket(server.websocket_port).upgrade(X_Forwarded_For="10.1.2.3") as client:
        info = json.loads(client.read_until(b"\r\n").removeprefix(b"INFO "))
        client.say(connect_line(token, user.seed, info["nonce"]))

        answer = client.read_until(b"\r\n")
        assert answer == (b"PONG\r\n" if is_let_in else REFUSED + b"\r\n")
        assert info["client_ip"] == HOST
        if is_let_in:
            assert connz_ip(server, info["client_id"]) == HOST


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_the_address_that_a_trusted_proxy_tells_decides(program: Program, world: World) -> None:
    user = Key(USER)
    token = world.user(world.plain, user, src=["10.1.0.0/16"])
    with ServerProcess(program, f"proxy_protocol: true\n{world.config}") as server:
        for address, answer in (("10.1.2.3", b"PONG"), ("10.2.2.3", REFUSED)):
            with RawClient(server.port) as client:
                client.send(b"PROXY TCP4 %b 10.9.9.9 5000 4222\r\n" % address.encode())
                client.send(connect_line(token, user.seed, client.info["nonce"]))
                assert client.line() == answer


def test_the_log_shows_whom_a_proxy_speaks_for(program: Program) -> None:
    config = f"authorization {{ token: t }}\n{WEBSOCKET}"
    with ServerProcess(program, config) as server:
        with RawWebSocket(server.websocket_port).upgrade(X_Forwarded_For="10.1.2.3") as client:
            client.say(b"PING\r\n")
            port = client.sock.getsockname()[1]
            client.closing()

        assert f"10.1.2.3/{HOST}:{port}" in server.log


def test_a_rule_with_half_a_character_is_read_as_go_does(
    server: ServerProcess, world: World
) -> None:
    user = Key(USER)
    token = world.user(world.plain, user, pub={"deny": ["a.\ud800", "secret"]})
    with RawClient(server.port) as client:
        client.send(connect_line(token, user.seed, client.info["nonce"]))
        assert client.line() == b"PONG"
        client.send("PUB a.\ufffd 0\r\n\r\nPUB secret 0\r\n\r\nPUB a.b 0\r\n\r\n".encode())

        refused = "-ERR 'Permissions Violation for Publish to \"%s\"'"
        assert client.settle() == [(refused % each).encode() for each in ("a.\ufffd", "secret")]
    assert "Traceback" not in server.log


@pytest.fixture
def beside_service(
    server: ServerProcess, world: World, tmp_path: Path
) -> Callable[[Scenario, Key], None]:
    """Return what runs a scenario beside the service of the asking account."""
    token = world.user(world.asking, world.service)
    creds = str(write_credentials(tmp_path / "service.creds", token, world.service.seed))

    def run_beside(scenario: Scenario, signer: Key) -> None:
        async def with_service() -> None:
            connect = {"user_credentials": creds}
            async with serving(server, connect=connect, signer=signer) as service:
                await scenario(service)

        run(with_service)

    return run_beside


@dataclass
class Signer(Key):
    """Signs answers with the key of the service's account, and users with another."""

    answers: Key
    users: Key
    issuer_account: str = ""

    def jwt(self, subject: str, name: str, nats: dict[str, Any], **claims: Any) -> str:
        """Return a claim about `subject`."""
        if nats["type"] != "user":
            return self.answers.jwt(subject, name, nats, **claims)
        issuer = {"issuer_account": self.issuer_account} if self.issuer_account else {}
        return self.users.jwt(subject, name, nats | issuer, **claims)


async def first_words(server: ServerProcess, jwt: str, seed: str | None) -> list[bytes]:
    """Return what a client hears, asked in another thread: the service is at work here."""

    def knock() -> list[bytes]:
        with RawClient(server.port) as client:
            client.send(connect_line(jwt, seed, client.info["nonce"]))
            line = client.line()
            lines = [line] if line == b"PONG" else [line, *client.rest()]
            return [line for line in lines if line != b"PING"]

    return await asyncio.to_thread(knock)


def test_the_service_is_asked_about_a_user_its_account_vouches_for(
    server: ServerProcess, world: World, beside_service: Callable[[Scenario, Key], None]
) -> None:
    user = Key(USER)

    async def scenario(service: Service) -> None:
        assert await first_words(server, world.user(world.asking, user), user.seed) == [b"PONG"]
        assert len(service.asked) == 1

    beside_service(scenario, Signer(ACCOUNT, answers=world.asking, users=world.app))


def test_the_service_is_asked_about_nobody_whom_the_server_would_refuse(
    server: ServerProcess, world: World, beside_service: Callable[[Scenario, Key], None]
) -> None:
    user, stranger = Key(USER), Key(ACCOUNT)
    good = world.user(world.asking, user)
    cases = {
        "no signature": (good, None),
        "another's signature": (good, Key(USER).seed),
        "signed by a stranger": (
            world.user(stranger, user, issuer_account=world.asking.public),
            user.seed,
        ),
        "revoked": (world.user(world.asking, world.revoked), world.revoked.seed),
        "expired": (world.user(world.asking, user, exp=1_000), user.seed),
        "not yet": (world.user(world.asking, user, nbf=4_000_000_000), user.seed),
        "a bearer": (world.user(world.asking, user, bearer_token=True), None),
        "from elsewhere": (world.user(world.asking, user, src=["10.0.0.0/8"]), user.seed),
        "no token": ("eyJ", user.seed),
    }

    async def scenario(service: Service) -> None:
        # At once, for the real server takes its time over each.
        words = await asyncio.gather(*(first_words(server, *case) for case in cases.values()))
        assert dict(zip(cases, words, strict=True)) == {case: [REFUSED] for case in cases}
        assert service.asked == []

    beside_service(scenario, Signer(ACCOUNT, answers=world.asking, users=world.app))


def test_an_answer_with_a_user_that_a_stranger_signed_refuses_at_once(
    server: ServerProcess, world: World, beside_service: Callable[[Scenario, Key], None]
) -> None:
    bad, good = Key(USER), Key(USER)
    stranger = Signer(
        ACCOUNT, answers=world.asking, users=Key(ACCOUNT), issuer_account=world.app.public
    )

    async def scenario(service: Service) -> None:
        assert await first_words(server, world.user(world.asking, bad), bad.seed) == [REFUSED]
        # The service is none the worse for it.
        service.signer = Signer(ACCOUNT, answers=world.asking, users=world.app)
        assert await first_words(server, world.user(world.asking, good), good.seed) == [b"PONG"]
        assert not service.client.is_reconnecting
        assert len(service.asked) == 2

    beside_service(scenario, stranger)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_an_nkey_is_who_it_is_whatever_name_comes_with_it(program: Program) -> None:
    user = Key(USER)
    users = f"[ {{ nkey: {user.public} }}, {{ user: admin, password: x }} ]"
    with (
        ServerProcess(program, f"authorization {{ users: {users} }}") as server,
        RawClient(server.port) as client,
    ):
        signed = auth.sign(user.seed, client.info["nonce"])
        client.connect(nkey=user.public, sig=signed, user="admin")
        client.send(b"SUB answer 1\r\nPUB $SYS.REQ.USER.INFO answer 0\r\n\r\n")
        client.line()
        told = json.loads(client.line())

    assert told["data"]["user"] == user.public
