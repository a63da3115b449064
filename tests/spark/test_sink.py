"""Writing DataFrames into streams: each row stored once, whatever is tried again."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.spark.conftest import Broker, rows

Read = Callable[..., Any]


def write(frame: Any, broker: Broker, **options: Any) -> None:
    """Append the rows to whatever stream stores their subjects."""
    frame.write.format("penstock").option("servers", broker.url).options(**options).mode(
        "append"
    ).save()


def numbered(spark: Any, stream: str, count: int) -> Any:
    """Return rows `(subject, data)` in two partitions."""
    frame = spark.range(count, numPartitions=2)
    return frame.selectExpr(f"concat('{stream}.', id % 10) AS subject", "string(id) AS data")


def stored(frame: Any) -> list[int]:
    """Return the numbers that were stored."""
    return sorted(int(data) for _, _, data in rows(frame))


def test_rows_become_messages(broker: Broker, stream: str, spark: Any, read: Read) -> None:
    write(numbered(spark, stream, 5000), broker)

    assert list(range(5000)) == stored(read(stream))
    assert {f"{stream}.{n % 10}" for n in range(10)} == {row[1] for row in rows(read(stream))}


def test_a_job_run_twice_under_one_prefix_stores_each_row_once(
    broker: Broker, stream: str, spark: Any, read: Read
) -> None:
    for _ in range(2):
        write(numbered(spark, stream, 1000), broker, messageIdPrefix="job-7")

    assert list(range(1000)) == stored(read(stream))
    write(numbered(spark, stream, 10), broker)
    assert 1010 == broker.info(stream)["state"]["messages"]


def test_a_task_that_fails_and_is_tried_again_stores_each_row_once(
    broker: Broker, stream: str, spark: Any, read: Read, tmp_path: Path
) -> None:
    pytest.importorskip("pandas", reason="Spark's functions of batches need it")
    marker = str(tmp_path / "failed-once")

    def fail_once(batches: Any) -> Any:
        for number, batch in enumerate(batches):
            if number == 2:
                try:
                    Path(marker).touch(exist_ok=False)
                except FileExistsError:
                    pass
                else:
                    raise RuntimeError("on purpose")
            yield batch

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    try:
        frame = numbered(spark, stream, 4000)
        write(frame.mapInArrow(fail_once, frame.schema), broker, window=100)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")

    assert Path(marker).exists()
    assert list(range(4000)) == stored(read(stream))


@pytest.mark.parametrize("config", [{}, {"duplicate_window": 100_000_000}])
def test_a_micro_batch_written_again_stores_each_row_once(
    broker: Broker, stream: str, spark: Any, read: Read, tmp_path: Path, config: dict[str, int]
) -> None:
    """Whether the server remembers its ids, or has forgotten them long since."""
    broker.create(f"{stream}_copy", **config)
    broker.fill(stream, 500)

    def run() -> None:
        frame = (
            spark.readStream.format("penstock")
            .option("servers", broker.url)
            .option("stream", stream)
            .option("maxMessagesPerTrigger", 200)
            .load()
            .selectExpr(f"replace(subject, '{stream}.', '{stream}_copy.') AS subject", "data")
        )
        query = (
            frame.writeStream.format("penstock")
            .option("servers", broker.url)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    (tmp_path / "checkpoint" / "commits" / "2").unlink()
    if config:
        # As if the query had been down for an hour.
        offsets, hour_ago_s = tmp_path / "checkpoint" / "offsets" / "2", time.time() - 3600
        os.utime(offsets, (hour_ago_s, hour_ago_s))
    run()

    numbers = [json.loads(data)["n"] for _, _, data in rows(read(f"{stream}_copy"))]
    assert list(range(1, 501)) == sorted(numbers)


def test_headers_and_message_ids_come_from_columns(
    broker: Broker, stream: str, spark: Any, read: Read
) -> None:
    frame = spark.sql("SELECT 'x' AS data, map('A', '1') AS headers, 'id-1' AS message_id")

    for _ in range(2):
        write(frame, broker, subject=f"{stream}.a", stream=stream)

    (row,) = read(stream).collect()
    expected = [("A", "1"), ("Nats-Msg-Id", "id-1"), ("Nats-Expected-Stream", stream)]
    assert expected == [tuple(header) for header in row.headers]


def test_rows_of_a_stream_keep_their_headers_and_ids(
    broker: Broker, stream: str, spark: Any, read: Read
) -> None:
    broker.create(f"{stream}_copy")
    pairs = [("A", "1"), ("A", "2"), ("Nats-Msg-Id", "original")]
    broker.run(lambda js: js.publish(f"{stream}.a", b"\xff", headers=pairs))

    for _ in range(2):
        write(read(stream).select("data", "headers"), broker, subject=f"{stream}_copy.a")

    (row,) = read(f"{stream}_copy").collect()
    assert (b"\xff", pairs) == (bytes(row.data), [tuple(header) for header in row.headers])


@pytest.mark.parametrize(
    ("query", "options", "text"),
    [
        ("SELECT 'x' AS data", {}, "either a column or the option `subject`"),
        ("SELECT 'x' AS subject", {}, "the column `data` is missing"),
        ("SELECT 'x' AS data, 1 AS size", {"subject": "a"}, "no use for the column `size`"),
        ("SELECT 1 AS data", {"subject": "a"}, "column `data` is int; valid: `binary`, `string`"),
        ("SELECT 'x' AS data", {"subject": "a.b", "windw": "1"}, "no option `windw`; did you mean"),
        ("SELECT 'x' AS data", {"subject": "nobody.home"}, "no stream stores `nobody.home`"),
        ("SELECT 'x' AS data, 'a b' AS subject", {}, "cannot be published to"),
        ("SELECT repeat('x', 2000000) AS data", {"subject": "a"}, "`max_payload` is 1048576"),
        (
            "SELECT 'x' AS data",
            {"subject": "a", "messageId": "column"},
            "there is no column `message_id`",
        ),
    ],
)
def test_what_cannot_be_written_is_said(
    broker: Broker, spark: Any, query: str, options: dict[str, str], text: str
) -> None:
    with pytest.raises(Exception, match=text):
        write(spark.sql(query), broker, **options)


def test_a_stream_cannot_be_overwritten(broker: Broker, spark: Any) -> None:
    frame = spark.sql("SELECT 'x' AS data")

    with pytest.raises(Exception, match="a stream can only be appended to"):
        frame.write.format("penstock").option("subject", "a").mode("overwrite").save()
