"""
The owner of a target: one query, and the streams it reads.

A pipeline that names its output by the number of the micro-batch starts again at 0 with a
new checkpoint. It would then replace the output of another query, or be skipped because
the batch seems to be written already. So a target records which query writes to it, and
from which stream, created when; any other query is refused before it reads a row.

The query's id is the one that Spark keeps in its checkpoint. It is saved in both places
before the first batch, so that no output is ever without an owner.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.spark.connection import Connection
from penstock.spark.files import Files, files_of, folder_of
from penstock.spark.kafka import is_kafka
from penstock.spark.options import parse_source
from penstock.spark.patience import Patience, persistently
from penstock.spark.pipelines.config import PipelineConfig
from penstock.spark.pipelines.folder import decode
from penstock.spark.pipelines.progress import finished_offset
from penstock.spark.source.offsets import read_offset
from penstock.spark.source.stream import StreamState
from penstock.spark.source.streams import find_streams

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OWNER = "_owner.json"
"""Readers of Parquet pass over what begins with an underscore."""


def claim_target(spark: SparkSession, config: PipelineConfig) -> None:
    """Take a target that is nobody's; raise if it is another query's."""
    config.need("target", "checkpoint")
    files = files_of(spark)
    query = query_of(files, config.checkpoint)
    file = f"{config.target}/{OWNER}"
    owner = files.read(file)
    if owner is None and files.is_empty(config.target):
        checkpoint = files.qualified(config.checkpoint)
        written = {"query": query, "checkpoint": checkpoint} | source_of(config)
        files.create(file, json.dumps(written))
        # Another may have been a little faster.
        owner = files.read(file)
    if owner is None:
        raise ConfigError(
            f"`target` {config.target} holds something, and nothing says which query has written "
            f"it; {_remedy(config)}"
        )
    _check(config, decode(owner, file, _read_owner), query)


def query_of(files: Files, checkpoint: str) -> str:
    """Return the id of the query of a checkpoint, as Spark will know it; a new one has none yet."""
    file = f"{checkpoint}/metadata"
    if files.read(file) is None:
        files.create(file, json.dumps({"id": str(uuid.uuid4())}))
    return decode(files.read(file) or "", file, lambda metadata: str(metadata["id"]))


def archived_to(spark: SparkSession, target: str) -> dict[str, int]:
    """Return up to where streams are in a target for good, as far as anything says so."""
    file = f"{target}/{OWNER}"
    owner = files_of(spark).read(file)
    checkpoint = decode(owner, file, _read_owner).get("checkpoint") if owner is not None else None
    offset = finished_offset(folder_of(spark, checkpoint)) if checkpoint else None
    if offset is None or "streams" not in offset:
        return {}
    return {name: mark.sequence for name, mark in read_offset(offset).items()}


def _read_owner(owner: dict[str, Any]) -> dict[str, Any]:
    return {"query": owner["query"], "stream": owner["stream"]} | owner


def _check(config: PipelineConfig, owner: dict[str, Any], query: str) -> None:
    if owner["query"] == query:
        return
    written = f"`{owner['stream']}`"
    if owner.get("created"):
        written += f" as it was created at {owner['created']}"
    raise ConfigError(
        f"`target` {config.target} is written by another query: {owner['query']}, which reads "
        f"{written}, and the checkpoint {config.checkpoint} is of {query}, so that one would "
        f"replace what the other has written; {_remedy(config)}"
    )


def _remedy(config: PipelineConfig) -> str:
    return (
        "hint: give every checkpoint a `target` of its own; after a checkpoint was lost, with a "
        "`startingPosition` under `source` behind the last `sequence` that the old target has"
    )


def source_of(config: PipelineConfig) -> dict[str, str]:
    """Return which streams a pipeline reads, and when they were created."""
    if is_kafka(config.source):
        return {"stream": str(config.source.get("topics", ">")), "created": ""}
    connection, source = parse_source(config.source)

    def find() -> dict[str, StreamState]:
        with Connection(connection, "penstock-pipeline") as opened:
            return find_streams(opened, source)

    states = persistently(Patience(connection.retry_timeout_seconds), find)
    return {
        "stream": ", ".join(states),
        "created": ", ".join(state.created for state in states.values()),
    }
