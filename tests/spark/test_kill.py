"""A task that is killed leaves nothing on the server."""

from __future__ import annotations

import subprocess
import sys

from tests.servers import wait_until
from tests.spark.conftest import Broker

READER = """
import sys, time
from penstock.spark.source.fetch import read_range
from penstock.spark.options import parse_source
from penstock.spark.source.position import Range

servers, stream, created = sys.argv[1:]
options = {"servers": servers, "stream": stream, "batchBytesMax": "100"}
batches = read_range(*parse_source(options), created, Range(1, 1000))
next(batches)
print("reading", flush=True)
time.sleep(600)
"""


def test_a_killed_reader_leaves_no_consumer(broker: Broker, stream: str) -> None:
    broker.publish([(f"{stream}.a", bytes(10_000))] * 1000)
    created = broker.info(stream)["created"]
    command = [sys.executable, "-c", READER, broker.url, stream, created]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        try:
            assert reader.stdout is not None
            assert "reading\n" == reader.stdout.readline()
            assert 1 == len(broker.consumers(stream))
        finally:
            reader.kill()

    wait_until(lambda: broker.consumers(stream) == [], timeout_s=20)
