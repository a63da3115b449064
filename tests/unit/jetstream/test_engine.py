"""The engine: streams that come, go and come back, and what is told about them."""

import logging
from pathlib import Path

import pytest
from tests.unit.jetstream.test_stream import Witness
from tests.unit.jetstream.world import World, error

from penstock.jetstream.store.values import complete
from penstock.jetstream.timers import Timers


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_file_stream_survives_a_restart(world: World) -> None:
    created = world.create("S", subjects=["s.>"], storage="file", metadata={"mine": "1"})
    world.ask("s.a", "x")

    world.restart()

    info = world.call("STREAM.INFO.S")
    assert (created["config"], created["created"]) == (info["config"], info["created"])
    assert [(1, "s.a", b"x")] == world.messages("S")
    assert 2 == world.ask("s.a", "y")["seq"]


def test_the_same_stream_is_created_again_after_a_restart_as_before(world: World) -> None:
    before = world.create("S", subjects=["s.>"], storage="file")
    world.advance(1)
    world.restart()

    again = world.create("S", subjects=["s.>"], storage="file")

    assert (before["created"], before["config"]) == (again["created"], again["config"])


def test_a_memory_stream_does_not_survive_a_restart(world: World) -> None:
    world.create("S")
    world.restart()
    assert (10059, "stream not found") == error(world.call("STREAM.INFO.S"))


def test_an_update_survives_a_restart(world: World) -> None:
    world.create("S", storage="file")
    world.call("STREAM.UPDATE.S", name="S", max_msgs=7)
    world.restart()
    assert 7 == world.call("STREAM.INFO.S")["config"]["max_msgs"]


def test_a_deleted_stream_stays_away_and_leaves_nothing(world: World) -> None:
    world.create("S", storage="file")
    world.ask("S", "x")
    assert {"success": True} == {
        key: value for key, value in world.call("STREAM.DELETE.S").items() if key != "type"
    }

    world.restart()

    assert [] == list(Path(world.engine.files.root).iterdir())
    assert {} == world.engine.streams


def test_a_name_is_free_as_soon_as_its_stream_is_deleted(world: World) -> None:
    world.create("S", storage="file")
    world.ask("S", "old")

    world.publish("$JS.API.STREAM.DELETE.S", reply="_INBOX.1")
    world.publish("$JS.API.STREAM.CREATE.S", '{"name":"S"}', reply="_INBOX.2")
    world.settle()

    assert 2 == len(world.received())
    assert [] == world.messages("S")


def test_a_stream_may_be_deleted_while_it_is_being_committed(world: World) -> None:
    world.create("S", storage="file")
    world.publish("S", "x", reply="_INBOX.ack")
    commit = world.shared.begin_commit()
    assert commit is not None

    world.publish("$JS.API.STREAM.DELETE.S", reply="_INBOX.1")
    commit.run()
    commit.finish()
    world.settle()

    assert [True] == [answer.get("success") for answer in world.received()]


def test_the_rests_of_a_deletion_that_was_cut_short_are_removed(world: World) -> None:
    rest = Path(world.engine.files.root) / "3.deleted"
    rest.mkdir()
    (rest / "stream.json").write_text("{}")

    world.restart()

    assert not rest.exists()


def test_a_stream_that_can_not_be_read_does_not_keep_the_others_away(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.create("GOOD", storage="file")
    for name, content in (("BAD", "{"), ("EMPTY", None), ("ODD", '{"config":{"x":1}}')):
        directory = Path(world.engine.files.root) / name
        directory.mkdir()
        if content is not None:
            (directory / "stream.json").write_text(content)

    with caplog.at_level(logging.ERROR):
        world.restart()

    assert ["GOOD"] == list(world.engine.streams)
    # One that was never completely made is gone.
    assert 2 == len(caplog.records)
    assert not (Path(world.engine.files.root) / "EMPTY").exists()
    assert all("cannot be recovered" in record.getMessage() for record in caplog.records)


def test_consumers_are_closed_with_the_engine_and_deleted_with_their_stream(world: World) -> None:
    world.create("S")
    world.create("T")
    closed, deleted = Witness(world, "S"), Witness(world, "T")

    world.call("STREAM.DELETE.T")
    world.engine.close()

    assert ["closed"] == closed.heard
    assert ["deleted", "closed"] == deleted.heard[-2:]


def test_a_disk_that_fails_refuses_new_streams_updates_and_deletions(world: World) -> None:
    world.create("S", storage="file")
    world.disk.is_broken = True

    assert 10049 == error(world.call("STREAM.CREATE.T", name="T"))[0]
    assert 10069 == error(world.call("STREAM.UPDATE.S", name="S", max_msgs=1))[0]
    assert 10050 == error(world.call("STREAM.DELETE.S"))[0]
    assert ["S"] == list(world.engine.streams)
    assert -1 == world.call("STREAM.INFO.S")["config"]["max_msgs"]


def test_streams_may_not_reserve_more_than_there_is(tmp_path: Path) -> None:
    world = World(tmp_path, max_mem=1000, max_file=500)
    world.create("S", max_bytes=600)

    answer = world.call("STREAM.CREATE.T", name="T", storage="memory", max_bytes=600)
    assert (10028, "insufficient memory resources available") == error(answer)
    answer = world.call("STREAM.CREATE.T", name="T", max_bytes=600)
    assert (10047, "insufficient storage resources available") == error(answer)
    answer = world.call("STREAM.UPDATE.S", name="S", storage="memory", max_bytes=900)
    assert 900 == answer["config"]["max_bytes"]


def test_those_who_listen_hear_of_streams_that_come_change_and_go(world: World) -> None:
    world.send(b"SUB $JS.EVENT.ADVISORY.STREAM.> 2\r\n")
    world.publish("$JS.API.STREAM.CREATE.S", '{"name":"S","storage":"memory"}')
    world.publish("$JS.API.STREAM.UPDATE.S", '{"name":"S","storage":"memory","max_msgs":1}')
    world.publish("$JS.API.STREAM.DELETE.S")

    events = world.received()

    assert ["create", "modify", "delete"] == [event["action"] for event in events]
    assert {"io.nats.jetstream.advisory.v1.stream_action"} == {event["type"] for event in events}
    assert 3 == len({event["id"] for event in events})


def test_consumer_events_name_both(world: World) -> None:
    world.send(b"SUB $JS.EVENT.ADVISORY.CONSUMER.CREATED.S.C 2\r\n")

    world.engine.context.advisories.consumer_action("S", "C", "create")

    (event,) = world.received()
    assert ("S", "C") == (event["stream"], event["consumer"])


def test_stores_have_their_housekeeping_done(world: World) -> None:
    world.create("S", storage="file")
    assert None is world.engine.maintain()


def test_stores_take_turns_with_their_housekeeping(world: World) -> None:
    for name in ("S", "T"):
        world.create(name, storage="file")
        # A segment with something to erase is closed, sealed and written anew.
        world.ask(name, "secret")
        world.ask(name, "kept")
        world.call(f"STREAM.MSG.DELETE.{name}", seq=1)
    first, second = world.engine.maintain(), world.engine.maintain()

    assert first is not None
    assert second is not None
    assert None is world.engine.maintain(), "each is at work"
    complete(first)
    complete(second)


def test_timers_run_in_order_and_once() -> None:
    timers = Timers()
    heard: list[str] = []
    timers.at(20, lambda now_ns: heard.append("b"))
    timers.at(10, lambda now_ns: heard.append("a"))
    timers.at(30, lambda now_ns: heard.append("c"))

    assert 10 == timers.next_deadline_ns()
    timers.run(20)
    timers.run(20)

    assert ["a", "b"] == heard
    assert 30 == timers.next_deadline_ns()


def test_a_cancelled_timer_does_nothing_and_is_not_waited_for() -> None:
    timers = Timers()
    heard: list[str] = []
    first = timers.at(10, lambda now_ns: heard.append("a"))
    second = timers.at(10, lambda now_ns: heard.append("b"))
    timers.at(10, lambda now_ns: second.cancel())
    first.cancel()

    assert not first.is_armed
    timers.run(10)

    assert None is timers.next_deadline_ns()
    assert heard in ([], ["b"])


def test_what_a_timer_schedules_for_now_waits_for_the_next_time() -> None:
    timers = Timers()
    heard: list[int] = []

    def again(now_ns: int) -> None:
        heard.append(now_ns)
        timers.at(now_ns, again)

    timers.at(10, again)
    timers.run(10)

    assert [10] == heard
