"""Subjects, streams and positions that nothing can be read of: misspelt more often than meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.spark.conftest import Broker

from penstock.errors import ClientError, ConfigError
from penstock.spark.options import parse_source
from penstock.spark.source.limited import StreamReader
from penstock.spark.source.source import Reader


def plan_batch(*options: Any) -> None:
    """Do what the driver does first for a batch."""
    Reader(*options).partitions()


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


def test_a_subject_within_another_is_read_with_it(broker: Broker, stream: str) -> None:
    """Servers take no consumer of both."""
    broker.fill(stream, 20)
    within = f"{stream}.1, {stream}.>, {stream}.>, {stream}.2.*"
    options = parse_source({"servers": broker.url, "stream": stream, "subjects": within})

    assert (f"{stream}.>",) == options[1].subjects
    with pytest.raises(ConfigError, match=r"`a\.\*\.c` and `a\.b\.\*` have subjects in common"):
        parse_source({"stream": stream, "subjects": "a.*.c, a.b.*"})
