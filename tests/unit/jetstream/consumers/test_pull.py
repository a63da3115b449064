"""Pull requests: who gets what, and what the others are told."""

import json
from pathlib import Path

import pytest
from tests.unit.jetstream.consuming import (
    Received,
    consume,
    info,
    operations,
    payloads,
    publish,
    received,
    request,
)
from tests.unit.jetstream.world import SECOND_NS, World

from penstock.jetstream.consumers import pullrequest
from penstock.jetstream.consumers.pullrequest import RefusedPull, Wish, parse_wish


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.create("S")
    consume(world, "S", "C")
    return world


def statuses(messages: list[Received]) -> list[str]:
    return [message.status for message in messages if message.status]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_nothing_is_delivered_to_requests_whose_clients_are_gone(world: World, count: int) -> None:
    for number in range(count):
        world.send(b"SUB gone.%d %d\r\n" % (number, 10 + number))
        world.publish("$JS.API.CONSUMER.MSG.NEXT.S.C", '{"batch":5}', reply=f"gone.{number}")
        world.send(b"UNSUB %d\r\n" % (10 + number))
    publish(world, "S", "a")

    assert [b"a"] == payloads(request(world, "S", "C", batch=1))


@pytest.mark.parametrize("batch", [3, 10])
def test_messages_are_dealt_like_cards(world: World, batch: int) -> None:
    wish = json.dumps({"batch": batch, "max_bytes": 10_000, "expires": 60 * SECOND_NS})
    for sid, inbox in ((b"10", "hands.0"), (b"11", "hands.1")):
        world.send(b"SUB %b %b\r\n" % (inbox.encode(), sid))
        world.publish("$JS.API.CONSUMER.MSG.NEXT.S.C", wish, reply=inbox)
    for number in range(5):
        world.publish("S", str(number))
    world.settle()
    world.publish("S", "5")
    world.settle()
    hands: dict[bytes, list[bytes]] = {b"10": [], b"11": []}
    for _, subject, sid, _, _, payload in operations(world):
        if subject == b"S":
            hands[sid].append(payload)

    assert hands == {b"10": [b"0", b"2", b"4"], b"11": [b"1", b"3", b"5"]}


def test_requests_of_one_inbox_get_messages_in_order(world: World) -> None:
    # A client that always has one request ahead of the other reads from one inbox.
    request(world, "S", "C", batch=3, expires=10 * SECOND_NS)
    request(world, "S", "C", batch=3, expires=10 * SECOND_NS)
    world.send(b"".join(b"PUB S 1\r\n%c\r\n" % letter for letter in b"abcde"))

    assert [b"a", b"b", b"c", b"d", b"e"] == payloads(received(world))


@pytest.mark.parametrize("bounds", [{}, {"max_bytes": 150}, {"max_bytes": 9000}], ids=str)
@pytest.mark.parametrize("batches", [(4,), (5,), (2, 3), (1, 4), (7, 2, 1), (9, 9)], ids=str)
def test_requests_are_told_the_same_whether_one_or_two_listen(
    tmp_path: Path, batches: tuple[int, ...], bounds: dict[str, int]
) -> None:
    # For one subscriber messages are encoded in one go; for two they are dealt one by one.
    alone, watched = (World(tmp_path / name) for name in ("alone", "watched"))
    other = watched.broker.open("127.0.0.1", 2)
    other.receive(b'CONNECT {"verbose":false,"headers":true}\r\nSUB _INBOX.pull 1\r\n')
    told = []
    for world in (alone, watched):
        world.create("S")
        consume(world, "S", "C")
        for batch in batches:
            request(world, "S", "C", batch=batch, expires=10 * SECOND_NS, **bounds)
        world.send(b"PUB S 1\r\nx\r\n" + b"PUB S 40\r\n%b\r\n" % (b"y" * 40) * 4)
        came = received(world)
        world.now_ns += 11 * SECOND_NS
        told.append([*came, *received(world)])

    assert min(5, sum(batches)) >= len([each for each in told[0] if each.reply]) > 0
    assert told[0] == told[1]


def test_a_request_waits_for_what_comes(world: World) -> None:
    assert [] == request(world, "S", "C", batch=2, expires=10 * SECOND_NS)
    world.publish("S", b"a")
    world.publish("S", b"b")

    assert [b"a", b"b"] == payloads(received(world))


def test_a_request_that_expires_says_what_it_did_not_get(world: World) -> None:
    publish(world, "S", "a")
    request(world, "S", "C", batch=5, expires=SECOND_NS, max_bytes=1000)
    world.advance(1.1)

    (answer,) = world.received()

    block, _ = answer
    assert block.startswith(b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 4\r\n")


def test_who_does_not_want_to_wait_is_told_at_once(world: World) -> None:
    assert ["404 No Messages"] == statuses(request(world, "S", "C", batch=2, no_wait=True))
    publish(world, "S", "a")
    messages = request(world, "S", "C", batch=2, no_wait=True)

    assert (b"a", "404 No Messages") == (messages[0].payload, messages[1].status)


def test_one_shot_waits_for_something_and_no_longer(world: World) -> None:
    assert [] == request(world, "S", "C", batch=9, no_wait=True, expires=9 * SECOND_NS)
    world.publish("S", b"a")
    messages = received(world)

    assert (b"a", "404 No Messages") == (messages[0].payload, messages[1].status)


def test_heartbeats_go_on_while_nothing_comes(world: World) -> None:
    request(world, "S", "C", batch=1, expires=4 * SECOND_NS, idle_heartbeat=SECOND_NS * 9 // 10)
    found = []
    for _ in range(45):
        world.advance(0.1)
        found += statuses(received(world))

    assert ["100 Idle Heartbeat"] * 4 + ["408 Request Timeout"] == found


def test_a_request_without_a_listener_is_dropped(world: World) -> None:
    world.send(b"SUB other 7\r\n")
    world.publish("$JS.API.CONSUMER.MSG.NEXT.S.C", b"1", reply="other")
    waiting = info(world, "S", "C")["num_waiting"]
    world.send(b"UNSUB 7\r\n")
    publish(world, "S", "a")

    assert 1 == waiting
    assert 0 == info(world, "S", "C")["num_waiting"]
    assert [b"a"] == payloads(request(world, "S", "C", batch=1))


def test_max_bytes_counts_subject_reply_and_data(world: World) -> None:
    publish(world, "S", "x" * 100, "y" * 100)

    messages = request(world, "S", "C", batch=5, max_bytes=200)

    assert [b"x" * 100] == payloads(messages)[:1]
    assert ["409 Message Size Exceeds MaxBytes"] == statuses(messages)


def test_what_is_left_of_max_bytes_is_said(world: World) -> None:
    publish(world, "S", "x" * 100)

    assert ["409 Batch Completed"] == statuses(request(world, "S", "C", batch=1, max_bytes=500))


def test_limits_of_the_consumer_are_enforced(world: World) -> None:
    consume(world, "S", "L", max_batch=2, max_expires=SECOND_NS, max_bytes=10, max_waiting=1)

    assert [
        ["409 Exceeded MaxRequestBatch of 2"],
        ["409 Exceeded MaxRequestExpires of 1s"],
        ["409 Exceeded MaxRequestMaxBytes of 10"],
        [],
        ["409 Exceeded MaxWaiting"],
        [],
    ] == [
        statuses(request(world, "S", "L", **wish))
        for wish in (
            {"batch": 3},
            {"batch": 1, "expires": 2 * SECOND_NS},
            {"batch": 1, "max_bytes": 20},
            {"batch": 1},
            {"batch": 1},
            {"batch": 1, "expires": SECOND_NS, "idle_heartbeat": SECOND_NS // 4},
        )
    ]


def test_those_who_wait_are_told_of_the_end(world: World) -> None:
    request(world, "S", "C", batch=1)
    world.publish("$JS.API.CONSUMER.DELETE.S.C")

    assert ["409 Consumer Deleted"] == statuses(received(world))


@pytest.mark.parametrize(
    ("payload", "wish"),
    [
        (b"", Wish()),
        (b" 7 ", Wish(batch=7)),
        (b"seven", Wish()),
        (b'{"batch":3}', Wish(batch=3, group="", priority=0)),
        (b'{"Batch":3,"unknown":{}}', Wish(batch=3, group="", priority=0)),
        (
            b'{"batch":2,"expires":10,"no_wait":true,"max_bytes":5,"idle_heartbeat":5}',
            Wish(2, 10, True, 5, 5, group="", priority=0),
        ),
    ],
)
def test_a_request_is_a_number_or_an_object(payload: bytes, wish: Wish) -> None:
    assert wish == parse_wish(payload)


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"{bad", "invalid character 'b' looking for beginning of object key string"),
        (b'{"batch":"x"}', "json: cannot unmarshal string into Go struct field .batch of type int"),
        (b'{"idle_heartbeat":6,"expires":10}', "heartbeat value too large"),
    ],
)
def test_a_request_that_does_not_read_is_refused(payload: bytes, text: str) -> None:
    with pytest.raises(RefusedPull) as refused:
        parse_wish(payload)

    assert f"400 Bad Request - {text}" == refused.value.args[0]


def test_only_small_requests_are_remembered() -> None:
    known = pullrequest._remembered.cache_info().currsize
    for size in (pullrequest.REMEMBERED_BYTES_MAX + 1, 1 << 20):
        assert parse_wish(b'{"batch":3}'.ljust(size)) == parse_wish(b'{"batch":3}')

    assert pullrequest._remembered.cache_info().currsize <= known + 1


@pytest.mark.parametrize("text", [b"9" * 5000, b"-" + b"9" * 5000])
def test_a_number_too_long_for_any_batch_asks_for_one_message(text: bytes) -> None:
    assert parse_wish(text) == Wish()


def test_a_client_that_goes_makes_room_for_others_at_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("S")
    consume(world, "S", "C", max_waiting=1)
    wish = json.dumps({"batch": 1, "expires": 60 * SECOND_NS})
    world.send(b"SUB gone 10\r\n")
    world.publish("$JS.API.CONSUMER.MSG.NEXT.S.C", wish, reply="gone")
    for _ in range(2):
        world.publish("$JS.API.CONSUMER.MSG.NEXT.S.C", wish, reply="_INBOX.x")
        assert statuses(received(world)) == ["409 Exceeded MaxWaiting"]
    world.send(b"UNSUB 10\r\n")
    world.publish("$JS.API.CONSUMER.MSG.NEXT.S.C", wish, reply="_INBOX.x")

    assert received(world) == []
