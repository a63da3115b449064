"""Tell the server how far a pipeline is, so that its console can show it: see `/pipelinez`."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from penstock.errors import PenstockError
from penstock.protocol import wellknown
from penstock.spark.connection import Connection
from penstock.spark.options import parse_source
from penstock.spark.pipelines.config import PipelineConfig

logger = logging.getLogger("penstock.spark")

SUBJECT = wellknown.PIPELINE.encode()


def tell_server(
    config: PipelineConfig, progress: Mapping[str, Any], lag: tuple[int, float]
) -> None:
    """Publish what a micro-batch did. A server that cannot be told does not fail the pipeline."""
    connection, source = parse_source(config.source)
    behind_messages, behind_s = lag
    report = {
        "name": config.name or config.pipeline,
        "stream": source.stream or source.stream_pattern,
        "batch": progress["batchId"],
        "rows_per_s": progress.get("processedRowsPerSecond") or 0.0,
        "behind_messages": behind_messages,
        "behind_s": behind_s,
    }
    payload = json.dumps(report).encode()
    try:
        with Connection(connection, "penstock-pipeline-report") as opened:
            opened.send(b"PUB %b %d\r\n%b\r\n" % (SUBJECT, len(payload), payload))
    except (PenstockError, OSError) as error:
        logger.warning("! the server could not be told of batch %d: %s", report["batch"], error)
