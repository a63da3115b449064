"""Accounts that live apart, and what they share."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.core.peers import SECOND_NS, Peer, World

from penstock.config.accounts import (
    Account,
    AccountLimits,
    Destination,
    Export,
    Import,
    SubjectMapping,
    User,
)
from penstock.config.server import Authorization
from penstock.core import reload


def account(name: str, **settings: Any) -> Account:
    return Account(name=name, users=(User(name=name.lower(), password="x"),), **settings)


def stream(subject: str, **settings: Any) -> Export:
    return Export(kind="stream", subject=subject, **settings)


def service(subject: str, **settings: Any) -> Export:
    return Export(kind="service", subject=subject, **settings)


def taking(kind: Any, subject: str, to: str = "", account: str = "A") -> Import:
    return Import(kind=kind, account=account, subject=subject, to=to)


def world(*accounts: Account) -> World:
    return World(authorization=Authorization(accounts=accounts))


def reply_of(heard: bytes) -> bytes:
    """Return the reply subject of the one message that was heard."""
    return heard.split(b"\r\n")[0].split()[3]


def test_accounts_do_not_hear_each_other() -> None:
    both = world(account("A"), account("B"))
    a, b = both.peer("a"), both.peer("b")
    b.says(b"SUB > 1\r\n")

    a.says(b"PUB x 2\r\nhi\r\n")

    assert b.taken() == b""
    assert b.says(b"PUB x 2\r\nhi\r\n") == b"MSG x 1 2\r\nhi\r\n"


def test_an_imported_stream_is_heard_while_somebody_subscribes() -> None:
    both = world(
        account("A", exports=(stream("ev.>"),)),
        account("B", imports=(taking("stream", "ev.>", "from.a.>"),)),
    )
    a, b = both.peer("a"), both.peer("b")
    a.says(b"SUB _INBOX.* 9\r\n")
    asked = b"PUB ev.1 _INBOX.1 2\r\nhi\r\n"
    assert b"503" in a.says(asked)

    b.says(b"SUB from.*.1 1\r\nSUB other 2\r\n")
    assert a.says(asked) == b""
    assert b.taken() == b"MSG from.a.1 1 _INBOX.1 2\r\nhi\r\n"

    b.says(b"UNSUB 1\r\n")
    assert b"503" in a.says(asked)
    assert b.taken() == b""


def test_a_shadow_counts_for_its_subscription() -> None:
    both = world(
        account("A", exports=(stream("s"),)), account("B", imports=(taking("stream", "s"),))
    )
    a, b = both.peer("a"), both.peer("b")
    b.says(b"SUB s 1\r\nUNSUB 1 2\r\n")

    a.says(b"PUB s 1\r\n1\r\nPUB s 1\r\n2\r\nPUB s 1\r\n3\r\n")

    assert b.taken() == b"MSG s 1 1\r\n1\r\nMSG s 1 1\r\n2\r\n"
    assert b.session.subscriptions == {}
    assert len(both.broker.accounts["A"].routes.trie.match(b"s")) == 0


def test_the_members_of_a_queue_group_share_an_imported_stream() -> None:
    both = world(
        account("A", exports=(stream("s"),)), account("B", imports=(taking("stream", "s"),))
    )
    a, b, other = both.peer("a"), both.peer("b"), both.peer("b")
    for peer in (b, other):
        peer.says(b"SUB s q 1\r\n")

    for dice in (0.0, 0.9):
        both.dice = dice
        a.says(b"PUB s 1\r\nx\r\n")

    assert (b.taken(), other.taken()) == (b"MSG s 1 1\r\nx\r\n",) * 2


def test_an_import_of_an_import_leads_on() -> None:
    three = world(
        account("A", exports=(stream("s"),)),
        account("B", imports=(taking("stream", "s", "b"),), exports=(stream("b"),)),
        account("C", imports=(taking("stream", "b", "c", account="B"),)),
    )
    a, c = three.peer("a"), three.peer("c")
    c.says(b"SUB c 1\r\n")

    a.says(b"PUB s 1\r\nx\r\n")

    assert c.taken() == b"MSG c 1 1\r\nx\r\n"


def sharing(response: Any) -> tuple[World, Peer, Peer]:
    both = world(
        account("A", exports=(service("q", response=response, response_s_max=10),)),
        account("B", imports=(taking("service", "q", "ask"),)),
    )
    a, b = both.peer("a"), both.peer("b")
    a.says(b"SUB q 1\r\n")
    b.says(b"SUB _INBOX.* 2\r\n")
    return both, a, b


@pytest.mark.parametrize(("response", "answers"), [("singleton", 1), ("stream", 3), ("chunked", 3)])
def test_a_service_answers_as_often_as_it_may(response: str, answers: int) -> None:
    _, a, b = sharing(response)
    b.says(b"PUB ask _INBOX.1 1\r\n?\r\n")

    reply = reply_of(a.taken())
    a.says((b"PUB %b 1\r\n!\r\n" % reply) * 3)

    assert b.taken() == b"MSG _INBOX.1 2 1\r\n!\r\n" * answers


def test_an_empty_message_ends_the_answers() -> None:
    _, a, b = sharing("stream")
    b.says(b"PUB ask _INBOX.1 1\r\n?\r\n")

    reply = reply_of(a.taken())
    a.says(b"PUB %b 0\r\n\r\nPUB %b 1\r\n!\r\n" % (reply, reply))

    assert b.taken() == b"MSG _INBOX.1 2 0\r\n\r\n"


def test_an_answer_that_comes_too_late_is_none() -> None:
    both, a, b = sharing("singleton")
    b.says(b"PUB ask _INBOX.1 1\r\n?\r\n")
    reply = reply_of(a.taken())

    both.now_ns += 10 * SECOND_NS
    a.says(b"PUB %b 1\r\n!\r\n" % reply)

    assert b.taken() == b""


def test_requests_that_are_never_answered_are_forgotten() -> None:
    both, _, b = sharing("singleton")
    for _ in range(3):
        b.says(b"PUB ask _INBOX.1 1\r\n?\r\n" * 1000)
        both.now_ns += 20 * SECOND_NS

    assert len(both.broker.directory.replies_of(both.broker.accounts["A"])) <= 2048


def test_who_answers_may_ask_back() -> None:
    _, a, b = sharing("singleton")
    a.says(b"SUB _INBOX.* 9\r\n")
    b.says(b"PUB ask _INBOX.1 1\r\n?\r\n")

    a.says(b"PUB %b _INBOX.2 1\r\n!\r\n" % reply_of(a.taken()))
    b.says(b"PUB %b 2\r\nok\r\n" % reply_of(b.taken()))

    assert a.taken() == b"MSG _INBOX.2 9 2\r\nok\r\n"


def test_a_request_is_not_heard_by_those_who_import_streams() -> None:
    three = world(
        account("A", exports=(service("q"), stream(">"))),
        account("B", imports=(taking("service", "q"),)),
        account("C", imports=(taking("stream", ">"),)),
    )
    a, b, c = three.peer("a"), three.peer("b"), three.peer("c")
    a.says(b"SUB q 1\r\n")
    c.says(b"SUB q 1\r\n")

    b.says(b"PUB q 1\r\n?\r\n")
    assert b"?" in a.taken()
    assert c.taken() == b""

    a.says(b"PUB q 1\r\n!\r\n")
    assert c.taken() == b"MSG q 1 1\r\n!\r\n"


def test_who_asks_is_told_to_a_service_as_far_as_it_is_shared() -> None:
    _, a, b = sharing("singleton")

    b.says(b"HPUB ask 39 40\r\nNATS/1.0\r\nNats-Request-Info: forged\r\n\r\n?\r\n")

    heard = a.taken()
    assert b'Nats-Request-Info: {"acc":"B"}' in heard
    assert b"forged" not in heard


@pytest.mark.parametrize(
    ("dice", "expected"), [(0.0, b"ten"), (0.05, b"ten"), (0.15, b"rest"), (0.99, b"src")]
)
def test_a_mapping_leads_by_weight_and_keeps_the_rest(dice: float, expected: bytes) -> None:
    ways = (Destination(subject="rest", weight=80), Destination(subject="ten", weight=10))
    one = world(account("A", mappings=(SubjectMapping(source="src", destinations=ways),)))
    a = one.peer("a")
    a.says(b"SUB * 1\r\n")
    one.dice = dice

    assert a.says(b"PUB src 1\r\nx\r\n") == b"MSG %b 1 1\r\nx\r\n" % expected


def test_an_account_has_limits() -> None:
    limits = AccountLimits(max_connections=1, max_subscriptions=1, max_payload=4)
    one = world(account("A", limits=limits))
    a, second = one.peer("a"), one.stranger()

    told = second.says(b'CONNECT {"user":"a","pass":"x"}\r\n')
    assert told == b"-ERR 'maximum account active connections exceeded'\r\n"
    assert a.says(b"SUB x 1\r\nSUB y 2\r\n") == b"-ERR 'maximum subscriptions exceeded'\r\n"
    assert a.says(b"PUB x 5\r\n12345\r\n") == b"-ERR 'Maximum Payload Violation'\r\n"

    one.broker.close(a.session, "Client Closed")
    one.broker.close(second.session, "Client Closed")
    assert one.peer("a").session.account.connections == 1


def test_what_is_installed_comes_to_the_accounts_there_are_and_to_those_a_reload_adds() -> None:
    running = world(account("A"))
    names: list[str] = []
    running.broker.directory.install(lambda each: names.append(each.name))
    running.broker.directory.apply(Authorization(accounts=(account("A"), account("NEW"))))

    assert names == ["$G", "$SYS", "A", "NEW"]


def test_a_reload_joins_accounts_anew_and_keeps_those_who_may_stay() -> None:
    before = (account("A", exports=(stream("s"),)), account("B"), account("GONE"))
    after = (before[0], account("B", imports=(taking("stream", "s"),)), account("NEW"))
    running = world(*before)
    a, b, gone = running.peer("a"), running.peer("b"), running.peer("gone")
    b.says(b"SUB s 1\r\n")

    config = running.broker.config
    reload.apply(
        running.broker,
        type(config)(authorization=Authorization(accounts=after), limits=config.limits),
    )
    a.says(b"PUB s 1\r\nx\r\n")

    assert b.taken() == b"MSG s 1 1\r\nx\r\n"
    assert gone.taken() == b"-ERR 'Authorization Violation'\r\n"
    assert set(running.broker.accounts) == {"$G", "$SYS", "A", "B", "NEW"}
    running.peer("new")
