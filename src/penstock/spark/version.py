"""The capabilities of the installed version of Spark."""

from __future__ import annotations

from importlib.util import find_spec


def has_limits() -> bool:
    """Tell whether Spark limits micro-batches of Python sources, as it does since 4.2."""
    return find_spec("pyspark.sql.streaming.datasource") is not None
