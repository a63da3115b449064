"""Users, accounts and operators known by tokens: the real server and ours agree on each."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.test_nats_py import connected, run
from tests.contract.credentials import (
    ACCOUNT,
    NO_LIMITS,
    USER,
    Key,
    Realm,
    write_credentials,
)
from tests.servers import HOST, PENSTOCK, PROGRAMS, Program, RawClient, ServerProcess
from tests.websocket import RawWebSocket

from penstock.client.connection import auth
from penstock.net.process import ServerFailed

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

LONG_AGO, SOON = 1_000, 4_000_000_000
REFUSED = b"-ERR 'Authorization Violation'"


class World:
    """Accounts of one operator, on one running server."""

    def __init__(self) -> None:
        self.main, self.other, self.strict, self.full = (Key(ACCOUNT) for _ in range(4))
        self.tiered = Key(ACCOUNT)
        self.signing, self.scoped, self.stranger = (Key(ACCOUNT) for _ in range(3))
        self.expired, self.revoked = Key(ACCOUNT), Key(USER)
        self.system = Key(ACCOUNT)
        self.realm = Realm(system_account=self.system.public)
        self.realm.sign(self.system, "system")
        template = {
            "pub": {"allow": ["to.{{name()}}.{{tag(team)}}", "_INBOX.>"]},
            "sub": {"allow": ["of.{{account-name()}}.>", "_INBOX.>"]},
            **NO_LIMITS,
        }
        self.realm.sign(
            self.main,
            "main",
            signing_keys=[
                self.signing.public,
                {"kind": "user_scope", "key": self.scoped.public, "template": template},
            ],
            revocations={self.revoked.public: 2_000},
            exports=[
                {"name": "s", "subject": "ev.>", "type": "stream"},
                {"name": "q", "subject": "ask", "type": "service", "allow_trace": True},
                {"name": "p", "subject": "private", "type": "stream", "token_req": True},
            ],
            limits={"disk_storage": -1, "mem_storage": -1, "streams": 2, "consumer": 5},
            mappings={"old": [{"subject": "new"}]},
            trace={"dest": "traces", "sampling": 100},
        )
        imports = [
            {"name": "s", "subject": "ev.>", "type": "stream", "allow_trace": True},
            {"name": "q", "subject": "ask", "local_subject": "question", "type": "service"},
            {"name": "p", "subject": "private", "type": "stream"},
        ]
        self.realm.sign(
            self.other,
            "other",
            imports=[each | {"account": self.main.public} for each in imports],
            default_permissions={"pub": {"deny": ["forbidden"]}},
        )
        self.realm.sign(self.strict, "strict", limits={"disallow_bearer": True, "payload": 4})
        self.realm.sign(self.full, "full", limits={"conn": 0})
        tier = {"disk_storage": 1048576, "streams": -1, "consumer": -1}
        self.realm.sign(self.tiered, "tiered", limits={"tiered_limits": {"R1": tier}})
        self.realm.sign(self.expired, "expired", exp=SOON)

    def user(self, issuer: Key, user: Key | None = None, **nats: Any) -> tuple[str, Key]:
        """Return a user's token and key; claims such as `exp` may be among what it says."""
        user = user or Key(USER)
        claims = {key: nats.pop(key) for key in ("exp", "nbf", "iat", "iss") if key in nats}
        nats = {"type": "user", **NO_LIMITS} | nats
        return issuer.jwt(user.public, nats.pop("name", "ann"), nats, **claims), user


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(scope="module", params=PROGRAMS, ids=lambda program: program.name)
def server(request: pytest.FixtureRequest, world: World) -> Iterator[ServerProcess]:
    store = "jetstream { store_dir: store }\n"
    with ServerProcess(request.param, store + world.realm.config) as running:
        yield running


def hello(server: ServerProcess, jwt: str, seed: str | None) -> RawClient:
    """Return a client that has said who it is."""
    client = RawClient(server.port)
    options: dict[str, Any] = {"verbose": False, "headers": True, "no_responders": True, "jwt": jwt}
    if seed is not None:
        options["sig"] = auth.sign(seed, client.info["nonce"])
    client.send(b"CONNECT %b\r\nPING\r\n" % json.dumps(options).encode())
    return client


def first_words(server: ServerProcess, jwt: str, seed: str | None) -> bytes:
    with hello(server, jwt, seed) as client:
        return client.line()


def test_a_user_of_an_account_is_let_in(server: ServerProcess, world: World) -> None:
    jwt, user = world.user(world.main)

    assert first_words(server, jwt, user.seed) == b"PONG"
    assert first_words(server, jwt, Key(USER).seed) == REFUSED
    assert first_words(server, jwt, None) == REFUSED
    assert first_words(server, "", user.seed) == REFUSED
    assert first_words(server, jwt[:-4] + "AAAA", user.seed) == REFUSED


@pytest.mark.parametrize(
    ("says", "expected"),
    [
        ({}, b"PONG"),
        ({"exp": SOON}, b"PONG"),
        ({"exp": LONG_AGO}, REFUSED),
        ({"nbf": SOON}, REFUSED),
        ({"src": ["127.0.0.0/8"]}, b"PONG"),
        ({"src": ["10.0.0.0/8"]}, REFUSED),
        ({"src": ["10.0.0.0/8", "127.0.0.1/32"]}, b"PONG"),
        ({"allowed_connection_types": ["STANDARD"]}, b"PONG"),
        ({"allowed_connection_types": ["WEBSOCKET"]}, REFUSED),
        ({"times": [{"start": "00:00:00", "end": "23:59:59"}]}, b"PONG"),
        ({"type": "account"}, REFUSED),
    ],
    ids=str,
)
def test_what_a_token_says_decides(
    server: ServerProcess, world: World, says: dict[str, Any], expected: bytes
) -> None:
    jwt, user = world.user(world.main, **says)

    assert expected == first_words(server, jwt, user.seed)


def test_the_limits_of_a_tier_are_told_as_those_of_the_tier(
    server: ServerProcess, world: World
) -> None:
    jwt, user = world.user(world.tiered)
    stream = b'{"name":"S","subjects":["s"],"max_bytes":4096}'
    with hello(server, jwt, user.seed) as client:
        assert client.line() == b"PONG"
        client.send(b"SUB in.* 1\r\nPUB $JS.API.STREAM.CREATE.S in.1 %d\r\n" % len(stream))
        client.send(stream + b"\r\n")
        while not client.line().startswith(b"MSG in.1 "):
            pass
        assert "error" not in json.loads(client.line())
        client.send(b"PUB $JS.API.INFO in.2 0\r\n\r\n")
        while not client.line().startswith(b"MSG in.2 "):
            pass
        info = json.loads(client.line())

    nothing = dict.fromkeys(("memory", "storage", "reserved_memory", "consumers"), 0)
    limits = {
        "max_memory": 0,
        "max_storage": 1048576,
        "max_streams": -1,
        "max_consumers": -1,
        "max_ack_pending": -1,
        "memory_max_stream_bytes": -1,
        "storage_max_stream_bytes": -1,
        "max_bytes_required": False,
    }
    assert info["tiers"] == {
        "R1": nothing | {"reserved_storage": 4096, "streams": 1, "limits": limits}
    }
    assert info["limits"] == dict.fromkeys(limits, 0) | {"max_bytes_required": False}
    assert (info["streams"], info["reserved_storage"]) == (1, 4096)


def test_signing_keys_sign_for_their_account(server: ServerProcess, world: World) -> None:
    main = {"issuer_account": world.main.public}
    by_signing_key, ann = world.user(world.signing, **main)
    for_another, bea = world.user(world.signing, issuer_account=world.other.public)
    by_a_stranger, cid = world.user(world.stranger, **main)
    of_a_stranger, dan = world.user(world.stranger)

    assert first_words(server, by_signing_key, ann.seed) == b"PONG"
    assert first_words(server, for_another, bea.seed) == REFUSED
    assert first_words(server, by_a_stranger, cid.seed) == REFUSED
    assert first_words(server, of_a_stranger, dan.seed) == REFUSED


def test_a_scoped_key_binds_its_users(server: ServerProcess, world: World) -> None:
    scoped = {"issuer_account": world.main.public, "subs": 0, "data": 0, "payload": 0}
    jwt, user = world.user(world.scoped, tags=["team:red"], **scoped)
    with hello(server, jwt, user.seed) as client:
        assert client.line() == b"PONG"
        client.send(b"PUB to.ann.red 0\r\n\r\nPUB to.ann.blue 0\r\n\r\nPUB to.bea.red 0\r\n\r\n")
        client.send(b"SUB of.main.x 1\r\nSUB of.other.x 2\r\n")
        assert client.settle() == [
            b"-ERR 'Permissions Violation for Publish to \"to.ann.blue\"'",
            b"-ERR 'Permissions Violation for Publish to \"to.bea.red\"'",
            b"-ERR 'Permissions Violation for Subscription to \"of.other.x\"'",
        ]

    says_more, bea = world.user(world.scoped, pub={"allow": ["all"]}, **scoped)
    assert first_words(server, says_more, bea.seed) == REFUSED


def test_a_revoked_user_stays_out_until_it_has_a_newer_token(
    server: ServerProcess, world: World
) -> None:
    old, user = world.user(world.main, world.revoked, iat=2_000)
    new, _ = world.user(world.main, world.revoked, iat=2_001)

    assert first_words(server, old, user.seed) == REFUSED
    assert first_words(server, new, user.seed) == b"PONG"


def test_a_bearer_need_not_sign(server: ServerProcess, world: World) -> None:
    jwt, _ = world.user(world.main, bearer_token=True)
    unwelcome, _ = world.user(world.strict, bearer_token=True)

    assert first_words(server, jwt, None) == b"PONG"
    assert first_words(server, unwelcome, None) == REFUSED


def test_a_cookie_may_bring_the_token(world: World, program: Program) -> None:
    jwt, _ = world.user(world.main, bearer_token=True)
    unwelcome, _ = world.user(world.strict, bearer_token=True)
    websocket = f"websocket {{ listen: '{HOST}:-1', no_tls: true, jwt_cookie: tok }}\n"
    store = "jetstream { store_dir: store }\n"
    words = []
    with ServerProcess(program, store + websocket + world.realm.config) as server:
        for token in (jwt, unwelcome):
            with RawWebSocket(server.websocket_port).upgrade(Cookie=f"tok={token}") as client:
                client.read_until(b"\r\n")
                client.say(b'CONNECT {"verbose":false}\r\nPING\r\n')
                words.append(client.read_until(b"\r\n").strip())

    assert words == [b"PONG", REFUSED]


def test_the_operator_may_be_known_by_its_key_alone(world: World, program: Program) -> None:
    token, key = re.search(r"operator: *(\S+)", world.realm.config), world.realm.operator.public
    assert token is not None
    trust = f"trusted_keys: [{key}]\nsystem_account: {world.system.public}"
    config = world.realm.config.replace(token[0], trust)
    jwt, user = world.user(world.main)
    stranger, unknown = world.user(world.stranger)

    with ServerProcess(program, "jetstream { store_dir: store }\n" + config) as server:
        assert first_words(server, jwt, user.seed) == b"PONG"
        assert first_words(server, stranger, unknown.seed) == REFUSED


def test_limits_and_permissions_are_in_the_token(server: ServerProcess, world: World) -> None:
    jwt, user = world.user(world.main, subs=1, payload=4, pub={"deny": ["no"]})
    with hello(server, jwt, user.seed) as client:
        assert client.line() == b"PONG"
        client.send(
            b"SUB a 1\r\nSUB b 2\r\nPUB no 0\r\n\r\nPUB a 4\r\n1234\r\nPUB a 5\r\n12345\r\n"
        )
        assert client.rest() == [
            b"-ERR 'maximum subscriptions exceeded'",
            b"-ERR 'Permissions Violation for Publish to \"no\"'",
            b"MSG a 1 4",
            b"1234",
            b"-ERR 'Maximum Payload Violation'",
        ]


def test_limits_of_the_account_bind_its_users(server: ServerProcess, world: World) -> None:
    jwt, user = world.user(world.strict)
    with hello(server, jwt, user.seed) as client:
        assert client.line() == b"PONG"
        client.send(b"PUB a 5\r\n12345\r\n")
        assert client.rest() == [b"-ERR 'Maximum Payload Violation'"]

    nobody, user = world.user(world.full)
    assert b"maximum account active connections exceeded" in first_words(server, nobody, user.seed)


def test_default_permissions_are_for_users_that_have_none(
    server: ServerProcess, world: World
) -> None:
    jwt, user = world.user(world.other)
    own, bea = world.user(world.other, pub={"allow": ["forbidden"]})
    violation = [b"-ERR 'Permissions Violation for Publish to \"forbidden\"'"]
    for token, seed, expected in ((jwt, user.seed, violation), (own, bea.seed, [])):
        with hello(server, token, seed) as client:
            assert client.line() == b"PONG"
            client.send(b"PUB forbidden 0\r\n\r\n")
            assert expected == client.settle()


def test_a_user_is_sent_away_when_its_time_is_over(server: ServerProcess, world: World) -> None:
    jwt, user = world.user(world.main, exp=int(time.time()) + 4)
    with hello(server, jwt, user.seed) as client:
        said = [line for line in client.rest() if line != b"PING"]
        assert said == [b"PONG", b"-ERR 'User Authentication Expired'"]


def test_exports_imports_and_mappings_are_in_the_token(server: ServerProcess, world: World) -> None:
    jwt, user = world.user(world.main)
    other_jwt, other_user = world.user(world.other)
    with hello(server, jwt, user.seed) as main, hello(server, other_jwt, other_user.seed) as other:
        assert (main.line(), other.line()) == (b"PONG", b"PONG")
        other.send(b"SUB ev.* 1\r\nSUB private 2\r\nSUB new 3\r\nSUB _INBOX.> 4\r\n")
        other.settle()
        main.send(b"SUB ask 1\r\nSUB new 2\r\n")
        main.settle()
        main.send(b"PUB ev.1 1\r\nx\r\nPUB private 1\r\nx\r\nPUB old 1\r\nx\r\n")
        assert main.settle() == [b"MSG new 2 1", b"x"]
        assert other.settle() == [b"MSG ev.1 1 1", b"x"]

        other.send(b"PUB question _INBOX.1 1\r\n?\r\n")
        other.settle()
        asked = main.settle()
        main.send(b"PUB %b 1\r\n!\r\n" % asked[0].split()[3])
        main.settle()
        assert other.settle() == [b"MSG _INBOX.1 4 1", b"!"]


def test_traces_are_in_the_token(server: ServerProcess, world: World) -> None:
    jwt, user = world.user(world.main)
    other_jwt, other_user = world.user(world.other)
    parent = b"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    with hello(server, jwt, user.seed) as main, hello(server, other_jwt, other_user.seed) as other:
        assert (main.line(), other.line()) == (b"PONG", b"PONG")
        other.send(b"SUB ev.* 1\r\nSUB answers 2\r\n")
        other.settle()
        main.send(b"SUB traces 1\r\nSUB ask 2\r\n")
        main.settle()

        header = b"NATS/1.0\r\n%b\r\n\r\n" % parent
        main.send(b"HPUB ev.1 %d %d\r\n%b\r\n" % (len(header), len(header), header))
        assert event_types(main) == ["in", "se", "eg"]

        header = b"NATS/1.0\r\nNats-Trace-Only: 1\r\nNats-Trace-Dest: answers\r\n\r\n"
        other.send(b"HPUB question %d %d\r\n%b\r\n" % (len(header), len(header), header))
        assert event_types(other) == ["in", "si", "eg"]


def event_types(client: RawClient) -> list[str]:
    """Return what kinds of events the next trace has."""
    while not (line := client.line()).startswith(b"MSG"):
        pass
    trace = json.loads(client.read(int(line.split()[-1])))
    return [event["type"] for event in trace["events"]]


def test_jetstream_is_as_the_accounts_say(
    server: ServerProcess, world: World, tmp_path: Path
) -> None:
    jwt, user = world.user(world.main)
    other_jwt, other_user = world.user(world.other)
    creds = write_credentials(tmp_path / "main.creds", jwt, user.seed)
    other_creds = write_credentials(tmp_path / "other.creds", other_jwt, other_user.seed)

    async def scenario() -> None:
        async with connected(server, user_credentials=str(creds)) as client:
            js = client.jetstream()
            for name in ("A", "B"):
                await js.add_stream(name=name, subjects=[f"js.{name}"])
            with pytest.raises(Exception, match="maximum number of streams reached"):
                await js.add_stream(name="C", subjects=["js.C"])
            info = await js.account_info()
            assert (info.limits.max_streams, info.limits.max_consumers) == (2, 5)
            for name in ("A", "B"):
                await js.delete_stream(name)
        async with connected(server, user_credentials=str(other_creds)) as client:
            with pytest.raises(Exception, match="JetStream not enabled for account"):
                await client.jetstream().account_info()

    run(scenario)


def test_an_account_that_no_operator_has_signed_is_an_error() -> None:
    realm, foreign, account = Realm(), Realm(), Key(ACCOUNT)
    foreign.sign(account, "account")
    _, _, preload = foreign.config.partition("resolver_preload")
    config = realm.config.partition("resolver_preload")[0] + "resolver_preload" + preload

    with pytest.raises(ServerFailed, match="no trusted operator has signed it"):
        ServerProcess(PENSTOCK, config).__enter__()
