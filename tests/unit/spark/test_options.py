"""Options of the Spark source and sink: how strings are read, and what wrong ones are told."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.spark.options import (
    ConnectionOptions,
    SinkOptions,
    SourceOptions,
    option_name,
    parse_sink,
    parse_source,
)
from penstock.spark.source.position import Position, Range, partition

STREAM = {"stream": "ORDERS"}


def test_options_are_read_in_any_case() -> None:
    connection, source = parse_source(
        STREAM | {"MAXMESSAGESPERTRIGGER": "7", "failondataloss": "False", "servers": "a:1, b:2"}
    )

    assert (7, False) == (source.max_messages_per_trigger, source.fail_on_data_loss)
    assert ("a:1", "b:2") == connection.client().servers


def test_an_unknown_option_is_told_the_valid_ones() -> None:
    with pytest.raises(
        ConfigError, match=r"no option `maxMesages`; did you mean .*valid: `servers`"
    ):
        parse_source(STREAM | {"maxMesages": "7"})


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("stream", "", "`stream` is missing"),
        ("subjects", "a..b", r"`subjects`: `a\.\.b` is no subject"),
        ("startingPosition", "soon", "`startingPosition` must be `earliest`, `latest`, a sequence"),
        ("maxMessagesPerTrigger", "many", "`maxMessagesPerTrigger` must be a whole number: `many`"),
        ("minPartitions", "0", "`minPartitions` must be positive: 0"),
        ("failOnDataLoss", "maybe", "`failOnDataLoss` must be `true` or `false`: `maybe`"),
        ("columns", "subject,size", "there is no `size`; valid: `subject`, `data`"),
        ("servers", "http://x", "is no server URL"),
        ("password", "x", "`password` needs a `user`"),
    ],
)
def test_a_wrong_value_names_its_option(option: str, value: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse_source(STREAM | {option: value})


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("subject", "a b", "`subject`: `a b` is no subject"),
        ("messageIds", "random", "`messageIds` cannot be `random`; valid: `required`"),
        ("window", "-1", "`window` must be positive"),
        ("startingPosition", "1", "the penstock sink has no option `startingPosition`"),
    ],
)
def test_a_wrong_option_of_the_sink_names_itself(option: str, value: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse_sink({option: value})


WRONG = {"int": "many", "int | None": "many", "float": "many", "bool": "maybe", "Position": "soon"}
"""For each type of option, what cannot be read as one."""


@pytest.mark.parametrize("kind", [ConnectionOptions, SourceOptions])
def test_every_option_that_cannot_be_read_names_itself(kind: Any) -> None:
    checked = [item for item in fields(kind) if item.type in WRONG]
    assert checked
    for item in checked:
        option = option_name(item.name)
        with pytest.raises(ConfigError, match=f"`{option}` must be .*: `{WRONG[item.type]}`"):
            parse_source(STREAM | {option: WRONG[item.type]})


@pytest.mark.parametrize("kind", [ConnectionOptions, SourceOptions, SinkOptions])
def test_every_option_that_is_misspelt_is_told_its_name(kind: Any) -> None:
    parse = parse_sink if kind is SinkOptions else parse_source
    for item in fields(kind):
        option = option_name(item.name)
        wrong = f"{option}x"
        with pytest.raises(ConfigError, match=f"`{wrong}`; did you mean .*valid: .*`{option}`"):
            parse({wrong: "1"})


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", Position("earliest")),
        ("LATEST", Position("latest")),
        ("42", Position("sequence", sequence=42)),
        ("2026-11-15T08:00:00Z", Position("time", time=datetime(2026, 11, 15, 8, tzinfo=UTC))),
        ("1794729600000", Position("time", time=datetime(2026, 11, 15, 8, tzinfo=UTC))),
        ("2026-11-15 08:00", Position("time", time=datetime(2026, 11, 15, 8, tzinfo=UTC))),
    ],
)
def test_positions_are_words_numbers_or_times(text: str, position: Position) -> None:
    assert position == parse_source(STREAM | {"startingPosition": text})[1].starting_position


@pytest.mark.parametrize("url", ["nats://u:hunter2@a", "hunter2@a", "nats://b, tls://u:hunter2@a"])
def test_servers_do_not_say_who_we_are(url: str) -> None:
    with pytest.raises(ConfigError, match="hint: `user` and `password`") as raised:
        parse_source(STREAM | {"servers": url})

    assert "hunter2" not in str(raised.value)


def test_passwords_are_not_shown() -> None:
    connection, _ = parse_source(STREAM | {"user": "u", "password": "hunter2"})

    assert "hunter2" not in repr(connection)


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 10, 99])
def test_the_parts_of_a_range_are_the_range(parts: int) -> None:
    ranges = Range(5, 14).split(parts)

    assert list(range(5, 15)) == [n for part in ranges for n in range(part.first, part.last + 1)]
    assert min(parts, 10) == len(ranges)


def test_partitions_are_as_many_as_asked_for_and_none_is_too_large() -> None:
    def parts(last: int, **options: int) -> int:
        given = {"cores": 8, "min_partitions": None, "messages_max": None} | options
        return len(partition(Range(1, last), **given))

    assert 0 == parts(0, min_partitions=3)
    assert 1 == parts(10)
    assert 3 == parts(10, min_partitions=3)
    assert 4 == parts(10, messages_max=3)
    assert 8 == parts(1_000_000)
    assert 100 == parts(10_000_000, cores=100)


def test_what_spark_passes_along_for_itself_is_no_option_of_ours() -> None:
    own = {"checkpointLocation": "c", "path": "p", "queryName": "q"}

    assert parse_source({"stream": "S"}) == parse_source({"stream": "S", **own})
