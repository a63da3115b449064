"""One Spark and one server of each kind for all tests here; starting them is what takes time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from tests.servers import PROGRAMS, ServerProcess, wait_until

from penstock.client import JetStream, connect
from penstock.errors import PenstockError

# Without `pip install 'penstock[spark]'` there is nothing here to test.
collect_ignore_glob = [] if find_spec("pyspark") and find_spec("pyarrow") else ["test_*.py"]

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    # A JVM that lives for a minute is better off without its second compiler.
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.sql.streaming.pollingDelay": "20ms",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests here more time than others have: the first of them starts Spark."""
    for item in items:
        if Path(__file__).parent in item.path.parents and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Return a session on two cores that knows `penstock`; a failed task is tried again."""
    from penstock.spark import session

    spark = session("tests", master="local[2,3]", settings=SETTINGS)
    spark.sparkContext.setLogLevel("OFF")
    yield spark
    spark.stop()


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ServerProcess]]:
    """Return Penstock and nats-server, both with JetStream."""
    with ExitStack() as stack:
        yield {
            program.name: stack.enter_context(
                ServerProcess(
                    program,
                    "http_port: -1",
                    *("-js", "-sd", str(tmp_path_factory.mktemp("jetstream"))),
                )
            )
            for program in PROGRAMS
        }


@pytest.fixture(params=[program.name for program in PROGRAMS])
def server(request: pytest.FixtureRequest, servers: dict[str, ServerProcess]) -> ServerProcess:
    """Return each of them in turn: what is said here holds for both."""
    return servers[request.param]


class Broker:
    """A server as a test uses it: fill a stream, look at it, break it."""

    def __init__(self, url: str, replicas: int = 1) -> None:
        self.url = url
        self._replicas = replicas

    def run(self, work: Callable[[JetStream], Awaitable[Any]]) -> Any:
        """Run a coroutine on a connection of its own."""

        async def connected() -> Any:
            async with await connect(self.url) as client:
                return await work(client.jetstream())

        return asyncio.run(connected())

    def create(self, stream: str, **config: Any) -> None:
        """Create a stream on `<stream>.>`."""
        settings = self._settings(stream, config)
        self.run(lambda js: js.streams.create(stream, **settings))

    def update(self, stream: str, **config: Any) -> None:
        """Change a stream that was created so."""
        settings = self._settings(stream, config)
        self.run(lambda js: js.streams.update(stream, **settings))

    def _settings(self, stream: str, config: dict[str, Any]) -> dict[str, Any]:
        return {"subjects": [f"{stream}.>"], "num_replicas": self._replicas} | config

    def publish(self, messages: list[tuple[str, bytes]]) -> None:
        """Publish and wait for every ack."""

        async def work(js: JetStream) -> None:
            await js.publish_batch(messages)

        self.run(work)

    def fill(self, stream: str, count: int, *, first: int = 1) -> list[tuple[int, str, bytes]]:
        """Publish numbered messages on ten subjects; return them as rows of a ledger."""
        ledger = [(n, f"{stream}.{n % 10}", b'{"n": %d}' % n) for n in range(first, first + count)]
        self.publish([(subject, data) for _, subject, data in ledger])
        return ledger

    def info(self, stream: str) -> dict[str, Any]:
        """Return a stream's configuration and state."""
        return self.run(lambda js: js.streams.info(stream))

    def consumers(self, stream: str) -> list[str]:
        """Return the names of the stream's consumers."""
        return self.run(lambda js: js.consumers.names(stream))


def elected(broker: Broker) -> Broker:
    """Return the broker once its servers have agreed on a leader, and can create streams."""

    def is_ready() -> bool:
        try:
            broker.create("ELECTED")
            broker.run(lambda js: js.streams.delete("ELECTED"))
        except PenstockError:
            return False
        return True

    wait_until(is_ready, timeout_s=60)
    return broker


def wait_until_forgotten(broker: Broker, stream: str, window_s: float) -> None:
    """Return once the ids of all that is stored are older than the window of the stream."""
    newest = broker.info(stream)["state"]["last_ts"]
    until_s = datetime.fromisoformat(newest).timestamp() + 1.2 * window_s
    wait_until(lambda: time.time() > until_s, timeout_s=60)


@pytest.fixture
def broker(server: ServerProcess) -> Broker:
    """Return the server of these tests."""
    return Broker(server.url)


@pytest.fixture
def stream(broker: Broker, request: pytest.FixtureRequest) -> Iterator[str]:
    """Return the name of a stream that is made for one test; others may start with it."""
    words = "".join(c if c.isalnum() else "_" for c in request.node.name)[:50]
    name = f"{words}_{crc32(request.node.name.encode()):x}"
    broker.create(name)
    yield name
    for each in broker.run(lambda js: js.streams.names()):
        if each.startswith(name):
            broker.run(lambda js, each=each: js.streams.delete(each))


@pytest.fixture
def read(spark: Any, broker: Broker) -> Callable[..., Any]:
    """Return a function that makes a DataFrame of a stream."""

    def load(stream: str, **options: Any) -> Any:
        reader = spark.read.format("penstock").option("servers", broker.url)
        return reader.option("stream", stream).options(**options).load()

    return load


@pytest.fixture
def follow(spark: Any, broker: Broker) -> Callable[..., Any]:
    """Return a function that makes a streaming DataFrame of a stream."""

    def load(stream: str, **options: Any) -> Any:
        reader = spark.readStream.format("penstock").option("servers", broker.url)
        return reader.option("stream", stream).options(**options).load()

    return load


@pytest.fixture
def archive(follow: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Return a function that brings everything there is into a Parquet table, and its query."""

    def run(stream: str, **options: Any) -> Any:
        query = (
            follow(stream, **options)
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "table"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return query

    return run


@pytest.fixture
def run(spark: Any, broker: Broker, stream: str, tmp_path: Path) -> Callable[..., list[str]]:
    """Return a function that runs a pipeline once, and what it said."""
    from penstock.spark.pipelines import runner
    from penstock.spark.pipelines.config import PipelineConfig

    def run_once(pipeline: str, **values: Any) -> list[str]:
        said: list[str] = []
        config = PipelineConfig(
            pipeline=pipeline,
            source={"servers": broker.url, "stream": stream} | values.pop("source", {}),
            target=values.pop("target", str(tmp_path / pipeline)),
            checkpoint=values.pop("checkpoint", str(tmp_path / f"{pipeline}-checkpoint")),
            settings=values,
        )
        runner.run(spark, config, once=True, say=said.append)
        return said

    return run_once


def rows_of(broker: Broker, stream: str) -> list[tuple[int, str, bytes]]:
    """Return what a stream holds, as a ledger has it, without Spark."""
    from penstock.spark.options import parse_source
    from penstock.spark.source.fetch import read_range
    from penstock.spark.source.position import Range

    info = broker.info(stream)
    options = parse_source({"servers": broker.url, "stream": stream})
    batches = read_range(*options, info["created"], Range(1, info["state"]["last_seq"]))
    return [
        (row["sequence"], row["subject"], row["data"])
        for batch in batches
        for row in batch.to_pylist()
    ]


def rows(frame: Any) -> list[tuple[int, str, bytes]]:
    """Return the rows as a ledger has them, in order of sequence."""
    found = frame.select("sequence", "subject", "data").collect()
    return sorted((row.sequence, row.subject, bytes(row.data)) for row in found)
