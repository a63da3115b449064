"""
All a user does with Spark, once, on whichever version of it runs this.

Called with servers and a directory; says what it saw as JSON. The streams `SOURCE` and `TARGET` are
there, and `SOURCE` has messages.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql.functions import expr
from tests.spark.conftest import SETTINGS, Broker

from penstock.spark import session
from penstock.spark.pipelines import runner
from penstock.spark.pipelines.config import PipelineConfig
from penstock.spark.pipelines.lake import read_lake

MORE = 50
"""Messages that come between two runs of a query, and again while it runs."""


def main() -> None:
    """Read, follow, write and archive."""
    servers, home = sys.argv[1], Path(sys.argv[2])
    spark = session("versions", master="local[2]", settings=SETTINGS)
    spark.sparkContext.setLogLevel("OFF")
    where = {"servers": servers, "stream": "SOURCE"}
    rows = spark.read.format("penstock").options(**where).load()
    said: dict[str, Any] = {"version": pyspark.__version__, "batch": rows.count()}
    said["limits"] = limited(spark, where, home)
    broker = Broker(servers)
    for run in range(3):
        follow(spark, where, home / "table", broker if run == 2 else None)
        said[f"followed {run}"] = times(spark.read.parquet(str(home / "table")))
        broker.publish([("SOURCE.more", b"%d" % n) for n in range(MORE)])
    said["resumed"] = resume(spark, where, home / "resumed", broker)
    config = PipelineConfig(
        pipeline="archive",
        source=where,
        target=str(home / "lake"),
        checkpoint=str(home / "archive"),
        settings={"topic_tokens": 1},
    )
    for _ in range(2):
        runner.run(spark, config, once=True, say=lambda text: None)
    crash(home / "archive")
    broker.publish([("SOURCE.crash", b"%d" % n) for n in range(MORE)])
    runner.run(spark, config, once=True, say=lambda text: None)
    copy(spark, where, home)
    copy(spark, where, home)
    lake = read_lake(spark, config.target)
    said["archived"] = times(lake)
    said["events"] = lake.where("aggregate_id IS NOT NULL").count()
    print(json.dumps(said))
    spark.stop()


def limited(spark: Any, where: dict[str, str], home: Path) -> str:
    """Tell what a limit does: how many batches there were, or the error."""
    rows = spark.readStream.format("penstock").options(**where, maxMessagesPerTrigger="40").load()
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(home / "limited"))
    try:
        writer.trigger(availableNow=True).start().awaitTermination()
    except Exception as error:
        return str(runner.cause_of(error))
    return str(len(list((home / "limited" / "commits").glob("[0-9]*"))))


def follow(spark: Any, where: dict[str, str], table: Path, broker: Broker | None) -> None:
    """Bring all there is into a table; with a broker, what comes meanwhile too."""
    rows = spark.readStream.format("penstock").options(**where).load()
    writer = (
        rows.select("sequence", "data")
        .writeStream.format("parquet")
        .option("path", str(table))
        .option("checkpointLocation", f"{table}.checkpoint")
    )
    if broker is None:
        writer.trigger(availableNow=True).start().awaitTermination()
        return
    query = writer.start()
    query.processAllAvailable()
    broker.publish([("SOURCE.meanwhile", b"%d" % n) for n in range(MORE)])
    query.processAllAvailable()
    query.stop()


def resume(spark: Any, where: dict[str, str], table: Path, broker: Broker) -> list[list[int]]:
    """Follow after a crash within the first micro-batch, and within a later one."""
    follow(spark, where, table, None)
    said = []
    for _ in range(2):
        crash(Path(f"{table}.checkpoint"))
        broker.publish([("SOURCE.crash", b"%d" % n) for n in range(MORE)])
        follow(spark, where, table, broker)
        said.append(times(spark.read.parquet(str(table))))
    return said


def crash(checkpoint: Path) -> None:
    """Leave the checkpoint as a crash within its newest micro-batch does."""
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


def copy(spark: Any, where: dict[str, str], home: Path) -> None:
    """Write all there is to another stream, headers and all."""
    rows = spark.readStream.format("penstock").options(**where).load()
    query = (
        rows.withColumn("subject", expr("replace(subject, 'SOURCE.', 'TARGET.')"))
        .drop("time")
        .writeStream.format("penstock")
        .option("servers", where["servers"])
        .option("checkpointLocation", str(home / "copied"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def times(table: Any) -> list[int]:
    """Return how many sequences are there, and the most often one of them is."""
    counts = Counter(row.sequence for row in table.select("sequence").collect())
    return [len(counts), max(counts.values())]


if __name__ == "__main__":
    main()
