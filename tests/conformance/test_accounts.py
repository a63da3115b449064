"""What accounts do together, with the Python client of NATS, on the real server and on ours."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from tests.conformance.test_nats_py import connected, run, settle
from tests.servers import DEADLINE_S, PENSTOCK, Program, RawClient, ServerProcess

from penstock.net.process import ServerFailed

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SHARED = """
jetstream { store_dir: store }
accounts {
  A {
    users: [ { user: a, password: x } ]
    jetstream: enabled
    exports: [
      { service: "one" }
      { service: "many", response: stream }
      { service: "slow", response: stream, threshold: "1s" }
      { service: "$JS.API.>", response: stream }
      { service: "$JS.ACK.>" }
      { stream: "pushed.>" }
      { stream: "orders.>" }
    ]
  }
  B {
    users: [ { user: b, password: x, permissions: { publish: { deny: "nothing" } } } ]
    jetstream: enabled
    imports: [
      { service: { account: A, subject: "one" }, share: true }
      { service: { account: A, subject: "many" }, to: "lots" }
      { service: { account: A, subject: "$JS.API.>" }, to: "JS.A.API.>" }
      { service: { account: A, subject: "$JS.ACK.>" } }
      { stream: { account: A, subject: "orders.>" }, to: "theirs.>" }
    ]
  }
  C {
    users: [ { user: c, password: x } ]
    exports: [ { service: "chained" } ]
    imports: [ { service: { account: A, subject: "one" }, to: "chained" } ]
  }
  D {
    users: [ { user: d, password: x } ]
    imports: [ { service: { account: C, subject: "chained" } } ]
  }
}
"""


@pytest.fixture
def server(program: Program) -> Iterator[ServerProcess]:
    with ServerProcess(program, SHARED) as running:
        yield running


def user(name: str) -> dict[str, str]:
    return {"user": name, "password": "x"}


async def serve(client: Client, subject: str, *answers: bytes) -> list[Msg]:
    """Answer each request with some answers, and keep the requests."""
    requests: list[Msg] = []

    async def answer(message: Msg) -> None:
        requests.append(message)
        for payload in answers:
            await client.publish(message.reply, payload)

    await client.subscribe(subject, cb=answer)
    await settle(client)
    return requests


def test_a_request_goes_over_and_its_answer_comes_back(server: ServerProcess) -> None:
    async def scenario() -> None:
        async with (
            connected(server, **user("a"), name="service") as a,
            connected(server, **user("b"), name="asker") as b,
            connected(server, **user("d")) as d,
        ):
            requests = await serve(a, "one", b"first", b"second")

            assert (await b.request("one", b"?", timeout=DEADLINE_S)).data == b"first"
            info = json.loads(requests[0].headers["Nats-Request-Info"])
            assert {
                "acc": "B",
                "user": "b",
                "name": "asker",
                "kind": "Client",
            }.items() <= info.items()
            assert re.match(r"_R_\.", requests[0].reply)

            assert (await d.request("chained", b"?", timeout=DEADLINE_S)).data == b"first"

    run(scenario)


def test_only_services_that_stream_answer_more_than_once(server: ServerProcess) -> None:
    async def scenario() -> None:
        async with connected(server, **user("a")) as a, connected(server, **user("b")) as b:
            await serve(a, "one", b"1", b"2", b"3")
            await serve(a, "many", b"1", b"2", b"3")
            got: dict[str, list[bytes]] = {}
            for subject in ("one", "lots"):
                inbox = await b.subscribe(f"inbox.{subject}")
                await b.publish(subject, b"?", reply=f"inbox.{subject}")
                got[subject] = [(await inbox.next_msg(DEADLINE_S)).data]
                await settle(b, a, b)
                while inbox.pending_msgs:
                    got[subject].append((await inbox.next_msg(DEADLINE_S)).data)

            assert got == {"one": [b"1"], "lots": [b"1", b"2", b"3"]}

    run(scenario)


def test_streams_of_another_account_are_used_through_imports(server: ServerProcess) -> None:
    async def scenario() -> None:
        async with connected(server, **user("a")) as a, connected(server, **user("b")) as b:
            theirs, mine = b.jetstream(prefix="JS.A.API"), b.jetstream()
            await a.jetstream().add_stream(name="ORDERS", subjects=["orders.>"])
            await mine.add_stream(name="COPY", subjects=["theirs.>"])
            for number in range(3):
                await a.jetstream().publish(f"orders.{number}", b"%d" % number)

            assert (await theirs.stream_info("ORDERS")).state.messages == 3
            pull = await theirs.pull_subscribe("orders.>", "puller", stream="ORDERS")
            messages = await pull.fetch(3, timeout=DEADLINE_S)
            assert [message.data for message in messages] == [b"0", b"1", b"2"]
            for message in messages:
                await message.ack()
            await settle(b)

            async def acked() -> bool:
                info = await a.jetstream().consumer_info("ORDERS", "puller")
                return info.num_ack_pending == 0 and info.ack_floor.stream_seq == 3

            while not await acked():
                pass
            copied = [await mine.get_msg("COPY", sequence) for sequence in (1, 2, 3)]
            assert [message.subject for message in copied] == [f"theirs.{n}" for n in range(3)]

    run(scenario)


USERS = {
    "before": """accounts {
      A { users: [ {user: a, password: x}, {user: gone, password: x} ], exports: [{stream: "s"}] }
      B { users: [ {user: b, password: x} ] }
    }""",
    "after": """accounts {
      A { users: [ {user: a, password: x} ], exports: [{stream: "s"}], mappings { old: new } }
      B { users: [ {user: b, password: x} ], imports: [{stream: {account: A, subject: s}}] }
      NEW { users: [ {user: new, password: x} ] }
    }""",
}


def test_a_reload_changes_accounts_and_lets_stay_who_may(program: Program) -> None:
    with ServerProcess(program, USERS["before"]) as server:
        clients = {name: RawClient(server.port) for name in ("a", "gone", "b")}
        for name, client in clients.items():
            client.connect(user=name, **{"pass": "x"})
        clients["b"].send(b"SUB s 1\r\n")
        clients["b"].settle()
        server.reload(USERS["after"])

        # The real server does not always get to say why.
        assert clients["gone"].rest() in ([], [b"-ERR 'Authorization Violation'"])
        clients["a"].send(b"SUB new 1\r\nPUB old 1\r\nx\r\nPUB s 1\r\ny\r\n")
        assert clients["a"].settle() == [b"MSG new 1 1", b"x"]
        assert clients["b"].settle() == [b"MSG s 1 1", b"y"]
        with RawClient(server.port) as client:
            client.connect(user="new", **{"pass": "x"})
        for client in clients.values():
            client.close()


@pytest.mark.parametrize(
    ("config", "error"),
    [
        (
            "accounts { A { users: [{user: a}], export: [] } }",
            "1:36: unknown field `export`",
        ),
        ("accounts { $G {} }", '1:12: "$G" is the account of users without one'),
        (
            "accounts { A { imports: [{stream: {account: B, subject: s}}] } }",
            '1:26: the import of "s" names an unknown account "B"',
        ),
        (
            "accounts { A {}, B { imports: [{service: {account: A, subject: s}}] } }",
            '1:32: account "A" exports no service "s" to "B"; add it to its `exports`',
        ),
        (
            "accounts { A { exports: [{service: s, latency: {subject: x, sampling: 0}}] } }",
            "`sampling` is a percentage from 1 to 100, or `headers`",
        ),
        (
            'accounts { A { mappings { "a.*": "b.$2" } } }',
            '1:27: "a.*" cannot be mapped to "b.$2"',
        ),
        (
            "accounts { A { users: [{user: a}] }, B { users: [{user: a}] } }",
            '`authorization` has more than one user "a"',
        ),
        ("system_account: NOPE", '1:1: `system_account` "NOPE" is not one of the accounts'),
        ("resolver: NOWHERE", "1:1: `resolver` can be MEMORY, URL(…), or"),
        ("operator: eyJ.x.y", "1:1: `operator` has a bad token: it is not a NATS token"),
        ("trusted_keys: [x]", "`operator` needs a `resolver`; hint: `resolver: MEMORY`"),
        (
            "operator: eyJ.x.y, resolver: MEMORY",
            "1:1: `operator` has a bad token: it is not a NATS token",
        ),
        ("operator: nowhere.jwt", "1:1: `operator` names a file that cannot be read"),
    ],
)
def test_a_bad_account_is_an_error_with_its_place_and_a_remedy(config: str, error: str) -> None:
    with pytest.raises(ServerFailed, match=re.escape(error)):
        ServerProcess(PENSTOCK, config).__enter__()


@pytest.mark.parametrize("subject", ["one", "lots", "chained"])
def test_who_asks_a_service_that_nobody_serves_is_told(subject: str, server: ServerProcess) -> None:
    name = "d" if subject == "chained" else "b"
    with RawClient(server.port).connect(user=name, **{"pass": "x"}) as asker:
        asker.send(b"SUB inbox 1\r\n")
        asker.send(f"PUB {subject} inbox 2\r\nhi\r\n".encode())

        told = asker.settle()
        assert told[1:3] == [b"NATS/1.0 503", f"Nats-Subject: {subject}".encode()]


@pytest.mark.parametrize("subject", ["one", "chained"])
def test_a_service_that_others_hear_too_is_not_missed(subject: str, server: ServerProcess) -> None:
    name = "d" if subject == "chained" else "b"
    with (
        RawClient(server.port).connect(user=name, **{"pass": "x"}) as asker,
        RawClient(server.port).connect(user=name, **{"pass": "x"}) as other,
    ):
        other.send(f"SUB {subject} 1\r\n".encode())
        other.settle()
        asker.send(b"SUB inbox 1\r\n")
        asker.send(f"PUB {subject} inbox 2\r\nhi\r\n".encode())

        assert asker.settle() == []
        assert other.settle() == [f"MSG {subject} 1 inbox 2".encode(), b"hi"]
