"""
A query of many small micro-batches: every row, and nothing that grows.

`SPARK_BATCHES` says how many; with 1000 or more, nats-server is held to the same.
"""

from __future__ import annotations

import json
import os
import re
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.servers import HOST, PROGRAMS, ServerProcess, wait_until
from tests.spark.conftest import Broker, rows
from tests.spark.processes import command_of, descendants

BATCHES = int(os.environ.get("SPARK_BATCHES", "100"))
BATCH_MESSAGES = 3
TASKS = 2
GROWTH_BYTES_MAX = 8 * 1024 * 1024
SOURCE_RUNNER = b"python_streaming_source_runner"


@pytest.fixture(params=[each.name for each in (PROGRAMS if BATCHES >= 1000 else PROGRAMS[:1])])
def server(request: pytest.FixtureRequest, servers: dict[str, ServerProcess]) -> ServerProcess:
    """Return the servers of this test."""
    return servers[request.param]


class Sample(NamedTuple):
    """What a query has in use while it runs."""

    connections: int
    subscriptions: int
    consumers: int
    memory_bytes: int


def sample(server: ServerProcess, broker: Broker, stream: str) -> Sample:
    """Look at the server, and at the process that answers for the source in the driver."""
    address = f"http://{HOST}:{server.http_port}/connz?subs=1"
    with urllib.request.urlopen(address) as answer:
        connections = json.load(answer)["connections"]
    ours = [each for each in connections if "spark" in each.get("name", "")]
    return Sample(
        len(ours),
        sum(each["subscriptions"] for each in ours),
        len(broker.consumers(stream)),
        sum(map(resident_bytes, source_runners())),
    )


def source_runners() -> list[int]:
    """Return the processes in which the driver has sources running."""
    return [pid for pid in descendants(os.getpid()) if SOURCE_RUNNER in command_of(pid)]


def resident_bytes(pid: int) -> int:
    """Return how much memory a process has resident; nothing if it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(found[1]) * 1024 if found else 0


@pytest.mark.slow
@pytest.mark.timeout(BATCHES * 6)
def test_many_small_batches_bring_every_row_and_leave_nothing(
    server: ServerProcess,
    broker: Broker,
    stream: str,
    follow: Callable[..., Any],
    spark: Any,
    tmp_path: Path,
) -> None:
    ledger = broker.fill(stream, BATCHES * BATCH_MESSAGES)
    query = (
        follow(stream, maxMessagesPerTrigger=BATCH_MESSAGES, minPartitions=TASKS)
        .writeStream.format("memory")
        .queryName("many")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    samples = []
    for share in (0.1, 0.4, 0.7, 0.9):
        wait_until(
            lambda share=share: batches_done(query) >= share * BATCHES, timeout_s=BATCHES * 5
        )
        samples.append(sample(server, broker, stream))
    query.awaitTermination()

    assert ledger == rows(spark.table("many"))
    assert BATCHES == batches_done(query)
    # One connection of the driver, and one of each task that happens to run.
    assert max(each.connections for each in samples) <= 1 + TASKS
    assert max(each.subscriptions for each in samples) <= 2 * (1 + TASKS)
    assert max(each.consumers for each in samples) <= TASKS
    assert samples[-1].memory_bytes - samples[0].memory_bytes < GROWTH_BYTES_MAX
    wait_until(lambda: sample(server, broker, stream)[:3] == (0, 0, 0), timeout_s=60)
    wait_until(lambda: source_runners() == [], timeout_s=60)


def batches_done(query: Any) -> int:
    """Return how many micro-batches a query has finished."""
    if query.exception() is not None:
        raise query.exception()
    progress = query.lastProgress
    return int(progress["batchId"]) + 1 if progress else 0
