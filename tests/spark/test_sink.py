"""Writing DataFrames into streams: each row stored once, whatever is tried again."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.spark.conftest import Broker, rows

from penstock.errors import ClientError
from penstock.spark.options import SinkOptions
from penstock.spark.sink.sink import Encoder

Read = Callable[..., Any]


def write(frame: Any, broker: Broker, **options: Any) -> None:
    """Append the rows to whatever stream stores their subjects."""
    frame.write.format("penstock").option("servers", broker.url).options(**options).mode(
        "append"
    ).save()


def numbered(spark: Any, stream: str, count: int) -> Any:
    """Return rows `(subject, data)` in two partitions."""
    frame = spark.range(count, numPartitions=2)
    return frame.selectExpr(
        f"concat('{stream}.', id % 10) AS subject", "string(id) AS data", "string(id) AS message_id"
    )


def stored(frame: Any) -> list[int]:
    """Return the numbers that were stored."""
    return sorted(int(data) for _, _, data in rows(frame))


def test_rows_become_messages(broker: Broker, stream: str, spark: Any, read: Read) -> None:
    write(numbered(spark, stream, 5000), broker)

    assert list(range(5000)) == stored(read(stream))
    assert {f"{stream}.{n % 10}" for n in range(10)} == {row[1] for row in rows(read(stream))}


def test_a_job_run_twice_under_one_prefix_stores_each_row_once(
    broker: Broker, stream: str, read: Read
) -> None:
    target = f"{stream}_copy"
    broker.create(target)
    broker.fill(stream, 1000)
    copies = read(stream).selectExpr(f"'{target}.a' AS subject", "data", "stream", "sequence")

    for tasks in (1, 3):
        write(copies.repartition(tasks), broker, messageIdPrefix="job-7")

    assert 1000 == broker.info(target)["state"]["messages"]
    write(copies.limit(10), broker)
    assert 1010 == broker.info(target)["state"]["messages"]


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


class Copy:
    """A query that copies a stream into another in batches of 200, and can be run again."""

    def __init__(self, spark: Any, broker: Broker, stream: str, checkpoint: Path) -> None:
        self._spark, self._broker, self._stream = spark, broker, stream
        self.checkpoint = checkpoint
        self.options: dict[str, Any] = {"checkpointLocation": str(checkpoint)}
        self.name = "copy"
        """Where Spark has a setting for all checkpoints, this is where below it ours is."""

    def run(self, where: str = "true", **source: Any) -> None:
        """Copy what is there."""
        frame = (
            self._spark.readStream.format("penstock")
            .options(servers=self._broker.url, stream=self._stream, maxMessagesPerTrigger=200)
            .options(**source)
            .load()
            .where(where)
            .selectExpr(
                f"replace(subject, '{self._stream}.', '{self._stream}_copy.') AS subject",
                *("data", "stream", "sequence"),
            )
        )
        query = (
            frame.writeStream.format("penstock")
            .queryName(self.name)
            .options(servers=self._broker.url, **self.options)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def forget(self, batch: int, *, hours: float = 0) -> None:
        """Have it run a batch again, as if it had been killed before it was done, long ago."""
        (self.checkpoint / "commits" / str(batch)).unlink()
        offsets, began_s = self.checkpoint / "offsets" / str(batch), time.time() - hours * 3600
        os.utime(offsets, (began_s, began_s))


@pytest.fixture
def copy(spark: Any, broker: Broker, stream: str, tmp_path: Path) -> Copy:
    """Return a query that copies 500 messages."""
    broker.fill(stream, 500)
    return Copy(spark, broker, stream, tmp_path / "checkpoint")


def copied(read: Read, stream: str) -> list[int]:
    """Return the numbers that were copied."""
    return sorted(json.loads(data)["n"] for _, _, data in rows(read(f"{stream}_copy")))


@pytest.fixture(params=["option", "setting", "viewfs"])
def place(request: pytest.FixtureRequest, spark: Any, copy: Copy, tmp_path: Path) -> Iterator[None]:
    """Name the checkpoint by an option, by Spark's setting, or in a file system of Hadoop's."""
    settings = {}
    if request.param == "setting":
        copy.options.clear()
        settings["spark.sql.streaming.checkpointLocation"] = f"file:{tmp_path}/all"
        copy.checkpoint = tmp_path / "all" / copy.name
    elif request.param == "viewfs":
        # Python has no idea what this is; only Hadoop has.
        settings["fs.viewfs.mounttable.default.link./mounted"] = f"file:{tmp_path}"
        copy.options["checkpointLocation"] = "viewfs://default/mounted/checkpoint"
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield
    for name in settings:
        spark.conf.unset(name)


@pytest.mark.usefixtures("place")
def test_a_micro_batch_written_again_after_its_ids_are_forgotten_stores_each_row_once(
    broker: Broker, stream: str, read: Read, copy: Copy
) -> None:
    broker.create(f"{stream}_copy", duplicate_window=100_000_000)

    copy.run()
    copy.forget(2, hours=1)
    copy.run()

    assert list(range(1, 501)) == copied(read, stream)


@pytest.mark.parametrize(
    ("change", "source"),
    [
        ("nothing", {}),
        ("options", {"minPartitions": 4}),
        ("source", {}),
        ("query", {"where": "sequence != 450"}),
    ],
)
def test_a_micro_batch_written_again_by_what_has_changed_stores_each_row_once(
    broker: Broker, stream: str, read: Read, copy: Copy, change: str, source: dict[str, Any]
) -> None:
    broker.create(f"{stream}_copy")

    copy.run(minPartitions=2)
    copy.forget(2)
    if change == "source":
        broker.run(lambda js: js.streams.delete_message(stream, 401))
    copy.run(**source)

    assert list(range(1, 501)) == copied(read, stream)


@pytest.mark.parametrize("unions", [1, 2])
def test_rows_that_would_share_an_id_are_refused(
    broker: Broker, stream: str, read: Read, unions: int
) -> None:
    """Two rows of one message, in one task or in two."""
    broker.fill(stream, 10)
    target = f"'{stream}.again' AS subject"
    frame = read(stream).selectExpr(target, "data", "stream", "sequence")
    doubled = (
        frame.union(frame) if unions == 2 else frame.selectExpr("*", "explode(array(1, 2)) AS n")
    )

    with pytest.raises(Exception, match=r"more than one row each.*`message_id`"):
        write(doubled.drop("n"), broker)


@pytest.mark.parametrize("ids", ["required", "optional"])
def test_a_row_without_an_id_is_an_error_unless_that_is_allowed(
    broker: Broker, stream: str, spark: Any, ids: str
) -> None:
    frame = spark.sql("SELECT 'x' AS data, string(null) AS message_id")
    options = {"subject": f"{stream}.a", "messageIds": ids}

    if ids == "required":
        with pytest.raises(Exception, match=r"`message_id` is null.*`messageIds` = optional"):
            write(frame, broker, **options)
    else:
        write(frame, broker, **options)
    assert (ids == "optional") == broker.info(stream)["state"]["messages"]


def test_headers_and_message_ids_come_from_columns(
    broker: Broker, stream: str, spark: Any, read: Read
) -> None:
    frame = spark.sql("SELECT 'x' AS data, map('A', '1') AS headers, 'id-1' AS message_id")

    for _ in range(2):
        write(frame, broker, subject=f"{stream}.a", stream=stream)

    (row,) = read(stream).collect()
    expected = [("A", "1"), ("Nats-Msg-Id", "id-1"), ("Nats-Expected-Stream", stream)]
    assert expected == [tuple(header) for header in row.headers]


def test_headers_of_a_row_of_a_stream_are_copied_and_not_obeyed(
    broker: Broker, stream: str, read: Read
) -> None:
    target = f"{stream}_copy"
    broker.create(target, allow_rollup_hdrs=True, allow_msg_ttl=True)
    pairs = [("A", "1"), ("A", "2")]
    commands = [
        ("Nats-Msg-Id", "original"),
        ("Nats-Expected-Stream", stream),
        ("Nats-Expected-Last-Sequence", "0"),
    ]
    broker.run(lambda js: js.publish(f"{stream}.a", b"\xff", headers=pairs + commands))
    columns = ("data", "headers", "stream", "sequence")

    for _ in range(2):
        write(
            read(stream).select(*columns),
            broker,
            subject=f"{target}.a",
            stream=target,
            messageIdPrefix="copy",
        )

    (row,) = read(target).collect()
    made = [("Nats-Msg-Id", f"copy-{stream}-1"), ("Nats-Expected-Stream", target)]
    assert (b"\xff", pairs + made) == (bytes(row.data), [tuple(header) for header in row.headers])
    with pytest.raises(Exception, match="expected stream does not match"):
        write(read(stream).select(*columns), broker, subject=f"{target}.a", natsHeaders="keep")


HEADER = pa.struct([("key", pa.string()), ("value", pa.string())])


def encoded(headers: list[Any], kind: Any) -> bytes:
    """Return the frame of a row with these headers."""
    rows = pa.record_batch({"data": [b"x"], "headers": pa.array([headers], kind)})
    (frame,) = Encoder(SinkOptions(subject="a", message_ids="none"), "job").encode(rows, b"")[1]
    return frame


def test_a_header_without_a_value_is_left_out() -> None:
    """As that of an optional field is."""
    structs = [None, {"key": "A", "value": None}, {"key": "B", "value": "1"}]
    lists = [("A", None), ("B", [None, "1"])]

    assert b"HPUB a 0 18 19\r\nNATS/1.0\r\nB: 1\r\n\r\nx\r\n" == encoded(structs, pa.list_(HEADER))
    assert encoded(structs, pa.list_(HEADER)) == encoded(
        lists, pa.map_(pa.string(), pa.list_(pa.string()))
    )
    with pytest.raises(ClientError, match="a header has no key"):
        encoded([{"key": None, "value": "1"}], pa.list_(HEADER))


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
        ("SELECT 'x' AS data", {"subject": "a", "messageIds": "required"}, "`messageIds` = none"),
        (
            "SELECT 'x' AS data, 'S' AS stream, bigint(null) AS sequence",
            {"subject": "a", "messageIds": "required"},
            "`sequence` is null in a row",
        ),
    ],
)
def test_what_cannot_be_written_is_said(
    broker: Broker, spark: Any, query: str, options: dict[str, str], text: str
) -> None:
    with pytest.raises(Exception, match=text):
        write(spark.sql(query), broker, **{"messageIds": "none"} | options)


def test_a_stream_cannot_be_overwritten(broker: Broker, spark: Any) -> None:
    frame = spark.sql("SELECT 'x' AS data")

    with pytest.raises(Exception, match="a stream can only be appended to"):
        frame.write.format("penstock").option("subject", "a").mode("overwrite").save()
