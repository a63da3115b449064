"""
What a request costs follows what it asks for, not what is stored.

A stream is filled twice, the second time with four times as many subjects, and the
request that asks for the same few of them must be about the same work (see
`test_work_bounds` for how work is counted).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import count as counting_from
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.jetstream.world import World
from tests.work import work_of

from penstock.core.broker import TURN_NS
from penstock.core.runs import new_message
from penstock.jetstream.api import streamapi
from penstock.jetstream.consumers.consumer import COUNTING_NS
from penstock.jetstream.intake import waiting
from penstock.jetstream.store import lookup, tabling, trail
from penstock.jetstream.store.memory import open_memory_store
from penstock.jetstream.store.values import StoreLimits
from penstock.jetstream.store.walk import LOOKED_AT_AT_ONCE

FEW, MANY = 5_000, 20_000
GROWTH_MAX = 1.5
"""How much more work four times as much in store may be: there are more blocks."""
MESSAGES_A_TURN = 10_000
"""Subjects or messages that may be looked at in one turn; 50 ms are enough for more of them."""
TURN_WORK_MAX = 100_000
"""Lines and calls of one turn, which are far less than 50 ms."""


def filled(directory: Path, count: int, **config: Any) -> World:
    """Return a world with a stream of `count` subjects, ten of which begin with `S.seven.`."""
    world = World(directory)
    world.create("S", subjects=["S.>"], allow_direct=True, **config)
    names = [b"S.%d.%d" % (i % 97, i) for i in range(count - 10)]
    names += [b"S.seven.%d" % i for i in range(10)]
    store = world.engine.streams["S"].store
    for start in range(0, count, 1000):
        store.append([(name, b"", b"x", world.now_ns) for name in names[start : start + 1000]])
    world.engine.streams["S"].touch()
    world.settle()
    return world


def check_growth(directory: Path, act: Callable[[World], Any], **config: Any) -> None:
    worlds = filled(directory / "few", FEW, **config), filled(directory / "many", MANY, **config)
    few, many = (work_of(lambda world=world: act(world)) for world in worlds)
    assert many < GROWTH_MAX * few + 2_000, (few, many)


@pytest.mark.parametrize("storage", ["memory", "file"])
@pytest.mark.parametrize("limit", [-1, 5])
def test_everything_is_purged_without_a_look_at_it(
    tmp_path: Path, storage: str, limit: int
) -> None:
    def purge(world: World) -> None:
        assert world.call("STREAM.PURGE.S")["purged"] in (FEW, MANY)
        assert world.state("S")["messages"] == 0

    check_growth(tmp_path, purge, storage=storage, max_msgs_per_subject=limit)


@pytest.mark.parametrize("storage", ["memory", "file"])
@pytest.mark.parametrize("limit", [-1, MANY])
@pytest.mark.parametrize("names", [1, 2, 20, MANY])
@pytest.mark.parametrize("rollup", ["sub", "all"])
def test_a_rollup_is_little_work_for_each_message(
    tmp_path: Path, storage: str, limit: int, names: int, rollup: str
) -> None:
    """It happens together with what is stored, so it cannot be done in turns."""
    world = World(tmp_path)
    options = {"allow_rollup_hdrs": True, "max_msgs_per_subject": limit}
    world.create("S", subjects=["S.>"], storage=storage, **options)
    store = world.engine.streams["S"].store
    store.append([(b"S.%d" % (i % names), b"", b"x", world.now_ns) for i in range(MANY)])
    world.settle()

    work = work_of(lambda: world.publish("S.0", Nats_Rollup=rollup))

    assert store.messages == 1 + (MANY - MANY // names if rollup == "sub" else 0)
    assert [*store.subjects(b"S.0")] == [(b"S.0", MANY + 1, 1)]
    gone = 0 if store.messages == 1 else MANY + 1 - store.messages
    assert work < MANY + 25 * gone


CONSUMER = {"ack_policy": "explicit", "deliver_policy": "all", "mem_storage": True}

REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "the subjects of a stream": ("STREAM.INFO.S", {"subjects_filter": "S.seven.*"}),
    "the last message": ("STREAM.MSG.GET.S", {"last_by_subj": "S.seven.>"}),
    "a consumer": (
        "CONSUMER.CREATE.S.c",
        {"stream_name": "S", "config": CONSUMER | {"name": "c", "filter_subject": "S.seven.*"}},
    ),
    "a consumer with many filters": (
        "CONSUMER.CREATE.S.c",
        {
            "stream_name": "S",
            "config": CONSUMER
            | {"name": "c", "filter_subjects": [f"S.seven.{i}.>" for i in range(90)]},
        },
    ),
    "a consumer of last messages": (
        "CONSUMER.CREATE.S.c",
        {
            "stream_name": "S",
            "config": CONSUMER
            | {
                "name": "c",
                "filter_subject": "S.seven.*",
                "deliver_policy": "last_per_subject",
            },
        },
    ),
}


@pytest.mark.parametrize("limit", [-1, 5])
@pytest.mark.parametrize("name", REQUESTS)
def test_a_pattern_costs_what_it_matches(tmp_path: Path, name: str, limit: int) -> None:
    call, fields = REQUESTS[name]

    def ask(world: World) -> None:
        answer = world.call(call, **fields)
        assert "error" not in answer, answer

    check_growth(tmp_path, ask, max_msgs_per_subject=limit)


@pytest.mark.parametrize("limit", [-1, 5])
def test_the_last_messages_of_a_pattern_cost_what_it_matches(tmp_path: Path, limit: int) -> None:
    def ask(world: World) -> None:
        world.publish("$JS.API.DIRECT.GET.S", '{"multi_last":["S.seven.*"]}', reply="_INBOX.m")
        assert len(world.received()) == 11  # and the end

    check_growth(tmp_path, ask, max_msgs_per_subject=limit)


@pytest.mark.parametrize("per_subject", [-1, 5])
def test_a_search_for_a_rare_message_ends_for_now(tmp_path: Path, per_subject: int) -> None:
    store = filled(tmp_path, MANY, max_msgs_per_subject=per_subject).engine.streams["S"].store
    filters = tuple(b"*.%d.rare" % i for i in range(100))

    def search() -> None:
        assert store.read(1, count_max=1, bytes_max=1, filters=filters)[0] == []

    assert work_of(search) < TURN_WORK_MAX


# What has to look at all that is stored gives others their turn again and again.


def busy(world: World) -> World:
    """Return a world in which the second look at the clock finds that a turn has gone by."""

    def later() -> int:
        world.now_ns += TURN_NS * 2 // 3
        return world.now_ns

    world.broker.clock_ns = later
    return world


def turns_of(world: World, call: str, fields: dict[str, Any]) -> list[int]:
    """Ask for something; return how much work each turn was."""
    body = json.dumps(fields).encode()
    return turns_after(
        world, b"PUB $JS.API.%b _INBOX.t %d\r\n%b\r\n" % (call.encode(), len(body), body)
    )


def turns_after(world: World, sent: bytes) -> list[int]:
    """Send something; return how much work each turn was."""
    works = [work_of(lambda: world.session.receive(sent))]
    while world.session.put_off:
        world.broker.behind.clear()
        works.append(work_of(world.session.go_on))
    return works


FOR_ALL: dict[str, tuple[str, dict[str, Any]]] = {
    "every subject": ("STREAM.INFO.S", {"subjects_filter": ">"}),
    "the subjects of a wide pattern": ("STREAM.INFO.S", {"subjects_filter": "S.*.>"}),
    "the last message of a wide pattern": ("STREAM.MSG.GET.S", {"last_by_subj": "S.*.>"}),
    "a message that is not there": ("STREAM.MSG.GET.S", {"seq": 1, "next_by_subj": "S.*.x"}),
    "a filtered purge": ("STREAM.PURGE.S", {"filter": "S.*.>"}),
    "a filtered purge but for some": ("STREAM.PURGE.S", {"filter": "S.*.>", "keep": 9_000}),
    "a purge up to a sequence": ("STREAM.PURGE.S", {"seq": MANY - 1}),
    "the last of many": ("DIRECT.GET.S", {"multi_last": ["S.*.>"], "up_to_seq": 100}),
    "the last of no subject": ("DIRECT.GET.S", {"multi_last": ["S.*.x", "S.*.y"]}),
    "a direct get of the last": ("DIRECT.GET.S", {"last_by_subj": "S.*.>"}),
    "a direct get of none": ("DIRECT.GET.S", {"seq": 1, "next_by_subj": "S.*.x"}),
    "a batch of none": ("DIRECT.GET.S", {"seq": 2, "next_by_subj": "S.*.x", "batch": 9}),
    "a long batch": ("DIRECT.GET.S", {"seq": 2, "next_by_subj": "S.*.>", "batch": 9000}),
}


WIDE: dict[str, dict[str, Any]] = {
    "a wide filter": {"filter_subject": "S.*.>"},
    "many filters": {"filter_subjects": [f"S.{i}.*" for i in range(97)]},
    "many filters that begin with a wildcard": {
        "filter_subjects": [f"S.*.{i}.>" for i in range(100)]
    },
    "the last of every subject": {"deliver_policy": "last_per_subject", "filter_subject": "S.>"},
    "the last of all": {"deliver_policy": "last", "filter_subject": "S.*.>"},
}
FOR_ALL |= {
    f"a consumer with {name}": (
        "CONSUMER.CREATE.S.c",
        {"stream_name": "S", "config": CONSUMER | {"name": "c"} | fields},
    )
    for name, fields in WIDE.items()
}


@pytest.mark.parametrize("limit", [-1, 5])
@pytest.mark.parametrize("name", FOR_ALL)
def test_who_looks_at_everything_gives_others_their_turn(
    tmp_path: Path, name: str, limit: int
) -> None:
    call, fields = FOR_ALL[name]
    world = busy(filled(tmp_path, MANY, max_msgs_per_subject=limit))

    turns = turns_of(world, call, fields)

    assert len(turns) >= MANY // MESSAGES_A_TURN
    assert max(turns) < TURN_WORK_MAX


FROM_A_SEQUENCE = {"deliver_policy": "by_start_sequence", "opt_start_seq": 2}
COUNTS: dict[str, tuple[str, dict[str, Any]]] = {
    "created": (
        "CONSUMER.CREATE.S.d",
        {
            "stream_name": "S",
            "config": CONSUMER | FROM_A_SEQUENCE | {"name": "d", "filter_subject": "S.*.>"},
        },
    ),
    "given a filter": (
        "CONSUMER.CREATE.S.c",
        {
            "stream_name": "S",
            "config": CONSUMER | FROM_A_SEQUENCE | {"name": "c", "filter_subject": "S.*.>"},
        },
    ),
    "reset": ("CONSUMER.RESET.S.c", {"seq": 3}),
    "described": ("CONSUMER.INFO.S.c", {}),
    "listed": ("CONSUMER.LIST.S", {}),
}


@pytest.mark.parametrize("name", COUNTS)
def test_the_messages_of_a_consumer_are_counted_in_turns(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = filled(tmp_path, MANY)
    old = CONSUMER | FROM_A_SEQUENCE | {"name": "c", "filter_subject": "S.*.*"}
    world.call("CONSUMER.CREATE.S.c", stream_name="S", config=old)
    # After more removals than are remembered, what was counted does not hold any more.
    monkeypatch.setattr(trail, "NOTED_MAX", 0)
    world.engine.streams["S"].remove([MANY - 5])
    world.settle()
    call, fields = COUNTS[name]

    turns = turns_of(busy(world), call, fields)
    world.settle()

    assert len(turns) >= MANY // MESSAGES_A_TURN
    assert max(turns) < TURN_WORK_MAX
    (answer,) = world.received()
    start = 3 if name == "reset" else 2
    described = answer["consumers"][0] if name == "listed" else answer
    assert described["num_pending"] == MANY - start


ONE_GOES: dict[str, tuple[dict[str, Any], Callable[[World], Any]]] = {
    "deleted": ({}, lambda world: world.call("STREAM.MSG.DELETE.S", seq=MANY - 5)),
    "purged": ({}, lambda world: world.call("STREAM.PURGE.S", filter="S.seven.3")),
    "replaced": ({"max_msgs_per_subject": 1}, lambda world: world.publish("S.seven.3")),
    "rolled up": (
        {"allow_rollup_hdrs": True},
        lambda world: world.publish("S.seven.3", Nats_Rollup="sub"),
    ),
    "one too many": ({"max_msgs": MANY}, lambda world: world.publish("S.new.1")),
    "expired": ({"allow_msg_ttl": True}, lambda world: expire(world)),
    "acked by another": ({"retention": "workqueue"}, lambda world: work_off(world)),
}


def expire(world: World) -> None:
    world.publish("S.new.1", Nats_TTL="1s")
    world.advance(3)


def work_off(world: World) -> None:
    """Have another consumer take and ack a message."""
    config = CONSUMER | {"name": "d", "filter_subject": "S.a.b.c"}
    world.call("CONSUMER.CREATE.S.d", stream_name="S", config=config)
    world.publish("S.a.b.c")
    world.publish("$JS.API.CONSUMER.MSG.NEXT.S.d", reply="_INBOX.d")
    world.settle()
    (delivery,) = world.operations()
    world.send(b"PUB %b 0\r\n\r\n" % delivery[3])


@pytest.mark.parametrize("name", ONE_GOES)
@pytest.mark.parametrize("storage", ["memory", "file"])
def test_a_message_that_goes_does_not_have_all_counted_again(
    tmp_path: Path, name: str, storage: str
) -> None:
    options, remove = ONE_GOES[name]
    world = filled(tmp_path, MANY, storage=storage, **options)
    config = CONSUMER | {"name": "c", "filter_subject": "S.*.*"}
    if "retention" not in options:
        config |= FROM_A_SEQUENCE
    world.call("CONSUMER.CREATE.S.c", stream_name="S", config=config)
    store = world.engine.streams["S"].store
    before = store.removals
    remove(world)
    world.settle()
    world.received()
    assert store.removals == before + 1
    # What matches is not remembered for ever: without this, a count of all is hardly noticed.
    store._catalog._matchers.clear()
    request = b"PUB $JS.API.CONSUMER.MSG.NEXT.S.c _INBOX.c 0\r\n\r\n"

    assert work_of(lambda: world.send(request)) < FEW
    pending = int(world.operations()[0][3].rpartition(b".")[2])
    assert pending == store.count(2, (b"S.*.*",)) - ("retention" not in options)


def remove_many(world: World) -> None:
    world.engine.streams["S"].remove(range(7, MANY, 9))


def publish_many(world: World) -> None:
    store, now_ns = world.engine.streams["S"].store, world.now_ns
    for start in range(0, MANY, 1000):
        store.append([(b"S.new.%d" % i, b"", b"x", now_ns) for i in range(start, start + 1000)])
    world.engine.streams["S"].touch()


@pytest.mark.parametrize("change", [remove_many, publish_many])
@pytest.mark.parametrize("is_again", [False, True])
@pytest.mark.parametrize("storage", ["memory", "file"])
def test_a_delivery_waits_while_its_messages_are_counted_in_turns(
    tmp_path: Path,
    change: Callable[[World], None],
    is_again: bool,
    storage: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trail, "NOTED_MAX", MANY // 20)
    world = filled(tmp_path, MANY, storage=storage)
    config = CONSUMER | FROM_A_SEQUENCE | {"name": "c", "filter_subject": "S.*.*"}
    world.call("CONSUMER.CREATE.S.c", stream_name="S", config=config)
    request = b"PUB $JS.API.CONSUMER.MSG.NEXT.S.c _INBOX.c 0\r\n\r\n"
    world.send(request)
    ack = world.operations()[0][3]
    if is_again:
        world.send(b"PUB %b 4\r\n-NAK\r\n" % ack)
    change(world)
    world.settle()
    store = world.engine.streams["S"].store
    store._catalog._matchers.clear()
    looks = counting_from(world.now_ns, COUNTING_NS)
    monkeypatch.setattr(world.shared.clock, "_clock_ns", lambda: next(looks))

    turns = [work_of(lambda: world.session.receive(request))]
    while not (delivered := world.operations()):
        turns.append(work_of(lambda: world.shared.timers.run(world.shared.clock_ns())))

    assert len(turns) >= MANY // MESSAGES_A_TURN
    assert max(turns) < TURN_WORK_MAX
    sequence, pending = (int(delivered[0][3].split(b".")[at]) for at in (5, 8))
    assert sequence == (2 if is_again else 3)
    assert pending == store.count(4 if not is_again else 3, (b"S.*.*",))


def test_what_does_not_want_to_wait_waits_for_the_count_only(tmp_path: Path) -> None:
    world = filled(tmp_path, FEW)
    config = CONSUMER | {"name": "c", "filter_subject": "T.*.*"}
    world.create("T", subjects=["T.>"])
    world.call("CONSUMER.CREATE.T.c", stream_name="T", config=config)
    store = world.engine.streams["T"].store
    for _ in range(MANY // 1000):
        store.append([(b"T.x", b"", b"x", world.now_ns)] * 1000)
    world.engine.streams["T"].touch()
    world.settle()
    no_wait = b'{"no_wait":true,"batch":1}'
    request = b"PUB $JS.API.CONSUMER.MSG.NEXT.T.c _INBOX.c %d\r\n%b\r\n"

    world.send(request % (len(no_wait), no_wait))
    while not (answers := world.received()):
        world.advance(0)

    assert answers == [(b"NATS/1.0 404 No Messages\r\n\r\n", b"")]


def test_a_consumer_of_last_messages_begins_again_in_turns(tmp_path: Path) -> None:
    world = filled(tmp_path, MANY)
    last = CONSUMER | {"name": "c", "filter_subject": "S.*.*", "deliver_policy": "last_per_subject"}
    world.call("CONSUMER.CREATE.S.c", stream_name="S", config=last)
    world.engine.streams["S"].remove([MANY - 5])
    world.settle()

    turns = turns_of(busy(world), "CONSUMER.RESET.S.c", {})
    world.settle()

    assert len(turns) >= MANY // MESSAGES_A_TURN
    assert max(turns) < TURN_WORK_MAX
    (answer,) = world.received()
    assert answer["num_pending"] == MANY - 1


def test_messages_that_come_and_go_while_they_are_counted_are_counted_right(tmp_path: Path) -> None:
    world = busy(filled(tmp_path, MANY))
    body = json.dumps(COUNTS["created"][1]).encode()
    begin(world, b"PUB $JS.API.CONSUMER.CREATE.S.d _INBOX.t %d\r\n%b\r\n" % (len(body), body))
    world.engine.streams["S"].store.append([(b"S.1.x", b"", b"", world.now_ns)] * 3)
    world.engine.streams["S"].remove([2, 3, MANY - 5])

    (answer,) = finish(world)

    assert answer["num_pending"] == MANY - 1 + 3 - 3


@pytest.mark.parametrize("name", ["described", "listed", "reset", "created"])
def test_a_stream_that_is_deleted_answers_a_count_that_waits(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trail, "NOTED_MAX", 0)
    world = filled(tmp_path, MANY, storage="file")
    old = CONSUMER | FROM_A_SEQUENCE | {"name": "c", "filter_subject": "S.*.*"}
    world.call("CONSUMER.CREATE.S.c", stream_name="S", config=old)
    world.engine.streams["S"].remove([MANY - 5])
    world.settle()
    call, fields = COUNTS[name]
    body = json.dumps(fields).encode()
    sent = b"PUB $JS.API.%b _INBOX.t %d\r\n%b\r\n" % (call.encode(), len(body), body)
    begin(busy(world), sent)
    world.engine.streams["S"].store.append([(b"S.unsafe", b"", b"", world.now_ns)])
    world.engine.delete_stream(world.engine.streams["S"], lambda: None)

    (answer,) = finish(world)

    assert answer["error"]["code"] == 404


@pytest.mark.parametrize("storage", ["memory", "file"])
def test_a_direct_get_in_turns_answers_as_one_in_a_single_turn(
    tmp_path: Path, storage: str
) -> None:
    questions = [fields for call, fields in FOR_ALL.values() if call == "DIRECT.GET.S"]
    calm = filled(tmp_path / "calm", FEW, storage=storage)
    hurried = busy(filled(tmp_path / "hurried", FEW, storage=storage))
    for fields in questions:
        calm.publish("$JS.API.DIRECT.GET.S", json.dumps(fields), reply="_INBOX.t")
        turns_of(hurried, "DIRECT.GET.S", fields)

        expected, answered = calm.received(), hurried.received()
        assert len(expected) == len(answered) > 0
        for one, other in zip(expected, answered, strict=True):
            assert without_time(one) == without_time(other)


def without_time(answer: tuple[bytes, bytes]) -> tuple[list[bytes], bytes]:
    lines = answer[0].split(b"\r\n")
    return [line for line in lines if not line.startswith(b"Nats-Time-Stamp")], answer[1]


@pytest.mark.parametrize("limit", [-1, 100_000])
def test_removed_last_messages_cost_one_walk_however_many_they_are(
    tmp_path: Path, limit: int
) -> None:
    def found(directory: str, removals: int) -> int:
        world = filled(tmp_path / directory, FEW, max_msgs_per_subject=limit)
        store = world.engine.streams["S"].store
        names = [subject for subject, _, _ in store.subjects()]
        store.append([(name, b"", b"y", world.now_ns) for name in names])
        gone = names[:removals]
        store.remove([store.last(name)[0] for name in gone])
        return work_of(lambda: [store.last(name) for name in gone])

    few, many = found("few", 1), found("many", 1000)

    assert many < few + 100 * 1000


def test_subjects_whose_last_message_is_gone_are_listed_without_a_search(tmp_path: Path) -> None:
    def listed(directory: str, removals: int) -> int:
        world = filled(tmp_path / directory, FEW)
        store = world.engine.streams["S"].store
        names = [subject for subject, _, _ in store.subjects()]
        store.append([(name, b"", b"y", world.now_ns) for name in names])
        store.remove([store.last(name)[0] for name in names[:removals]])
        world.settle()
        return work_of(lambda: world.call("STREAM.INFO.S", subjects_filter="S.>"))

    assert listed("many", 1000) < 1.1 * listed("none", 0)


def test_what_changes_during_the_walk_for_last_messages_is_not_mistaken(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("S", subjects=["S.>"])
    store = world.engine.streams["S"].store
    old = [b"S.a", b"S.b", b"S.c"]
    store.append([(name, b"", b"old", world.now_ns) for name in old])
    store.append([(b"S.x", b"", b"", world.now_ns)] * (2 * LOOKED_AT_AT_ONCE))
    first = store.append([(name, b"", b"new", world.now_ns) for name in (*old, b"S.c")])
    store.remove([first, first + 1])
    walk = iter(store.refreshing())
    next(walk)

    store.append([(b"S.b", b"", b"newer", world.now_ns)] * 2)
    store.remove([store.last_sequence, first + 3])
    for _ in walk:
        pass

    assert [(1, 1), (first + 4, 2), (first + 2, 2)] == [store.last(name) for name in old]


def test_subjects_are_listed_a_page_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamapi, "SUBJECT_DETAILS_MAX", 3000)
    monkeypatch.setattr(streamapi, "ENCODED_AT_ONCE", 1000)
    world = filled(tmp_path, FEW)
    pages = [
        world.call("STREAM.INFO.S", subjects_filter="S.>", offset=offset)
        for offset in (0, 3000, 6000)
    ]

    listed = [page["state"].get("subjects", {}) for page in pages]
    assert [len(each) for each in listed] == [3000, 2000, 0]
    names = [name for each in listed for name in each]
    assert names == sorted(names)
    assert {page["total"] for page in pages} == {FEW}
    assert set(listed[0].values()) == {1}


def test_what_is_published_during_a_purge_stays(tmp_path: Path) -> None:
    world = busy(filled(tmp_path, FEW))
    body = b'{"filter":"S.*.>"}'
    world.session.receive(b"PUB $JS.API.STREAM.PURGE.S _INBOX.t %d\r\n%b\r\n" % (len(body), body))
    assert world.session.put_off
    store = world.engine.streams["S"].store
    store.append([(b"S.1.1", b"", b"new", world.now_ns)])
    while world.session.put_off:
        world.broker.behind.clear()
        world.session.go_on()

    assert store.messages == 1
    assert store.last(b"S.1.1") == (FEW + 1, 1)


def test_a_stream_that_is_deleted_ends_a_purge(tmp_path: Path) -> None:
    world = busy(filled(tmp_path, FEW))
    body = b'{"filter":"S.*.>"}'
    world.session.receive(b"PUB $JS.API.STREAM.PURGE.S _INBOX.t %d\r\n%b\r\n" % (len(body), body))
    stream = world.engine.streams["S"]
    world.engine.delete_stream(stream, lambda: None)
    while world.session.put_off:
        world.broker.behind.clear()
        world.session.go_on()

    assert stream.store.messages > 0


@pytest.mark.parametrize("limit", [{"max_msgs": 100}, {"max_bytes": 100}])
@pytest.mark.parametrize("per_subject", [-1, 5])
def test_a_lower_limit_is_reached_in_turns(
    tmp_path: Path, limit: dict[str, int], per_subject: int
) -> None:
    fields = {"name": "S", "subjects": ["S.>"], "storage": "memory", "allow_direct": True}
    fields["max_msgs_per_subject"] = per_subject
    world = busy(filled(tmp_path, MANY, max_msgs_per_subject=per_subject))

    turns = turns_of(world, "STREAM.UPDATE.S", fields | limit)

    assert len(turns) >= MANY // MESSAGES_A_TURN
    assert max(turns) < TURN_WORK_MAX
    (answer,) = world.received()
    assert answer["state"]["messages"] <= 100
    assert limit.items() <= answer["config"].items()


LIMITS_PER_SUBJECT = {"added": (-1, 3), "lowered": (9, 3), "raised": (3, 9), "removed": (3, -1)}


@pytest.mark.parametrize("names", [1, 7, MANY])
@pytest.mark.parametrize("change", LIMITS_PER_SUBJECT)
def test_a_new_limit_per_subject_is_applied_in_turns(
    tmp_path: Path, change: str, names: int
) -> None:
    old, new = LIMITS_PER_SUBJECT[change]
    world = World(tmp_path)
    world.create("S", subjects=["S.>"], storage="memory", max_msgs_per_subject=old)
    store = world.engine.streams["S"].store
    entries = [(b"S.%d" % (i % names), b"", b"x", world.now_ns) for i in range(MANY)]
    for start in range(0, MANY, 1000):
        store.append(entries[start : start + 1000])
    fields = {"name": "S", "subjects": ["S.>"], "storage": "memory", "max_msgs_per_subject": new}

    turns = turns_of(busy(world), "STREAM.UPDATE.S", fields)

    assert len(turns) >= MANY // MESSAGES_A_TURN or change == "raised"
    assert max(turns) < TURN_WORK_MAX
    (answer,) = world.received()
    assert answer["config"]["max_msgs_per_subject"] == new
    each = min([limit for limit in (old, new, MANY // names) if limit > 0])
    assert [*store.subjects(b"S.0")] == [(b"S.0", (MANY - 1) // names * names + 1, each)]
    assert answer["state"]["messages"] == store.messages == each * names


OTHER_LIMITS = st.sampled_from([0, 1, 2, 3, 5])


@given(st.data(), OTHER_LIMITS, OTHER_LIMITS, OTHER_LIMITS)
def test_what_changes_while_a_limit_is_applied_is_counted(
    data: st.DataObject, old: int, new: int, third: int
) -> None:
    """Two changes at once: the last one counts, and the tables are as if made from nothing."""
    store = open_memory_store(limits=StoreLimits(messages_per_subject_max=old))
    names = st.lists(st.sampled_from([b"S.a", b"S.b", b"S.c"]), min_size=1, max_size=9)

    def change() -> None:
        last = store.last_sequence
        match data.draw(st.integers(0, 6)):
            case 0:
                store.remove(data.draw(st.lists(st.integers(1, max(last, 1)))))
            case 1:
                store.purge(b"S.a", before=data.draw(st.integers(0, last)))
            case 2:
                store.purge(b">", before=data.draw(st.integers(0, last + 2)))
            case 3:
                store.skip(data.draw(st.integers(1, 9)))
            case _:
                store.append([(name, b"", b"x" * 2048, 1) for name in data.draw(names)])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tabling, "TABLED_AT_ONCE", 3)
        for _ in range(data.draw(st.integers(0, 6))):
            change()
        limits = [StoreLimits(messages_per_subject_max=each) for each in (new, third)]
        with store.prepared(limits[0]) as one, store.prepared(limits[1]) as other:
            for _ in data.draw(st.sampled_from([one, zip_longest(one, other)])):
                change()
            store.limits = limits[data.draw(st.integers(0, 1))]
    limit = store.limits.messages_per_subject_max
    for _ in range(2):
        left = [message[2] for messages in lookup.batches(store) for message in messages]
        assert len(left) == store.messages
        counted = {name: count for name, _, count in store.subjects()}
        assert counted == Counter(left)
        assert max(counted.values(), default=0) <= (limit or MANY)
        for name in counted:
            assert store.get(store.last(name)[0])[2] == name
            assert all(
                store.get(each) is None or store.get(each)[2] != name
                for each in range(store.last(name)[0] + 1, store.last_sequence + 1)
            )
        change()


def test_a_stream_that_is_deleted_ends_its_update(tmp_path: Path) -> None:
    world = busy(filled(tmp_path, FEW, storage="memory"))
    fields = {"name": "S", "subjects": ["S.>"], "storage": "memory", "max_msgs_per_subject": 1}
    body = json.dumps(fields).encode()
    world.session.receive(b"PUB $JS.API.STREAM.UPDATE.S _INBOX.t %d\r\n%b\r\n" % (len(body), body))
    world.engine.delete_stream(world.engine.streams["S"], lambda: None)
    while world.session.put_off:
        world.broker.behind.clear()
        world.session.go_on()

    (answer,) = world.received()
    assert answer["error"]["description"] == "stream not found"


def test_messages_that_go_while_they_wait_for_acks_are_settled_in_turns(tmp_path: Path) -> None:
    world = filled(tmp_path, MANY)
    world.call("CONSUMER.CREATE.S.c", stream_name="S", config=CONSUMER | {"name": "c"})
    ledger = world.engine.streams["S"].consumers["c"].ledger
    ledger.deliver(range(1, MANY + 1), world.now_ns)
    world.call("STREAM.PURGE.S", seq=MANY)

    works: list[int] = []
    while len(ledger.pending) > 1:
        world.now_ns += 100_000_000
        works.append(work_of(lambda: world.shared.timers.run(world.now_ns)))
        world.settle()

    assert max(works) < TURN_WORK_MAX
    assert [MANY] == [*ledger.pending]


@given(st.data())
def test_what_is_missing_is_found_as_by_a_look_at_each(data: st.DataObject) -> None:
    store = open_memory_store()
    for count in data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4)):
        store.append([(b"S.a", b"", b"x" * 4096, 1)] * count)
        last = store.last_sequence
        store.remove(data.draw(st.lists(st.integers(1, last))))
        if data.draw(st.booleans()):
            store.skip(data.draw(st.integers(1, 9)))
    asked = sorted(data.draw(st.sets(st.integers(1, store.last_sequence + 3))))

    assert [each for each in asked if store.get(each) is None] == store.missing(asked)


# A message that expects the last sequence of a pattern.


def expecting(
    subject: bytes,
    pattern: bytes,
    sequence: int = 0,
    extra: bytes = b"",
    reply: bytes = b"_INBOX.p",
) -> bytes:
    expected = b"Nats-Expected-Last-Subject-Sequence"
    header = b"NATS/1.0\r\n%b: %d\r\n%b-Subject: %b\r\n" % (expected, sequence, expected, pattern)
    header += extra + b"\r\n"
    return b"HPUB %b %b %d %d\r\n%b\r\n" % (subject, reply, len(header), len(header), header)


def begin(world: World, sent: bytes) -> None:
    world.session.receive(sent)
    assert world.session.put_off


def finish(world: World) -> list[Any]:
    while world.session.put_off:
        world.broker.behind.clear()
        world.session.go_on()
    world.settle()
    return world.received()


@pytest.mark.parametrize("limit", [-1, 5])
def test_a_last_message_that_is_not_there_is_looked_for_in_turns(
    tmp_path: Path, limit: int
) -> None:
    world = busy(filled(tmp_path, MANY, max_msgs_per_subject=limit))
    hundred = b"".join(expecting(b"S.new", b"S.*.x.%d" % i) for i in range(100))

    turns = turns_after(world, hundred)
    world.settle()

    assert len(turns) >= 100 * MANY // MESSAGES_A_TURN
    assert max(turns) < TURN_WORK_MAX
    assert [MANY + 1 + i for i in range(100)] == [each["seq"] for each in world.received()]


@pytest.mark.parametrize("pattern", [b"S.seven.*", b"S.*.>"])
def test_the_last_message_of_a_pattern_is_found_among_few(tmp_path: Path, pattern: bytes) -> None:
    """The subjects of one are few; the last message of the other is the newest."""

    def ask(world: World) -> None:
        last = world.engine.streams["S"].store.last_sequence
        world.send(expecting(b"S.new", pattern, last))
        world.settle()
        (answer,) = world.received()
        assert answer["seq"] == last + 1

    check_growth(tmp_path, ask)


def test_a_last_message_that_was_found_is_not_looked_for_again(tmp_path: Path) -> None:
    world = filled(tmp_path, MANY)
    world.send(expecting(b"S.new", b"S.*.x"))

    again = work_of(lambda: world.send(expecting(b"S.new", b"S.*.x")))

    assert again < FEW
    world.settle()
    assert [MANY + 1, MANY + 2] == [each["seq"] for each in world.received()]


def test_what_comes_during_the_search_for_a_last_message_counts(tmp_path: Path) -> None:
    world = busy(filled(tmp_path, MANY))
    begin(world, expecting(b"S.new", b"S.*.x"))
    world.engine.streams["S"].store.append([(b"S.1.x", b"", b"", world.now_ns)])

    (answer,) = finish(world)

    assert answer["error"]["description"] == f"wrong last sequence: {MANY + 1}"


def test_messages_stay_in_order_behind_one_that_waits(tmp_path: Path) -> None:
    world = busy(filled(tmp_path, MANY))
    later = b"".join(b"PUB S.%d _INBOX.%d 1\r\n%d\r\n" % (i, i, i) for i in range(5))
    begin(world, expecting(b"S.new", b"S.*.x") + later + expecting(b"S.new", b"S.*.y"))

    answers = finish(world)

    assert [MANY + 1 + i for i in range(7)] == [each["seq"] for each in answers]
    stored = [each[2] for each in world.messages("S")[-7:]]
    assert [b"", b"0", b"1", b"2", b"3", b"4", b""] == stored


def test_others_store_while_a_message_waits(tmp_path: Path) -> None:
    world = busy(filled(tmp_path, MANY))
    begin(world, expecting(b"S.new", b"S.*.x"))
    other = world.broker.open("127.0.0.1", 2)
    other.receive(b'CONNECT {"verbose":false}\r\nPUB S.other 1\r\nx\r\n')
    assert world.engine.streams["S"].store.last(b"S.other") == (MANY + 1, 1)

    assert [MANY + 2] == [each["seq"] for each in finish(world)]


def test_a_stream_that_is_deleted_answers_a_message_that_waits(tmp_path: Path) -> None:
    world = busy(filled(tmp_path, MANY))
    begin(world, expecting(b"S.new", b"S.*.x"))
    world.engine.delete_stream(world.engine.streams["S"], lambda: None)

    ((header, _),) = finish(world)

    assert header.startswith(b"NATS/1.0 503")


def test_a_disk_that_fails_answers_a_message_that_waits(tmp_path: Path) -> None:
    world = busy(filled(tmp_path, MANY, storage="file"))
    begin(world, expecting(b"S.new", b"S.*.x"))
    world.disk.is_broken = True
    assert finish(world) == []

    # Now it is known what the disk has.
    world.disk.is_broken = False
    world.advance(1.1)
    (answer,) = world.received()
    assert answer["error"]["err_code"] == 10077  # not stored


def test_a_batch_looks_for_last_messages_in_turns(tmp_path: Path) -> None:
    world = busy(filled(tmp_path, MANY, allow_atomic=True))

    turns = turns_after(world, b"".join(batch_of(9)))
    world.settle()

    assert len(turns) >= 9 * MANY // MESSAGES_A_TURN
    assert max(turns) < TURN_WORK_MAX
    assert world.received()[-1]["seq"] == MANY + 9


def batch_of(count: int) -> list[bytes]:
    """Return the messages of a batch, each of which expects that a pattern has no message."""
    numbers = [b"Nats-Batch-Id: b\r\nNats-Batch-Sequence: %d\r\n" % i for i in range(1, count + 1)]
    numbers[-1] += b"Nats-Batch-Commit: 1\r\n"
    return [expecting(b"S.new.%d" % i, b"S.*.x.%d" % i, 0, each) for i, each in enumerate(numbers)]


def publish_meanwhile(world: World, each: int, turns_max: int) -> list[int]:
    """Publish in each turn of a client that waits; return how much work each turn was."""
    store, works = world.engine.streams["S"].store, []
    while world.session.put_off:
        if len(works) < turns_max:
            start = store.last_sequence
            store.append([(b"S.1.%d.new" % (start + i), b"", b"", 1) for i in range(each)])
        world.broker.behind.clear()
        works.append(work_of(world.session.go_on))
    world.settle()
    return works


def test_what_others_publish_is_compared_with_a_batch_in_turns(tmp_path: Path) -> None:
    world = busy(filled(tmp_path, FEW, allow_atomic=True))
    world.session.receive(b"".join(batch_of(60)))

    works = publish_meanwhile(world, 30, 240)

    assert max(works) < TURN_WORK_MAX
    assert world.received()[-1]["count"] == 60


def test_a_batch_that_others_do_not_leave_alone_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "ROUNDS_MAX", 2)
    monkeypatch.setattr(waiting, "LOOKED_AT_AT_ONCE", 0)
    world = busy(filled(tmp_path, FEW, allow_atomic=True))
    world.session.receive(b"".join([*batch_of(9), b"PUB S.after _INBOX.p 0\r\n\r\n"]))

    publish_meanwhile(world, 1, 10_000)

    refused, after = world.received()[-2:]
    assert refused["error"]["description"] == "too much is published to compare it with"
    assert after["seq"] == world.engine.streams["S"].store.last_sequence
    assert world.engine.streams["S"].store.last(b"S.new.0") == (0, 0)


@pytest.mark.parametrize("only", [b"", b"Nats-Trace-Only: true\r\n"])
def test_a_traced_message_looks_for_a_last_message_in_turns(tmp_path: Path, only: bytes) -> None:
    world = busy(filled(tmp_path, MANY))
    extra = b"Nats-Trace-Dest: _INBOX.trace\r\n" + only
    later = b"PUB S.later _INBOX.p 0\r\n\r\n"

    turns = turns_after(world, expecting(b"S.new", b"S.*.x", 5, extra) + later)
    world.settle()

    assert len(turns) >= MANY // MESSAGES_A_TURN
    assert max(turns) < TURN_WORK_MAX
    answers = [each if isinstance(each, dict) else {} for each in world.received()]
    (noted,) = [each["events"][-1] for each in answers if "events" in each]
    assert noted["error"] == "last sequence by subject mismatch: 5 vs 0"
    assert [MANY + 1] == [each["seq"] for each in answers if "error" not in each and "seq" in each]
    assert 1 == len([each for each in answers if "error" in each])


def test_deliveries_that_expect_a_last_message_give_others_their_turn(tmp_path: Path) -> None:
    world = filled(tmp_path, MANY)
    begun = work_of(
        lambda: world.engine.account.publish(
            [
                new_message(
                    b"S.new",
                    b"",
                    header=b"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: 0\r\n"
                    b"Nats-Expected-Last-Subject-Sequence-Subject: S.*.x\r\n\r\n",
                )
            ],
            None,
        )
    )
    store = world.engine.streams["S"].store
    assert store.last_sequence == MANY
    assert begun < TURN_WORK_MAX

    works = []
    while store.last_sequence == MANY:
        works.append(work_of(lambda: world.shared.timers.run(world.now_ns)))

    assert len(works) >= MANY // MESSAGES_A_TURN
    assert max(works) < TURN_WORK_MAX


@given(st.data())
def test_a_last_message_is_found_as_by_a_look_at_each(data: st.DataObject) -> None:
    store = open_memory_store()
    pattern = data.draw(st.sampled_from([b"S.*", b"S.a.>", b"S.*.b", b">"]))
    names = st.sampled_from([b"S.a", b"S.b", b"S.a.b", b"S.b.b", b"S.a.c"])

    def change() -> None:
        subjects = data.draw(st.lists(names, max_size=200))
        store.append([(name, b"", b"", 1) for name in subjects])
        if store.last_sequence:
            store.remove(data.draw(st.lists(st.integers(1, store.last_sequence))))

    change()
    for _ in range(3):
        steps, found = store.finding_last(pattern), -1
        while found < 0:
            try:
                next(steps)
            except StopIteration as end:
                found = end.value
            else:
                change()
        expected = [last for _, last, _ in store.subjects(pattern)]
        assert found == max(expected, default=0)
        change()


# What a stream does by itself, it does in turns as well.

GONE_AT_ONCE = 5000
"""The number of messages that may go in one turn."""


def stored(directory: Path, count: int, header: bytes = b"", **config: Any) -> World:
    world = World(directory)
    world.create("S", subjects=["S.>"], **config)
    stream = world.engine.streams["S"]
    for start in range(0, count, 1000):
        stream.store.append(
            [(b"S.%d" % i, header, b"x", world.now_ns) for i in range(start, start + 1000)]
        )
    stream.touch()
    world.settle()
    return world


def turns_until_empty(world: World) -> list[int]:
    """Run what is due until nothing is left; return how many messages each turn removed."""
    store, removed = world.engine.streams["S"].store, []
    while store.messages:
        before, due_ns = store.messages, world.shared.timers.next_deadline_ns()
        assert due_ns is not None
        world.now_ns = max(world.now_ns, due_ns)
        world.shared.timers.run(world.now_ns)
        world.settle()
        removed.append(before - store.messages)
    return removed


@pytest.mark.parametrize("marks", [False, True])
def test_messages_whose_time_is_up_together_go_in_turns(tmp_path: Path, marks: bool) -> None:
    extra = {"subject_delete_marker_ttl": 10**9, "allow_rollup_hdrs": True} if marks else {}
    header = b"NATS/1.0\r\nNats-TTL: 5s\r\n\r\n"
    world = stored(tmp_path, MANY, header, allow_msg_ttl=True, **extra)
    world.engine.streams["S"].intake.expiry.recover()

    assert max(turns_until_empty(world)) <= GONE_AT_ONCE


@pytest.mark.parametrize("extra", [{}, {"allow_msg_ttl": True}])
@pytest.mark.parametrize("updates", [False, True])
def test_messages_that_grow_old_together_go_in_turns(
    tmp_path: Path, updates: bool, extra: dict[str, Any]
) -> None:
    config = {"storage": "memory", **extra}
    age_ns = 10**9
    world = stored(tmp_path, MANY, **config, **({} if updates else {"max_age": age_ns}))
    world.now_ns += 2 * age_ns
    store = world.engine.streams["S"].store
    if updates:
        world.call("STREAM.UPDATE.S", name="S", subjects=["S.>"], max_age=age_ns, **config)
        assert store.messages >= MANY - GONE_AT_ONCE

    assert max(turns_until_empty(world)) <= GONE_AT_ONCE


@pytest.mark.parametrize("storage", ["memory", "file"])
def test_messages_that_no_consumer_wants_any_more_go_in_turns(tmp_path: Path, storage: str) -> None:
    world = stored(tmp_path, MANY, retention="interest", storage=storage)
    store = world.engine.streams["S"].store
    for name in ("one", "two"):
        config = {"name": name, "durable_name": name, "filter_subject": "S.>"}
        world.call(f"CONSUMER.CREATE.S.{name}", stream_name="S", config=config)
    world.advance(0.001)
    world.call("CONSUMER.DELETE.S.one")
    world.call("CONSUMER.DELETE.S.two")

    assert store.messages >= MANY - GONE_AT_ONCE
    assert max(turns_until_empty(world)) <= GONE_AT_ONCE


def test_a_consumer_that_ends_during_a_look_leaves_nothing_behind(tmp_path: Path) -> None:
    """The look has passed messages that this consumer alone still wanted."""
    world = stored(tmp_path, MANY, retention="interest")
    for name, pattern in (("keeps", "S.7"), ("leaves", "S.>"), ("third", "S.9")):
        config = {"name": name, "durable_name": name, "filter_subject": pattern}
        world.call(f"CONSUMER.CREATE.S.{name}", stream_name="S", config=config)
    world.call("CONSUMER.DELETE.S.third")
    world.call("CONSUMER.DELETE.S.leaves")
    for _ in range(3 * MANY // 1000):
        world.advance(0.001)

    assert [7 + 1] == [each[0] for each in world.messages("S")]
