"""
Measure the Spark source and sink on one stream of 200-byte envelopes, next to the goals.

    python -m benchmarks.spark [--messages 1000000] [--server COMMAND] [--pure]
                               [--kafka | --growth | --tasks]

Every figure is rows per second of wall time, the best of some rounds, and microseconds of
processor time per row, Spark and server together, which hardly depends on other load.
`--kafka` compares only the batch read with that of Spark's own Kafka connector, in turns;
`--growth` reads streams of one, five and twenty million messages instead, `--tasks` a range
in 200 small tasks.
"""

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import sparkgrowth, sparkkafka
from benchmarks.command import program
from benchmarks.sparkstream import STREAM, fill, processor_times, spent_s
from penstock.bench.report.machine import describe
from penstock.net.process import ServerProcess

ROUNDS = 6
"""The JVM keeps compiling for some millions of rows, and first spends half of the time on it."""
TRIGGER_MESSAGES = 200_000
NATS_PY_MESSAGES = 50_000
EMPTY_BATCHES = 15
KAFKA_GOAL, KAFKA_GOAL_OURS = 0.9, 1.5
"""How much faster than Spark's Kafka connector, on nats-server and on our broker."""
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
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--server", default="nats-server", help="or `penstock serve`")
    parser.add_argument("--pure", action="store_true", help="run without the compiled parser")
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--kafka", action="store_true", help="run only the comparison with Kafka")
    other.add_argument("--growth", action="store_true", help="1, 5 and 20 million messages")
    other.add_argument("--tasks", action="store_true", help="the cost of 200 small tasks")
    options = parser.parse_args()
    if options.pure:
        os.environ["PENSTOCK_PURE"] = "1"
    from penstock.hot import COMPILED

    print(f"{describe()}; {options.server}; compiled: {COMPILED}", flush=True)
    server_program = program("server", f"{options.server} -js -sd store")
    with tempfile.TemporaryDirectory() as directory, ServerProcess(server_program) as server:
        if options.growth:
            sparkgrowth.run(server, options.rounds)
            return 0
        asyncio.run(fill(server.url, 0, options.messages))
        goal = KAFKA_GOAL_OURS if "penstock" in options.server else KAFKA_GOAL
        bench = Bench(server, options.messages, options.rounds, Path(directory), goal)
        if options.tasks:
            bench.tasks()
            return 0
        for figure in bench.beside_kafka() if options.kafka else bench.figures():
            print(
                f"{figure.work:46} {figure.rows_per_s:10,.0f} rows/s "
                f"{figure.cpu_us_per_row:7.2f} us/row   goal {figure.goal}",
                flush=True,
            )
        bench.spark.stop()
    return 0


class Bench:
    """One Spark session, and its measurements."""

    def __init__(
        self,
        server: ServerProcess,
        messages: int,
        rounds: int,
        directory: Path,
        kafka_goal: float,
    ) -> None:
        from penstock.spark import session

        settings = SETTINGS | sparkkafka.settings()
        self.spark = session("benchmark", master="local[2]", settings=settings)
        self.spark.sparkContext.setLogLevel("OFF")
        self._server = server
        self._messages = messages
        self._rounds = rounds
        self._directory = directory
        self._kafka_goal = kafka_goal

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
        yield from self.beside_kafka()
        yield self._empty("rate-micro-batch -> noop, per empty batch", self._rate())
        yield self._empty("penstock -> noop, per empty batch", self._follow())

    def beside_kafka(self) -> Iterator[Figure]:
        """Read the same rows from Kafka, in turns with ours; nothing without a connector."""
        if not sparkkafka.settings():
            return
        with sparkkafka.topic(self._messages, self._directory) as records:
            ours, theirs = [], []
            for _ in range(self._rounds):
                ours.append(self._once(self._messages, lambda: self._read().count()))
                theirs.append(self._once(self._messages, records(self.spark).count))
        yield _best_of("batch read -> count, beside Kafka", ours, "")
        yield _best_of(
            "the same through Spark's Kafka connector", theirs, f"ours >= {self._kafka_goal} x"
        )

    def tasks(self) -> None:
        """Print what a task takes, in time and in processor time, and how often the first's."""
        from benchmarks import sparktasks

        costs = list(sparktasks.run(self.spark, self._server, self._rounds))
        for cost in costs:
            print(
                f"{cost.source:26} {cost.task_ms:7.2f} ms a task {cost.cpu_ms:7.2f} ms of CPU"
                f" {cost.task_ms / costs[0].task_ms:7.1f} x",
                flush=True,
            )
        self.spark.stop()

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
        subject = f"replace(subject, '{STREAM}', 'COPY') AS subject"
        renamed = frame.selectExpr(subject, "data", "stream", "sequence")
        writer = renamed.write.format("penstock").option("servers", self._server.url)
        writer.mode("append").save()

    def _nats_py(self) -> Figure:
        """Read the same rows through nats-py: the source without a reader of its own."""
        from benchmarks.natspy import NatsPySource

        self.spark.dataSource.register(NatsPySource)
        count = min(self._messages, NATS_PY_MESSAGES)
        reader = self.spark.read.format("nats-py").option("servers", self._server.url)
        frame = reader.option("stream", STREAM).option("messages", str(count)).load()
        return self._best("the same through nats-py -> count", count, "ours >= 15 x", frame.count)

    def _best(self, work: str, count: int, goal: str, run: Callable[[], Any]) -> Figure:
        return _best_of(work, [self._once(count, run) for _ in range(self._rounds)], goal)

    def _once(self, count: int, run: Callable[[], Any]) -> tuple[float, float]:
        """Return rows per second, and microseconds of processor time per row."""
        before, started_s = processor_times(), time.monotonic()
        run()
        rows_per_s = count / (time.monotonic() - started_s)
        return rows_per_s, spent_s(before, processor_times()) / count * 1e6

    def _empty(self, work: str, frame: Any) -> Figure:
        """Return the median time of a micro-batch with almost no work."""
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


def _best_of(work: str, rounds: list[tuple[float, float]], goal: str) -> Figure:
    rows_per_s, cpu_us_per_row = zip(*rounds, strict=True)
    return Figure(work, max(rows_per_s), min(cpu_us_per_row), goal)


async def _publish_one(url: str) -> None:
    from penstock.client import connect

    async with await connect(url) as client:
        await client.jetstream().publish(f"{STREAM}.one", b"x")


if __name__ == "__main__":
    sys.exit(main())
