"""
Measure the Spark source and sink on one stream of 200-byte envelopes, and print the goals beside.

    python -m benchmarks.spark [--messages 1000000] [--server nats-server] [--pure]

Every figure is rows per second of wall time, the best of some rounds, and microseconds of processor
time per row, Spark and server together: that one hardly depends on what else the machine does.
"""

import argparse
import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import describe, process_cpu_s
from benchmarks.servers import find_command, free_port

STREAM = "ENVELOPES"
PUBLISH_WINDOW = 10_000
TRIGGER_MESSAGES = 200_000
NATS_PY_MESSAGES = 50_000
EMPTY_BATCHES = 15
SETTINGS = {"spark.driver.memory": "3g", "spark.ui.enabled": "false"}


@dataclass(frozen=True)
class Figure:
    """One line of the report."""

    work: str
    rows_per_s: float
    cpu_us_per_row: float
    goal: str


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--server", default="nats-server", help="or `penstock serve`")
    parser.add_argument("--pure", action="store_true", help="without the compiled parser")
    options = parser.parse_args()
    if options.pure:
        os.environ["PENSTOCK_PURE"] = "1"
    with tempfile.TemporaryDirectory() as directory, _server(options.server, directory) as server:
        asyncio.run(_fill(server.url, options.messages))
        from penstock._hot import COMPILED

        print(f"{describe()}; {options.server}; compiled: {COMPILED}", flush=True)
        bench = Bench(server, options.messages, options.rounds, Path(directory))
        for figure in bench.figures():
            print(
                f"{figure.work:46} {figure.rows_per_s:10,.0f} rows/s "
                f"{figure.cpu_us_per_row:7.2f} us/row   goal {figure.goal}",
                flush=True,
            )
        bench.spark.stop()
    return 0


@dataclass(frozen=True)
class Server:
    """The server under measurement."""

    url: str
    pid: int


@contextmanager
def _server(command: str, directory: str) -> Iterator[Server]:
    program, *arguments = command.split()
    port = free_port()
    process = subprocess.Popen(
        [
            *(find_command(program), *arguments, "-a", "127.0.0.1", "-p", str(port)),
            *("-js", "-sd", f"{directory}/store"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield Server(f"nats://127.0.0.1:{port}", process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


async def _fill(url: str, count: int) -> None:
    """Publish envelopes of about 200 bytes on 5,000 subjects."""
    from penstock.client import Outgoing, connect
    from penstock.errors import ConnectFailed

    deadline_s = time.monotonic() + 30
    while True:
        try:
            client = await connect(url)
            break
        except ConnectFailed:
            if time.monotonic() > deadline_s:
                raise
            await asyncio.sleep(0.1)
    async with client:
        js = client.jetstream(window_messages_max=PUBLISH_WINDOW, ack_timeout_s=60.0)
        await js.streams.create(STREAM, subjects=[f"{STREAM}.>"])
        await js.streams.create("COPY", subjects=["COPY.>"])
        for n in range(count):
            body = b'{"event_id":"%032d","aggregate_id":"order-%d","payload":"%b"}' % (
                *(n, n % 5000),
                b"x" * 110,
            )
            await js.publish_with(Outgoing(f"{STREAM}.{n % 5000}", body), _check)
        await js.flush()


def _check(ack: object, error: Exception | None) -> None:
    if error is not None:
        raise error


class Bench:
    """One Spark session, and what is done with it."""

    def __init__(self, server: Server, messages: int, rounds: int, directory: Path) -> None:
        from penstock.spark import session

        self.spark = session("benchmark", master="local[2]", settings=SETTINGS)
        self.spark.sparkContext.setLogLevel("OFF")
        self._server = server
        self._messages = messages
        self._rounds = rounds
        self._directory = directory

    def figures(self) -> Iterator[Figure]:
        """Measure one kind of work after the other."""
        count, lake = self._messages, str(self._directory / "lake")
        yield self._best("batch read -> count", count, ">= 500,000", lambda: self._read().count())
        yield self._best(
            "batch read -> Parquet",
            count,
            ">= 300,000 (pure 200,000)",
            lambda: self._read().write.mode("overwrite").parquet(lake),
        )
        yield self._best("streaming AvailableNow -> Parquet", count, ">= 120,000", self._stream)
        yield self._best("write, Parquet -> JetStream with ids", count, ">= 100,000", self._write)
        yield self._nats_py()
        yield self._empty("rate-micro-batch -> noop, per empty batch", self._rate())
        yield self._empty("penstock -> noop, per empty batch", self._follow())

    def _read(self) -> Any:
        reader = self.spark.read.format("penstock").option("servers", self._server.url)
        return reader.option("stream", STREAM).load()

    def _follow(self) -> Any:
        reader = self.spark.readStream.format("penstock").option("servers", self._server.url)
        return reader.option("stream", STREAM).option("startingPosition", "latest").load()

    def _rate(self) -> Any:
        reader = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10)
        return reader.load()

    def _stream(self) -> None:
        work = Path(tempfile.mkdtemp(dir=self._directory))
        reader = self.spark.readStream.format("penstock").option("servers", self._server.url)
        source = reader.option("stream", STREAM).option("maxMessagesPerTrigger", TRIGGER_MESSAGES)
        query = (
            source.load()
            .writeStream.format("parquet")
            .option("checkpointLocation", str(work / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(work / "table"))
        )
        query.awaitTermination()
        shutil.rmtree(work)

    def _write(self) -> None:
        frame = self.spark.read.parquet(str(self._directory / "lake"))
        renamed = frame.selectExpr(f"replace(subject, '{STREAM}', 'COPY') AS subject", "data")
        writer = renamed.write.format("penstock").option("servers", self._server.url)
        writer.mode("append").save()

    def _nats_py(self) -> Figure:
        """The same rows through nats-py: what the source would be without a reader of its own."""
        from benchmarks.natspy import NatsPySource

        self.spark.dataSource.register(NatsPySource)
        count = min(self._messages, NATS_PY_MESSAGES)
        reader = self.spark.read.format("nats-py").option("servers", self._server.url)
        frame = reader.option("stream", STREAM).option("messages", str(count)).load()
        return self._best("the same through nats-py -> count", count, "ours >= 15 x", frame.count)

    def _best(self, work: str, count: int, goal: str, run: Callable[[], Any]) -> Figure:
        best_s, best_cpu_s = float("inf"), float("inf")
        for _ in range(self._rounds):
            cpu_s, started_s = self._cpu_s(), time.monotonic()
            run()
            best_s = min(best_s, time.monotonic() - started_s)
            best_cpu_s = min(best_cpu_s, self._cpu_s() - cpu_s)
        return Figure(work, count / best_s, best_cpu_s / count * 1e6, goal)

    def _empty(self, work: str, frame: Any) -> Figure:
        """Return the median time of a micro-batch that has next to nothing to do."""
        query = frame.writeStream.format("noop").trigger(processingTime="0 seconds").start()
        durations_ms: list[int] = []
        try:
            while len(durations_ms) < EMPTY_BATCHES:
                if "penstock" in work:
                    asyncio.run(_publish_one(self._server.url))
                query.processAllAvailable() if "penstock" in work else time.sleep(0.5)
                durations_ms = [
                    each["durationMs"]["triggerExecution"]
                    for each in query.recentProgress
                    if "addBatch" in each["durationMs"]
                ]
        finally:
            query.stop()
        median_ms = sorted(durations_ms)[len(durations_ms) // 2]
        return Figure(f"{work}: {median_ms} ms", 0, 0, "<= that of rate + 150 ms")

    def _cpu_s(self) -> float:
        """Return the processor time of the server, of Spark's JVM and of its workers."""
        # The server is a child of this process too.
        return sum(process_cpu_s(pid) for pid in set(_descendants(os.getpid())))


async def _publish_one(url: str) -> None:
    from penstock.client import connect

    async with await connect(url) as client:
        await client.jetstream().publish(f"{STREAM}.one", b"x")


def _descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    found = [int(child) for child in children.read_text().split()] if children.exists() else []
    # A JVM starts its children from other threads than the first.
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(child) for child in task.read_text().split()]
    return [pid, *[each for child in set(found) for each in _descendants(child)]]


if __name__ == "__main__":
    sys.exit(main())
