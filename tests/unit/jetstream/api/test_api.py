"""Calls of the API, where the recorded transcripts do not say it: paging, domains, direct gets."""

from pathlib import Path

import pytest
from tests.unit.jetstream.world import World, error

from penstock.jetstream.api import streamapi
from penstock.protocol.rfc3339 import format_time, parse_time
from penstock.protocol.version import API_LEVEL


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_names_come_in_pages(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamapi, "NAMES_MAX", 2)
    for name in ("C", "A", "B"):
        world.create(name)

    first, second = world.call("STREAM.NAMES"), world.call("STREAM.NAMES", offset=2)

    assert (3, 0, 2, ["A", "B"]) == tuple(
        first[key] for key in ("total", "offset", "limit", "streams")
    )
    assert (3, 2, 2, ["C"]) == tuple(second[key] for key in ("total", "offset", "limit", "streams"))


def test_streams_come_in_pages(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamapi, "LIST_MAX", 1)
    for name in ("A", "B"):
        world.create(name)

    page = world.call("STREAM.LIST", offset=1)

    assert ["B"] == [stream["config"]["name"] for stream in page["streams"]]
    assert 2 == page["total"]


def test_subjects_come_in_pages(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamapi, "SUBJECT_DETAILS_MAX", 2)
    world.create("S", subjects=["s.>"])
    for subject in ("s.c", "s.a", "s.b", "s.a"):
        world.ask(subject, "x")

    first = world.call("STREAM.INFO.S", subjects_filter=">")
    second = world.call("STREAM.INFO.S", subjects_filter=">", offset=2)

    assert {"s.a": 2, "s.b": 1} == first["state"]["subjects"]
    assert {"s.c": 1} == second["state"]["subjects"]
    assert (3, 2, 2) == tuple(second[key] for key in ("total", "offset", "limit"))


def test_the_account_is_told_what_it_uses(world: World) -> None:
    world.create("S", max_bytes=5000)
    world.ask("S", "x" * 100)

    info = world.call("INFO")

    assert (1, 0, 5000) == (info["streams"], info["storage"], info["reserved_memory"])
    assert info["memory"] == world.state("S")["bytes"]


def test_the_api_of_a_domain_answers_too(tmp_path: Path) -> None:
    world = World(tmp_path, domain="hub")

    world.ask("$JS.hub.API.STREAM.CREATE.S", '{"name":"S","storage":"memory"}')

    assert "hub" == world.ask("$JS.hub.API.STREAM.INFO.S")["domain"]
    assert "hub" == world.call("INFO")["domain"]


def test_an_api_subject_that_nobody_knows_gets_no_answer(world: World) -> None:
    for subject in ("NOPE", "STREAM.CREATE", "STREAM.CREATE.A.B", "STREAM.NAMES.X"):
        world.publish(f"$JS.API.{subject}", reply="_INBOX.1")
    assert [] == world.received()


def test_a_call_without_a_reply_is_made_all_the_same(world: World) -> None:
    world.publish("$JS.API.STREAM.CREATE.S", '{"name":"S","storage":"memory"}')
    assert ["S"] == list(world.engine.streams)


def test_a_call_for_a_newer_server_is_refused(world: World) -> None:
    answer = world.ask("$JS.API.INFO", "", Nats_Required_Api_Level=str(API_LEVEL + 1))
    assert (10185, "JetStream minimum api level required") == error(answer)
    assert "error" not in world.ask("$JS.API.INFO", "", Nats_Required_Api_Level=str(API_LEVEL))


def test_a_direct_get_for_a_newer_server_is_refused(world: World) -> None:
    world.create("S", allow_direct=True)
    header, _ = world.ask(
        "$JS.API.DIRECT.GET.S", '{"seq":1}', Nats_Required_Api_Level=str(API_LEVEL + 1)
    )
    assert b"NATS/1.0 412 Required Api Level\r\n\r\n" == header


def test_a_direct_get_returns_the_message_and_where_it_was(world: World) -> None:
    world.create("S", subjects=["s.>"], allow_direct=True)
    world.ask("s.a", "x", Mine="1")

    header, payload = world.ask("$JS.API.DIRECT.GET.S.s.a")

    lines = header.split(b"\r\n")
    assert [b"NATS/1.0", b"Mine: 1", b"Nats-Stream: S", b"Nats-Subject: s.a"] == lines[:4]
    assert b"Nats-Sequence: 1" == lines[4]
    assert b"x" == payload


def test_a_direct_get_by_a_time_that_is_none_is_malformed(world: World) -> None:
    world.create("S", allow_direct=True)
    header, _ = world.ask("$JS.API.DIRECT.GET.S", '{"start_time":"x"}')
    assert b"NATS/1.0 408 Malformed Request\r\n\r\n" == header


def test_a_direct_get_without_a_reply_is_nobodys_business(world: World) -> None:
    world.create("S", allow_direct=True)
    world.publish("$JS.API.DIRECT.GET.S", '{"seq":1}')
    assert [] == world.received()


def test_the_next_message_of_a_subject_is_found_however_far_it_is(world: World) -> None:
    world.create("S", subjects=["s.>"])
    world.send(b"PUB s.a 1\r\nx\r\n" * 100_000 + b"PUB s.b 1\r\ny\r\n")
    world.settle()

    found = world.call("STREAM.MSG.GET.S", next_by_subj="s.b")

    assert 100_001 == found["message"]["seq"]


@pytest.mark.parametrize(
    ("text", "time_ns"),
    [
        ("0001-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:01Z", 1_000_000_000),
        ("2026-11-15T06:32:52.20125202Z", 1794724372_201252020),
    ],
)
def test_times_are_written_as_go_does(text: str, time_ns: int) -> None:
    assert text == format_time(time_ns)
    assert time_ns == parse_time(text)


def test_times_are_read_in_any_zone() -> None:
    assert parse_time("2026-11-15T06:00:00Z") == parse_time("2026-11-15T08:00:00.000+02:00")


@pytest.mark.parametrize("text", ["", "x", "2026-11-15", "2026-11-15T06:00:00"])
def test_a_time_without_all_its_parts_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="parsing time"):
        parse_time(text)


@pytest.mark.parametrize(
    ("storage", "before", "after"),
    [
        ("file", (10057, "no message found"), (10057, "stream store EOF")),
        ("memory", (10043, "sequence 1 not found"), (10043, "sequence 9 not found")),
    ],
)
def test_deleting_what_is_not_there_is_refused_in_the_words_for_where_it_would_be(
    storage: str, before: tuple[int, str], after: tuple[int, str], world: World
) -> None:
    world.create("S", storage=storage)
    for payload in "abc":
        world.ask("S", payload)
    for sequence in (1, 2):
        world.call("STREAM.MSG.DELETE.S", seq=sequence)
    world.ask("S", "d")
    world.call("STREAM.MSG.DELETE.S", seq=4)

    errors = [world.call("STREAM.MSG.DELETE.S", seq=seq)["error"] for seq in (1, 4, 9)]

    assert [before, (10043, "sequence 4 not found"), after] == [
        (error["err_code"], error["description"]) for error in errors
    ]
