"""Mirrors and sources: what they copy, and where they go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.jetstream.world import SECOND_NS, World

from penstock.jetstream.store.values import complete
from penstock.protocol import headers

FILE = {"storage": "file"}
SOURCE = {"sources": [{"name": "O"}]}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def origin(world: World, count: int = 5, **options: Any) -> None:
    """Make a stream `O` with so many messages."""
    world.create("O", subjects=["o.>"], **options)
    fill(world, count)


def fill(world: World, count: int) -> None:
    """Publish to `o.0`, `o.1`, `o.2`, `o.0`, ..., a second apart."""
    for _ in range(count):
        number = world.engine.streams["O"].store.last_sequence + 1
        world.now_ns += SECOND_NS
        world.publish(f"o.{number % 3}", str(number))
        world.settle()
    work(world)


def work(world: World) -> None:
    """Let streams read from each other until nothing is left to read."""
    for _ in range(10):
        world.advance(0)


def times(world: World, name: str) -> list[int]:
    return [message[1] for message in world.content(name)]


def origin_sequences(world: World, name: str) -> list[int]:
    """Return which messages of their origin those of a stream were."""
    values = [headers.get(each[3], b"Nats-Stream-Source") for each in world.content(name)]
    return [int(value.split()[1]) for value in values if value]


@pytest.mark.parametrize("storage", ["file", "memory"])
def test_a_mirror_has_the_messages_under_their_sequences_and_times(
    world: World, storage: str
) -> None:
    origin(world)
    world.call("STREAM.MSG.DELETE.O", seq=2)
    world.create("M", mirror={"name": "O"}, storage=storage)
    work(world)
    fill(world, 2)

    assert world.messages("O") == world.messages("M")
    assert times(world, "O") == times(world, "M")
    assert 0 == world.call("STREAM.INFO.M")["mirror"]["lag"]


def test_a_mirror_goes_on_after_a_restart(world: World) -> None:
    origin(world, **FILE)
    world.create("M", mirror={"name": "O"}, **FILE)
    work(world)
    world.restart()
    world.call("STREAM.PURGE.O", filter="o.1")
    fill(world, 3)

    found = world.messages("M")
    assert [1, 2, 3, 4, 5, 6, 7, 8] == [sequence for sequence, *_ in found]
    assert [str(n).encode() for n in range(1, 9)] == [payload for *_, payload in found]


@pytest.mark.parametrize("gap", [3, 1500])
def test_a_mirror_leaves_out_what_its_origin_has_not_got(world: World, gap: int) -> None:
    world.create("O", subjects=["o.>"], **FILE)
    world.publish("o.a", "first")
    world.send(b"PUB o.b 1\r\nx\r\n" * gap)
    world.publish("o.a", "last")
    world.settle()
    world.call("STREAM.PURGE.O", filter="o.b")
    world.create("M", mirror={"name": "O"}, **FILE)
    work(world)
    expected = [(1, "o.a", b"first"), (gap + 2, "o.a", b"last")]
    assert expected == world.messages("M")

    world.restart()

    assert expected == world.messages("M")
    assert {"messages": 2, "num_deleted": gap}.items() <= world.state("M").items()
    assert "lost" not in world.state("M")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"filter_subject": "o.1"}, [1, 4]),
        ({"opt_start_seq": 3}, [3, 4, 5]),
        ({"opt_start_seq": 3, "filter_subject": "o.1"}, [4]),
        ({"opt_start_time": "2027-01-15T08:00:04Z"}, [4, 5]),
        ({"subject_transforms": [{"src": "o.1", "dest": "p"}, {"src": "o.2", "dest": "q"}]},
         [1, 2, 4, 5]),
    ],
)  # fmt: skip
def test_a_mirror_takes_what_it_was_asked_to(
    world: World, options: dict[str, Any], expected: list[int]
) -> None:
    origin(world)
    world.create("M", mirror={"name": "O"} | options)
    work(world)

    assert expected == [sequence for sequence, *_ in world.messages("M")]
    assert expected[0] == world.state("M")["first_seq"]


def test_a_mirror_renames_what_it_takes(world: World) -> None:
    origin(world, 2)
    world.create("M", mirror={"name": "O", "subject_transforms": [{"src": "o.*", "dest": "p.$1"}]})
    work(world)

    assert ["p.1", "p.2"] == [subject for _, subject, _ in world.messages("M")]


def test_a_mirror_waits_for_its_origin(world: World) -> None:
    world.create("M", mirror={"name": "O"})
    work(world)
    told = world.call("STREAM.INFO.M")["mirror"]
    assert (-1, 10059) == (told["active"], told["error"]["err_code"])

    origin(world, 2)

    assert 2 == world.state("M")["messages"]
    assert "error" not in world.call("STREAM.INFO.M")["mirror"]


def test_a_mirror_stays_as_it_is_when_its_origin_is_deleted_or_created_again(
    world: World,
) -> None:
    origin(world, 3)
    world.create("M", mirror={"name": "O"})
    work(world)
    world.call("STREAM.DELETE.O")
    work(world)
    assert 3 == world.state("M")["messages"]

    origin(world, 4)

    assert [b"1", b"2", b"3", b"4"] == [payload for *_, payload in world.messages("M")]


def test_a_mirror_can_become_a_stream_of_its_own(world: World) -> None:
    origin(world, 2)
    world.create("M", mirror={"name": "O"})
    work(world)
    world.call("STREAM.UPDATE.M", name="M", storage="memory", subjects=["m"])
    fill(world, 1)

    assert 3 == world.ask("m", "own")["seq"]
    assert "mirror" not in world.call("STREAM.INFO.M")


def test_a_mirror_answers_for_an_origin_that_is_gone(world: World) -> None:
    origin(world, 2, allow_direct=True)
    world.create("M", mirror={"name": "O"})
    work(world)
    header, _ = world.ask("$JS.API.DIRECT.GET.O", '{"seq":2}')
    assert b"O" == headers.get(header, b"Nats-Stream")

    world.call("STREAM.DELETE.O")
    header, payload = world.ask("$JS.API.DIRECT.GET.O", '{"seq":2}')

    assert (b"M", b"2") == (headers.get(header, b"Nats-Stream"), payload)


def test_a_rollup_is_one_on_a_mirror_that_allows_them(world: World) -> None:
    origin(world, 3, allow_rollup_hdrs=True)
    world.create("M", mirror={"name": "O"}, allow_rollup_hdrs=True)
    world.create("N", mirror={"name": "O"})
    work(world)
    world.ask("o.1", "all", Nats_Rollup="all")
    work(world)

    assert [4] == [sequence for sequence, *_ in world.messages("M")]
    assert [1, 2, 3, 4] == [sequence for sequence, *_ in world.messages("N")]


def test_a_copy_refuses_no_rollup_because_its_subject_is_full(world: World) -> None:
    full = {"discard": "new", "max_msgs_per_subject": 1, "discard_new_per_subject": True}
    origin(world, 1, allow_rollup_hdrs=True)
    world.create("M", mirror={"name": "O"}, **full)
    world.create("N", sources=[{"name": "O"}], **full)
    work(world)
    world.ask("o.1", "newer", Nats_Rollup="sub")
    work(world)

    for name in ("M", "N"):
        assert [(2, "o.1", b"newer")] == world.messages(name)


def test_a_mirrored_message_lives_as_long_as_it_says(world: World) -> None:
    world.create("O", allow_msg_ttl=True)
    world.create("M", mirror={"name": "O"}, allow_msg_ttl=True)
    work(world)
    world.ask("O", "x", Nats_TTL="2s")
    work(world)
    assert 1 == world.state("M")["messages"]

    world.advance(3)

    assert 0 == world.state("M")["messages"]


@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_an_origin_lets_go_of_what_its_follower_has_safe(world: World, retention: str) -> None:
    world.create("O", subjects=["o.>"], retention=retention)
    world.create("N", sources=[{"name": "O"}], **FILE)
    work(world)
    fill(world, 3)

    assert [1, 2, 3] == origin_sequences(world, "N")
    assert 0 == world.state("O")["messages"]


def test_what_a_follower_has_not_got_safe_stays_in_its_origin(world: World) -> None:
    world.create("O", subjects=["o.>"], retention="workqueue")
    world.create("N", sources=[{"name": "O"}], **FILE)
    work(world)
    world.disk.is_broken = True
    fill(world, 2)
    assert 2 == world.state("O")["messages"]

    world.disk.is_broken = False
    world.advance(2)
    world.advance(2)
    work(world)

    assert 0 == world.state("O")["messages"]
    assert [1, 2] == origin_sequences(world, "N")


@pytest.mark.parametrize("kind", ["mirror", "source"])
def test_what_is_not_gone_for_good_is_not_passed_by(world: World, kind: str) -> None:
    """A deletion counts for readers at once, and comes undone if the power goes before a commit."""
    origin(world, 1, **FILE)
    world.create("N", **({"mirror": {"name": "O"}} if kind == "mirror" else SOURCE), **FILE)
    work(world)
    for number in (2, 3, 4):
        world.publish("o.1", str(number))
    first = world.shared.begin_commit()
    assert first is not None
    first.run()
    world.publish("$JS.API.STREAM.MSG.DELETE.O", b'{"seq":3}')
    first.finish()
    copied = [each[2] for each in world.messages("N")]
    work(world)

    assert [b"1"] == copied
    assert [b"1", b"2", b"4"] == [each[2] for each in world.messages("N")]


@pytest.mark.parametrize("storage", ["file", "memory"])
def test_sources_are_numbered_again_and_say_where_they_are_from(world: World, storage: str) -> None:
    origin(world, 4)
    sources = [
        {"name": "O", "filter_subject": "o.1"},
        {"name": "O", "subject_transforms": [{"src": "o.2", "dest": "p"}]},
    ]
    world.create("N", subjects=["n"], sources=sources, storage=storage)
    work(world)
    world.ask("n", "own")

    found = world.messages("N")
    assert [1, 2, 3, 4] == [sequence for sequence, *_ in found]
    assert ["n", "o.1", "o.1", "p"] == sorted(subject for _, subject, _ in found)
    message = world.engine.streams["N"].store.get(1)
    assert message is not None
    identity = world.engine.streams["O"].identity
    assert f"O 1 o.1 > o.1 {identity}".encode() == headers.get(message[3], b"Nats-Stream-Source")


@pytest.mark.parametrize("is_orderly", [True, False])
@pytest.mark.parametrize("is_purged", [True, False])
def test_sources_go_on_after_a_restart_without_loss_or_duplicates(
    world: World, is_orderly: bool, is_purged: bool
) -> None:
    origin(world, 5, **FILE)
    world.create("N", sources=[{"name": "O"}], **FILE)
    work(world)
    if is_purged:
        world.call("STREAM.PURGE.N")
    again = world
    if is_orderly:
        world.restart()
    else:
        again = World(world.directory)
        again.now_ns = world.now_ns
    work(again)
    fill(again, 3)

    expected = [6, 7, 8] if is_purged else [1, 2, 3, 4, 5, 6, 7, 8]
    assert expected == origin_sequences(again, "N")


@pytest.mark.parametrize("is_swept", [True, False], ids=["bytes gone", "bytes there"])
@pytest.mark.parametrize("way", ["purged", "deleted", "acked", "rolled up", "pushed out"])
def test_what_was_removed_from_a_copy_is_not_copied_again(
    world: World, way: str, is_swept: bool
) -> None:
    """A kill follows, so that only messages that are gone told how far the source was read."""
    origin(world, 1, **FILE)
    world.create("P", subjects=["p"], allow_rollup_hdrs=True, **FILE)
    retention = "workqueue" if way == "acked" else "limits"
    world.create(
        "N",
        sources=[{"name": "O"}, {"name": "P"}],
        retention=retention,
        max_msgs=2 if way == "pushed out" else -1,
        allow_rollup_hdrs=True,
        **FILE,
    )
    work(world)
    world.advance(6)
    fill(world, 4)
    REMOVALS[way](world)
    if is_swept:
        # What follows is in another segment, so that the one with the copies can go.
        world.settle()
        while (task := world.engine.streams["N"].store.maintain()) is not None:
            complete(task)
            world.settle()
    again = World(world.directory)
    again.now_ns = world.now_ns
    work(again)
    fill(again, 3)

    copied = [each[2] for each in again.messages("N") if each[1] != "p"]
    assert [b"7", b"8"] == copied[-2:]
    assert len(set(copied)) == len(copied)
    assert not {b"2", b"3", b"4", b"5"} & set(copied)


def _delete(world: World) -> None:
    for sequence, _, _ in world.messages("N"):
        assert world.call("STREAM.MSG.DELETE.N", seq=sequence)["success"]


def _ack(world: World) -> None:
    config = {"durable_name": "C", "ack_policy": "explicit"}
    world.call("CONSUMER.DURABLE.CREATE.N.C", stream_name="N", config=config)
    world.publish("$JS.API.CONSUMER.MSG.NEXT.N.C", b'{"batch":5}', reply="_INBOX.pull")
    world.settle()
    acks = [each[3].decode() for each in world.operations()]
    for ack in acks:
        world.publish(ack, b"+ACK")
    work(world)
    assert not world.messages("N")


def _purge(world: World) -> None:
    assert world.call("STREAM.PURGE.N")["purged"] == 5


def _roll_up(world: World) -> None:
    world.publish("p", b"all", Nats_Rollup="all")
    work(world)
    assert len(world.messages("N")) == 1


def _push_out(world: World) -> None:
    for _ in range(3):
        world.publish("p")
        work(world)


REMOVALS = {
    "purged": _purge,
    "deleted": _delete,
    "acked": _ack,
    "rolled up": _roll_up,
    "pushed out": _push_out,
}


def test_how_far_sources_were_read_is_kept_now_and_then(world: World) -> None:
    origin(world, 3, **FILE)
    world.create("N", sources=[{"name": "O"}], max_msgs=2, **FILE)
    work(world)
    world.advance(6)
    fill(world, 1)
    saved = world.engine.files.read_sources("N")

    assert saved is not None
    ((sequence, identity),) = saved["positions"].values()
    assert (4, world.engine.streams["O"].identity) == (sequence, identity)


def test_an_origin_that_was_created_again_is_read_from_its_start(world: World) -> None:
    origin(world, 3)
    world.create("N", sources=[{"name": "O"}])
    work(world)
    world.call("STREAM.DELETE.O")
    world.now_ns += SECOND_NS
    origin(world, 2)

    assert [1, 2, 3, 1, 2] == origin_sequences(world, "N")


def test_a_source_that_is_left_out_is_read_no_more(world: World) -> None:
    origin(world, 2)
    world.create("N", subjects=["n"], sources=[{"name": "O"}])
    work(world)
    changed = {"name": "N", "storage": "memory", "subjects": ["n"]}
    world.call("STREAM.UPDATE.N", **changed)
    fill(world, 1)
    assert [1, 2] == origin_sequences(world, "N")

    world.call("STREAM.UPDATE.N", **changed, sources=[{"name": "O"}])
    work(world)

    assert [1, 2, 3] == origin_sequences(world, "N")


def test_what_has_no_room_is_read_again_later(world: World) -> None:
    origin(world, 3)
    world.create("N", sources=[{"name": "O"}], max_msgs=2, discard="new")
    work(world)
    assert [1, 2] == origin_sequences(world, "N")

    world.call("STREAM.PURGE.N")
    world.advance(1)
    work(world)

    assert [3] == origin_sequences(world, "N")


def test_what_was_expected_of_the_origin_is_not_expected_again(world: World) -> None:
    world.create("O")
    world.create("N", sources=[{"name": "O"}], subjects=["n"])
    world.create("M", mirror={"name": "O"})
    world.ask("n", "own")
    work(world)
    world.ask("O", "x", Nats_Expected_Last_Sequence="0")
    work(world)

    assert 2 == world.state("N")["messages"]
    message = world.engine.streams["M"].store.get(1)
    assert message is not None
    assert b"" == message[3]


def test_streams_can_be_chained(world: World) -> None:
    origin(world, 2)
    world.create("M", mirror={"name": "O"})
    world.create("N", sources=[{"name": "M"}])
    work(world)
    fill(world, 1)

    assert [1, 2, 3] == origin_sequences(world, "N")


def test_many_messages_are_read_a_piece_at_a_time(world: World) -> None:
    world.create("O")
    world.send(b"PUB O 1\r\nx\r\n" * 3500)
    world.settle()
    world.create("M", mirror={"name": "O"})
    world.advance(0)
    assert 2500 == world.call("STREAM.INFO.M")["mirror"]["lag"]

    work(world)

    assert 3500 == world.state("M")["messages"]
