"""`penstock pipeline`: run the ready pipelines on Spark, and look at them."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.arguments import Verb, argument
from penstock.cli.buscommand import JSON
from penstock.cli.main import EXIT_FAILURE
from penstock.cli.runner import run_command, run_plain

if TYPE_CHECKING:
    from argparse import Namespace


def run(arguments: list[str]) -> int:
    """Run `penstock pipeline` and return the exit code."""
    return run_command("pipeline", VERBS, arguments, run_plain)


def start(options: Namespace) -> int:
    """Run a pipeline until it is done or stopped."""
    from dataclasses import replace

    from penstock.spark import session
    from penstock.spark.kafka import connector
    from penstock.spark.pipelines import config as files
    from penstock.spark.pipelines import runner

    config = files.load(options.config)
    if options.name:
        config = replace(config, pipeline=options.name)
    stops: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: stops.append(number))
    signal.signal(signal.SIGTERM, lambda number, frame: stops.append(number))
    settings = {**connector(config.source), **config.spark}
    # Not before `session` has said what is missing, if PySpark is.
    spark = session(config.name or config.pipeline, master=options.master, settings=settings)
    from pyspark.errors import PySparkException

    try:
        is_well = runner.run(spark, config, once=options.once, stopping=lambda: bool(stops))
    except PySparkException as error:
        raise runner.cause_of(error) from None
    finally:
        spark.stop()
    return 0 if is_well else EXIT_FAILURE


def list_pipelines(options: Namespace) -> int:
    """Print the pipelines there are."""
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
    """Print how far a pipeline is."""
    from penstock.spark.kafka import is_kafka
    from penstock.spark.pipelines import config as files
    from penstock.spark.pipelines import runner

    config = files.load(options.config)
    config.need("checkpoint")
    found = runner.status(Path(config.checkpoint))
    document = {"pipeline": config.pipeline, "batch": found["batch"]}
    if found["batch"] is None:
        return _show(options, f"{config.pipeline}: never ran", document)
    is_finished = found["finished"] == found["batch"]
    state = "finished" if is_finished else "begun"
    text, place = (_kafka_lag if is_kafka(config.source) else _stream_lag)(
        config.source, found["offset"]
    )
    return _show(
        options,
        f"{config.pipeline}: batch {found['batch']} {state}, {text}",
        document | {"finished": is_finished} | place,
    )


def _stream_lag(source: Mapping[str, str], offset: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return up to where a stream was read, and how far behind its end that is."""
    from penstock.spark.connection import Connection
    from penstock.spark.options import parse_source
    from penstock.spark.source.loss import check_same_stream
    from penstock.spark.source.stream import read_lag, read_state

    sequence = int(offset["sequence"])
    connection, reading = parse_source(source)
    with Connection(connection, "penstock-pipeline-status") as opened:
        state = read_state(opened, reading.stream)
        check_same_stream(state, str(offset["created"]))
        lag = read_lag(opened, state, reading.subjects, sequence)
    text = (
        f"up to sequence {sequence:,} of `{reading.stream}`, "
        f"behind by {lag.messages:,} messages, {lag.seconds:,.1f} s"
    )
    return text, {
        "stream": reading.stream,
        "sequence": sequence,
        "behind_messages": lag.messages,
        "behind_s": lag.seconds,
    }


def _kafka_lag(
    source: Mapping[str, str], offset: Mapping[str, Mapping[str, int]]
) -> tuple[str, dict[str, Any]]:
    """Return up to where topics were read, and how far behind their ends that is."""
    from penstock.spark.kafka import count_behind

    topics = ", ".join(f"`{topic}`" for topic in sorted(offset))
    read = sum(sum(partitions.values()) for partitions in offset.values())
    behind = count_behind(source, offset)
    text = f"up to {read:,} records of {topics}, behind by {behind:,} messages"
    return text, {"topics": sorted(offset), "records": read, "behind_messages": behind}


def _show(options: Namespace, text: str, document: Any) -> int:
    print(json.dumps(document, indent=2, ensure_ascii=False) if options.json else text)
    return 0


CONFIG = argument("--config", metavar="FILE", type=Path, required=True, doc="Its YAML file.")

VERBS = (
    Verb(
        name="run",
        summary="Run a pipeline until it is done or stopped.",
        run=start,
        arguments=(
            argument(
                "name", metavar="NAME", nargs="?", doc="The pipeline, if the file does not say."
            ),
            CONFIG,
            argument(
                "--master",
                metavar="URL",
                doc="Where Spark runs: `spark://…`, `k8s://…`, `yarn`; this machine.",
            ),
            argument("--once", action="store_true", doc="Bring what is there, then end."),
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
        summary="Show how far a pipeline is.",
        run=status,
        arguments=(CONFIG, JSON),
    ),
)
