"""New users and limits, seen from sessions without sockets."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.unit.core.identity.test_auth import SECRET_HASH
from tests.unit.core.peers import Peer, World

from penstock.config.accounts import Permissions, User
from penstock.config.server import Authorization, Limits
from penstock.core import reload

ANN = User(name="ann", password="x")


def apply(world: World, **changes: object) -> list[object]:
    return list(reload.apply(world.broker, replace(world.broker.config, **changes)))


def flags(peer: Peer) -> tuple[str | None, bool]:
    return peer.session.closing, peer.session.identity is not None


def test_users_where_there_were_none_end_sessions_of_nobody() -> None:
    world = World()
    nobody, ann = world.peer(), world.peer("ann")

    assert apply(world, authorization=Authorization(users=(ANN,))) == []

    assert (nobody.session.closing, ann.session.closing) == ("Credentials Revoked", None)
    assert world.broker.info["auth_required"] is True


def test_who_has_not_introduced_itself_is_asked_by_the_new_rules() -> None:
    world = World(users={"ann": Permissions()})
    peer = world.stranger()

    apply(world, authorization=Authorization(users=(ANN, User(name="bob", password="x"))))

    assert flags(peer) == (None, False)
    assert b"PONG" in peer.says(b'CONNECT {"user":"bob","pass":"x"}\r\nPING\r\n')


def test_who_has_not_introduced_itself_need_not_where_nobody_has_to() -> None:
    world = World(users={"ann": Permissions()})
    peer = world.stranger()

    apply(world, authorization=Authorization())

    assert flags(peer) == (None, True)
    assert "auth_required" not in world.broker.info


def test_a_password_that_is_now_a_hash_is_checked_again() -> None:
    world = World(users={"ann": Permissions()})
    peer = world.peer("ann")

    sessions = apply(
        world, authorization=Authorization(users=(User(name="ann", password=SECRET_HASH),))
    )

    assert sessions == [peer.session]
    assert peer.session.check is not None


def test_a_new_payload_limit_is_told_to_who_understands_it_and_holds_for_all() -> None:
    world = World()
    old, new = world.peer(), world.stranger()
    new.says(b'CONNECT {"verbose":false,"protocol":1}\r\nPING\r\n')

    apply(world, limits=Limits(max_payload=10))

    assert old.taken() == b""
    assert json.loads(new.taken().removeprefix(b"INFO "))["max_payload"] == 10
    assert old.says(b"PUB a 11\r\n") == b"-ERR 'Maximum Payload Violation'\r\n"


def test_other_limits_change_without_a_word() -> None:
    world = World()
    peer = world.stranger()
    peer.says(b'CONNECT {"verbose":false,"protocol":1}\r\nPING\r\n')

    apply(world, limits=Limits(congested_bytes=7))

    assert (peer.taken(), peer.session.congested_bytes) == (b"", 7)
