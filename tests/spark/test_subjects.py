"""Subjects that nothing can be read of: more often misspelt than meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.spark.conftest import Broker

from penstock.errors import ClientError
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
