"""Who gets a message, how often, and in what form."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.core.peers import Peer, World

from penstock.core import account as account_module
from penstock.core.account import LARGE_BYTES
from penstock.hot.wire import PUB, Op
from penstock.protocol import subjects

NO_HEADERS = b'CONNECT {"verbose":false,"pedantic":false}\r\n'
NO_ECHO = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"echo":false}\r\n'
LARGE = b"x" * LARGE_BYTES


def run_of(*payloads: bytes, subject: bytes = b"a", reply: bytes = b"") -> Op:
    data = b"".join(payload + b"\r\n" for payload in payloads)
    return (PUB, subject, reply, 0, len(payloads[0]), data)


def pub(subject: bytes, payload: bytes, reply: bytes = b"") -> bytes:
    words = [b"PUB", subject, *([reply] if reply else []), b"%d" % len(payload)]
    return b" ".join(words) + b"\r\n" + payload + b"\r\n"


def msg(subject: bytes, sid: bytes, payload: bytes, reply: bytes = b"") -> bytes:
    words = [b"MSG", subject, sid, *([reply] if reply else []), b"%d" % len(payload)]
    return b" ".join(words) + b"\r\n" + payload + b"\r\n"


def hears(peer: Peer, *lines: bytes) -> None:
    assert peer.says(b"".join(line + b"\r\n" for line in lines)) == b""


@pytest.mark.parametrize("payload", [b"", b"hi", LARGE])
def test_subscribers_with_the_same_sid_and_with_others_get_the_same_messages(
    payload: bytes,
) -> None:
    world = World()
    publisher = world.peer()
    peers = {world.peer(): sid for sid in (b"1", b"1", b"1", b"2", b"33")}
    for peer, sid in peers.items():
        hears(peer, b"SUB a.* " + sid)

    publisher.says(pub(b"a.b", payload) * 2 + pub(b"a.b", payload + b"!") + pub(b"a.c", payload))

    for peer, sid in peers.items():
        expected = msg(b"a.b", sid, payload) * 2 + msg(b"a.b", sid, payload + b"!")
        assert expected + msg(b"a.c", sid, payload) == peer.taken()
        assert peer.session.subscriptions[sid].delivered == 4
        assert peer.session.out_messages == 4
        assert peer.session.out_bytes == 4 * len(payload) + 1
    assert publisher.session.in_messages == 4
    assert publisher.session.in_bytes == 4 * len(payload) + 1


def test_a_large_payload_is_held_once_for_all_receivers() -> None:
    world = World()
    publisher, one, two = world.peer(), world.peer(), world.peer()
    hears(one, b"SUB a 1")
    hears(two, b"SUB a 2")

    publisher.session.receive(pub(b"a", LARGE))

    assert one.session.outbox[-1] is two.session.outbox[-1]


def test_large_payloads_of_a_run_and_small_ones_after_them_keep_their_order() -> None:
    world = World()
    publisher, one, two, limited = (world.peer() for _ in range(4))
    hears(one, b"SUB a 1")
    hears(two, b"SUB a 2")
    hears(limited, b"SUB a 3", b"UNSUB 3 100")

    publisher.says(pub(b"a", LARGE) * 2 + pub(b"a", b"1") + pub(b"a", b"2") + pub(b"a", LARGE))

    for peer, sid in ((one, b"1"), (two, b"2"), (limited, b"3")):
        large, small = msg(b"a", sid, LARGE), msg(b"a", sid, b"1") + msg(b"a", sid, b"2")
        assert peer.taken() == large * 2 + small + large


def test_messages_to_distinct_sids_share_their_pieces_until_they_are_written() -> None:
    world = World()
    publisher, one, two = world.peer(), world.peer(), world.peer()
    hears(one, b"SUB a 1")
    hears(two, b"SUB a 2")

    publisher.session.receive(pub(b"a", b"hi") * 2)

    assert one.session.outbox[0][1] is two.session.outbox[0][1]


@pytest.mark.parametrize("payload", [b"hi", LARGE])
def test_a_client_without_headers_gets_the_payload_alone(payload: bytes) -> None:
    world = World()
    publisher, plain = world.peer(), world.stranger()
    hears(plain, NO_HEADERS[:-2], b"SUB a 1")
    size = 12 + len(payload)
    message = b"HPUB a 12 %d\r\nNATS/1.0\r\n\r\n%b\r\n" % (size, payload)

    publisher.says(message * 2)

    assert plain.taken() == msg(b"a", b"1", payload) * 2


def test_a_client_without_echo_hears_others_but_not_itself() -> None:
    world = World()
    deaf, other = world.stranger(), world.peer()
    hears(deaf, NO_ECHO[:-2], b"SUB a 1")

    assert deaf.says(pub(b"a", b"mine")) == b""
    other.says(pub(b"a", b"yours"))

    assert deaf.taken() == msg(b"a", b"1", b"yours")


def test_a_subscription_ends_in_the_middle_of_a_run() -> None:
    world = World()
    publisher, peer = world.peer(), world.peer()
    hears(peer, b"SUB a 1", b"UNSUB 1 3")

    publisher.says(pub(b"a", b"1") + pub(b"a", b"2") + pub(b"a", b"3") + pub(b"a", b"4"))

    assert peer.taken() == b"".join(msg(b"a", b"1", digit) for digit in (b"1", b"2", b"3"))
    assert peer.session.subscriptions == {}
    assert not world.broker.default_account.has_interest(b"a")


def test_a_subscription_that_ended_in_a_batch_gets_no_more_of_it() -> None:
    world = World()
    publisher, peer = world.peer(), world.peer()
    hears(peer, b"SUB a 1", b"UNSUB 1 1")

    publisher.says(pub(b"a", b"1") + pub(b"a", b"22") + pub(b"a", b"333"))

    assert peer.taken() == msg(b"a", b"1", b"1")


def test_each_message_goes_to_one_member_of_each_queue_group() -> None:
    world = World()
    publisher = world.peer()
    members = [world.peer() for _ in range(3)]
    for peer in members:
        hears(peer, b"SUB a g 1")
    other = world.peer()
    hears(other, b"SUB a h 9", b"SUB a 8")
    rng = random.Random(1)
    got: list[bytes] = []
    for number in range(300):
        world.dice = rng.random()
        publisher.says(pub(b"a", b"%d" % number))
        got += [data for data in (peer.taken() for peer in members) if data]

    assert got == [msg(b"a", b"1", b"%d" % number) for number in range(300)]
    assert sum(peer.session.out_messages for peer in members) == 300
    assert min(peer.session.out_messages for peer in members) > 50
    assert other.session.out_messages == 600


@pytest.mark.parametrize("dice", [0.0, 0.4, 0.999])
@pytest.mark.parametrize("size", [1, LARGE_BYTES])
def test_a_run_is_dealt_out_in_order(dice: float, size: int) -> None:
    world = World()
    world.dice = dice
    publisher = world.peer()
    members = [world.peer() for _ in range(3)]
    for peer in members:
        hears(peer, b"SUB a g 1")
    payloads = [b"%d" % (number % 10) * size for number in range(8)]

    publisher.says(b"".join(pub(b"a", payload) for payload in payloads))

    first = int(dice * 3)
    for index, peer in enumerate(members):
        mine = payloads[(index - first) % 3 :: 3]
        assert peer.taken() == b"".join(msg(b"a", b"1", payload) for payload in mine)


def test_a_run_keeps_its_order_where_members_are_limited_or_refuse() -> None:
    world = World()
    deaf, limited, other = world.stranger(), world.peer(), world.peer()
    hears(deaf, NO_ECHO[:-2], b"SUB a g 1")
    hears(limited, b"SUB a g 1", b"UNSUB 1 2")
    hears(other, b"SUB a g 1")

    deaf.says(b"".join(pub(b"a", b"%d" % number) for number in range(6)))

    assert deaf.taken() == b""
    assert limited.taken() == msg(b"a", b"1", b"0") + msg(b"a", b"1", b"1")
    assert other.taken() == b"".join(msg(b"a", b"1", b"%d" % number) for number in range(2, 6))


@pytest.mark.parametrize(
    "publishes",
    [
        pub(b"a", b"1", b"inbox") + pub(b"a", b"2", b"inbox"),
        pub(b"a", b"1", b"inbox") + pub(b"a", b"22", b"inbox"),
    ],
)
def test_what_no_member_takes_is_not_heard(publishes: bytes) -> None:
    world = World()
    deaf = world.stranger()
    connect = NO_ECHO.replace(b"}", b',"no_responders":true}')
    hears(deaf, connect[:-2], b"SUB a g 1", b"SUB inbox 2")

    answer = deaf.says(publishes)

    assert answer.count(b"NATS/1.0 503") == 2


def test_a_queue_group_may_have_handlers_for_members() -> None:
    world = World()
    heard: list[Op] = []
    account = world.broker.default_account
    member = account_module.Subscription(
        b"a", None, queue=b"g", handler=lambda batch, publisher: heard.extend(batch)
    )
    account.routes.insert(member)

    world.peer().says(pub(b"a", b"hi"))

    assert heard == [run_of(b"hi")]


@pytest.mark.parametrize("place", ["before", "behind", "between", "around"])
def test_acks_and_what_comes_with_them_keep_their_order(place: str) -> None:
    world = World()
    account = world.broker.default_account
    batches: list[list[bytes]] = []
    for pattern in (b"$JS.ACK.>", b"$JS.API.>"):
        account.listen(pattern, lambda batch, _: batches.append([each[1] for each in batch]))
    acks = [b"$JS.ACK.S.C.1.%d.%d.1.0" % (number, number) for number in range(1, 6)]
    request = [b"$JS.API.CONSUMER.MSG.NEXT.S.C"]
    expected = {
        "before": [request, acks],
        "behind": [acks, request],
        "between": [acks[:3], request, acks[3:]],
        "around": [request, acks, request],
    }[place]

    world.peer().says(b"".join(pub(subject, b"+ACK") for batch in expected for subject in batch))

    assert batches == expected


def test_the_server_hears_and_speaks_too() -> None:
    world = World()
    account = world.broker.default_account
    heard: list[tuple[list[Op], object]] = []
    subscription = account.listen(b"svc", lambda *arguments: heard.append(arguments))
    peer = world.peer()
    hears(peer, b"SUB inbox 1")

    peer.says(pub(b"svc", b"1") * 2 + pub(b"svc", b"22"))
    account.send(b"inbox", b"plain")
    account.send(b"inbox", b"both", reply=b"re", header=b"NATS/1.0\r\n\r\n")
    account.unlisten(subscription)
    peer.session.receive(pub(b"svc", b"3"))

    assert heard == [
        ([run_of(b"1", b"1", subject=b"svc"), run_of(b"22", subject=b"svc")], peer.session)
    ]
    assert peer.taken() == (
        msg(b"inbox", b"1", b"plain") + b"HMSG inbox 1 re 12 16\r\nNATS/1.0\r\n\r\nboth\r\n"
    )


def test_messages_are_delivered_under_another_subject_than_their_own() -> None:
    world = World()
    account = world.broker.default_account
    peer = world.peer()
    hears(peer, b"SUB inbox 1")

    account.deliver_as(b"inbox", [run_of(b"hi", subject=b"orders.1")])
    account.deliver_as(b"nobody", [run_of(b"hi", subject=b"orders.1")])

    assert peer.taken() == msg(b"orders.1", b"1", b"hi")


@pytest.mark.parametrize("is_alone", [True, False])
def test_deliveries_and_answers_command_no_handler(is_alone: bool) -> None:
    world = World()
    account = world.broker.default_account
    obeyed: list[Op] = []
    account.listen(b"api.>", lambda batch, publisher: obeyed.extend(batch))
    peer = world.peer()
    if not is_alone:
        hears(peer, b"SUB api.x 1")

    account.deliver_as(b"api.x", [run_of(b"1", subject=b"orders.1")])
    account.send(b"api.x", b"2")
    account.answer([run_of(b"3", subject=b"api.x")])
    account.answer_all([b"api.x"], (b"", b""), 4)

    expected = b"".join(
        msg(subject, b"1", payload)
        for subject, payload in (
            *((b"orders.1", b"1"), (b"api.x", b"2")),
            *((b"api.x", b"3"), (b"api.x", b"4")),
        )
    )
    assert peer.taken() == (b"" if is_alone else expected)
    assert obeyed == []


def test_a_handler_that_hands_on_gets_deliveries_by_where_they_go() -> None:
    world = World()
    account = world.broker.default_account
    delivered: list[tuple[bytes, Op]] = []
    published: list[Op] = []
    account.listen(
        b"on.>",
        lambda batch, publisher: published.extend(batch),
        deliver=lambda subject, batch: delivered.extend((subject, each) for each in batch),
    )
    stored, answer = run_of(b"1", subject=b"orders.1"), run_of(b"2", subject=b"on.y")

    account.deliver_as(b"on.x", [stored])
    account.answer([answer])

    assert (delivered, published) == ([(b"on.x", stored)], [answer])


@pytest.mark.parametrize("first_number", [1, 9])
@pytest.mark.parametrize("replies", [[b"in.1"], [b"in.1", b"in.2"], [b"in.1", b"other"]])
@pytest.mark.parametrize("sid", [b"1", b"%d%"])
def test_answers_go_to_their_reply_subjects_with_their_numbers(
    replies: list[bytes], first_number: int, sid: bytes
) -> None:
    world = World()
    peer = world.peer()
    hears(peer, b"SUB in.* " + sid, b"SUB other 2")

    world.broker.default_account.answer_all(replies, (b"100% of ", b"!"), first_number)

    assert peer.taken() == b"".join(
        msg(reply, b"2" if reply == b"other" else sid, b"100%% of %d!" % number)
        for number, reply in enumerate(replies, first_number)
    )
    assert peer.session.out_messages == len(replies)


@pytest.mark.parametrize(
    ("publish", "expected"),
    [
        (pub(b"nobody", b"?", b"inbox"), True),
        (pub(b"nobody", b"?"), False),
        (pub(b"nobody", b"?", b"elsewhere"), False),
        (pub(b"nobody", b"?", b"group"), False),
        (pub(b"somebody", b"?", b"inbox"), False),
    ],
)
def test_no_responders_is_told_to_the_requester_alone(publish: bytes, expected: bool) -> None:
    world = World()
    other, requester = world.peer(), world.peer()
    hears(other, b"SUB inbox 5", b"SUB elsewhere 6", b"SUB somebody 7")
    hears(requester, b"SUB inbox 1", b"SUB group g 2")

    answer = requester.says(publish)

    status = b"HMSG inbox 1 38 38\r\nNATS/1.0 503\r\nNats-Subject: nobody\r\n\r\n\r\n"
    assert answer == (status if expected else b"")
    assert b"503" not in other.taken()


SIDS = st.sampled_from([b"1", b"2", b"3"])
TOKENS = st.sampled_from([b"a", b"b"])
LITERALS = st.lists(TOKENS, min_size=1, max_size=3).map(b".".join)
PATTERNS = st.sampled_from([b"a", b"b", b"a.b", b"*", b"a.*", b"*.b", b"a.>", b">", b"a.*.b"])
ACTIONS = st.one_of(
    st.tuples(st.just("sub"), st.integers(0, 2), PATTERNS, SIDS),
    st.tuples(st.just("unsub"), st.integers(0, 2), SIDS, st.integers(0, 3)),
    st.tuples(st.just("pub"), LITERALS, st.integers(1, 4), st.integers(0, 2)),
)


@settings(max_examples=150)
@given(st.lists(ACTIONS, max_size=25))
def test_every_subscription_gets_exactly_what_it_asked_for(actions: list[tuple]) -> None:
    """Held against a model that looks at each subscription for each message."""
    world = World()
    publisher = world.peer()
    peers = [world.peer() for _ in range(3)]
    model: dict[tuple[int, bytes], list] = {}
    expected: list[list[bytes]] = [[], [], []]
    for action in actions:
        if action[0] == "sub":
            _, index, pattern, sid = action
            peers[index].session.receive(b"SUB %b %b\r\n" % (pattern, sid))
            model.setdefault((index, sid), [pattern, 0, 0])
        elif action[0] == "unsub":
            _, index, sid, limit = action
            peers[index].session.receive(b"UNSUB %b %d\r\n" % (sid, limit))
            if (index, sid) in model:
                if model[index, sid][1] >= limit:
                    del model[index, sid]
                else:
                    model[index, sid][2] = limit
        else:
            _, subject, count, length = action
            publisher.session.receive(pub(subject, b"x" * length) * count)
            for _ in range(count):
                for key, entry in list(model.items()):
                    if subjects.matches(entry[0], subject):
                        expected[key[0]].append(msg(subject, key[1], b"x" * length))
                        entry[1] += 1
                        if entry[1] == entry[2]:
                            del model[key]

    for peer, wanted in zip(peers, expected, strict=True):
        got = peer.taken()
        assert len(b"".join(wanted)) == len(got)
        for sid in (b"1", b"2", b"3"):
            assert of_sid(b"".join(wanted), sid) == of_sid(got, sid)


def of_sid(data: bytes, sid: bytes) -> list[bytes]:
    """Return the deliveries of one subscription, in order."""
    lines = data.split(b"\r\n")
    return [
        line + body
        for line, body in zip(lines[::2], lines[1::2], strict=False)
        if line.split()[2] == sid
    ]
