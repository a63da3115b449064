"""
Real processes killed while they write: each row arrives, and arrives once.

`SPARK_KILLS` says how often the driver is killed, and `SPARK_MASTER` where the tasks run; with
`local-cluster[2,1,1024]` they run in processes of their own, of which one is killed each time too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.servers import ServerProcess, wait_until
from tests.spark.conftest import Broker, rows_of

MASTER = os.environ.get("SPARK_MASTER", "local[2,3]")
KILLS = int(os.environ.get("SPARK_KILLS", "1"))
START_S = 240
MESSAGES = 4000
PROGRAM = Path(__file__).parent / "copier.py"


@pytest.fixture
def server(servers: dict[str, ServerProcess]) -> ServerProcess:
    """Return Penstock."""
    return servers["penstock"]


@contextmanager
def copier(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run the program in a process group of its own; kill what is left of it."""
    command = [sys.executable, str(PROGRAM), MASTER, *arguments]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            for pid in descendants(process.pid):
                kill(pid)


def descendants(pid: int) -> list[int]:
    """Return a process and all it started, the youngest first."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [each for child in task.read_text().split() for each in descendants(int(child))]
    return [*found, pid]


def kill(pid: int) -> None:
    """Kill a process, unless it is gone."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        """It went by itself."""


def executors(pid: int) -> list[int]:
    """Return the processes of a local cluster that run tasks."""
    return [
        each
        for each in descendants(pid)
        if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{each}/cmdline").read_bytes()
    ]


def stored(broker: Broker, stream: str) -> int:
    """Return how many messages a stream holds."""
    return int(broker.info(stream)["state"]["messages"])


def wait_for_more(broker: Broker, stream: str) -> None:
    """Return once a stream holds more than it does now."""
    before = stored(broker, stream)
    wait_until(lambda: stored(broker, stream) > before, timeout_s=START_S)


@pytest.mark.slow
@pytest.mark.timeout(START_S * (KILLS + 2))
def test_rows_are_stored_once_although_driver_and_tasks_are_killed(
    broker: Broker, stream: str, tmp_path: Path
) -> None:
    target = f"{stream}_copy"
    # So short that the ids alone would not do.
    broker.create(target, duplicate_window=1_000_000_000)
    ledger = broker.fill(stream, MESSAGES)
    arguments = (broker.url, stream, target, str(tmp_path / "checkpoint"))

    for _ in range(KILLS):
        with copier(*arguments) as process:
            wait_for_more(broker, target)
            for executor in executors(process.pid)[:1]:
                kill(executor)
                wait_for_more(broker, target)
    interrupted = stored(broker, target)
    with copier(*arguments) as process:
        assert 0 == process.wait(START_S)

    assert interrupted < MESSAGES, "it was killed too late to show anything"
    expected = sorted(
        (subject.replace(f"{stream}.", f"{target}."), data) for _, subject, data in ledger
    )
    assert expected == sorted((subject, data) for _, subject, data in rows_of(broker, target))
    assert [] == broker.consumers(stream)
