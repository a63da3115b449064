"""Acks of every kind, one by one and in batches."""

from pathlib import Path

import pytest
from tests.unit.jetstream.consuming import (
    Received,
    ack,
    consume,
    info,
    payloads,
    publish,
    received,
    request,
)
from tests.unit.jetstream.world import SECOND_NS, World

from penstock.jetstream.consumers import acks
from penstock.jetstream.consumers.acks import AckedDelivery


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.create("S")
    publish(world, "S", "a", "b", "c", "d", "e")
    consume(world, "S", "C")
    return world


def pending(world: World) -> int:
    return int(info(world, "S", "C")["num_ack_pending"])


@pytest.mark.parametrize("kind", ["", "+ACK", "+OK"])
def test_an_ack_is_one_of_three_words(world: World, kind: str) -> None:
    (message,) = request(world, "S", "C", batch=1)
    ack(world, message, kind)

    assert 0 == pending(world)


def test_a_batch_of_acks_of_all_kinds_is_done_in_order(world: World) -> None:
    messages = request(world, "S", "C", batch=5)
    kinds = ["+ACK", "+ACK", "-NAK", "+TERM", ""]
    lines = [
        f"PUB {message.reply} {len(kind)}\r\n{kind}\r\n"
        for message, kind in zip(messages, kinds, strict=True)
    ]
    world.send("".join(lines).encode())

    assert 1 == pending(world)
    assert [(b"c", 2)] == [
        (each.payload, each.numbers[0]) for each in request(world, "S", "C", batch=1)
    ]


def test_the_same_ack_twice_in_a_row_counts_once(world: World) -> None:
    (message,) = request(world, "S", "C", batch=1)
    world.send(f"PUB {message.reply} 4\r\n+ACK\r\n".encode() * 2)

    assert 0 == pending(world)


def test_an_ack_may_have_headers(world: World) -> None:
    (message,) = request(world, "S", "C", batch=1)
    world.publish(message.reply, b"+ACK", Key="value")

    assert 0 == pending(world)


def test_acks_of_the_newer_form_are_understood(world: World) -> None:
    (message,) = request(world, "S", "C", batch=1)
    numbers = message.reply.split(".", 4)[4]
    world.publish(f"$JS.ACK._.HASH.S.C.{numbers}.random", b"+ACK")

    assert 0 == pending(world)


def test_who_asks_is_answered(world: World) -> None:
    for kind in ("+WPI", "-NAK", "+ACK", "+ACK", "what?"):
        messages = request(world, "S", "C", batch=1)
        answers = ack(world, messages[0], kind, reply="_INBOX.done")
        assert [("_INBOX.done", b"")] == [(each.subject, each.payload) for each in answers]


def test_an_ack_for_what_was_never_delivered_is_ignored(world: World) -> None:
    request(world, "S", "C", batch=1)
    never = Received("S", "$JS.ACK.S.C.1.4.4.1.0", "", b"")

    assert [] == ack(world, never, reply="_INBOX.done")
    assert 1 == pending(world)


def test_an_ack_for_nobody_has_no_responders(world: World) -> None:
    for subject in ("$JS.ACK.S.D.1.1.1.1.0", "$JS.ACK.S.C", "$JS.ACK.T.C.1.1.1.1.0"):
        nobody = Received("S", subject, "", b"")
        assert ["503 "] == [each.status for each in ack(world, nobody, reply="_INBOX.done")]


def test_next_acks_and_brings_the_next(world: World) -> None:
    (message,) = request(world, "S", "C", batch=1)

    assert [b"b"] == payloads(ack(world, message, "+NXT", reply="_INBOX.next"))
    (third,) = request(world, "S", "C", batch=1)
    following = ack(world, third, '+NXT {"batch":2}', reply="_INBOX.next")
    assert [b"d", b"e"] == payloads(following)
    assert 3 == pending(world)


@pytest.mark.parametrize("delay", ['{"delay": 2000000000}', "2s", "1s1000ms", "0.5s 1.5s"])
def test_a_nak_may_ask_for_a_delay(world: World, delay: str) -> None:
    (message,) = request(world, "S", "C", batch=1)
    ack(world, message, f"-NAK {delay}")
    early = request(world, "S", "C", batch=1)
    world.advance(2.1)

    is_delay = " " not in delay or delay.startswith("{")
    assert [b"b" if is_delay else b"a"] == payloads(early)
    assert [b"a" if is_delay else b"b"] == payloads(request(world, "S", "C", batch=1))


def test_advisories_tell_of_naks_and_terms(world: World) -> None:
    world.send(b"SUB $JS.EVENT.ADVISORY.CONSUMER.> 5\r\n")
    first, second = request(world, "S", "C", batch=2)
    (naked,) = ack(world, first, "-NAK")
    (terminated,) = ack(world, second, "+TERM because")

    assert "$JS.EVENT.ADVISORY.CONSUMER.MSG_NAKED.S.C" == naked.subject
    assert b'"consumer_seq":1,"stream_seq":1,"deliveries":1' in naked.payload
    assert "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.S.C" == terminated.subject
    assert b'"reason":"because"' in terminated.payload


def test_a_late_ack_of_what_was_given_up_settles_it(world: World) -> None:
    consume(world, "S", "D", max_deliver=1, ack_wait=SECOND_NS)
    (message,) = request(world, "S", "D", batch=1)
    world.advance(2)
    received(world)
    ack(world, message)

    assert 0 == len(world.engine.streams["S"].consumers["D"].ledger.redelivered)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        (b"2.7.5.1800.3", AckedDelivery(2, 7, 5)),
        (b"2.7.5.1800.3.random", AckedDelivery(2, 7, 5)),
        (b"2.7.5.1800", None),
        (b"2.x.5.1800.3", None),
        (b"", None),
    ],
)
def test_the_subject_of_an_ack_says_what_it_is_about(
    numbers: bytes, expected: AckedDelivery | None
) -> None:
    assert expected == acks.parse(numbers)


@pytest.mark.parametrize(
    ("text", "expected_ns"),
    [
        (b"", 0),
        (b" 100ms", 100_000_000),
        (b"1m30s", 90 * SECOND_NS),
        (b"-1s", -SECOND_NS),
        ("5µs".encode(), 5000),
        (b"ten", 0),
        (b'{"delay":5}', 5),
        (b'{"delay":"5"}', 0),
        (b"{", 0),
    ],
)
def test_a_delay_is_json_or_a_duration(text: bytes, expected_ns: int) -> None:
    assert expected_ns == acks.parse_delay_ns(text)
