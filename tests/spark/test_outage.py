"""Servers that are away for a while: reader, driver and sink wait for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from tests.servers import ServerProcess, wait_until
from tests.spark.conftest import Broker, rows_of
from tests.spark.relay import Relay

from penstock.errors import ConnectFailed
from penstock.spark.options import parse_sink, parse_source
from penstock.spark.pipelines.config import PipelineConfig
from penstock.spark.pipelines.ownership import source_of
from penstock.spark.sink.publish import SinkWindow
from penstock.spark.sink.sink import Encoder
from penstock.spark.source import fetch
from penstock.spark.source.fetch import read_range
from penstock.spark.source.limited import StreamReader
from penstock.spark.source.position import Range

OUTAGE_S = 4.0
"""Longer than anything is retried by number, and as long as a server may take to start."""


@pytest.fixture
def away(server: ServerProcess) -> Any:
    """Return a relay to the server, which can go away."""
    with Relay(server.port) as relay:
        yield relay


def outage(relay: Relay) -> None:
    """Have the relay go away now, and come back later."""
    relay.leave()
    threading.Timer(OUTAGE_S, relay.come_back).start()


def test_a_reader_rides_out_an_outage(
    broker: Broker, stream: str, away: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "PULL_MESSAGES_MAX", 50)
    ledger = broker.fill(stream, 1000)
    options = parse_source({"servers": away.url, "stream": stream, "batchBytesMax": "1"})
    batches = read_range(*options, broker.info(stream)["created"], Range(1, 1000))
    found = next(batches).column("sequence").to_pylist()

    outage(away)
    for batch in batches:
        found += batch.column("sequence").to_pylist()

    assert [row[0] for row in ledger] == found


def sequence(offset: Any, stream: str) -> int:
    """Return up to where an offset says that a stream was read."""
    return int(offset["streams"][stream]["sequence"])


def test_a_driver_rides_out_an_outage(broker: Broker, stream: str, away: Relay) -> None:
    broker.fill(stream, 10)
    reader = StreamReader(*parse_source({"servers": away.url, "stream": stream}))
    start = reader.initialOffset()

    outage(away)
    end = reader.latestOffset(start, reader.getDefaultReadLimit())

    assert (0, 10) == (sequence(start, stream), sequence(end, stream))
    reader.stop()


def test_a_pipeline_rides_out_an_outage_when_it_begins(
    broker: Broker, stream: str, away: Relay
) -> None:
    source = {"servers": away.url, "stream": stream}

    outage(away)
    found = source_of(PipelineConfig(pipeline="archive", source=source))

    assert {"stream": stream, "created": broker.info(stream)["created"]} == found


def test_a_sink_rides_out_an_outage(broker: Broker, stream: str, away: Relay) -> None:
    connection, sink = parse_sink(
        {"servers": away.url, "subject": f"{stream}.a", "messageIds": "none"}
    )
    batch = pa.record_batch({"data": [b"%d" % n for n in range(100)]})
    with SinkWindow(connection, 10) as window:
        tokens, frames = Encoder(sink, "job").encode(batch, window.reply_prefix)
        window.add(tokens[:50], frames[:50])
        window.flush()

        outage(away)
        window.add(tokens[50:], frames[50:])
        window.flush()

    assert [b"%d" % n for n in range(100)] == [data for _, _, data in rows_of(broker, stream)]


@pytest.mark.parametrize("why", ["Stale Connection", "User Authentication Expired"])
def test_what_was_quiet_for_too_long_connects_again(
    broker: Broker, stream: str, away: Relay, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """A task waits for Spark, and a driver for its trigger, and neither answers a ping."""
    monkeypatch.setattr(fetch, "PULL_MESSAGES_MAX", 50)
    ledger = broker.fill(stream, 1000)
    given = {"servers": away.url, "stream": stream}
    options = parse_source(given | {"batchBytesMax": "1"})
    batches = read_range(*options, broker.info(stream)["created"], Range(1, 1000))
    found = next(batches).column("sequence").to_pylist()
    driver = StreamReader(*parse_source(given))
    start = driver.initialOffset()
    connection, sink = parse_sink({"servers": away.url, "subject": f"{stream}.a"})
    row = pa.record_batch({"data": [b"1"], "message_id": ["row-1"]})
    with SinkWindow(connection, 10) as window:
        away.dismiss(why)

        window.add(*Encoder(sink, "job").encode(row, window.reply_prefix))
        window.flush()
    end = driver.latestOffset(start, driver.getDefaultReadLimit())
    found += [n for batch in batches for n in batch.column("sequence").to_pylist()]

    assert [row[0] for row in ledger] == found
    assert (1001, 1001) == (sequence(end, stream), broker.info(stream)["state"]["last_seq"])
    driver.stop()


def starting(work: Callable[[], None]) -> threading.Thread:
    """Run something meanwhile."""
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_sink_waits_for_the_server_it_begins_with(
    broker: Broker, stream: str, away: Relay
) -> None:
    connection, _ = parse_sink({"servers": away.url, "subject": f"{stream}.a"})
    opened = []
    away.leave()

    def work() -> None:
        with SinkWindow(connection, 10) as window:
            opened.append(window)

    thread = starting(work)
    away.come_back()
    thread.join(60)
    wait_until(lambda: opened)


def test_an_outage_that_lasts_is_an_error_in_the_end(stream: str, away: Relay) -> None:
    options = {"servers": away.url, "stream": stream, "retryTimeoutSeconds": "0.5"}
    away.leave()

    with pytest.raises(ConnectFailed):
        list(read_range(*parse_source(options), "", Range(1, 10)))
    with pytest.raises(ConnectFailed):
        StreamReader(*parse_source(options)).initialOffset()
