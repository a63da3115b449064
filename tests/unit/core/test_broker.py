"""Sessions that come and go, and the figures that stay."""

from __future__ import annotations

import json

import pytest
from tests.unit.core.peers import World

from penstock.config.accounts import Permissions
from penstock.config.server import Limits


def test_info_greets_a_session_with_the_server_and_itself() -> None:
    world = World(server_name="one")
    session = world.broker.open("10.0.0.7", 1234)

    (line,) = session.outbox
    info = json.loads(line.removeprefix(b"INFO "))

    assert line.endswith(b" \r\n")
    assert (info["server_id"], info["server_name"]) == ("NID", "one")
    assert (info["client_id"], info["client_ip"], info["proto"]) == (1, "10.0.0.7", 1)
    assert (info["headers"], info["max_payload"]) == (True, 1024 * 1024)
    assert "auth_required" not in info


def test_a_server_without_a_name_has_its_id_for_one() -> None:
    assert World().broker.server_name == "NID"


def test_info_says_where_authorization_is_required() -> None:
    assert World(users={"ann": Permissions()}).broker.info["auth_required"] is True


@pytest.mark.parametrize(("limit", "expected"), [(0, [None] * 3), (2, [None, None, "full"])])
def test_connections_are_bounded(limit: int, expected: list[str | None]) -> None:
    broker = World(limits=Limits(max_connections=limit)).broker

    sessions = [broker.open("127.0.0.1", port) for port in range(3)]

    reasons = {None: None, "Maximum Connections Exceeded": "full"}
    assert expected == [reasons[session.closing] for session in sessions]


def test_a_session_that_closes_takes_its_subscriptions_along() -> None:
    world = World()
    peer, other = world.peer(), world.peer()
    peer.says(b"SUB a 1\r\nSUB b.* q 2\r\n")

    world.broker.close(peer.session, "Client Closed")
    other.says(b"PUB a 1\r\nx\r\nPUB b.c 1\r\nx\r\n")

    assert peer.session.outbox == []
    assert len(world.broker.default_account.routes.trie) == len(
        World().broker.default_account.routes.trie
    )
    assert peer.session.closing == "Client Closed"
    assert list(world.broker.sessions.values()) == [other.session]


def test_closing_twice_is_once() -> None:
    world = World()
    peer = world.peer()

    world.broker.close(peer.session, "Client Closed")
    world.broker.close(peer.session, "Read Error")

    assert [record.reason for record in world.broker.closed] == ["Client Closed"]


def test_figures_of_closed_sessions_stay_in_the_totals() -> None:
    world = World()
    publisher, subscriber = world.peer(), world.peer()
    subscriber.says(b"SUB a 1\r\n")
    publisher.says(b"PUB a 3\r\nabc\r\nPUB a 3\r\ndef\r\n")
    before = world.broker.totals()

    world.broker.close(publisher.session, "Client Closed")

    assert before == (2, 6, 2, 6)
    assert before == world.broker.totals()


def test_the_memory_of_closed_sessions_is_bounded() -> None:
    world = World(limits=Limits(max_closed_clients=2))

    for _ in range(5):
        world.broker.close(world.peer().session, "Client Closed")

    assert [record.client_id for record in world.broker.closed] == [4, 5]
