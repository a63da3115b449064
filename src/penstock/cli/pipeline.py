"""`penstock pipeline`: run the ready pipelines on Spark, and show their state."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.arguments import Verb, argument
from penstock.cli.commands import EXIT_FAILURE
from penstock.cli.connection import JSON
from penstock.cli.runner import run_command, run_plain
from penstock.errors import ClientError

if TYPE_CHECKING:
    from argparse import Namespace

    from penstock.spark.pipelines.config import PipelineConfig
    from penstock.spark.pipelines.folder import Folder


def run(arguments: list[str]) -> int:
    """Run `penstock pipeline` and return the exit code."""
    return run_command("pipeline", VERBS, arguments, run_plain)


def start(options: Namespace) -> int:
    """Run a pipeline until it is done or stopped."""
    from penstock.spark import session
    from penstock.spark.kafka import connector
    from penstock.spark.pipelines import config as files
    from penstock.spark.pipelines import runner

    config = files.load(options.config, options.name)
    settings = {**connector(config.source), **config.spark}
    # Only after `session`, which reports a missing PySpark.
    spark = session(config.name or config.pipeline, master=options.master, settings=settings)
    stops: list[int] = []
    # Only after Spark has set its own handler, which would cancel a write in progress.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: stops.append(number))
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        is_well = runner.run(spark, config, once=options.once, stopping=lambda: bool(stops))
    except (PySparkException, Py4JError, ConnectionError) as error:
        if stops:
            raise ClientError("stopped before it was done") from None
        raise runner.cause_of(error) from None
    finally:
        # A signal to the whole group has ended its JVM before us.
        with suppress(Py4JError, ConnectionError):
            spark.stop()
    if stops:
        print("stopped; it goes on from here when it runs again", file=sys.stderr)
    return 0 if is_well else EXIT_FAILURE


def list_pipelines(options: Namespace) -> int:
    """Print the available pipelines."""
    from penstock.spark.pipelines.table import PIPELINES

    summaries = {name: pipeline.summary for name, pipeline in PIPELINES.items()}
    width = max(map(len, summaries))
    lines = [f"{name:{width}}  {summary}" for name, summary in summaries.items()]
    return _show(options, "\n".join(lines), summaries)


def describe(options: Namespace) -> int:
    """Print the settings of a pipeline."""
    from penstock.spark.pipelines.table import PIPELINES, settings_of

    settings = settings_of(options.name)
    lines = [f"{options.name}: {PIPELINES[options.name].summary}", "", "settings:"]
    lines += [f"  {name:18} {meaning}" for name, meaning in settings.items()]
    return _show(options, "\n".join(lines), dict(settings))


def status(options: Namespace) -> int:
    """Print the progress of a pipeline."""
    from penstock.spark.kafka import is_kafka
    from penstock.spark.pipelines import config as files
    from penstock.spark.pipelines import progress
    from penstock.spark.pipelines.batches import streams_of

    config = files.load(options.config, options.name)
    config.need("checkpoint")
    is_replay = config.pipeline == "replay"
    found = progress.status(_checkpoint_of(config), streams_of if is_replay else progress.mapping)
    document = {"pipeline": config.pipeline, "batch": found["batch"]}
    if found["batch"] is None:
        return _show(options, f"{config.pipeline}: has never run", document)
    is_finished = found["finished"] == found["batch"]
    state = "finished" if is_finished else "begun"
    if is_replay:
        text, place = _places(found["offset"]), {"streams": found["offset"]}
    else:
        text, place = (_kafka_lag if is_kafka(config.source) else _stream_lag)(
            config.source, found["offset"]
        )
    return _show(
        options,
        f"{config.pipeline}: batch {found['batch']} {state}, {text}",
        document | {"finished": is_finished} | place,
    )


def _checkpoint_of(config: PipelineConfig) -> Folder:
    """Return the checkpoint; only Spark can find one outside the local file system."""
    from penstock.spark.pipelines.folder import LocalFolder

    scheme, colon, path = config.checkpoint.partition(":")
    if not colon or "/" in scheme:
        return LocalFolder(Path(config.checkpoint))
    if scheme == "file":
        return LocalFolder(Path("/" + path.lstrip("/")))
    from penstock.spark import session
    from penstock.spark.files import folder_of

    return folder_of(session("status", settings=config.spark), config.checkpoint)


def _places(streams: Mapping[str, int]) -> str:
    places = ", ".join(f"{sequence:,} of `{name}`" for name, sequence in streams.items())
    return f"up to sequence {places}"


def _stream_lag(source: Mapping[str, str], offset: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the position in each stream, and the distance to its end."""
    from penstock.spark.connection import Connection
    from penstock.spark.options import parse_source
    from penstock.spark.source.loss import check_same_stream
    from penstock.spark.source.offsets import read_offset
    from penstock.spark.source.stream import read_lag, read_state

    marks = read_offset(offset)
    connection, reading = parse_source(source)
    lags = []
    with Connection(connection, "penstock-pipeline-status") as opened:
        for name, mark in marks.items():
            if mark.is_gone:
                continue
            state = read_state(opened, name)
            check_same_stream(state, mark.created)
            lags.append(read_lag(opened, state, reading.subjects, mark.sequence))
    behind, behind_s = (
        sum(lag.messages for lag in lags),
        max((lag.seconds for lag in lags), default=0.0),
    )
    places = ", ".join(
        f"{mark.sequence:,} of `{name}`{', which is gone' * mark.is_gone}"
        for name, mark in marks.items()
    )
    return f"up to sequence {places}, behind by {behind:,} messages, {behind_s:,.1f} s", {
        "streams": {name: mark.sequence for name, mark in marks.items()},
        "behind_messages": behind,
        "behind_s": behind_s,
    }


def _kafka_lag(
    source: Mapping[str, str], offset: Mapping[str, Mapping[str, int]]
) -> tuple[str, dict[str, Any]]:
    """Return the position in each topic, and the distance to its end."""
    from penstock.spark.kafka import count_behind

    topics = ", ".join(f"`{topic}`" for topic in sorted(offset))
    read = sum(sum(partitions.values()) for partitions in offset.values())
    behind = count_behind(source, offset)
    text = f"up to {read:,} records of {topics}, behind by {behind:,} messages"
    return text, {"topics": sorted(offset), "records": read, "behind_messages": behind}


def _show(options: Namespace, text: str, document: Any) -> int:
    print(json.dumps(document, indent=2, ensure_ascii=False) if options.json else text)
    return 0


NAME = argument("name", metavar="NAME", nargs="?", doc="The pipeline, unless the file names it.")
CONFIG = argument(
    "--config", metavar="FILE", type=Path, required=True, doc="YAML file of the pipeline."
)

VERBS = (
    Verb(
        name="run",
        summary="Run a pipeline until it is done or stopped.",
        run=start,
        arguments=(
            NAME,
            CONFIG,
            argument(
                "--master",
                metavar="URL",
                doc="Spark master: `spark://…`, `k8s://…`, `yarn` (default: this machine).",
            ),
            argument("--once", action="store_true", doc="Process the available events, then stop."),
        ),
        endless=True,
    ),
    Verb(
        name="list",
        aliases=("ls",),
        summary="List the pipelines.",
        run=list_pipelines,
        arguments=(JSON,),
    ),
    Verb(
        name="describe",
        summary="Show the settings of a pipeline.",
        run=describe,
        arguments=(argument("name", metavar="NAME", doc=""), JSON),
    ),
    Verb(
        name="status",
        summary="Show the progress of a pipeline.",
        run=status,
        arguments=(NAME, CONFIG, JSON),
    ),
)
