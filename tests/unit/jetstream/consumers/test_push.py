"""Push consumers: interest, heartbeats, flow control and queue groups."""

from pathlib import Path

import pytest
from tests.unit.jetstream.consuming import (
    ack,
    consume,
    create,
    info,
    operations,
    payloads,
    publish,
    received,
)
from tests.unit.jetstream.world import SECOND_NS, World

from penstock.jetstream.consumers import push
from penstock.jetstream.consumers.push import FlowControl


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.create("S")
    publish(world, "S", "a", "b")
    return world


def test_messages_flow_while_somebody_listens(world: World) -> None:
    consume(world, "S", "P", deliver_subject="push")
    idle = received(world)
    world.send(b"SUB push 7\r\n")
    first = received(world)
    world.publish("S", b"c")
    second = received(world)
    world.send(b"UNSUB 7\r\n")
    world.publish("S", b"d")
    third = received(world)
    world.send(b"SUB push 8\r\n")

    assert [[], [b"a", b"b"], [b"c"], [], [b"d"]] == [
        payloads(each) for each in (idle, first, second, third, received(world))
    ]
    assert info(world, "S", "P")["push_bound"]


def test_nothing_is_sent_for_those_who_listen_to_more(world: World) -> None:
    consume(world, "S", "P", deliver_subject="push")
    world.send(b"SUB * 8\r\nSUB push group 9\r\n")

    assert [] == received(world)
    assert "push_bound" not in world.engine.streams["S"].consumers["P"].info()


@pytest.mark.parametrize("echo", [b"true", b"false"])
def test_a_group_hears_whatever_its_members_want_else(world: World, echo: bytes) -> None:
    world.send(b'CONNECT {"verbose":false,"headers":true,"echo":%b}\r\n' % echo)
    world.send(b"SUB _INBOX.> 1\r\n")
    consume(world, "S", "P", deliver_subject="push", deliver_group="g")
    world.send(b"SUB push g 7\r\n")

    assert [b"a", b"b"] == payloads(received(world))


def test_what_was_not_acked_comes_again(world: World) -> None:
    consume(world, "S", "P", deliver_subject="push", ack_wait=SECOND_NS)
    world.send(b"SUB push 7\r\n")
    first, _ = received(world)
    ack(world, first)
    world.advance(1.1)

    assert [(b"b", 2)] == [(each.payload, each.numbers[0]) for each in received(world)]


def test_heartbeats_say_how_far_the_consumer_is(world: World) -> None:
    consume(world, "S", "P", deliver_subject="push", idle_heartbeat=SECOND_NS)
    world.send(b"SUB push 7\r\n")
    received(world)
    beats = []
    for _ in range(25):
        world.advance(0.1)
        beats += world.received()

    header = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 2\r\nNats-Last-Stream: 2\r\n\r\n"
    assert [(header, b"")] * 2 == beats


def test_a_message_puts_the_heartbeat_off(world: World) -> None:
    consume(world, "S", "P", deliver_subject="push", idle_heartbeat=SECOND_NS)
    world.send(b"SUB push 7\r\n")
    received(world)
    world.advance(0.9)
    world.publish("S", b"c")
    received(world)
    world.advance(0.9)

    assert [] == received(world)


def test_only_members_of_the_group_count_as_interest(world: World) -> None:
    consume(world, "S", "P", deliver_subject="push", deliver_group="g")
    world.send(b"SUB push 7\r\n")
    alone = received(world)
    world.send(b"UNSUB 7\r\nSUB push g 8\r\n")

    assert [] == alone
    assert [b"a", b"b"] == payloads(received(world))


def test_a_client_that_does_not_answer_is_sent_no_more_than_the_window(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "WINDOW_BYTES_FIRST", 5000)
    for _ in range(300):
        world.publish("S", bytes(100))
    world.settle()
    world.received()
    consume(
        world,
        "S",
        "P",
        deliver_subject="push",
        ack_policy="none",
        flow_control=True,
        idle_heartbeat=SECOND_NS,
    )
    world.send(b"SUB push 7\r\n")
    first = received(world)
    (asked,) = [each for each in first if each.status]
    world.advance(1.1)
    (stalled,) = world.received()
    world.publish(asked.reply, b"")
    rest = received(world)

    assert "100 FlowControl Request" == asked.status
    assert asked.reply.startswith("$JS.FC.S.P.")
    assert f"Nats-Consumer-Stalled: {asked.reply}\r\n".encode() in stalled[0]
    assert 302 == len([each for each in first + rest if not each.status])


def test_a_heartbeat_asks_another_member_of_a_group_how_far_it_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "WINDOW_BYTES_FIRST", 5000)
    for _ in range(300):
        world.publish("S", bytes(100))
    world.settle()
    options = {"deliver_subject": "push", "ack_policy": "none", "idle_heartbeat": SECOND_NS}
    consume(world, "S", "P", flow_control=True, deliver_group="G", **options)
    world.send(b"SUB push G 7\r\n")
    (asked,) = [each for each in received(world) if each.status]
    world.advance(1.1)

    stalled, again = world.received()

    assert f"Nats-Consumer-Stalled: {asked.reply}\r\n".encode() in stalled[0]
    assert push.FLOW_CONTROL_REQUEST == again[0]


def test_another_subscriber_does_not_answer_for_the_one_before(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "WINDOW_BYTES_FIRST", 5000)
    for _ in range(300):
        world.publish("S", bytes(100))
    world.settle()
    options = {"deliver_subject": "push", "ack_policy": "none", "idle_heartbeat": 60 * SECOND_NS}
    consume(world, "S", "P", flow_control=True, **options)
    world.send(b"SUB push 7\r\n")
    first = received(world)
    world.send(b"UNSUB 7\r\n")
    world.send(b"SUB push 8\r\n")
    world.advance(0)

    second = received(world)

    assert first[-1].status == second[-1].status == "100 FlowControl Request"
    assert first[-1].reply != second[-1].reply
    assert len(second) > 5


def test_a_large_message_behind_a_request_does_not_outlast_the_answer() -> None:
    flow, window = FlowControl(), push.WINDOW_BYTES_FIRST
    assert flow.sent(window // 2 + 1)
    flow.ask(b"subject")
    assert not flow.sent(8 * window)
    assert flow.is_stalled

    assert flow.answered(b"subject")

    assert not flow.is_stalled
    assert flow.sent(1)


def test_the_window_grows_with_each_answer() -> None:
    flow = FlowControl()
    window = push.WINDOW_BYTES_FIRST

    assert not flow.sent(window // 2)
    assert flow.sent(1)
    flow.ask(b"subject")
    assert not flow.answered(b"another")
    assert not flow.sent(window // 2)
    assert flow.is_stalled
    assert flow.answered(b"subject")
    assert not flow.is_stalled
    assert not flow.answered(b"subject")


def test_a_new_deliver_subject_gets_what_was_not_acked(world: World) -> None:
    consume(world, "S", "P", deliver_subject="one")
    world.send(b"SUB one 7\r\n")
    received(world)
    world.send(b"UNSUB 7\r\n")
    consume(world, "S", "P", deliver_subject="two")
    world.send(b"SUB two 8\r\n")

    assert [(b"a", 2), (b"b", 2)] == [(each.payload, each.numbers[0]) for each in received(world)]


def test_an_ephemeral_push_consumer_goes_when_its_subscriber_does(world: World) -> None:
    create(world, "S", "E", deliver_subject="push")
    world.send(b"SUB push 7\r\n")
    received(world)
    world.advance(20)
    bound = world.call("CONSUMER.NAMES.S")["consumers"]
    world.send(b"UNSUB 7\r\n")
    world.advance(40)

    assert ["E"] == bound
    assert [] == world.call("CONSUMER.NAMES.S")["consumers"]


def test_a_subscriber_with_too_much_waiting_is_left_alone_until_it_has_caught_up(
    world: World,
) -> None:
    consume(world, "S", "P", deliver_subject="push", ack_policy="none")
    world.send(b"SUB push 7\r\n")
    received(world)
    world.session.outbox_bytes = world.session.congested_bytes + 1
    publish(world, "S", "c", "d")
    world.advance(1.0)
    delivered = info(world, "S", "P")["delivered"]["stream_seq"]
    operations(world)
    world.advance(1.0)

    assert 2 == delivered
    assert [b"c", b"d"] == payloads(received(world))
