"""Following a stream: micro-batches, checkpoints, limits, losses, on real Spark."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.functions import expr
from tests.servers import ServerProcess, wait_until
from tests.spark.conftest import Broker, rows

from penstock.spark import register

Archive = Callable[..., Any]
Follow = Callable[..., Any]


def batch_sizes(query: Any) -> list[int]:
    """Return how many rows each micro-batch had, without those that had none."""
    return [
        progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]
    ]


def latest_offset(query: Any, batch: int = -1) -> dict[str, Any]:
    """Return where the progress says that the stream ends, and how far behind it the batch is."""
    offset = query.recentProgress[batch]["sources"][0]["latestOffset"]
    return json.loads(offset) if isinstance(offset, str) else offset


def connection_names(server: ServerProcess) -> list[str]:
    """Return the names of the connections that Spark has open on the server."""
    found = re.search(r"http monitor on (\S+)", server.log)
    assert found is not None
    with urllib.request.urlopen(f"http://{found[1]}/connz") as answer:
        connections = json.load(answer)["connections"]
    return [each["name"] for each in connections if "spark" in each.get("name", "")]


def test_available_now_reads_all_there_is_in_batches_of_the_given_size(
    broker: Broker, stream: str, archive: Archive, spark: Any, tmp_path: Path
) -> None:
    ledger = broker.fill(stream, 1000)

    query = archive(stream, maxMessagesPerTrigger=300)

    assert [300, 300, 300, 100] == batch_sizes(query)
    assert 700 == latest_offset(query, 0)["behindMessages"]
    assert latest_offset(query, 0)["behindSeconds"] > 0
    assert ledger == rows(spark.read.parquet(str(tmp_path / "table")))
    assert [] == broker.consumers(stream)


def test_an_empty_stream_has_nothing_yet(
    broker: Broker, stream: str, archive: Archive, spark: Any, tmp_path: Path
) -> None:
    assert [] == batch_sizes(archive(stream))
    ledger = broker.fill(stream, 5)

    assert [5] == batch_sizes(archive(stream))
    assert ledger == rows(spark.read.parquet(str(tmp_path / "table")))


def test_a_restart_goes_on_from_the_checkpoint(
    broker: Broker, stream: str, archive: Archive, spark: Any, tmp_path: Path
) -> None:
    ledger = broker.fill(stream, 100)
    archive(stream)
    ledger += broker.fill(stream, 50, first=101)

    query = archive(stream)

    assert [50] == batch_sizes(query)
    assert [] == batch_sizes(archive(stream))
    assert ledger == rows(spark.read.parquet(str(tmp_path / "table")))


def test_bytes_bound_a_batch_too(broker: Broker, stream: str, archive: Archive) -> None:
    broker.publish([(f"{stream}.a", bytes(1000))] * 100)

    sizes = batch_sizes(archive(stream, maxBytesPerTrigger=25_000))

    assert 100 == sum(sizes)
    assert 15 <= max(sizes) <= 25


def test_a_running_query_sees_what_comes_and_where_the_stream_is(
    broker: Broker, stream: str, follow: Follow, spark: Any, server: ServerProcess
) -> None:
    ledger = broker.fill(stream, 20)
    query = (
        follow(stream, startingPosition="latest")
        .writeStream.format("memory")
        .queryName("seen")
        .start()
    )
    try:
        query.processAllAvailable()
        new = broker.fill(stream, 30, first=21)
        query.processAllAvailable()

        assert new == rows(spark.table("seen"))
        assert len(ledger) + len(new) == latest_offset(query)["streams"][stream]["sequence"]
        assert 0 == latest_offset(query)["behindMessages"]
        assert 0 == latest_offset(query)["behindSeconds"]
    finally:
        query.stop()
    # Those of the workers are kept for a while.
    wait_until(lambda: connection_names(server) == [], timeout_s=60)
    assert [] == broker.consumers(stream)


def test_several_streams_are_one_query_and_new_ones_are_found(
    broker: Broker, stream: str, spark: Any
) -> None:
    names = [f"{stream}_{letter}" for letter in "abc"]
    for name in names[:2]:
        broker.create(name)
        broker.fill(name, 5)
    query = (
        spark.readStream.format("penstock")
        .options(servers=broker.url, streamPattern=f"{stream}_.", maxMessagesPerTrigger=4)
        .load()
        .writeStream.format("memory")
        .queryName("streams")
        .start()
    )

    def seen() -> dict[str, int]:
        found = spark.table("streams").groupBy("stream").count().collect()
        return {row["stream"]: row["count"] for row in found}

    try:
        query.processAllAvailable()
        assert dict.fromkeys(names[:2], 5) == seen()
        assert max(batch_sizes(query)) <= 4

        broker.create(names[2])
        broker.fill(names[2], 3)
        broker.fill(names[0], 1)
        wait_until(lambda: seen().get(names[2]) == 3, timeout_s=60)
        query.processAllAvailable()

        assert {names[0]: 6, names[1]: 5, names[2]: 3} == seen()
        assert 0 == latest_offset(query)["behindMessages"]
    finally:
        query.stop()


def test_streams_go_on_from_their_checkpoint(
    broker: Broker, stream: str, archive: Archive, spark: Any, tmp_path: Path
) -> None:
    a, b = f"{stream}_a", f"{stream}_b"
    for name in (a, b):
        broker.create(name)
    ledger = broker.fill(a, 20) + broker.fill(b, 10)
    archive(f"{a}, {b}", maxMessagesPerTrigger=12)
    ledger += broker.fill(b, 5, first=11)

    query = archive(f"{a}, {b}")

    assert [5] == batch_sizes(query)
    assert sorted(ledger) == rows(spark.read.parquet(str(tmp_path / "table")))


def test_a_query_waits_for_enough_messages(
    broker: Broker, stream: str, follow: Follow, spark: Any
) -> None:
    broker.fill(stream, 1)
    query = (
        follow(stream, minMessagesPerTrigger=10, maxTriggerDelay="1h")
        .writeStream.format("memory")
        .queryName("enough")
        .start()
    )
    try:
        wait_until(lambda: spark.table("enough").count() == 1, timeout_s=60)
        for count in (4, 4, 4):
            broker.fill(stream, count)
        wait_until(lambda: spark.table("enough").count() >= 11, timeout_s=60)
        # A batch is reported a little after its rows are there.
        wait_until(lambda: len(batch_sizes(query)) > 1, timeout_s=60)

        assert batch_sizes(query)[0] == 1
        assert min(batch_sizes(query)[1:]) >= 10
    finally:
        query.stop()


def test_messages_purged_before_they_were_read_fail_the_query(
    broker: Broker, stream: str, archive: Archive, spark: Any, tmp_path: Path
) -> None:
    ledger = broker.fill(stream, 10)
    archive(stream)
    new = broker.fill(stream, 20, first=11)
    broker.run(lambda js: js.streams.purge(stream, seq=21))

    with pytest.raises(Exception, match=r"messages 11 to 20 .* are gone.*failOnDataLoss"):
        archive(stream)
    archive(stream, failOnDataLoss=False)

    assert ledger + new[10:] == rows(spark.read.parquet(str(tmp_path / "table")))


def test_expired_messages_are_a_loss(
    broker: Broker, stream: str, archive: Archive, spark: Any, tmp_path: Path
) -> None:
    broker.fill(stream, 10)
    archive(stream)
    broker.fill(stream, 10, first=11)
    broker.run(lambda js: js.streams.update(stream, subjects=[f"{stream}.>"], max_msgs=4))
    wait_until(lambda: broker.info(stream)["state"]["messages"] == 4)

    with pytest.raises(Exception, match=r"messages 11 to 16 .* are gone"):
        archive(stream)


def test_a_stream_made_anew_is_an_error_that_explains_itself(
    broker: Broker, stream: str, archive: Archive
) -> None:
    broker.fill(stream, 10)
    archive(stream)
    broker.run(lambda js: js.streams.delete(stream))
    broker.create(stream)
    broker.fill(stream, 20)

    with pytest.raises(Exception, match=r"deleted and created again.*new checkpoint"):
        archive(stream)


def test_a_checkpoint_of_another_stream_is_refused(
    broker: Broker, stream: str, archive: Archive
) -> None:
    broker.create(f"{stream}_2")
    broker.fill(stream, 1)
    archive(stream)

    with pytest.raises(Exception, match=f"the checkpoint is of stream `{stream}`"):
        archive(f"{stream}_2")


def test_a_batch_written_again_holds_the_same_rows(
    broker: Broker, stream: str, archive: Archive, follow: Follow, spark: Any, tmp_path: Path
) -> None:
    broker.fill(stream, 500)
    seen: dict[int, list[Any]] = {}
    again: dict[int, list[Any]] = {}

    def run(into: dict[int, list[Any]]) -> None:
        query = (
            follow(stream, maxMessagesPerTrigger=200, minPartitions=2)
            .writeStream.foreachBatch(lambda frame, batch: into.update({batch: rows(frame)}))
            .option("checkpointLocation", str(tmp_path / "again"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run(seen)
    (tmp_path / "again" / "commits" / "2").unlink()
    broker.fill(stream, 100, first=501)
    run(again)

    assert [200, 200, 100] == [len(seen[batch]) for batch in sorted(seen)]
    assert seen[2] == again[2]
    assert 100 == len(again[3])


def test_a_server_that_restarts_does_not_end_the_query(
    spark: Any, tmp_path: Path, follow: Follow, server: ServerProcess
) -> None:
    store = ("-js", "-sd", str(tmp_path / "store"))
    with ServerProcess(server.program, "", *store) as first:
        broker = Broker(first.url)
        broker.create("RESTART")
        ledger = broker.fill("RESTART", 50)
        query = (
            follow("RESTART", servers=first.url)
            .writeStream.format("memory")
            .queryName("restarted")
            .start()
        )
        query.processAllAvailable()
    try:
        with ServerProcess(server.program, "", *store, "-p", str(first.port)):
            ledger += broker.fill("RESTART", 50, first=51)
            query.processAllAvailable()

            assert ledger == rows(spark.table("restarted"))
    finally:
        query.stop()


def test_secrets_are_in_no_plan_and_in_no_error(stream: str, follow: Follow) -> None:
    seed = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
    frame = follow(stream, nkeySeedSecret=seed)

    with pytest.raises(Exception, match="nowhere") as raised:
        frame.select("nowhere")

    plan = frame._jdf.queryExecution().toString()
    assert "nkeySeedSecret" in plan
    assert seed not in plan + str(raised.value)
    with pytest.raises(Exception, match="`servers` must not say who we are") as raised:
        follow(stream, servers="nats://user:hunter2@127.0.0.1:4222")
    assert "hunter2" not in str(raised.value)


def test_queries_that_start_at_once_do_not_change_what_they_share(
    spark: Any, broker: Broker, stream: str, follow: Callable[..., Any], tmp_path: Path
) -> None:
    """Spark keeps variables of all queries in one map, and two that add to it would break it."""
    broker.create(f"{stream}_copy")
    broker.fill(stream, 10)
    register(spark)
    manager = spark._jsparkSession.sessionState().dataSourceManager()
    shared = manager.lookupDataSource("penstock").dataSourceCls().envVars()
    before = set(shared.keySet())

    subject = expr(f"replace(subject, '{stream}', '{stream}_copy')")
    copied = follow(stream).withColumn("subject", subject).drop("headers", "time")
    writer = copied.writeStream.format("penstock")
    writer = writer.option("servers", broker.url).option("checkpointLocation", str(tmp_path))
    writer.trigger(availableNow=True).start().awaitTermination()

    assert 10 == broker.info(f"{stream}_copy")["state"]["messages"]
    assert before == set(shared.keySet())
    assert spark.sparkContext.environment.keys() < before
