"""Make the data source known to a Spark session, or make a session that knows it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILTER_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"

SETTINGS = {
    # The pip package has no native Hadoop library, so that each checkpoint file forks a `chmod`
    # for its checksum too; this file system writes none.
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}

ON_THIS_MACHINE = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""A Spark that nobody else is part of need not be seen by anybody else."""


SET_BY_SPARK = (
    "SPARK_AUTH_SOCKET_TIMEOUT",
    "SPARK_BUFFER_SIZE",
    "SPARK_LOCAL_DIRS",
    "SPARK_PYTHON_RUNTIME",
)
"""
Variables that Spark sets for the process a streaming query is planned in, each query in the same
Java map, which it sends with tasks too. That map knows nothing of threads: two queries that start
at once and add to it can break it for as long as the session lives, and then no task can be read
(`OptionalDataException`). Setting what is there already breaks nothing.
"""


def register(spark: SparkSession) -> None:
    """Make `format("penstock")` known, and allow filters to be pushed down to it."""
    from penstock.spark.source.source import PenstockDataSource

    # A class of this session's own: Spark plans in processes that know nothing of it.
    known = _known(spark)
    with _complete_environment(spark):
        spark.dataSource.register(type("PenstockDataSource", (PenstockDataSource,), known))
    # A declarative pipeline may not set it, but its file may.
    if spark.conf.get(FILTER_PUSHDOWN, "false") != "true":
        spark.conf.set(FILTER_PUSHDOWN, "true")


def _known(spark: SparkSession) -> dict[str, Any]:
    """Return what the source is to know of its session."""
    from pyspark.errors import PySparkException

    from penstock.spark.files import leave_address

    try:
        return {"cores": cores_of(spark), "driver": leave_address(spark)}
    except PySparkException:
        # With Spark Connect the driver is elsewhere.
        return {}


@contextmanager
def _complete_environment(spark: SparkSession) -> Iterator[None]:
    """Have what is registered know all variables that Spark will set; their values are Spark's."""
    from pyspark.errors import PySparkException

    try:
        environment = spark.sparkContext.environment
    except PySparkException:
        # With Spark Connect the driver is elsewhere.
        yield
        return
    added = set(SET_BY_SPARK) - environment.keys()
    environment.update(dict.fromkeys(added, ""))
    try:
        yield
    finally:
        for name in added:
            del environment[name]


def cores_of(spark: SparkSession) -> int:
    """Return how many tasks the cluster can run at once."""
    context = spark.sparkContext
    executors = int(context.getConf().get("spark.executor.instances") or 0)
    cores = int(context.getConf().get("spark.executor.cores") or 1)
    # Executors may still be on their way.
    return max(context.defaultParallelism, executors * cores)


def session(
    name: str, *, master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a Spark session that knows `penstock`; on this machine unless a master is named."""
    from penstock.spark.java import ensure_java
    from penstock.spark.runtime import ensure_home

    ensure_java()
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise ConfigError("PySpark is missing; hint: pip install 'penstock[spark]'") from None
    # Workers must be the Python that has penstock, not the first one on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    master = master or "local[*]"
    if master.startswith("local"):
        ensure_home()
    builder = SparkSession.builder.appName(name).master(master)
    defaults = SETTINGS | (ON_THIS_MACHINE if master.startswith("local") else {})
    for key, value in {**defaults, **(settings or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark
