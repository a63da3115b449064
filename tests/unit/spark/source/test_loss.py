"""What an error says of messages that are gone, without a server."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.errors import ClientError
from penstock.spark.options import parse_source
from penstock.spark.source.loss import Watch
from penstock.spark.source.position import Range
from penstock.spark.source.stream import StreamState

STATE = StreamState(
    name="S",
    created="then",
    first_sequence=1,
    last_sequence=90,
    messages=90,
    bytes=900,
    retention="limits",
    allow_direct=False,
)


@pytest.mark.parametrize(
    ("unfinished", "fails", "lost_from"), [(None, True, 40), (11, True, 11), (11, False, 40)]
)
def test_a_head_that_overtakes_a_task_takes_what_its_batch_had_read(
    unfinished: int | None, fails: bool, lost_from: int, caplog: pytest.LogCaptureFixture
) -> None:
    source = replace(parse_source({"stream": "S"})[1], fail_on_data_loss=fails)
    watch = Watch(source, "then", Range(40, 60), unfinished)
    watch.begin(STATE, 40)

    told = ""
    try:
        watch.end(replace(STATE, first_sequence=51, messages=40))
    except ClientError as error:
        told = str(error)

    assert fails == bool(told)
    assert f"moved to 51 while it was read, and messages from {lost_from} on" in told + caplog.text
