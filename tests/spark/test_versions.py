"""Every version of PySpark that the guide names reads, follows, writes and archives."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pyspark
import pytest
from tests.servers import NATS_SERVER, ServerProcess
from tests.spark.conftest import Broker, rows_of
from tests.spark.sparks import VERSIONS, python_with
from tests.spark.versionhost import MORE

from penstock.protocol.compression import compressor

ROOT = Path(__file__).parents[2]
MESSAGES = 100


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_version_does_all_that_the_guide_says(version: str, tmp_path: Path) -> None:
    python = python_with(version)
    with ServerProcess(NATS_SERVER, "", "-js", "-sd", str(tmp_path / "jetstream")) as server:
        broker = Broker(server.url)
        broker.create("SOURCE")
        broker.create("TARGET")
        broker.publish([("SOURCE.event", event(n)) for n in range(MESSAGES)])
        said = run(python, server.url, tmp_path)
        copied = [data for _, _, data in rows_of(broker, "TARGET")]
        expected = [data for _, _, data in rows_of(broker, "SOURCE")]

    followed = [MESSAGES, MESSAGES + MORE, MESSAGES + 3 * MORE]
    assert said["version"] == version
    assert said["batch"] == said["events"] == MESSAGES
    assert [[each, 1] for each in followed] == [said[f"followed {n}"] for n in range(3)]
    resumed = [followed[-1] + n * MORE for n in (3, 5)]
    assert [[each, 1] for each in resumed] == said["resumed"]
    assert [len(expected), 1] == said["archived"]
    assert sorted(expected) == sorted(copied)
    if version < "4.2":
        assert "`maxMessagesPerTrigger` needs PySpark 4.2" in said["limits"]
    else:
        assert "3" == said["limits"]


def event(number: int) -> bytes:
    """Return an event of the bus, every other one compressed."""
    written = {"event_id": f"e{number}", "aggregate_id": f"a{number % 7}", "payload": {"n": number}}
    data = json.dumps(written).encode()
    compress = compressor("zstd", bytes_min=0)
    assert compress is not None
    return compress(data) if number % 2 else data


def run(python: Path, servers: str, home: Path) -> dict[str, Any]:
    """Run the program, and return what it says."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SPARK", "PYSPARK"))
    }
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)}
    command = [str(python), "-m", "tests.spark.versionhost", servers, str(home)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=900, check=False, cwd=home
    )
    assert done.returncode == 0, done.stderr[-5000:]
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def test_the_guide_names_the_versions_that_are_tested() -> None:
    guide = (ROOT / "docs/guides/spark.md").read_text()

    for version in (*VERSIONS, pyspark.__version__):
        assert f"| {version.rpartition('.')[0]} | {version} |" in guide
