"""What a user has to be allowed, as the guide says, and no more."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType
from tests.servers import PROGRAMS, ServerProcess
from tests.spark.conftest import Broker

from penstock.errors import PenstockError
from penstock.spark.options import parse_sink, parse_source
from penstock.spark.sink.publish import SinkWindow
from penstock.spark.sink.sink import Encoder, plan, write
from penstock.spark.source.limited import StreamReader

READER = (
    "$JS.API.STREAM.INFO.S",
    "$JS.API.STREAM.MSG.GET.S",
    "$JS.API.CONSUMER.CREATE.S.>",
    "$JS.API.CONSUMER.MSG.NEXT.S.*",
)
DELETE = "$JS.API.CONSUMER.DELETE.S.*"
EU = ("$JS.API.CONSUMER.CREATE.S.*.S.eu", *READER[:2], *READER[3:], DELETE)
NAMES = "$JS.API.STREAM.NAMES"
QUEUE = ("$JS.API.STREAM.INFO.Q", "$JS.API.STREAM.MSG.GET.Q", "$JS.API.DIRECT.GET.Q")
USERS = {
    "admin": (">",),
    "reader": (*READER, DELETE),
    "keeper": READER,
    "finder": (*READER, NAMES),
    "eu": EU,
    "sink": ("S.a",),
    "writer": ("S.a", *READER),
    "seeker": ("S.a", *READER, NAMES),
    "queue": QUEUE,
}


def config() -> str:
    """Return users with what each may publish; only its own inbox may any of them read."""
    users = "\n".join(
        f"{{user: {name}, password: x, permissions: {{publish: {list(allowed)}, "
        f"subscribe: ['{'>' if name == 'admin' else f'{name}.INBOX.>'}']}}}}"
        for name, allowed in USERS.items()
    )
    return f"authorization {{ users: [\n{users}\n] }}".replace("'", '"')


@pytest.fixture(scope="module", params=[program.name for program in PROGRAMS])
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """Return a server with users, and a stream of 20 messages on two subjects."""
    program = next(each for each in PROGRAMS if each.name == request.param)
    flags = ("-js", "-sd", str(tmp_path_factory.mktemp("jetstream")))
    with ServerProcess(program, config(), *flags) as server:
        admin = Broker(server.url.replace("//", "//admin:x@"))
        admin.create("S")
        admin.publish([(f"S.{region}", b"") for region in ("eu", "us")] * 10)
        admin.create("Q", retention="workqueue", allow_direct=True)
        admin.publish([("Q.a", b"")] * 20)
        yield server


def options(server: ServerProcess, user: str, **others: str) -> dict[str, str]:
    """Return the options of a user."""
    given = {"servers": server.url, "user": user, "password": "x", "inboxPrefix": f"{user}.INBOX"}
    return given | {"timeoutSeconds": "5", "retryTimeoutSeconds": "5"} | others


@contextmanager
def closing_driver(driver: StreamReader) -> Iterator[StreamReader]:
    """Have a driver hang up at the end."""
    try:
        yield driver
    finally:
        driver.stop()


def read(server: ServerProcess, user: str, **others: str) -> int:
    """Return how many rows a user reads."""
    source = parse_source(options(server, user, **{"stream": "S"} | others))
    with closing_driver(StreamReader(*source, cores=2)) as driver:
        begin = driver.initialOffset()
        end = driver.latestOffset(begin, driver.getDefaultReadLimit())
        driver.reportLatestOffset()
        tasks = driver.partitions(begin, end)
        return sum(batch.num_rows for task in tasks for batch in driver.read(task))


@pytest.mark.parametrize("user", ["reader", "keeper"])
def test_a_user_with_a_private_inbox_reads(guarded: ServerProcess, user: str) -> None:
    """Whether it may delete its consumers or not."""
    assert 20 <= read(guarded, user)
    assert 10 == read(guarded, user, subjects="S.us")
    limits = {"minPartitions": "2", "maxMessagesPerTrigger": "4", "maxBytesPerTrigger": "1000"}
    assert 4 == read(guarded, user, subjects="S.eu", **limits)


def test_a_user_reads_a_work_queue_in_place(guarded: ServerProcess) -> None:
    assert 20 == read(guarded, "queue", stream="Q")


def test_a_user_that_may_list_streams_finds_them_by_a_pattern(guarded: ServerProcess) -> None:
    def begun(user: str) -> list[str]:
        source = parse_source(options(guarded, user, streamPattern="S|T"))
        with closing_driver(StreamReader(*source)) as driver:
            return list(driver.initialOffset()["streams"])

    assert ["S"] == begun("finder")
    with pytest.raises(PenstockError, match=r"(?i)permissions violation"):
        begun("reader")


def test_a_user_may_be_allowed_some_subjects_only(guarded: ServerProcess) -> None:
    assert 10 == read(guarded, "eu", subjects="S.eu")
    with pytest.raises(PenstockError, match=r"(?i)permissions violation"):
        read(guarded, "eu", subjects="S.us")


def test_a_sink_needs_its_subjects_and_an_inbox(guarded: ServerProcess) -> None:
    connection, sink = parse_sink(
        options(guarded, "sink", subject="S.a", stream="S", messageIds="none")
    )
    with SinkWindow(connection, 10) as window:
        window.add(
            *Encoder(sink, "").encode(pa.record_batch({"data": [b"x"]}), window.reply_prefix)
        )
        window.flush()

        assert 1 == window.acked


@pytest.mark.parametrize(("user", "stream"), [("writer", "S"), ("seeker", "")])
def test_a_sink_with_ids_needs_what_a_reader_of_the_target_does(
    guarded: ServerProcess, user: str, stream: str
) -> None:
    """And to look for the target, unless it is named."""
    connection, sink = parse_sink(options(guarded, user, subject="S.a", stream=stream))
    rows = pa.record_batch({"data": [b"x"], "message_id": [f"of-{user}"]})
    schema = StructType().add("data", "binary").add("message_id", "string")
    # So long ago that the target has to be looked at.
    job = plan(connection, sink, schema, began_s=time.time() - 3600)

    assert [0, 1] == [write(job, job.job, iter([rows])).duplicates for _ in range(2)]


def test_the_guide_says_the_same() -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/spark.md").read_text()

    assert all(f'"{subject}"' in guide for subject in (*READER, DELETE))
    assert all(f"`{subject}`" in guide for subject in (NAMES, *QUEUE))
