"""A service that says who users are, on the real server and on ours."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from tests.conformance.natspy import settle
from tests.conformance.test_nats_py import run
from tests.conftest import Servers
from tests.contract.credentials import ACCOUNT, NO_LIMITS, USER, Key, Realm, write_credentials
from tests.servers import DEADLINE_S, PENSTOCK, Program, RawClient, ServerProcess

from penstock.keys import nkeys, tokens, xkeys

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SUBJECT = "$SYS.REQ.USER.AUTH"
ISSUER = Key(ACCOUNT)
CONFIG = """
server_name: callout
accounts {{
  AUTH {{ users: [ {{ user: auth, password: x }} ] }}
  APP {{ users: [ {{ user: known, password: x }} ] }}
  OTHER {{ users: [ {{ user: own, password: x }} ] }}
}}
authorization {{
  timeout: {timeout}
  auth_callout {{ issuer: {issuer}, account: AUTH, auth_users: [ auth ] {more} }}
}}
"""


def config(more: str = "", timeout: int = 10) -> str:
    return CONFIG.format(issuer=ISSUER.public, more=more, timeout=timeout)


def claims_of(token: str) -> dict[str, Any]:
    body = token.split(".")[1]
    decoded: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return decoded


@dataclass
class Service:
    """Lets in whoever has the password or the name `sesame`, and notes what it was asked."""

    client: Client
    account: str = "APP"
    name: str = ""
    signer: Key = field(default_factory=lambda: ISSUER)
    answers_with: Key | None = None
    user: dict[str, Any] = field(default_factory=dict)
    change: Callable[[dict[str, Any]], dict[str, Any]] = lambda claims: claims
    curve: xkeys.CurveKey | None = None
    asked: list[dict[str, Any]] = field(default_factory=list)

    async def answer(self, message: Msg) -> None:
        data = message.data
        sender = (message.headers or {}).get("Nats-Server-Xkey", "")
        if self.curve is not None:
            data = self.curve.open(data, sender)
        request = claims_of(data.decode())
        self.asked.append(request | {"is_signed": _is_signed(data.decode(), request["iss"])})
        reply = self.response(request["nats"]).encode()
        if self.curve is not None:
            reply = self.curve.seal(reply, sender, b"n" * 24)
        await self.client.publish(message.reply, reply)

    def response(self, asked: dict[str, Any]) -> str:
        key = asked["user_nkey"]
        answer: dict[str, Any] = {"type": "authorization_response"}
        if "sesame" in (asked["connect_opts"].get("pass"), asked["connect_opts"].get("name")):
            user = {"type": "user", **NO_LIMITS, **self.user}
            answer["jwt"] = self.signer.jwt(key, self.name, user, aud=self.account)
        else:
            answer["error"] = "who are you?"
        claims = self.change({"sub": key, "aud": asked["server_id"]["id"], "nats": answer})
        nats_claims = claims.pop("nats")
        signer = self.answers_with or self.signer
        return signer.jwt(claims.pop("sub"), "", nats_claims, **claims)


def _is_signed(token: str, issuer: str) -> bool:
    signed, _, signature = token.rpartition(".")
    return nkeys.verify(issuer, signed.encode(), signature)


@asynccontextmanager
async def serving(server: ServerProcess, **settings: Any) -> AsyncIterator[Service]:
    options = settings.pop("connect", {"user": "auth", "password": "x"})
    client = await nats.connect(server.url, **options)
    service = Service(client, **settings)
    await client.subscribe(SUBJECT, cb=service.answer)
    await settle(client)
    yield service
    await client.close()


async def who(server: ServerProcess, **options: Any) -> dict[str, Any]:
    """Return who a client is to the server."""
    client = await nats.connect(server.url, allow_reconnect=False, **options)
    answer = await client.request("$SYS.REQ.USER.INFO", timeout=DEADLINE_S)
    await client.close()
    known: dict[str, Any] = json.loads(answer.data)["data"]
    return known


async def is_refused(server: ServerProcess, **options: Any) -> bool:
    """Tell whether somebody is not let in, in another thread: the service is at work here."""

    def knock() -> list[bytes]:
        with RawClient(server.port) as client:
            client.send(b"CONNECT %b\r\nPING\r\n" % json.dumps(options).encode())
            return client.rest()

    return await asyncio.to_thread(knock) == [b"-ERR 'Authorization Violation'"]


def on(server: ServerProcess, scenario: Callable[[ServerProcess], Awaitable[None]]) -> None:
    run(lambda: scenario(server))


def test_the_service_says_who_somebody_is_and_where(program: Program, servers: Servers) -> None:
    async def scenario(server: ServerProcess) -> None:
        async with serving(server, name="bob", user={"pub": {"allow": ["a", "$SYS.>"]}}) as service:
            known = await who(server, user="joe", password="sesame", name="me")

            assert (known["user"], known["account"]) == ("bob", "APP")
            assert sorted(known["permissions"]["publish"]["allow"]) == ["$SYS.>", "a"]
            request = service.asked[0]
            assert request["is_signed"]
            assert (request["aud"], request["sub"]) == ("nats-authorization-request", ISSUER.public)
            about = request["nats"]
            assert request["iss"] == about["server_id"]["id"]
            assert sorted(about) == [
                *("client_info", "connect_opts", "server_id", "type", "user_nkey", "version"),
            ]
            assert sorted(about["server_id"]) == ["host", "id", "name", "version"]
            info = about["client_info"]
            assert sorted(info) == ["host", "id", "kind", "name", "type", "user"]
            assert (info["user"], info["name"], info["type"]) == ("joe", "me", "nats")
            options = about["connect_opts"]
            assert (options["user"], options["pass"], options["protocol"]) == ("joe", "sesame", 1)

    on(servers(program, config()), scenario)


def test_whom_the_service_does_not_know_is_refused(program: Program, servers: Servers) -> None:
    async def scenario(server: ServerProcess) -> None:
        async with serving(server) as service:
            assert await is_refused(server, user="joe", **{"pass": "guess"})
            assert await is_refused(server)
            assert await is_refused(server, auth_token="t0ken")
            # A user of the file is asked about too, unless it is the service's own.
            assert await is_refused(server, user="known", **{"pass": "x"})
            assert len(service.asked) == 4
            assert await is_refused(server, user="auth", **{"pass": "guess"})
            assert len(service.asked) == 4
            known = await who(server, user="joe", password="sesame")
            assert (known["user"], known["account"]) == ("joe", "APP")

    on(servers(program, config()), scenario)


@pytest.mark.parametrize(
    "change",
    [
        {"aud": "NBXXXX"},
        {"sub": Key(USER).public},
        {"nats": {"type": "authorization_response"}},
        {"nats": {"type": "authorization_response", "jwt": "eyJ"}},
    ],
    ids=["another server", "another user", "nothing", "no token"],
)
def test_an_answer_that_is_no_answer_lets_nobody_in(
    change: dict[str, Any], program: Program, servers: Servers
) -> None:
    async def scenario(server: ServerProcess) -> None:
        async with serving(server, change=lambda claims: claims | change):
            assert await is_refused(server, user="joe", **{"pass": "sesame"})

    on(servers(program, config()), scenario)


@pytest.mark.parametrize(
    "settings",
    [
        {"signer": Key(ACCOUNT)},
        {"answers_with": Key(ACCOUNT)},
        {"account": "NOPE"},
        {"user": {"issuer_account": ISSUER.public}},
        {"user": {"times": [{"start": "00:00:00", "end": "00:00:00"}]}},
    ],
    ids=[
        "another issuer",
        "a stranger's answer",
        "no account",
        "an issuer account",
        "not now",
    ],
)
def test_a_user_that_may_not_be_is_refused(
    settings: dict[str, Any], program: Program, servers: Servers
) -> None:
    async def scenario(server: ServerProcess) -> None:
        async with serving(server, **settings):
            assert await is_refused(server, user="joe", **{"pass": "sesame"})

    on(servers(program, config()), scenario)


def test_accounts_that_are_not_the_service_s_keep_their_users(program: Program) -> None:
    async def scenario(server: ServerProcess) -> None:
        async with serving(server) as service:
            assert (await who(server, user="own", password="x"))["account"] == "OTHER"
            assert service.asked == []
            assert await is_refused(server, user="known", **{"pass": "x"})

    with ServerProcess(program, config(", allowed_accounts: [ APP ]")) as server:
        on(server, scenario)


def test_questions_and_answers_may_be_encrypted(program: Program) -> None:
    curve = xkeys.CurveKey(b"k" * 32)

    async def scenario(server: ServerProcess) -> None:
        async with serving(server, curve=curve) as service:
            assert (await who(server, user="joe", password="sesame"))["account"] == "APP"
            assert await is_refused(server, user="joe", **{"pass": "guess"})
            assert service.asked[0]["nats"]["server_id"]["xkey"].startswith("X")

    with ServerProcess(program, config(f", xkey: {curve.public}")) as server:
        on(server, scenario)


def test_nobody_is_let_in_while_the_service_is_away(program: Program) -> None:
    with (
        ServerProcess(program, config(timeout=1)) as server,
        RawClient(server.port) as client,
    ):
        client.send(b'CONNECT {"user":"joe","pass":"sesame"}\r\nPING\r\n')

        assert client.rest() == [b"-ERR 'Authorization Violation'"]


def test_nobody_but_the_server_asks(program: Program, servers: Servers) -> None:
    async def scenario(server: ServerProcess) -> None:
        async with serving(server, account="AUTH") as service:
            violation: asyncio.Future[str] = asyncio.get_running_loop().create_future()

            async def note(error: Exception) -> None:
                violation.set_result(str(error).lower())

            client = await nats.connect(
                server.url, user="joe", password="sesame", error_cb=note, allow_reconnect=False
            )
            await client.publish(SUBJECT, b"me")
            said = await asyncio.wait_for(violation, DEADLINE_S)
            await client.close()

            assert f'permissions violation for publish to "{SUBJECT.lower()}"' in said
            assert len(service.asked) == 1

    on(servers(program, config()), scenario)


def test_the_token_of_an_account_names_a_service_too(
    program: Program, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("callout")
    account, app, system = Key(ACCOUNT), Key(ACCOUNT), Key(ACCOUNT)
    auth, guest, realm = Key(USER), Key(USER), Realm(system_account=system.public)
    realm.sign(system, "system")
    rules = {"auth_users": [auth.public], "allowed_accounts": [app.public]}
    realm.sign(account, "auth", authorization=rules)
    realm.sign(app, "app")
    creds = {
        key.public: write_credentials(
            directory / f"{name}.creds",
            account.jwt(key.public, name, {"type": "user", **NO_LIMITS}),
            key.seed,
        )
        for name, key in (("auth", auth), ("guest", guest))
    }
    own = {"user_credentials": str(creds[auth.public])}
    guests = {"user_credentials": str(creds[guest.public])}

    class Signer(Key):
        """The service signs its answers with its account's key, and users with another's."""

        def jwt(self, subject: str, name: str, nats: dict[str, Any], **claims: Any) -> str:
            key = app if nats["type"] == "user" else account
            return key.jwt(subject, name, nats, **claims)

    async def scenario(server: ServerProcess) -> None:
        async with serving(server, connect=own, signer=Signer(ACCOUNT)) as service:
            known = await who(server, name="sesame", **guests)
            assert known["account"] == app.public
            assert service.asked[0]["sub"] == account.public
            with pytest.raises(nats.errors.Error):
                await who(server, name="guess", **guests)

    with ServerProcess(program, realm.config) as server:
        on(server, scenario)


def test_who_brings_no_token_may_be_asked_about_as_well(program: Program, tmp_path: Path) -> None:
    account, system, auth, anybody = Key(ACCOUNT), Key(ACCOUNT), Key(USER), Key(USER)
    realm = Realm(system_account=system.public)
    realm.sign(system, "system")
    realm.sign(account, "auth", authorization={"auth_users": [auth.public]})
    bearer = {"type": "user", **NO_LIMITS, "bearer_token": True}
    sentinel = account.jwt(anybody.public, "anybody", bearer)
    own = account.jwt(auth.public, "auth", {"type": "user", **NO_LIMITS})
    creds = write_credentials(tmp_path / "auth.creds", own, auth.seed)

    async def scenario(server: ServerProcess) -> None:
        connect = {"user_credentials": str(creds)}
        async with serving(server, connect=connect, signer=account) as service:
            known = await who(server, user="joe", password="sesame")
            assert known["account"] == account.public
            assert service.asked[0]["nats"]["connect_opts"]["user"] == "joe"
            assert await is_refused(server, user="joe", **{"pass": "guess"})

    with ServerProcess(program, f"{realm.config}\ndefault_sentinel: {sentinel}\n") as server:
        on(server, scenario)


def test_after_a_reload_the_service_is_asked_again() -> None:
    """Only on ours: the real server does not wait for the answer, and closes the connection."""

    async def scenario(server: ServerProcess) -> None:
        async with serving(server) as service:
            options = {"user": "joe", "password": "sesame", "allow_reconnect": False}
            client = await nats.connect(server.url, **options)
            more = config().replace("APP {", "MORE {}, APP {")
            await asyncio.to_thread(server.reload, more)
            assert (await client.request("$SYS.REQ.USER.INFO", timeout=DEADLINE_S)).data
            assert len(service.asked) == 2
            await client.close()

    with ServerProcess(PENSTOCK, config()) as server:
        on(server, scenario)


def test_a_token_says_what_the_tests_read() -> None:
    key = nkeys.KeyPair(nkeys.ACCOUNT_PREFIX, b"k" * 32)
    claims = {"sub": key.public, "aud": "x", "nats": {"type": "activation", "version": 2}}

    assert tokens.decode(tokens.encode(claims, key), "activation").audience == "x"
