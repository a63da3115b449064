"""A new configuration while the server runs, on the real server and on ours."""

from __future__ import annotations

import pytest
from tests.servers import HOST, PENSTOCK, Program, RawClient, ServerProcess
from tests.websocket import RawWebSocket

ANN = "{user: ann, password: a}"
BOB = "{user: bob, password: b}"


def users(*entries: str) -> str:
    return f"authorization {{ users = [ {', '.join(entries)} ] }}\n"


def test_who_may_stay_stays_and_who_may_not_goes(program: Program) -> None:
    with ServerProcess(program, users(ANN, BOB)) as server:
        with RawClient(server.port) as ann, RawClient(server.port) as bob:
            ann.connect(user="ann", **{"pass": "a"}).send(b"SUB a 1\r\n")
            bob.connect(user="bob", **{"pass": "b"})

            server.reload(users(ANN))

            assert ann.settle() == []
            # The real server does not always get to say it.
            assert bob.rest() in ([], [b"-ERR 'Authorization Violation'"])
        with RawClient(server.port) as bob:
            bob.send(b'CONNECT {"user":"bob","pass":"b"}\r\n')
            assert bob.rest() == [b"-ERR 'Authorization Violation'"]


def test_permissions_change_for_those_who_are_in(program: Program) -> None:
    with ServerProcess(program, users(ANN)) as server, RawClient(server.port) as ann:
        ann.connect(user="ann", **{"pass": "a"}).send(b"SUB a 1\r\nSUB b 2\r\n")
        ann.settle()

        server.reload(users("{user: ann, password: a, permissions { subscribe: b, publish: b }}"))

        told = ann.settle()
        ann.send(b"PUB a 1\r\nx\r\n")
        told += ann.settle()
    # The real server adds the sid.
    assert told[0].startswith(b'-ERR \'Permissions Violation for Subscription to "a"')
    assert b"-ERR 'Permissions Violation for Publish to \"a\"'" in told


def test_limits_change(program: Program) -> None:
    with ServerProcess(program, "max_payload: 1024\n") as server, RawClient(server.port) as client:
        client.connect(protocol=1)

        server.reload("max_payload: 10\n")

        with RawClient(server.port) as later:
            assert later.info["max_payload"] == 10
            later.connect().send(b"PUB a 11\r\n")
            assert later.rest() == [b"-ERR 'Maximum Payload Violation'"]
        client.settle()


def test_too_many_connections_are_closed(program: Program) -> None:
    with ServerProcess(program, "max_connections: 10\n") as server:
        clients = [RawClient(server.port).connect() for _ in range(4)]

        server.reload("max_connections: 1\n")

        survivors = 0
        for client in clients:
            try:
                client.settle()
                survivors += 1
            except (EOFError, OSError):
                pass
            client.close()
    assert survivors == 1


@pytest.mark.parametrize(
    ("before", "after", "needs_restart"),
    [
        ("ping_interval: 1m\n", "ping_interval: 2m\n", False),
        ("debug: false\n", "debug: true\n", False),
        ("server_name: a\n", "server_name: b\n", True),
    ],
)
def test_the_log_tells_what_has_changed(before: str, after: str, needs_restart: bool) -> None:
    name = before.partition(":")[0]
    with ServerProcess(PENSTOCK, before) as server:
        server.reload(after)

        assert (f"`{name}` has changed: restart the server" in server.log) == needs_restart
        assert (f"Reloaded: {name} = " in server.log) != needs_restart


def test_websocket_takes_other_rules() -> None:
    """Only ours: the real server refuses any change of its `websocket` block."""
    block = f"websocket {{ listen: '{HOST}:-1', no_tls: true, %s }}\n"
    with ServerProcess(PENSTOCK, block % "same_origin: false") as server:
        with RawWebSocket(server.websocket_port) as client:
            assert client.ask(Origin="http://elsewhere").startswith(b"HTTP/1.1 101")

        server.reload(block % "same_origin: true")

        with RawWebSocket(server.websocket_port) as client:
            assert client.ask(Origin="http://elsewhere").startswith(b"HTTP/1.1 403")


def test_a_file_that_makes_no_sense_changes_nothing(program: Program) -> None:
    with ServerProcess(program, users(ANN)) as server, RawClient(server.port) as ann:
        ann.connect(user="ann", **{"pass": "a"})

        server.reload("authorization { usr: x }")

        assert ann.settle() == []
