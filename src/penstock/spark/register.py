"""Make the data source known to a Spark session, or make a session that knows it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

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


def register(spark: SparkSession) -> None:
    """Make `format("penstock")` known, and allow filters to be pushed down to it."""
    from penstock.spark.source import PenstockDataSource

    spark.dataSource.register(PenstockDataSource)
    # A declarative pipeline may not set it, but its file may.
    if spark.conf.get(FILTER_PUSHDOWN, "false") != "true":
        spark.conf.set(FILTER_PUSHDOWN, "true")


def session(
    name: str, *, master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a Spark session that knows `penstock`; on this machine unless a master is named."""
    from penstock.spark.home import ensure_home
    from penstock.spark.java import ensure_java

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
