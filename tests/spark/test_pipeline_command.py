"""`penstock pipeline run` as cron runs it: what the file may say, and the code it ends with."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.servers import ServerProcess, wait_until
from tests.spark.conftest import Broker
from tests.spark.events import publish

RUN_S = 500
TOLD_TO_STOP = pytest.mark.parametrize(
    ("number", "send"),
    [(signal.SIGTERM, os.kill), (signal.SIGTERM, os.killpg), (signal.SIGINT, os.killpg)],
    ids=["SIGTERM", "SIGTERM to the group", "SIGINT to the group"],
)
"""As Kubernetes, systemd and a terminal do it."""


@pytest.fixture
def server(servers: dict[str, ServerProcess]) -> ServerProcess:
    """Return Penstock."""
    return servers["penstock"]


def start(home: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start the command in a directory and a group of processes of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", "pipeline", "run", *arguments],
        cwd=home,
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    with start(home, *arguments) as process:
        out, err = process.communicate(timeout=RUN_S)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.mark.slow
@pytest.mark.timeout(3 * RUN_S)
def test_an_audit_ends_with_an_error_if_it_finds_something(
    broker: Broker, stream: str, tmp_path: Path
) -> None:
    publish(broker, stream, range(1, 21))
    source = f"source: {{servers: '{broker.url}', stream: {stream}, %s}}\n"
    spark = "spark: {spark.ui.enabled: false, spark.driver.memory: 1g}\n"
    (tmp_path / "orders.yml").write_text(
        # The pipeline is named on the command line; paths are below where that is run.
        source % "failOnDataLoss: false, maxMessagesPerTrigger: 8"
        + spark
        + "target: lake\ncheckpoint: checkpoint\nsettings: {topic_tokens: 1}\n"
    )
    (tmp_path / "audit.yml").write_text(
        "pipeline: audit\n"
        + source % "minPartitions: 2"
        + spark
        + "settings: {lake: lake, html: audit.html, json: audit.json}\n"
    )

    archived = run(tmp_path, "archive", "--config", "orders.yml", "--once")
    assert 0 == archived.returncode, archived.stderr[-3000:]
    assert 3 == archived.stdout.count("batch "), archived.stdout
    (gone,) = (tmp_path / "lake").glob("topic=*/date=*/batch=1")
    shutil.rmtree(gone)
    audited = run(tmp_path, "--config", "audit.yml")

    assert 1 == audited.returncode, audited.stderr[-3000:]
    assert "20 published, 12 archived" in audited.stdout
    assert "Traceback" not in archived.stderr + audited.stderr
    report = json.loads((tmp_path / "audit.json").read_text())
    assert (False, 8) == (report["clean"], report["totals"]["missing"])
    assert "8 missing" in (tmp_path / "audit.html").read_text()


@pytest.mark.slow
@pytest.mark.timeout(2 * RUN_S)
@TOLD_TO_STOP
def test_a_pipeline_that_is_told_to_stop_does_so_in_good_order(
    broker: Broker, stream: str, tmp_path: Path, number: signal.Signals, send: Any
) -> None:
    publish(broker, stream, range(1, 21))
    (tmp_path / "orders.yml").write_text(
        f"pipeline: archive\nsource: {{servers: '{broker.url}', stream: {stream}}}\n"
        "target: lake\ncheckpoint: checkpoint\ntrigger: 0 seconds\n"
        "spark: {spark.ui.enabled: false, spark.driver.memory: 1g}\n"
    )

    with start(tmp_path, "--config", "orders.yml") as process:
        try:
            assert process.stdout is not None
            assert "20 rows" in process.stdout.readline()
            send(process.pid, number)
            _, said = process.communicate(timeout=RUN_S)
        finally:
            process.kill()

    assert 0 == process.returncode, said[-3000:]
    assert "penstock: " not in said
    if (number, send) != (signal.SIGTERM, os.killpg):
        # Spark's own process has got no signal, and has nothing to tell.
        assert "Exception" not in said
        assert "terminated with error" not in said


@pytest.mark.slow
@pytest.mark.timeout(4 * RUN_S)
@TOLD_TO_STOP
def test_a_replay_that_is_told_to_stop_goes_on_when_it_is_started_again(
    broker: Broker, stream: str, tmp_path: Path, number: signal.Signals, send: Any
) -> None:
    again = f"{stream}_again"
    broker.create(again)
    publish(broker, stream, range(1, 301))
    source = f"source: {{servers: '{broker.url}', stream: {stream}}}\n"
    spark = "spark: {spark.ui.enabled: false, spark.driver.memory: 1g}\n"
    (tmp_path / "archive.yml").write_text(
        f"pipeline: archive\n{source}{spark}target: lake\ncheckpoint: archived\n"
    )
    for name, rate in (("slow", 4), ("quick", 0)):
        (tmp_path / f"{name}.yml").write_text(
            f"pipeline: replay\n{source}{spark}checkpoint: replayed\n"
            f"settings: {{lake: lake, rate: {rate}, replace: [{stream}., {again}.]}}\n"
        )
    assert 0 == run(tmp_path, "--config", "archive.yml", "--once").returncode

    with start(tmp_path, "--config", "slow.yml") as process:
        try:
            wait_until(lambda: bool(stored(broker, again)), timeout_s=RUN_S)
            send(process.pid, number)
            said, error = process.communicate(timeout=RUN_S)
        finally:
            process.kill()
    stopped_at = stored(broker, again)
    finished = run(tmp_path, "--config", "quick.yml")

    assert 0 == process.returncode, error[-3000:]
    assert "Traceback" not in error
    assert 0 < stopped_at < 150
    first = re.match(r"(\d+) messages stored\nstopped: ", said)
    assert first, said
    assert int(first[1]) == stopped_at or "is left out" in said
    second = f"{300 - stopped_at} messages stored, {stopped_at} were stored by a replay before\n"
    assert second == finished.stdout, finished.stderr[-3000:]
    assert 300 == stored(broker, again)


def stored(broker: Broker, stream: str) -> int:
    """Return how many messages a stream holds."""
    messages: int = broker.info(stream)["state"]["messages"]
    return messages
