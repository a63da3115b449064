"""What is remembered of a connection that is gone."""

from __future__ import annotations

import pytest
from tests.unit.core.peers import SECOND_NS, World

from penstock.config.accounts import Permissions
from penstock.config.server import Authorization
from penstock.core.reports.record import SUBSCRIPTIONS_MAX, SessionRecord, user_of


def test_a_record_has_the_figures_of_the_session_and_none_of_its_buffers() -> None:
    world = World()
    peer = world.stranger()
    peer.says(b'CONNECT {"name":"n","lang":"l","version":"v","verbose":false}\r\nSUB a q 1\r\n')
    peer.says(b"UNSUB 1 5\r\nPUB a 2\r\nhi\r\n")
    world.now_ns += SECOND_NS

    record = SessionRecord.of_closed(peer.session, "Client Closed", world.now_ns)

    assert (record.name, record.language, record.version) == ("n", "l", "v")
    assert (record.in_messages, record.in_bytes) == (1, 2)
    assert (record.out_messages, record.out_bytes) == (1, 2)
    assert (record.reason, record.stop_ns - record.start_ns) == ("Client Closed", SECOND_NS)
    assert (record.client_id, record.ip, record.port) == (1, "127.0.0.1", 4000)
    assert record.subscription_count == 1
    assert record.subscriptions == ((b"a", b"q", b"1", 1, 5),)


def test_only_the_first_subscriptions_are_remembered() -> None:
    world = World()
    peer = world.peer()
    peer.says(b"".join(b"SUB a.%d %d\r\n" % (sid, sid) for sid in range(SUBSCRIPTIONS_MAX + 5)))

    record = SessionRecord.of_closed(peer.session, "Client Closed", world.now_ns)

    assert record.subscription_count == SUBSCRIPTIONS_MAX + 5
    assert len(record.subscriptions) == SUBSCRIPTIONS_MAX


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (b"", ""),
        (b'CONNECT {"user":"ann","pass":"x"}\r\n', "ann"),
        (b'CONNECT {"user":"refused","pass":"x"}\r\n', "refused"),
        (b'CONNECT {"auth_token":"s3cret"}\r\n', "[REDACTED]"),
    ],
)
def test_a_user_is_told_and_a_token_is_not(said: bytes, expected: str) -> None:
    peer = World(users={"ann": Permissions()}).stranger()
    peer.says(said)

    assert expected == user_of(peer.session)


def test_who_needs_no_name_has_none() -> None:
    assert user_of(World(authorization=Authorization()).peer().session) == ""
