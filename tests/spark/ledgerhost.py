"""
Archives a stream and copies it into another at once, in a process made to be killed.

Called with what one life of it is like, as JSON; on its output it says how each query ended, and
how often one was started again because Spark's Python came too late.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable
from typing import Any

from pyspark.sql.functions import expr
from tests.spark.copier import SETTINGS

from penstock.spark import session
from penstock.spark.pipelines import runner
from penstock.spark.pipelines.config import PipelineConfig
from penstock.spark.sink.checkpoint import ALL_CHECKPOINTS

COPIES: dict[str, Callable[[Any], Any]] = {
    "plain": lambda rows: rows,
    "filtered": lambda rows: rows.where("length(data) > 0"),
    "spread": lambda rows: rows.repartition(5),
    "gathered": lambda rows: rows.coalesce(1),
}
"""Ways to write a query that gives the same rows."""
TOO_LATE = re.compile(
    r"(waiting for the Python worker|Python worker failed) to connect back", re.IGNORECASE
)
"""Spark gives its Python ten seconds to start, which no setting changes, on any machine."""
STARTS_MAX = 5


def main() -> None:
    """Run both queries until they end."""
    life = json.loads(sys.argv[1])
    settings = dict(SETTINGS)
    if life["checkpoint_by"] == "setting":
        settings[ALL_CHECKPOINTS] = life["checkpoints"]
    spark = session("ledger", master=life["master"], settings=settings)
    spark.sparkContext.setLogLevel("OFF")
    config = archive_of(life)
    archiving = threading.Thread(
        target=tell,
        args=("archive", lambda: run_archive(spark, config, once=life["once"])),
    )
    archiving.start()
    # Spark finds a sink in Python only for the thread that has made the session.
    tell("copy", lambda: start_copy(spark, life).awaitTermination())
    archiving.join()


def run_archive(spark: Any, config: PipelineConfig, *, once: bool) -> None:
    """Run the pipeline to its end."""
    runner.run(spark, config, once=once, say=lambda text: None)


def tell(query: str, run: Callable[[], object]) -> None:
    """Run a query to its end, and say how that came; start it again if its Python was too late."""
    for _ in range(STARTS_MAX):
        error = error_of(run)
        if not TOO_LATE.search(error):
            break
        print(json.dumps({"query": query, "too late": error}), flush=True)
    print(json.dumps({"query": query, "error": error}), flush=True)


def error_of(run: Callable[[], object]) -> str:
    """Return by which error a query ended; empty if it came to its end."""
    try:
        run()
    except Exception as raised:
        return str(runner.cause_of(raised)) or repr(raised)
    return ""


def source_of(life: dict[str, Any]) -> dict[str, str]:
    """Return the options of either query's source."""
    return {"servers": life["servers"], "stream": "SOURCE"} | life["source"]


def start_copy(spark: Any, life: dict[str, Any]) -> Any:
    """Start the query that writes to another stream."""
    rows = spark.readStream.format("penstock").options(**source_of(life)).load()
    rows = rows.withColumn("subject", expr("replace(subject, 'SOURCE.', 'TARGET.')"))
    writer = COPIES[life["copy"]](rows.drop("headers", "time")).writeStream.format("penstock")
    writer = writer.queryName("copy").option("servers", life["servers"])
    writer = writer.options(**life["sink"])
    if life["checkpoint_by"] == "option":
        writer = writer.option("checkpointLocation", f"{life['checkpoints']}/copy")
    trigger = {"availableNow": True} if life["once"] else {"processingTime": "0 seconds"}
    return writer.trigger(**trigger).start()


def archive_of(life: dict[str, Any]) -> PipelineConfig:
    """Return the pipeline that brings the stream into a lake."""
    return PipelineConfig(
        pipeline="archive",
        source=source_of(life),
        target=life["lake"],
        checkpoint=f"{life['checkpoints']}/archive",
        trigger="0 seconds",
        settings={"topic_tokens": 1, "compact_batches": 7},
    )


if __name__ == "__main__":
    main()
