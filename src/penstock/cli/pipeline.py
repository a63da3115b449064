"""`penstock pipeline`: run the ready pipelines on Spark, and look at them."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError


def run(arguments: list[str]) -> int:
    """Run one of the subcommands."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.command(options)
    except PenstockError as error:
        print(f"penstock pipeline: {error}", file=sys.stderr)
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="penstock pipeline", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="run | list | describe | status")
    start = commands.add_parser("run", help="run a pipeline until it is done or stopped")
    start.add_argument("name", nargs="?", help="the pipeline, if the file does not say")
    start.add_argument("--config", type=Path, required=True, help="its YAML file")
    start.add_argument("--master", help="where Spark runs: spark://…, k8s://…, yarn; local[*]")
    start.add_argument("--once", action="store_true", help="bring what is there, then end")
    start.set_defaults(command=_run)
    commands.add_parser("list", help="list the pipelines").set_defaults(command=_list)
    describe = commands.add_parser("describe", help="show the settings of a pipeline")
    describe.add_argument("name")
    describe.set_defaults(command=_describe)
    status = commands.add_parser("status", help="show how far a pipeline is")
    status.add_argument("--config", type=Path, required=True, help="its YAML file")
    status.set_defaults(command=_status)
    return parser


def _run(options: argparse.Namespace) -> int:
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
    spark = session(config.name or config.pipeline, master=options.master, settings=settings)
    try:
        runner.run(spark, config, once=options.once, stopping=lambda: bool(stops))
    finally:
        spark.stop()
    return 0


def _list(options: argparse.Namespace) -> int:
    from penstock.spark.pipelines.table import PIPELINES

    width = max(map(len, PIPELINES))
    for name, pipeline in PIPELINES.items():
        print(f"{name:{width}}  {pipeline.summary}")
    return 0


def _describe(options: argparse.Namespace) -> int:
    from penstock.spark.pipelines.table import PIPELINES, settings_of

    settings = settings_of(options.name)
    print(f"{options.name}: {PIPELINES[options.name].summary}\n\nsettings:")
    for name, meaning in settings.items():
        print(f"  {name:18} {meaning}")
    return 0


def _status(options: argparse.Namespace) -> int:
    from penstock.spark.kafka import is_kafka
    from penstock.spark.pipelines import config as files
    from penstock.spark.pipelines.runner import status

    config = files.load(options.config)
    config.need("checkpoint")
    found = status(Path(config.checkpoint))
    if found["batch"] is None:
        print(f"{config.pipeline}: never ran")
        return 0
    state = "finished" if found["finished"] == found["batch"] else "begun"
    where = _kafka_lag if is_kafka(config.source) else _stream_lag
    print(
        f"{config.pipeline}: batch {found['batch']} {state}, "
        f"{where(config.source, found['offset'])}"
    )
    return 0


def _stream_lag(source: Mapping[str, str], offset: Mapping[str, Any]) -> str:
    from penstock.spark.connection import Connection
    from penstock.spark.loss import check_same_stream
    from penstock.spark.options import parse_source
    from penstock.spark.stream import read_lag, read_state

    sequence = int(offset["sequence"])
    connection, reading = parse_source(source)
    with Connection(connection, "penstock-pipeline-status") as opened:
        state = read_state(opened, reading.stream)
        check_same_stream(state, str(offset["created"]))
        lag = read_lag(opened, state, reading.subjects, sequence)
    return (
        f"up to sequence {sequence:,} of `{reading.stream}`, "
        f"behind by {lag.messages:,} messages, {lag.seconds:,.1f} s"
    )


def _kafka_lag(source: Mapping[str, str], offset: Mapping[str, Mapping[str, int]]) -> str:
    from penstock.spark.kafka import count_behind

    topics = ", ".join(f"`{topic}`" for topic in sorted(offset))
    read = sum(sum(partitions.values()) for partitions in offset.values())
    return (
        f"up to {read:,} records of {topics}, behind by {count_behind(source, offset):,} messages"
    )
