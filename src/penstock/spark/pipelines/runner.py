"""Run a pipeline: start it, say how it gets on, stop it in good order."""

from __future__ import annotations

import json
import re
from ast import literal_eval
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from penstock.errors import ClientError
from penstock.spark.files import folder_of
from penstock.spark.kafka import follow_topics, is_kafka
from penstock.spark.pipelines.config import PipelineConfig, check_settings, with_decompressed
from penstock.spark.pipelines.ownership import claim_target
from penstock.spark.pipelines.progress import check_readable
from penstock.spark.pipelines.reporting import tell_server
from penstock.spark.pipelines.state import find_function
from penstock.spark.pipelines.table import find
from penstock.spark.version import has_limits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_S = 1
GRACE_S = 8
"""Time that a batch has to be finished when a pipeline is to stop."""
OUR_ERROR = re.compile(r"^\s*penstock\.errors\.\w+: (.+?)\s*$", re.MULTILINE)
SPARKS_CAUSE = re.compile(r"^\s*Caused by: (?:[\w.$]+: )?(.+?)\s*$", re.MULTILINE)
PYTHONS_ERROR = re.compile(r"^ {4}.*\n(\w[\w.]*: .+?)\s*$", re.MULTILINE)
TRACEBACK = "Traceback (most recent call last):"
UNREADABLE_FILE = re.compile(
    r"FAILED_READ_FILE\S* Encountered error while reading file (\S+?)\.?\s"
)
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
SEVERAL_BATCHES = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
"""
Before 4.2, a Python source gets a single micro-batch with `availableNow`: after a crash, the one
that crashed. With this setting Spark goes on to the end that it asks for when the query starts.
"""


def run(
    spark: SparkSession,
    config: PipelineConfig,
    *,
    once: bool = False,
    say: Callable[[str], None] = print,
    stopping: Callable[[], bool] = lambda: False,
) -> bool:
    """
    Run until it is done, or until `stopping` says so; what is half done is done again.

    Return whether all is well, which only a pipeline can deny that looks for what is not.
    """
    _partition_by_cores(spark)
    if once and not has_limits():
        spark.conf.set(SEVERAL_BATCHES, "true")
    if ":" in config.pipeline:
        query = _start_users(spark, config, once=once)
    else:
        module = find(config.pipeline)
        check_settings(config, module.SETTINGS)
        if not hasattr(module, "start"):
            ends = _run_batches if hasattr(module, "batches") else _run_once
            with cancelling(spark, stopping, GRACE_S if ends is _run_batches else 0):
                return ends(module, spark, config, say, stopping)
        events = follow(spark, config, of_events=True)
        query = _start(module.start(spark, events, config), config, once=once)
    watch(query, say, stopping, config)
    return True


def cause_of(error: Exception) -> Exception:
    """Return in one sentence what is behind an error of Spark's: ours, or its own last word."""
    text = f"{error}\n{getattr(error, '_stackTrace', '')}"
    if causes := OUR_ERROR.findall(text):
        return ClientError(causes[-1])
    causes = SPARKS_CAUSE.findall(text)
    if not causes:
        return error
    pythons = PYTHONS_ERROR.findall(text)
    # Where Python failed, the last cause is but the beginning of its traceback.
    cause = pythons[-1] if pythons and causes[-1].endswith(TRACEBACK) else causes[-1]
    files = UNREADABLE_FILE.findall(text)
    where = f", in the file {files[-1]}" if files else ""
    return ClientError(f"Spark has failed: {cause}{where}")


def follow(spark: SparkSession, config: PipelineConfig, *, of_events: bool = False) -> DataFrame:
    """Return the stream that the configuration names, perhaps with events decompressed."""
    config.need("source", "checkpoint")
    check_readable(folder_of(spark, config.checkpoint))
    if is_kafka(config.source):
        return follow_topics(spark, config.source)
    source = with_decompressed(config.source) if of_events else config.source
    return spark.readStream.format("penstock").options(**source).load()


def watch(
    query: StreamingQuery,
    say: Callable[[str], None],
    stopping: Callable[[], bool],
    config: PipelineConfig,
) -> None:
    """Say what every micro-batch did, until the query ends."""
    said = -1
    try:
        while not query.awaitTermination(POLL_S):
            said = _say_progress(query, said, say, config)
            if stopping():
                query.stop()
        _say_progress(query, said, say, config)
    except Exception:
        # A signal to the whole group ends Spark before the query.
        if not stopping():
            raise


def _say_progress(
    query: StreamingQuery, said: int, say: Callable[[str], None], config: PipelineConfig
) -> int:
    for progress in query.recentProgress:
        if progress["batchId"] > said and progress["numInputRows"]:
            said = progress["batchId"]
            say(progress_line(progress))
            if not is_kafka(config.source):
                tell_server(config, progress, lag(progress))
    return said


def progress_line(progress: Mapping[str, Any]) -> str:
    """Return batch, rows, rate, and how far behind the end of the stream it is."""
    rate = progress.get("processedRowsPerSecond") or 0.0
    messages, seconds = lag(progress)
    return (
        f"batch {progress['batchId']}: {progress['numInputRows']:,} rows, {rate:,.0f} rows/s, "
        f"behind by {messages:,} messages, {seconds:,.1f} s"
    )


def lag(progress: Mapping[str, Any]) -> tuple[int, float]:
    """Return how far behind a query is, in messages and in seconds where that is known."""
    source = progress["sources"][0]
    latest, end = _offset(source.get("latestOffset")), _offset(source.get("endOffset"))
    if "behindMessages" in latest:
        return latest["behindMessages"], latest["behindSeconds"]
    if "streams" in end:
        return max(0, _sequences(latest) - _sequences(end)), 0.0
    # Kafka's connector has an offset for each partition of each topic.
    return max(0, _sum(latest) - _sum(end)), 0.0


def _offset(offset: Any) -> dict[str, Any]:
    """Return an offset, which Spark gives as text or parsed; empty for a source without one."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            # Before 4.2 it is the text of what was parsed.
            offset = literal_eval(offset)
    return offset if isinstance(offset, dict) else {}


def _sequences(offset: Mapping[str, Any]) -> int:
    return sum(mark["sequence"] for mark in offset.get("streams", {}).values())


def _sum(tree: Any) -> int:
    return sum(map(_sum, tree.values())) if isinstance(tree, dict) else int(tree)


def _partition_by_cores(spark: SparkSession) -> None:
    """Have a micro-batch shuffled into as many parts as there are cores, not into Spark's 200."""
    if not spark.sparkContext.getConf().contains(SHUFFLE_PARTITIONS):
        spark.conf.set(SHUFFLE_PARTITIONS, spark.sparkContext.defaultParallelism)


def _start(writer: Any, config: PipelineConfig, *, once: bool) -> StreamingQuery:
    trigger = {"availableNow": True} if once else {"processingTime": config.trigger}
    named = writer.queryName(config.name or config.pipeline).trigger(**trigger)
    query: StreamingQuery = named.option("checkpointLocation", config.checkpoint).start()
    return query


def _start_users(spark: SparkSession, config: PipelineConfig, *, once: bool) -> StreamingQuery:
    """Start a user's function of a DataFrame; what it returns goes to `target` as Parquet."""
    claim_target(spark, config)
    frame = find_function(config.pipeline)(follow(spark, config))
    return _start(
        frame.writeStream.format("parquet").option("path", config.target), config, once=once
    )


def _run_once(
    module: Any,
    spark: SparkSession,
    config: PipelineConfig,
    say: Callable[[str], None],
    stopping: Callable[[], bool],
) -> bool:
    """Run what says something only if it comes to its end."""
    try:
        return _report(module, module.run(spark, config), say)
    except Exception:
        if not stopping():
            raise
        raise ClientError(f"`{config.pipeline}` was stopped before it was done") from None


def _run_batches(
    module: Any,
    spark: SparkSession,
    config: PipelineConfig,
    say: Callable[[str], None],
    stopping: Callable[[], bool],
) -> bool:
    """Run batch by batch, and stop between two of them if there is time for that."""
    done, ending = None, "started again, it goes on from here"
    try:
        for progress in module.batches(spark, config):
            done = progress
            if stopping():
                break
    except Exception:
        if not stopping():
            raise
        ending = "what is stored of the next batch is left out when it is started again"
    finally:
        if done is not None:
            say(module.summary(done))
    if stopping():
        say(f"stopped: {ending}")
    return True


@contextmanager
def cancelling(spark: SparkSession, stopping: Callable[[], bool], grace_s: float) -> Iterator[None]:
    """Have the jobs of Spark cancelled that still run some seconds after a stop was asked for."""
    from py4j.protocol import Py4JError

    ended = Event()

    def cancel() -> None:
        while not stopping():
            if ended.wait(POLL_S):
                return
        ended.wait(grace_s)
        # It may begin another one before it notices. A signal to the group has ended Spark too.
        with suppress(Py4JError, ConnectionError):
            while not ended.is_set():
                spark.sparkContext.cancelAllJobs()
                ended.wait(POLL_S)

    watcher = Thread(target=cancel, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _report(module: Any, result: DataFrame, say: Callable[[str], None]) -> bool:
    if hasattr(module, "summary"):
        say(module.summary(result))
    else:
        say(f"{result.count():,} rows")
    return module.is_clean(result) if hasattr(module, "is_clean") else True
