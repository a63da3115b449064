"""
One connection's state machine, without sockets.

What it says word for word is held to nats-server in tests/conformance; here is
what a transcript does not show: order, time, bounds and bookkeeping.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.core.identity.test_auth import SECRET_HASH
from tests.unit.core.peers import CONNECT, SECOND_NS, Peer, World

from penstock.config.accounts import Permissions, ResponseRules, SubjectRules, User
from penstock.config.server import Authorization, Limits
from penstock.core.identity.auth import Check, Identity
from penstock.hot.wire import CLOSE_REASONS
from penstock.protocol import subjects

CONVERSATION = (
    b'CONNECT {"verbose":true,"headers":true,"protocol":1}\r\n'
    b"SUB a.* 1\r\nSUB a.> q 2\r\nPUB a.b r 2\r\nhi\r\nPUB a.b r 2\r\nho\r\n"
    b"HPUB a.c 12 14\r\nNATS/1.0\r\n\r\nhi\r\nUNSUB 1 2\r\nPING\r\nUNSUB 2\r\nPUB a.b 0\r\n\r\n"
    b"SUB a..b 3\r\nPONG\r\n+OK\r\nINFO {}\r\nPING\r\n"
)


def test_a_conversation_cut_anywhere_has_the_same_answers() -> None:
    expected = World().stranger().says(CONVERSATION)
    assert expected.count(b"+OK\r\n") == 9

    for cut in range(len(CONVERSATION) + 1):
        peer = World().stranger()
        assert expected == peer.says(CONVERSATION[:cut]) + peer.says(CONVERSATION[cut:])


@given(st.binary(max_size=200))
def test_garbage_ends_at_most_its_own_session(data: bytes) -> None:
    world = World()
    peer, other = world.peer(), world.peer()

    answer = peer.says(data)

    assert peer.session.closing in (None, *CLOSE_REASONS.values())
    assert b"-ERR" not in answer or answer.endswith(b"'\r\n")
    assert other.says(b"PING\r\n") == b"PONG\r\n"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"FOO\r\n", "Protocol Violation"),
        (b"SUB a\r\n", "Parse Error"),
        (b"INFO {\r\n", "Parse Error"),
        (b"PUB a 1048577\r\n", "Maximum Message Payload Exceeded"),
        (b"SUB " + b"a" * 4097 + b" 1\r\n", "Maximum Control Line Exceeded"),
        (b"CONNECT {\r\n", "Protocol Violation"),
        (b'CONNECT {"protocol":7}\r\n', "Protocol Violation"),
        (b'CONNECT {"headers":false}\r\n', "No Responders Requires Headers"),
        (b'CONNECT {"account":"a"}\r\n', "Authentication Failure"),
    ],
)
def test_the_reason_of_a_close_is_noted_and_the_session_waits_to_be_written(
    line: bytes, reason: str
) -> None:
    world = World()
    peer = world.peer()
    world.broker.dirty.clear()
    peer.session.is_dirty = False

    peer.says(line + b"SUB ignored 1\r\n")

    assert peer.session.closing == reason
    assert world.broker.dirty == [peer.session]
    assert peer.session.subscriptions == {}


def test_a_session_that_is_owed_something_waits_once() -> None:
    world = World()
    peer = world.peer()
    world.broker.dirty.clear()
    peer.session.is_dirty = False

    peer.session.receive(b"PING\r\nPING\r\n")
    peer.session.fail("", "for a test")

    assert world.broker.dirty == [peer.session]


VERBOSE = b'CONNECT {"headers":true,"pedantic":true}\r\n'


@pytest.mark.parametrize(
    ("said", "answer", "closing"),
    [
        (b"CONNECT null\r\n", b"+OK\r\n", None),
        (b"CONNECT []\r\n", b"", "Protocol Violation"),
        (b'CONNECT {"x":NaN}\r\n', b"", "Protocol Violation"),
        (b'CONNECT {"verbose":1}\r\n', b"", "Protocol Violation"),
        (b'CONNECT {"VERBOSE":false,"echo":null}\r\n', b"", None),
        (VERBOSE + b"PUB a.* 0\r\n\r\n", b"+OK\r\n-ERR 'Invalid Publish Subject'\r\n+OK\r\n", None),
        (VERBOSE + b"SUB a.. 1\r\n", b"+OK\r\n-ERR 'Invalid Subject'\r\n", None),
        (b"HPUB a 0 0\r\n\r\n", b"+OK\r\n", None),
        (b"HPUB a 1 1\r\nh\r\nPING\r\n", b"", "Protocol Violation"),
        (
            b"PUB a _R_.x 0\r\n\r\n",
            b"-ERR 'Permissions Violation for Publish with Reply of \"_R_.x\"'\r\n",
            None,
        ),
        (b"SUB a 1\r\nCONNECT {}\r\nPUB a 0\r\n\r\n", b"+OK\r\n" * 3 + b"MSG a 1 0\r\n\r\n", None),
        (b"CONNECT {}\r\nSUB a 1\r\nCONNECT {}\r\nPUB a 0\r\n\r\n", b"+OK\r\n" * 4, None),
    ],
)
def test_what_a_stranger_says_and_is_answered(
    said: bytes, answer: bytes, closing: str | None
) -> None:
    peer = World().stranger()

    assert answer == peer.says(said)
    assert closing == peer.session.closing


def test_a_subscription_that_is_not_permitted_is_refused() -> None:
    rules = Permissions(subscribe=SubjectRules(allow=("a",)))
    peer = World(users={"ann": rules}).peer("ann")

    answer = peer.says(b"SUB b 1\r\nSUB a 2\r\n")

    assert answer == b"-ERR 'Permissions Violation for Subscription to \"b\"'\r\n"
    assert list(peer.session.subscriptions) == [b"2"]


def test_a_reserved_reply_is_refused_to_a_publisher_on_the_fast_way_too() -> None:
    world = World()
    publisher, subscriber = world.peer(), world.peer()
    subscriber.says(b"SUB a 1\r\n")

    answer = publisher.says(b"PUB a 1\r\n1\r\nPUB a $JS.ACK.x 1\r\n2\r\nPUB a 1\r\n3\r\n")

    assert b"Publish with Reply of" in answer
    assert subscriber.taken() == b"MSG a 1 1\r\n1\r\nMSG a 1 1\r\n3\r\n"


def test_a_deep_json_is_refused_and_no_mistake_of_ours() -> None:
    peer = World(limits=Limits(max_control_line=200_000)).stranger()

    assert peer.says(b'CONNECT {"x":' + b"[" * 50_000 + b"]" * 50_000 + b"}\r\n") == b""
    assert peer.session.closing == "Protocol Violation"


def connect_info(peer: Peer) -> Iterator[dict[str, object]]:
    for line in peer.says(b"PING\r\n").split(b"\r\n"):
        if line.startswith(b"INFO "):
            yield json.loads(line[5:])


def test_connect_info_comes_once_after_the_first_pong() -> None:
    peer = World().stranger()
    peer.says(b'CONNECT {"protocol":1}\r\n')

    (info,) = connect_info(peer)
    assert (info["connect_info"], info["remote_account"]) == (True, "$G")
    assert list(connect_info(peer)) == []


def test_a_silent_peer_is_pinged_and_then_given_up() -> None:
    world = World(limits=Limits(ping_interval=10, ping_max=2))
    peer = world.peer()
    said = []
    for _ in range(4):
        world.now_ns += 10 * SECOND_NS
        peer.session.ping()
        said.append(peer.taken())

    assert said[:3] == [b"PING\r\n", b"PING\r\n", b"-ERR 'Stale Connection'\r\n"]
    assert peer.session.closing == "Stale Connection"
    assert world.broker.stale_connections >= 1


def test_a_peer_that_talks_is_not_pinged() -> None:
    world = World(limits=Limits(ping_interval=10))
    peer = world.peer()

    for _ in range(5):
        world.now_ns += 9 * SECOND_NS
        peer.says(b"PUB a 0\r\n\r\n")
        world.now_ns += 1 * SECOND_NS
        peer.session.ping()
        assert peer.taken() == b""


def test_a_pong_is_an_answer_and_no_talk() -> None:
    world = World(limits=Limits(ping_interval=10, ping_max=1))
    peer = world.peer()

    for _ in range(5):
        world.now_ns += 10 * SECOND_NS
        peer.session.ping()
        assert peer.taken() == b"PING\r\n"
        world.now_ns += 7_000
        peer.says(b"PONG\r\n")

    assert (peer.session.round_trip_ns, peer.session.pings_unanswered) == (7_000, 0)


def test_a_pong_nobody_asked_for_says_nothing_about_the_round_trip() -> None:
    world = World()
    peer = world.stranger()
    world.now_ns += 5_000
    peer.says(CONNECT % b"")
    peer.says(b"PONG\r\n")

    assert peer.session.round_trip_ns == 5_000


def test_activity_is_noted() -> None:
    world = World()
    peer = world.peer()
    world.now_ns += 3 * SECOND_NS

    peer.says(b"PONG\r\n")

    assert peer.session.last_activity_ns == world.now_ns


BCRYPT_USER = Authorization(users=(User(name="bea", password=SECRET_HASH),))
BCRYPT_CONNECT = b'CONNECT {"user":"bea","pass":"s3cret"}\r\n'


def finish_check(peer: Peer, succeeded: bool) -> None:
    check = peer.session.check
    assert isinstance(check, Check)
    peer.session.settle(check.verdict(succeeded))


@pytest.mark.parametrize("pause_after", [0, 1, 2, 3])
def test_what_comes_while_a_password_is_checked_waits_for_it(pause_after: int) -> None:
    peer = World(authorization=BCRYPT_USER).stranger()
    pieces = [b"SUB a 1\r\n", b"PUB a 2\r\nhi\r\n", b"PING\r\n"]

    said = peer.says(BCRYPT_CONNECT + b"".join(pieces[:pause_after]))
    said += peer.says(b"".join(pieces[pause_after:]))
    assert (said, peer.session.check is not None) == (b"", True)

    finish_check(peer, True)

    assert peer.taken() == b"+OK\r\n+OK\r\n+OK\r\nMSG a 1 2\r\nhi\r\nPONG\r\n"
    assert peer.session.identity is not None
    assert peer.session.identity.user == "bea"


def test_what_waits_for_a_password_is_read_by_the_rules_of_its_user() -> None:
    """It is not even taken apart before, so that nothing grows of it meanwhile."""
    users = (User(name="bea", password=SECRET_HASH),)
    world = World(authorization=Authorization(users=users), limits=Limits(max_payload=4))
    peer = world.stranger()

    assert peer.says(BCRYPT_CONNECT + b"PUB a 5\r\nhello\r\n") == b""
    finish_check(peer, True)

    assert peer.taken() == b"+OK\r\n-ERR 'Maximum Payload Violation'\r\n"


def test_a_second_connect_while_the_first_is_checked_is_checked_after_it() -> None:
    peer = World(authorization=BCRYPT_USER).stranger()
    wrong = BCRYPT_CONNECT.replace(b"s3cret", b"wrong")
    peer.says(BCRYPT_CONNECT + wrong + b"PING\r\n")

    finish_check(peer, True)
    assert (peer.taken(), peer.session.check is None) == (b"+OK\r\n", False)
    finish_check(peer, False)

    assert peer.taken() == b"-ERR 'Authorization Violation'\r\n"


def test_nothing_is_done_for_a_peer_whose_password_is_wrong() -> None:
    world = World(authorization=BCRYPT_USER)
    peer = world.stranger()
    peer.says(BCRYPT_CONNECT + b"SUB a 1\r\nPING\r\n")

    finish_check(peer, False)

    assert peer.taken() == b"-ERR 'Authorization Violation'\r\n"
    assert peer.session.closing == "Authentication Failure"
    assert not world.broker.default_account.has_interest(b"a")


def test_a_second_connection_with_a_checked_password_need_not_wait() -> None:
    world = World(authorization=BCRYPT_USER)
    first = world.stranger()
    first.says(BCRYPT_CONNECT)
    finish_check(first, True)

    assert world.stranger().says(BCRYPT_CONNECT) == b"+OK\r\n"


def test_a_session_keeps_of_a_connect_only_what_means_something() -> None:
    peer = World().stranger()
    for number in range(100):
        peer.says(b'CONNECT {"x%d":"%d","Name":"%d"}\r\n' % (number, number, number))

    assert peer.session.connect_options == {"name": "99"}


def test_half_a_character_is_read_as_go_reads_it() -> None:
    peer = World().stranger()
    peer.says(b'CONNECT {"name":"a\\ud800b\\udc00","lang":"\\ud83d\\ude00"}\r\n')

    assert peer.session.connect_options == {"name": "a\ufffdb\ufffd", "lang": "\U0001f600"}


def test_a_mistake_of_ours_in_identifying_a_stranger_costs_it_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    peer = World(users={"bea": Permissions()}).stranger()
    authenticator = peer.session.broker.authenticator

    def stumble(*_: object) -> None:
        raise LookupError("x" * 10_000)

    monkeypatch.setattr(authenticator, "identify", stumble)
    answer = peer.says(b'CONNECT {"user":"bea"}\r\n')

    assert answer == b"-ERR 'Authorization Violation'\r\n"
    assert all(len(line) < 400 for line in caplog.text.splitlines())
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    "operation",
    [b"PING\r\n", b"PUB a 0\r\n\r\n", b"SUB a 1\r\n", b"FOO\r\n", b"P", b"\r\n", b"+OK\r\n"],
)
def test_who_has_not_said_who_it_is_is_refused_whatever_it_says(operation: bytes) -> None:
    world = World(users={"ann": Permissions()})
    peer = world.stranger()

    assert peer.says(operation + b"PING\r\n") == b"-ERR 'Authorization Violation'\r\n"
    assert peer.session.closing == "Authentication Failure"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"CON\r\n", b"Unknown Protocol Operation"),
        (b"CONNECT " + b"x" * 5000, b"maximum control line exceeded"),
        (b'connect {"user":"nobody"}\r\n', b"Authorization Violation"),
    ],
)
@pytest.mark.parametrize("cut", [0, 1, 3])
def test_a_connect_that_is_none_is_answered_as_such(line: bytes, text: bytes, cut: int) -> None:
    peer = World(users={"ann": Permissions()}).stranger()

    assert peer.says(line[:cut]) + peer.says(line[cut:]) == b"-ERR '%b'\r\n" % text


def test_nothing_is_held_of_who_has_not_said_who_it_is() -> None:
    peer = World(users={"ann": Permissions()}).stranger()
    peer.says(b"PUB a 1000000\r\n" + bytes(1_000_000))

    assert (peer.session.parser.pending_bytes, peer.session._held) == (0, b"")


def test_a_subscription_made_before_connect_is_served_by_what_connect_says() -> None:
    world = World()
    peer, publisher = world.stranger(), world.peer()
    peer.says(b"SUB a 1\r\n")
    publisher.says(b"HPUB a 12 14\r\nNATS/1.0\r\n\r\nhi\r\n")
    assert peer.taken() == b"MSG a 1 2\r\nhi\r\n"

    peer.says(CONNECT % b"")
    publisher.says(b"HPUB a 12 14\r\nNATS/1.0\r\n\r\nhi\r\n")

    assert peer.taken() == b"HMSG a 1 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"


def test_subscriptions_are_bounded() -> None:
    peer = World(limits=Limits(max_subscriptions=2)).peer()

    answer = peer.says(b"SUB a 1\r\nSUB b 2\r\nSUB c 3\r\nUNSUB 1\r\nSUB c 3\r\n")

    assert answer == b"-ERR 'maximum subscriptions exceeded'\r\n"
    assert list(peer.session.subscriptions) == [b"2", b"3"]


def test_a_publisher_with_permissions_still_publishes_runs_at_once() -> None:
    rules = Permissions(publish=SubjectRules(allow=("a",)))
    world = World(users={"ann": rules, "bob": Permissions()})
    ann, bob = world.peer("ann"), world.peer("bob")
    bob.says(b"SUB > 1\r\n")

    answer = ann.says(b"PUB a 1\r\n1\r\nPUB a 1\r\n2\r\nPUB b 1\r\n3\r\nPUB a 1\r\n4\r\n")

    assert answer == b"-ERR 'Permissions Violation for Publish to \"b\"'\r\n"
    assert len(bob.session.outbox) == 2, "what came before the refusal, and what came after"
    assert bob.taken() == b"".join(b"MSG a 1 1\r\n%d\r\n" % number for number in (1, 2, 4))


def test_only_the_queue_member_that_got_a_request_may_answer_it() -> None:
    rules = Permissions(
        subscribe=SubjectRules(allow=("q",)), allow_responses=ResponseRules(messages_max=1)
    )
    world = World(users={"one": rules, "two": rules, "client": Permissions()})
    one, two, client = world.peer("one"), world.peer("two"), world.peer("client")
    for responder in (one, two):
        responder.says(b"SUB q g 1\r\n")

    world.dice = 0.0
    client.says(b"SUB r 1\r\nPUB q r 1\r\n?\r\n")

    assert (one.taken(), two.taken()) == (b"MSG q 1 r 1\r\n?\r\n", b"")
    assert b"Violation" in two.says(b"PUB r 1\r\n!\r\n")
    assert one.says(b"PUB r 1\r\n!\r\n") == b""
    assert client.taken() == b"MSG r 1 1\r\n!\r\n"


def test_subscriptions_that_new_permissions_do_not_allow_end() -> None:
    world = World()
    peer = world.peer()
    peer.says(b"SUB a 1\r\nSUB b q 2\r\n")
    narrow = Authorization(
        users=(User(name="x", password="x"),),
        default_permissions=Permissions(subscribe=SubjectRules(allow=("a",))),
        no_auth_user="x",
    )
    identity = World(authorization=narrow).broker.authenticator.stranger
    assert identity is not None

    peer.session.permit(identity)

    assert list(peer.session.subscriptions) == [b"1"]
    violation = b'-ERR \'Permissions Violation for Subscription to "b" using queue "q"\'\r\n'
    assert peer.taken() == violation


def test_a_revoked_session_is_told_and_closed() -> None:
    peer = World().peer()

    peer.session.settle(None)

    assert peer.taken() == b"-ERR 'Authorization Violation'\r\n"
    assert peer.session.closing == "Credentials Revoked"


def test_a_session_ends_when_its_user_expires() -> None:
    world = World()
    peer = world.peer()
    peer.session.permit(Identity("ann", expires_s=1_060, expiry_text="Over"))
    (later,) = world.put_off
    later.action()

    assert later.delay_s == 60
    assert peer.taken() == b"-ERR 'Over'\r\n"
    assert peer.session.closing == "Authentication Expired"


def test_nothing_waits_for_the_expiry_of_a_user_that_is_another_or_gone() -> None:
    world = World()
    peer = world.peer()
    peer.session.permit(Identity("ann", expires_s=1_060))
    peer.session.permit(Identity("bea", expires_s=1_060))

    assert [later.is_cancelled for later in world.put_off] == [True, False]
    world.broker.close(peer.session, "Client Closed")
    assert [later.is_cancelled for later in world.put_off] == [True, True]


def test_a_session_that_has_too_much_waiting_is_reported_as_congested() -> None:
    world = World(limits=Limits(congested_bytes=100))
    publisher, slow = world.peer(), world.peer()
    slow.says(b"SUB a 1\r\n")
    world.broker.congested.clear()

    publisher.session.receive(b"PUB a 40\r\n" + b"x" * 40 + b"\r\n")
    assert world.broker.congested == []
    publisher.session.receive(b"PUB a 60\r\n" + b"x" * 60 + b"\r\n")
    assert world.broker.congested == [slow.session]


def test_a_stuck_session_is_not_reported_again() -> None:
    world = World(limits=Limits(congested_bytes=10))
    peer = world.peer()
    peer.session.is_stuck = True
    world.broker.congested.clear()

    peer.session.receive(b"PING\r\nPING\r\n")

    assert world.broker.congested == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (b"a.b", '"a.b"'),
        ("☃".encode(), '"☃"'),
        (b'"', r'"\""'),
        (b"\\", r'"\\"'),
        (b"\xff", r'"\xff"'),
        (b"a\x1b\x7f\x07\x0b", r'"a\x1b\x7f\a\v"'),
        ("\u202e\u00a0".encode(), r'"\u202e\u00a0"'),
        ("\U000e0001".encode(), r'"\U000e0001"'),
    ],
)
def test_names_are_quoted_as_nats_server_quotes_them(name: bytes, expected: str) -> None:
    assert expected == subjects.quoted(name)


def test_a_session_is_named_by_address_and_id() -> None:
    assert str(World().stranger().session) == "127.0.0.1:4000 - cid:1"
