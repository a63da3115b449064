"""Options of the Spark source and sink: how strings are read, and what wrong ones are told."""

from __future__ import annotations

import json
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
from penstock.spark.source.position import Position

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
        ("servers", "http://x", "is not a server URL"),
        ("password", "x", "`password` needs a `user`"),
        ("stream", "A, b.c", r"`stream`: `b\.c` is no name of a stream"),
        ("streamPattern", "x", "either by `stream` or by `streamPattern`"),
        ("startingPosition", '{"BILLS": 1}', "`startingPosition`: `BILLS` is no stream to read"),
        ("startingPosition", '{"ORDERS": {"0": 1}}', "`startingPosition` must be"),
        ("startingPosition", "{", "`startingPosition` must be"),
        ("maxTriggerDelay", "soon", "`maxTriggerDelay` must be a duration such as `30s` or `15m`"),
        ("minMessagesPerTrigger", "9", "is more than `maxMessagesPerTrigger`"),
        ("startingPosition", "9" * 20, "`startingPosition` must be `earliest`, `latest`, a seq"),
        ("columns", "", "`columns` names none; valid: `subject`"),
        ("timeoutSeconds", "nan", "`timeoutSeconds` must be positive: nan"),
        ("retryTimeoutSeconds", "inf", "`retryTimeoutSeconds` must be positive: inf"),
        ("payloadFormat", "avro", "`payloadFormat` is of the events that `format` = `envelope`"),
        ("payloadSchema", "n INT", "`payloadSchema` is of the events that `format` = `envelope`"),
        ("payloadMessage", "a.B", "`payloadMessage` is of the events that `format` = `envelope`"),
    ],
)
def test_a_wrong_value_names_its_option(option: str, value: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse_source(STREAM | {"maxMessagesPerTrigger": "8"} | {option: value})


def test_a_pattern_that_is_none_names_its_option() -> None:
    with pytest.raises(ConfigError, match="`streamPattern` is no regular expression: "):
        parse_source({"streamPattern": "("})


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


WRONG = {
    "int": "many",
    "int | None": "many",
    "float": "many",
    "bool": "maybe",
    "Positions": "soon",
    "Seconds": "soon",
}
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
    positions = parse_source(STREAM | {"startingPosition": text})[1].starting_position

    assert position == positions.of("ORDERS", Position("earliest"))


def test_streams_may_have_a_position_each() -> None:
    given = {"A": 17, "B": "latest", "C": "2026-11-15T08:00Z"}
    source = parse_source({"stream": "A, B,C,D", "startingPosition": json.dumps(given)})[1]
    positions = [source.starting_position.of(name, Position("earliest")) for name in source.streams]

    assert ("A", "B", "C", "D") == source.streams
    assert [
        Position("sequence", sequence=17),
        Position("latest"),
        Position("time", time=datetime(2026, 11, 15, 8, tzinfo=UTC)),
        Position("earliest"),
    ] == positions


def test_a_pattern_selects_whole_names() -> None:
    source = parse_source({"streamPattern": "shop-.*|ORDERS"})[1]
    names = ["shop-1", "my-shop-1", "ORDERS", "ORDERS2"]

    assert ["shop-1", "ORDERS"] == [name for name in names if source.selects(name)]


@pytest.mark.parametrize("url", ["nats://u:hunter2@a", "hunter2@a", "nats://b, tls://u:hunter2@a"])
def test_servers_do_not_say_who_we_are(url: str) -> None:
    with pytest.raises(ConfigError, match="hint: `user` and `password`") as raised:
        parse_source(STREAM | {"servers": url})

    assert "hunter2" not in str(raised.value)


def test_passwords_are_not_shown() -> None:
    connection, _ = parse_source(STREAM | {"user": "u", "password": "hunter2"})

    assert "hunter2" not in repr(connection)


def test_what_spark_passes_along_for_itself_is_no_option_of_ours() -> None:
    own = {"checkpointLocation": "c", "path": "p", "queryName": "q"}

    assert parse_source({"stream": "S"}) == parse_source({"stream": "S", **own})


@pytest.mark.parametrize("option", ["credentials", "tlsCa", "tlsCertificate", "tlsKey"])
def test_what_a_file_holds_is_not_shown_if_it_stands_in_the_place_of_its_path(option: str) -> None:
    with pytest.raises(ConfigError, match="must be the path of a file") as raised:
        parse_source(STREAM | {option: "-----BEGIN SOMETHING-----\nsekret\n"})[0].tls()

    assert "sekret" not in str(raised.value)


def test_a_message_of_protobuf_is_of_no_effect_elsewhere() -> None:
    with pytest.raises(ConfigError, match="`payloadMessage` is of `payloadFormat` = `protobuf`"):
        parse_source(STREAM | {"format": "envelope", "payloadMessage": "a.B"})
