"""Subjects, streams and positions that nothing can be read of: misspelt more often than meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.types import StructType
from tests.servers import PROGRAMS, ServerProcess
from tests.spark.conftest import Broker

from penstock.errors import ClientError, ConfigError, PermissionDenied
from penstock.spark.options import parse_source
from penstock.spark.source.limited import StreamReader
from penstock.spark.source.source import PenstockDataSource, RangeReader

SCHEMA = {
    "type": "struct",
    "fields": [{"name": "sequence", "type": "long", "nullable": True, "metadata": {}}],
}


def plan_batch(*options: Any) -> None:
    """Do what the driver does first for a batch."""
    RangeReader(*options).partitions()


def plan_streaming(*options: Any) -> None:
    """Do what the driver does first for a query without a checkpoint."""
    reader = StreamReader(*options)
    try:
        reader.initialOffset()
    finally:
        reader.stop()


begin = pytest.mark.parametrize("begin", [plan_batch, plan_streaming])


@begin
def test_a_subject_that_a_stream_cannot_hold_is_refused(
    broker: Broker, stream: str, begin: Callable[..., None]
) -> None:
    options = parse_source(
        {"servers": broker.url, "stream": stream, "subjects": f"{stream}.a, misspelt.>"}
    )

    with pytest.raises(ClientError, match=rf"can be on `misspelt.>`.*misspelt\? `{stream}.>` is"):
        begin(*options)


@begin
def test_a_subject_that_may_come_or_was_there_is_read(
    broker: Broker, stream: str, begin: Callable[..., None]
) -> None:
    """The stream is quiet on one, and took the other before it was changed."""
    broker.publish([(f"{stream}.old", b"")])
    broker.update(stream, subjects=[f"{stream}_new.>"])
    subjects = f"{stream}_new.a, {stream}.old"

    begin(*parse_source({"servers": broker.url, "stream": stream, "subjects": subjects}))


@begin
def test_a_mirror_may_hold_any_subject(
    broker: Broker, stream: str, begin: Callable[..., None]
) -> None:
    broker.create(f"{stream}_mirror", subjects=[], mirror={"name": stream})
    options = {"servers": broker.url, "stream": f"{stream}_mirror", "subjects": "anything"}

    begin(*parse_source(options))


@begin
def test_a_stream_that_was_never_there_is_no_lost_one(
    broker: Broker, stream: str, begin: Callable[..., None]
) -> None:
    """Whatever may be lost later."""
    options = {"servers": broker.url, "stream": f"{stream},NOPE", "failOnDataLoss": "false"}

    with pytest.raises(ClientError, match="there is no stream `NOPE`"):
        begin(*parse_source(options))


@begin
def test_a_query_cannot_start_behind_the_end(
    broker: Broker, stream: str, begin: Callable[..., None]
) -> None:
    """As with a time in seconds, which is a sequence."""
    broker.fill(stream, 3)
    options = {"servers": broker.url, "stream": stream}

    begin(*parse_source(options | {"startingPosition": "4"}))
    with pytest.raises(ClientError, match=r"is the sequence 1763200000, but .* ends at 3; hint"):
        begin(*parse_source(options | {"startingPosition": "1763200000"}))


def test_a_batch_cannot_end_behind_the_end(broker: Broker, stream: str) -> None:
    broker.fill(stream, 3)
    options = {"servers": broker.url, "stream": stream}

    plan_batch(*parse_source(options | {"endingPosition": "3"}))
    with pytest.raises(
        ClientError, match=r"`endingPosition` is the sequence 4, .* ends at 3; hint"
    ):
        plan_batch(*parse_source(options | {"endingPosition": "4"}))


def test_a_query_that_goes_on_has_no_end(broker: Broker, stream: str) -> None:
    options = {"servers": broker.url, "stream": stream, "endingPosition": "3"}
    source = PenstockDataSource(options)

    with pytest.raises(ConfigError, match=r"`endingPosition` is where a batch ends.*availableNow"):
        source.streamReader(StructType.fromJson(SCHEMA))


def test_a_pattern_that_no_stream_matches_is_told(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """A batch would be empty; a query that goes on may find one later."""
    options = parse_source({"servers": broker.url, "streamPattern": "mispelt-.*"})

    with pytest.raises(ClientError, match=r"no stream .* `streamPattern` = `mispelt-\.\*`; hint"):
        plan_batch(*options)
    plan_streaming(*options)
    assert "there is no stream whose name matches `streamPattern`" in caplog.text


def test_a_wrong_password_is_told_with_server_and_option() -> None:
    for program in PROGRAMS:
        with ServerProcess(program, "authorization { user: a, password: right }") as server:
            address = server.url.removeprefix("nats://")
            for given, hint in (
                ({"user": "a", "password": "wrong"}, "`user`, `password`"),
                ({}, "none of `user`, `token`"),
            ):
                options = parse_source({"servers": server.url, "stream": "S"} | given)
                with pytest.raises(PermissionDenied, match=f"{address}: .*hint: .*{hint}"):
                    plan_batch(*options)


def test_a_subject_within_another_is_read_with_it(broker: Broker, stream: str) -> None:
    """Servers take no consumer of both."""
    broker.fill(stream, 20)
    within = f"{stream}.1, {stream}.>, {stream}.>, {stream}.2.*"
    options = parse_source({"servers": broker.url, "stream": stream, "subjects": within})

    assert (f"{stream}.>",) == options[1].subjects
    with pytest.raises(ConfigError, match=r"`a\.\*\.c` and `a\.b\.\*` have subjects in common"):
        parse_source({"stream": stream, "subjects": "a.*.c, a.b.*"})
