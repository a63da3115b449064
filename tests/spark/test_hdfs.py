"""Pipelines whose checkpoints and targets are in HDFS: as exact as on disk."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers import ServerProcess
from tests.spark.conftest import Broker, rows, rows_of
from tests.spark.events import AGGREGATES, publish
from tests.spark.hdfs import Hdfs

from penstock.cli import lake as lake_command
from penstock.cli import pipeline as pipeline_command
from penstock.errors import ConfigError, MissingExtra
from penstock.spark.files import HadoopFolder, files_of, folder_of
from penstock.spark.pipelines import lake, runner, snapshot
from penstock.spark.pipelines.config import PipelineConfig

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return where an HDFS is; skip where it cannot be fetched."""
    try:
        with Hdfs(tmp_path_factory.mktemp("hdfs")) as running:
            yield running.url
    except MissingExtra as error:
        pytest.skip(f"HDFS: {error}")


@pytest.fixture
def server(servers: dict[str, ServerProcess]) -> ServerProcess:
    """Return Penstock."""
    return servers["penstock"]


@pytest.fixture
def home(hdfs: str, stream: str) -> str:
    """Return a directory of one test."""
    return f"{hdfs}/{stream}"


def forget(spark: Any, checkpoint: str, batch: int) -> None:
    """Have a batch run again, as if the query had been killed before it was done, an hour ago."""
    files_of(spark).remove(f"{checkpoint}/commits/{batch}")
    path = spark._jvm.org.apache.hadoop.fs.Path(f"{checkpoint}/offsets/{batch}")
    system = path.getFileSystem(spark._jsc.hadoopConfiguration())
    system.setTimes(path, int((time.time() - 3600) * 1000), -1)


def test_a_batch_written_again_long_after_is_stored_once(
    broker: Broker, stream: str, spark: Any, follow: Callable[..., Any], home: str
) -> None:
    broker.create(f"{stream}_copy", duplicate_window=100_000_000)
    ledger = broker.fill(stream, 500)
    checkpoint = f"{home}/checkpoint"

    def copy() -> None:
        subject = f"replace(subject, '{stream}.', '{stream}_copy.') AS subject"
        messages = follow(stream, maxMessagesPerTrigger=200)
        (
            messages.selectExpr(subject, "data", "stream", "sequence")
            .writeStream.format("penstock")
            .options(servers=broker.url, checkpointLocation=checkpoint)
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )

    copy()
    forget(spark, checkpoint, 2)
    copy()

    assert sorted(data for *_, data in ledger) == sorted(
        data for *_, data in rows_of(broker, f"{stream}_copy")
    )


@pytest.fixture
def run(spark: Any, broker: Broker, stream: str, home: str) -> Callable[..., None]:
    """Return a function that runs a pipeline once, with all it has in HDFS."""

    def run_once(pipeline: str, **settings: Any) -> None:
        config = PipelineConfig(
            pipeline=pipeline,
            source={"servers": broker.url, "stream": stream, "maxMessagesPerTrigger": "30"},
            target=f"{home}/{pipeline}",
            checkpoint=settings.pop("checkpoint", f"{home}/{pipeline}-checkpoint"),
            settings=settings,
        )
        runner.run(spark, config, once=True, say=lambda text: None)

    return run_once


def test_an_archive_is_written_again_merged_and_guarded(
    broker: Broker, stream: str, spark: Any, run: Callable[..., None], home: str
) -> None:
    ledger = publish(broker, stream, range(1, 101))
    run("archive", compact_batches=2)
    forget(spark, f"{home}/archive-checkpoint", 3)
    ledger += publish(broker, stream, range(101, 111))
    run("archive", compact_batches=2)
    table = f"{home}/archive"

    assert ledger == rows(lake.read_lake(spark, table))
    folder = folder_of(spark, table)
    assert isinstance(folder, HadoopFolder)
    # Up to the batch before the newest that merged, they are one.
    left = {path.rpartition("/")[2] for path in folder.find("topic=*/date=*/batch=*")}
    assert {"batch=2", "batch=3", "batch=4"} == left
    assert [] == folder.find("_compaction/*.json")
    with pytest.raises(ConfigError, match="is written by another query"):
        run("archive", checkpoint=f"{home}/another")


def test_a_compaction_that_was_cut_off_is_finished(
    broker: Broker, stream: str, spark: Any, run: Callable[..., None], home: str
) -> None:
    ledger = publish(broker, stream, range(1, 101))
    run("archive", compact_batches=0)

    class Cut(HadoopFolder):
        """Goes away before the step that makes the merged rows seen."""

        def rename(self, path: str, new: str) -> None:
            raise OSError("power cut")

    table = f"{home}/archive"
    batches = sorted(folder_of(spark, table).find("topic=*/date=*/batch=*"))[:3]
    with pytest.raises(OSError, match="power cut"):
        lake._merge(spark, Cut(files_of(spark), table), batches)
    assert ledger != rows(lake.read_lake(spark, table))
    # Also if there is to be no other.
    run("archive", compact_batches=0)

    assert ledger == rows(lake.read_lake(spark, table))


def test_state_is_folded_once(
    broker: Broker, stream: str, spark: Any, run: Callable[..., None], home: str
) -> None:
    publish(broker, stream, range(1, 51))
    run("state", fold="tests.spark.folds:total")
    forget(spark, f"{home}/state-checkpoint", 1)
    publish(broker, stream, range(51, 61))
    run("state", fold="tests.spark.folds:total")

    states = snapshot.read_snapshot(spark, f"{home}/state").collect()
    assert {
        f"order-{each}": [n for n in range(1, 61) if n % AGGREGATES == each]
        for each in range(AGGREGATES)
    } == {row.aggregate_id: json.loads(row.state)["seen"] for row in states}


def test_status_finds_the_checkpoint_and_a_lake_elsewhere_is_left_to_spark(
    broker: Broker,
    stream: str,
    spark: Any,
    run: Callable[..., None],
    home: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    broker.fill(stream, 10)
    run("archive")
    file = tmp_path / "archive.yml"
    file.write_text(
        f"pipeline: archive\nsource: {{servers: '{broker.url}', stream: {stream}}}\n"
        f"checkpoint: {home}/archive-checkpoint\n"
    )

    assert 0 == pipeline_command.run(["status", "--config", str(file)])
    assert "batch 0 finished, up to sequence 10" in capsys.readouterr().out
    assert 0 != lake_command.run(["ls", f"{home}/archive"])
    assert "not in the local file system" in capsys.readouterr().err
