"""Spark on the shop's events: archive, audit, measure, and write back."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.demo.shop import NAMESPACE, WINDOWS_TOPIC
from penstock.spark import session
from penstock.spark.pipelines import audit, metrics, runner
from penstock.spark.pipelines.config import PipelineConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.memory": "1g",
}
BATCH_MESSAGES = 60_000
WINDOW = "1 second"
STANDARD_ERROR = 2


class Lake:
    """A Spark session on the shop's stream, and a directory for its output."""

    def __init__(self, url: str, home: Path) -> None:
        self._url = url
        self._home = home
        self._source = {"servers": url, "stream": NAMESPACE, "subjects": f"{NAMESPACE}.orders.*"}

    def __enter__(self) -> Lake:
        # Java logs optional parts that are missing; keep that out of sight.
        with _standard_error_to(self._home / "spark.log"):
            self._spark: SparkSession = session("penstock-demo", settings=SETTINGS)
        self._spark.sparkContext.setLogLevel("ERROR")
        return self

    def __exit__(self, *_: object) -> None:
        self._spark.stop()

    @property
    def version(self) -> str:
        """The version of Spark."""
        return self._spark.version

    def archive(self, say: Callable[[str], None]) -> int:
        """Write every event to the lake; return the number of rows."""
        config = PipelineConfig(
            pipeline="archive",
            source={**self._source, "maxMessagesPerTrigger": str(BATCH_MESSAGES)},
            target=str(self._lake),
            checkpoint=str(self._home / "checkpoint"),
        )
        runner.run(self._spark, config, once=True, say=say)
        return self._spark.read.parquet(str(self._lake)).count()

    def audit(self, handled: Path) -> dict[str, int]:
        """Compare published, archived and handled events one by one; return the totals."""
        config = PipelineConfig(
            pipeline="audit",
            source=self._source,
            settings={"lake": str(self._lake), "handled": str(handled)},
        )
        report = audit.run(self._spark, config)
        totals = report.groupBy().sum(*audit.KINDS).first()
        assert totals is not None
        counts = {kind: int(totals[f"sum({kind})"] or 0) for kind in audit.KINDS}
        return {"aggregates": report.count(), **counts}

    def measure(self) -> int:
        """Write the figures of every second back to the bus as events; return their number."""
        messages = self._spark.read.format("penstock").options(**self._source).load()
        figures = metrics.measure(messages, WINDOW, WINDOW).cache()
        key = "concat_ws('-', topic, cast(unix_timestamp(start) AS string))"
        events = figures.selectExpr(
            f"to_json(struct({key} AS event_id, topic AS aggregate_id, 'measured' AS event_type, "
            "end AS timestamp, struct(*) AS payload)) AS data",
            f"'{NAMESPACE}.{WINDOWS_TOPIC}' AS subject",
            # After a shuffle, an id must come from the row itself.
            f"{key} AS message_id",
        )
        events.write.format("penstock").option("servers", self._url).mode("append").save()
        return figures.count()

    @property
    def _lake(self) -> Path:
        return self._home / "lake"


@contextmanager
def _standard_error_to(path: Path) -> Iterator[None]:
    """Redirect the errors of processes started in this block to a file."""
    kept = os.dup(STANDARD_ERROR)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), STANDARD_ERROR)
        yield
    finally:
        os.dup2(kept, STANDARD_ERROR)
        os.close(kept)
