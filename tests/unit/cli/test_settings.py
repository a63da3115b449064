"""Settings as options: everything the API knows can be said, and is shown as it is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.cli import settings
from penstock.cli.arguments import Verb, parse
from penstock.cli.consumer.settings import CONSUMER_SETTINGS, as_fields, read_start
from penstock.cli.settings import CONFIG_FILE, Setting
from penstock.cli.stream.settings import STREAM_SETTINGS
from penstock.errors import ConfigError
from penstock.jetstream.config.consumer import ConsumerConfig
from penstock.jetstream.config.stream import StreamConfig


async def nothing(context: Any) -> None:
    """Do nothing."""


def given(table: Sequence[Setting], *words: str) -> dict[str, Any]:
    """Return the configuration that words ask for."""
    verb = Verb(
        name="v", summary="", run=nothing, arguments=(*settings.options(table), CONFIG_FILE)
    )
    return settings.given(table, parse(verb, words))


def test_every_option_of_a_stream_can_be_given() -> None:
    known = {item.name for item in fields(StreamConfig)}

    assert known - {"name"} == {setting.field for setting in STREAM_SETTINGS}


def test_every_option_of_a_consumer_can_be_given() -> None:
    known = {item.name for item in fields(ConsumerConfig)}
    elsewhere = {"name", "durable_name", "filter_subject", "opt_start_seq", "opt_start_time"}

    assert known - elsewhere == {setting.field for setting in CONSUMER_SETTINGS}


@pytest.mark.parametrize("table", [STREAM_SETTINGS, CONSUMER_SETTINGS])
def test_what_is_not_given_is_left_to_the_server(table: Sequence[Setting]) -> None:
    assert given(table) == {}


@pytest.mark.parametrize(
    ("words", "config"),
    [
        (["--allow-direct"], {"allow_direct": True}),
        (["--no-allow-direct"], {"allow_direct": False}),
        (["--no-ack"], {"no_ack": True}),
        (["--ack"], {"no_ack": False}),
        (["--subjects", "a, b", "--subjects", "c"], {"subjects": ["a", "b", "c"]}),
        (["--metadata", "a=1", "--metadata", "b=x=y"], {"metadata": {"a": "1", "b": "x=y"}}),
        (["--mirror", "A"], {"mirror": {"name": "A"}}),
        (["--mirror", '{"name": "A"}'], {"mirror": {"name": "A"}}),
        (["--source", "A", "--source", "B"], {"sources": [{"name": "A"}, {"name": "B"}]}),
        (["--republish", "a.> b.>"], {"republish": {"src": "a.>", "dest": "b.>"}}),
        (["--placement", "east"], {"placement": {"cluster": "east"}}),
        (
            ["--consumer-limits", "inactive_threshold=1m,max_ack_pending=5"],
            {"consumer_limits": {"inactive_threshold": 60_000_000_000, "max_ack_pending": 5}},
        ),
        (["--max-bytes", "1GB", "--max-msgs", "-1"], {"max_bytes": 1 << 30, "max_msgs": -1}),
        (["--persist-mode=async"], {"persist_mode": "async"}),
    ],
)
def test_options_say_what_the_api_wants(words: list[str], config: dict[str, Any]) -> None:
    assert config == given(STREAM_SETTINGS, *words)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--retention", "workque"], "`--retention`: `workque` is unknown; hint: did you mean"),
        (["--storage", "tape"], "hint: one of file, memory"),
        (["--metadata", "a"], "`a` is not a pair; hint: key=value"),
        (["--mirror", "{"], "`{` is not JSON"),
        (["--republish", "a"], "`a` is not a mapping"),
        (["--consumer-limits", "x=1"], "`x` is unknown"),
        (["--max-age"], "`--max-age`: expected one argument"),
        (["more"], "`more` is one argument too many"),
        (["--max-mesgs", "1"], "unknown option `--max-mesgs`; hint: did you mean `--max-msgs`?"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(words: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        given(STREAM_SETTINGS, *words)

    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("new", {"deliver_policy": "new"}),
        ("last-per-subject", {"deliver_policy": "last_per_subject"}),
        ("42", {"deliver_policy": "by_start_sequence", "opt_start_seq": 42}),
        (
            "1h",
            {"deliver_policy": "by_start_time", "opt_start_time": "2026-11-15T08:00:00Z"},
        ),
        (
            "2026-11-14T00:00:00Z",
            {"deliver_policy": "by_start_time", "opt_start_time": "2026-11-14T00:00:00Z"},
        ),
    ],
)
def test_where_to_start_is_said_in_one_word(text: str, start: dict[str, Any]) -> None:
    assert start == read_start(text, datetime(2026, 11, 15, 9, tzinfo=UTC))


def test_a_new_start_takes_the_place_of_the_old_one() -> None:
    old = {"deliver_policy": "by_start_sequence", "opt_start_seq": 7}

    assert as_fields(old) == old
    assert as_fields(old | {"deliver_policy": {"deliver_policy": "all"}}) == {
        "deliver_policy": "all"
    }


def test_one_filter_and_several_are_two_fields() -> None:
    assert as_fields({"filter_subjects": ["a"]}) == {"filter_subject": "a"}
    assert as_fields({"filter_subject": "a", "filter_subjects": ["b", "c"]}) == {
        "filter_subjects": ["b", "c"]
    }


def test_a_configuration_is_shown_as_it_can_be_given() -> None:
    config = {
        "name": "S",
        "subjects": ["a", "b"],
        "max_age": 5_400_000_000_000,
        "max_bytes": -1,
        "max_msgs": 0,
        "allow_direct": True,
        "metadata": {"_nats.ver": "2", "team": "a"},
        "option_of_the_future": {"x": 1},
    }

    assert settings.shown(STREAM_SETTINGS, config) == [
        ("subjects", "a, b"),
        ("max_age", "1h30m"),
        ("max_bytes", "unlimited"),
        ("allow_direct", "yes"),
        ("option_of_the_future", '{"x": 1}'),
        ("metadata", "team=a"),
    ]


def test_a_difference_has_both_sides() -> None:
    old = {"max_age": 3_600_000_000_000, "subjects": ["a"], "deny_purge": False}
    new = {"max_age": 7_200_000_000_000, "subjects": ["a"], "description": "x"}

    assert settings.difference(STREAM_SETTINGS, old, new) == [
        ("max_age", "1h → 2h"),
        ("description", "- → x"),
    ]
