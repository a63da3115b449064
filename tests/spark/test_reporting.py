"""What a pipeline tells the server about itself."""

from __future__ import annotations

import json
import logging
import urllib.request
from typing import Any

import pytest
from tests.servers import PENSTOCK, ServerProcess, wait_until

from penstock.spark.pipelines.config import PipelineConfig
from penstock.spark.pipelines.reporting import tell_server

PROGRESS = {"batchId": 7, "processedRowsPerSecond": 1234.5}


def config(url: str) -> PipelineConfig:
    source = {"servers": url, "stream": "ORDERS", "timeoutSeconds": "5", "retryTimeoutSeconds": "1"}
    return PipelineConfig(pipeline="archive", name="orders-archive", source=source)


def test_the_dashboard_knows_how_far_a_pipeline_is() -> None:
    with ServerProcess(PENSTOCK, "http_port: -1") as server:

        def known() -> list[dict[str, Any]]:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/pipelinez") as answer:
                return list(json.load(answer)["pipelines"])

        tell_server(config(server.url), PROGRESS, (42, 3.0))
        wait_until(known)

        (report,) = known()
        assert ("orders-archive", "ORDERS", 7) == (
            report["name"],
            report["stream"],
            report["batch"],
        )
        assert (1234.5, 42, 3.0) == (
            report["rows_per_s"],
            report["behind_messages"],
            report["behind_s"],
        )


def test_a_server_that_is_gone_does_not_fail_the_pipeline(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ServerProcess(PENSTOCK) as server:
        url = server.url
    with caplog.at_level(logging.WARNING):
        tell_server(config(url), PROGRESS, (0, 0.0))

    assert "could not be told of batch 7" in caplog.text
