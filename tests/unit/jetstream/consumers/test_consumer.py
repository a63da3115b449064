"""Consumers over time: what is delivered, redelivered, settled, and what survives."""

from pathlib import Path

import pytest
from tests.unit.jetstream.consuming import (
    ack,
    consume,
    create,
    info,
    payloads,
    publish,
    received,
    request,
)
from tests.unit.jetstream.world import SECOND_NS, World, error


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def stream(world: World) -> World:
    """A world with a stream of file storage that has messages a to e."""
    world.create("S", storage="file")
    publish(world, "S", "a", "b", "c", "d", "e")
    return world


def test_messages_are_numbered_and_say_how_many_are_left(stream: World) -> None:
    consume(stream, "S", "C")

    messages = request(stream, "S", "C", batch=3)

    assert [b"a", b"b", b"c"] == payloads(messages)
    assert [(1, 1, 1, 4), (1, 2, 2, 3), (1, 3, 3, 2)] == [each.numbers for each in messages]


def test_what_is_acked_is_settled(stream: World) -> None:
    consume(stream, "S", "C")
    first, second, third = request(stream, "S", "C", batch=3)

    ack(stream, second)
    before = info(stream, "S", "C")
    ack(stream, first)
    after = info(stream, "S", "C")

    assert (0, 0, 2) == (
        before["ack_floor"]["consumer_seq"],
        before["ack_floor"]["stream_seq"],
        before["num_ack_pending"],
    )
    assert (2, 2, 1) == (
        after["ack_floor"]["consumer_seq"],
        after["ack_floor"]["stream_seq"],
        after["num_ack_pending"],
    )
    assert third.payload == b"c"


def test_what_is_not_acked_in_time_comes_again(stream: World) -> None:
    consume(stream, "S", "C", ack_wait=2 * SECOND_NS)
    _, second = request(stream, "S", "C", batch=2)
    ack(stream, second)
    request(stream, "S", "C", batch=5)

    stream.advance(1.9)
    early = received(stream)
    stream.advance(0.2)
    late = received(stream)

    assert [] == early
    assert [(b"a", 2)] == [(each.payload, each.numbers[0]) for each in late[:1]]


def test_work_in_progress_takes_as_long_as_it_takes(stream: World) -> None:
    consume(stream, "S", "C", ack_wait=2 * SECOND_NS)
    (message,) = request(stream, "S", "C", batch=1)
    for _ in range(3):
        stream.advance(1.5)
        ack(stream, message, "+WPI")

    assert [b"b"] == payloads(request(stream, "S", "C", batch=1))


def test_backoff_says_how_long_to_wait_each_time(world: World) -> None:
    world.create("S")
    publish(world, "S", "a")
    consume(world, "S", "C", backoff=[SECOND_NS, 3 * SECOND_NS], max_deliver=4)
    request(world, "S", "C", batch=9)
    times = []
    for tenth in range(1, 100):
        world.advance(0.1)
        times += [tenth for _ in received(world)]

    assert [10, 40, 70] == times


def test_after_the_last_delivery_there_is_an_advisory(stream: World) -> None:
    consume(stream, "S", "C", max_deliver=2, ack_wait=SECOND_NS)
    stream.send(b"SUB $JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.S.C 5\r\n")
    (message,) = request(stream, "S", "C", batch=1)
    ack(stream, message, "-NAK")
    (again,) = request(stream, "S", "C", batch=1)
    stream.advance(1.1)
    (advisory,) = received(stream)

    assert (b"a", 2) == (again.payload, again.numbers[0])
    assert b'"stream_seq":1,"deliveries":2' in advisory.payload
    assert [b"b"] == payloads(request(stream, "S", "C", batch=1))
    found = info(stream, "S", "C")
    assert (1, 1) == (found["num_ack_pending"], found["num_redelivered"])


def test_no_more_than_max_ack_pending_are_on_their_way(stream: World) -> None:
    consume(stream, "S", "C", max_ack_pending=2)
    first, second = request(stream, "S", "C", batch=5)

    assert [b"c"] == payloads(ack(stream, first))
    assert [b"d"] == payloads(ack(stream, second))


def test_ack_all_settles_everything_before(stream: World) -> None:
    consume(stream, "S", "C", ack_policy="all")
    messages = request(stream, "S", "C", batch=4)

    ack(stream, messages[2])

    found = info(stream, "S", "C")
    assert (3, 1) == (found["ack_floor"]["stream_seq"], found["num_ack_pending"])
    stream.advance(31)
    assert [b"d"] == payloads(request(stream, "S", "C", batch=1))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"deliver_policy": "all"}, [b"a", b"b", b"c", b"d", b"e"]),
        ({"deliver_policy": "last"}, [b"e"]),
        ({"deliver_policy": "new"}, []),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 4}, [b"d", b"e"]),
        (
            {"deliver_policy": "by_start_time", "opt_start_time": "2020-01-01T00:00:00Z"},
            [b"a", b"b", b"c", b"d", b"e"],
        ),
        ({"deliver_policy": "by_start_time", "opt_start_time": "2100-01-01T00:00:00Z"}, []),
        ({"deliver_policy": "last_per_subject", "filter_subject": "S"}, [b"e"]),
        ({"filter_subjects": ["T", "S"]}, [b"a", b"b", b"c", b"d", b"e"]),
    ],
)
def test_the_deliver_policy_says_where_to_begin(
    stream: World, config: dict[str, object], expected: list[bytes]
) -> None:
    consume(stream, "S", "C", **config)

    assert expected == payloads(request(stream, "S", "C", batch=9, no_wait=True))[: len(expected)]
    publish(stream, "S", "new")
    (message,) = request(stream, "S", "C", batch=1)
    assert (b"new", 0) == (message.payload, message.numbers[3])


def test_the_last_of_each_subject_comes_first_then_everything(world: World) -> None:
    world.create("S", storage="file", subjects=["s.*"])
    for number, subject in enumerate("abacb"):
        publish(world, "S", str(number), subject=f"s.{subject}")
    consume(world, "S", "C", deliver_policy="last_per_subject", filter_subject="s.*")
    first = request(world, "S", "C", batch=2)
    publish(world, "S", "5", subject="s.a")
    world.restart()

    rest = request(world, "S", "C", batch=9, no_wait=True)

    assert [(b"2", 2), (b"3", 1)] == [(each.payload, each.numbers[3]) for each in first]
    assert [b"4", b"5"] == payloads(rest)[:2]


def test_replay_keeps_the_distances(world: World) -> None:
    world.create("S")
    for payload in "abc":
        publish(world, "S", payload)
        world.advance(10)
    consume(world, "S", "C", replay_policy="original", ack_wait=90 * SECOND_NS)
    times = []
    messages = request(world, "S", "C", batch=5)
    for second in range(30):
        times += [(second, each.payload) for each in messages]
        world.advance(1)
        messages = received(world)

    assert [(0, b"a"), (10, b"b"), (20, b"c")] == times
    world.publish("S", b"d")
    world.publish("S", b"e")
    assert [b"d", b"e"] == payloads(received(world))


def test_only_the_headers_go_out_if_only_they_are_wanted(world: World) -> None:
    world.create("S")
    world.publish("S", b"hello", Key="value")
    world.settle()
    consume(world, "S", "C", headers_only=True)

    world.publish("$JS.API.CONSUMER.MSG.NEXT.S.C", b"1", reply="_INBOX.x")

    assert [(b"NATS/1.0\r\nKey: value\r\nNats-Msg-Size: 5\r\n\r\n", b"")] == world.received()


def test_a_work_queue_drops_what_is_acked_and_keeps_what_was_given_up(world: World) -> None:
    world.create("S", storage="file", retention="workqueue")
    publish(world, "S", "a", "b", "c")
    consume(world, "S", "C", max_deliver=1, ack_wait=SECOND_NS)
    first, second, _ = request(world, "S", "C", batch=3)
    ack(world, first)
    ack(world, second, "+TERM")
    world.advance(2)
    world.restart()

    assert [(3, "S", b"c")] == world.messages("S")


def test_interest_keeps_a_message_until_everybody_has_acked(world: World) -> None:
    world.create("S", retention="interest", subjects=["s.*"])
    consume(world, "S", "A")
    consume(world, "S", "B", filter_subject="s.b")
    publish(world, "S", "1", subject="s.a")
    publish(world, "S", "2", subject="s.b")
    for message in request(world, "S", "A", batch=2):
        ack(world, message)
    kept = world.messages("S")
    ack(world, request(world, "S", "B", batch=1)[0])

    assert [(2, "s.b", b"2")] == kept
    assert [] == world.messages("S")


def test_without_acks_interest_ends_with_the_delivery(world: World) -> None:
    world.create("S", retention="interest")
    consume(world, "S", "C", ack_policy="none")
    publish(world, "S", "1", "2")
    request(world, "S", "C", batch=1)

    assert [(2, "S", b"2")] == world.messages("S")


def test_a_deleted_consumer_loses_its_interest(world: World) -> None:
    world.create("S", retention="interest")
    consume(world, "S", "C")
    publish(world, "S", "1")
    world.call("CONSUMER.DELETE.S.C")

    assert [] == world.messages("S")


def test_a_purge_skips_what_is_gone(stream: World) -> None:
    consume(stream, "S", "C")
    request(stream, "S", "C", batch=2)
    stream.call("STREAM.PURGE.S", seq=4)
    found = info(stream, "S", "C")

    assert (0, 2, 3, 3) == (
        found["num_ack_pending"],
        found["num_pending"],
        found["delivered"]["stream_seq"],
        found["ack_floor"]["stream_seq"],
    )
    assert [b"d"] == payloads(request(stream, "S", "C", batch=1))


def test_a_message_removed_while_it_waits_is_not_redelivered(stream: World) -> None:
    consume(stream, "S", "C", ack_wait=SECOND_NS)
    request(stream, "S", "C", batch=2)
    stream.call("STREAM.MSG.DELETE.S", seq=1)
    stream.advance(1.1)

    assert [b"b", b"c"] == payloads(request(stream, "S", "C", batch=2))


def test_an_ephemeral_consumer_goes_when_nobody_uses_it(stream: World) -> None:
    create(stream, "S", "E")
    stream.advance(4)
    request(stream, "S", "E", batch=1, no_wait=True)
    stream.advance(4)
    kept = stream.call("CONSUMER.NAMES.S")["consumers"]
    stream.advance(36)

    assert ["E"] == kept
    assert [] == stream.call("CONSUMER.NAMES.S")["consumers"]


def test_a_consumer_that_is_waited_on_stays(stream: World) -> None:
    create(stream, "S", "E", deliver_policy="new")
    request(stream, "S", "E", batch=1, expires=60 * SECOND_NS)
    stream.advance(30)

    assert ["E"] == stream.call("CONSUMER.NAMES.S")["consumers"]


def test_state_survives_a_restart(stream: World) -> None:
    consume(stream, "S", "C", ack_wait=10 * SECOND_NS)
    first, _, third = request(stream, "S", "C", batch=3)
    ack(stream, first)
    ack(stream, third)
    before = info(stream, "S", "C")
    stream.restart()
    after = info(stream, "S", "C")
    kept = ("delivered", "ack_floor", "num_ack_pending", "num_pending", "created", "config")
    for each in (before, after):
        each["delivered"].pop("last_active", None)
        each["ack_floor"].pop("last_active", None)

    assert [before[key] for key in kept] == [after[key] for key in kept]
    stream.advance(11)
    messages = request(stream, "S", "C", batch=2)
    assert [(b"b", 2), (b"d", 1)] == [(each.payload, each.numbers[0]) for each in messages]


def test_an_acknowledged_ack_survives_a_crash(stream: World) -> None:
    consume(stream, "S", "C")
    first, second = request(stream, "S", "C", batch=2)
    answers = ack(stream, first, reply="_INBOX.done")
    ack(stream, second)
    stream._start()

    assert [("_INBOX.done", b"")] == [(each.subject, each.payload) for each in answers]
    assert 1 <= info(stream, "S", "C")["ack_floor"]["stream_seq"]


def test_an_ack_is_not_acknowledged_while_the_disk_fails(stream: World) -> None:
    consume(stream, "S", "C")
    first, second = request(stream, "S", "C", batch=2)
    stream.disk.is_broken = True
    failed = ack(stream, first, reply="_INBOX.done")
    stream.disk.is_broken = False
    stream.advance(1.1)
    stream.settle()

    assert [] == failed
    assert ["_INBOX.done"] == [each.subject for each in received(stream)]
    assert b"b" == second.payload


def test_a_consumer_that_could_not_be_written_is_not_there(stream: World) -> None:
    consume(stream, "S", "C")
    stream.disk.is_broken = True

    answer = create(stream, "S", "D", durable_name="D")

    assert 10104 == error(answer)[0]
    assert ["C"] == stream.call("CONSUMER.NAMES.S")["consumers"]


def test_consumers_in_memory_are_gone_after_a_restart(stream: World) -> None:
    consume(stream, "S", "C")
    consume(stream, "S", "M", mem_storage=True)
    stream.restart()

    assert ["C"] == stream.call("CONSUMER.NAMES.S")["consumers"]


def test_a_deleted_consumer_does_not_come_back(stream: World) -> None:
    consume(stream, "S", "C")
    request(stream, "S", "C", batch=3)
    stream.call("CONSUMER.DELETE.S.C")
    consume(stream, "S", "C")
    stream.restart()

    assert 0 == info(stream, "S", "C")["delivered"]["consumer_seq"]


def test_a_stream_of_the_same_name_has_none_of_the_old_consumers(stream: World) -> None:
    consume(stream, "S", "C")
    stream.call("STREAM.DELETE.S")
    stream.create("S", storage="file")
    stream.restart()

    assert [] == stream.call("CONSUMER.NAMES.S")["consumers"]


def test_filters_can_be_changed(world: World) -> None:
    world.create("S", subjects=["s.*"])
    for subject in ("s.a", "s.b", "s.a", "s.b"):
        publish(world, "S", subject, subject=subject)
    consume(world, "S", "C", filter_subject="s.a")
    request(world, "S", "C", batch=1)

    answer = consume(world, "S", "C", filter_subject="s.b")

    assert 2 == answer["num_pending"]
    assert [b"s.b", b"s.b"] == payloads(request(world, "S", "C", batch=2))
