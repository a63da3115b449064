"""
What a request costs follows what it asks for, not what is stored.

A stream is filled twice, the second time with four times as many subjects, and the
request that asks for the same few of them must be about the same work (see
`test_work_bounds` for how work is counted).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.jetstream.world import World
from tests.work import work_of

from penstock.core.broker import TURN_NS
from penstock.jetstream.api import streamapi

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
    asked = b"PUB $JS.API.%b _INBOX.t %d\r\n%b\r\n" % (call.encode(), len(body), body)
    works = [work_of(lambda: world.session.receive(asked))]
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
    "a purge up to a sequence": ("STREAM.PURGE.S", {"seq": MANY - 1}),
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
