"""What is sent again after the server has forgotten its ids is stored once."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType
from tests.servers import ServerProcess, wait_until
from tests.spark.conftest import Broker, rows_of, wait_until_forgotten
from tests.spark.relay import Relay

from penstock.errors import ClientError
from penstock.spark.options import ConnectionOptions, SinkOptions, parse_sink
from penstock.spark.sink.publish import CHUNK_BYTES, SinkWindow
from penstock.spark.sink.sink import Encoder, TaskReport, check, plan, write
from penstock.spark.sink.stored import StoredRows
from penstock.spark.source.source import PenstockDataSource

WINDOW_S = 1
"""How long the target remembers ids."""
ROWS = 50


def target(broker: Broker, stream: str) -> str:
    """Create a stream that soon forgets ids; return its name."""
    name = f"{stream}_target"
    broker.create(name, duplicate_window=WINDOW_S * 1_000_000_000)
    return name


def options(url: str, name: str) -> tuple[ConnectionOptions, SinkOptions]:
    """Return the options of a sink."""
    return parse_sink({"servers": url, "subject": f"{name}.a"})


def identified(first: int, last: int) -> pa.RecordBatch:
    """Return rows with an id each."""
    numbers = range(first, last + 1)
    return pa.record_batch(
        {"data": [b"%d" % n for n in numbers], "message_id": [f"row-{n}" for n in numbers]}
    )


def data_of(broker: Broker, name: str) -> list[int]:
    """Return what a stream holds."""
    return [int(data) for _, _, data in rows_of(broker, name)]


def test_acks_that_are_lost_for_longer_than_the_window_double_nothing(
    broker: Broker, stream: str, server: ServerProcess
) -> None:
    """As by a server that is killed when it has stored, and is not back at once."""
    name = target(broker, stream)
    with Relay(server.port) as relay:
        connection, sink = options(relay.url, name)
        stored = StoredRows(options(broker.url, name)[0], time.time(), "")
        with SinkWindow(connection, 500, stored=stored) as window:
            encoder = Encoder(sink, "job")
            relay.mute()
            window.add(*encoder.encode(identified(1, ROWS), window.reply_prefix))
            wait_until(lambda: broker.info(name)["state"]["messages"] == ROWS)
            relay.leave()
            wait_until_forgotten(broker, name, WINDOW_S)
            relay.come_back()
            window.add(*encoder.encode(identified(ROWS + 1, 2 * ROWS), window.reply_prefix))
            window.flush()

    assert (2 * ROWS, ROWS) == (window.acked, window.duplicates)
    assert list(range(1, 2 * ROWS + 1)) == data_of(broker, name)


def test_a_task_that_runs_for_longer_than_the_window_doubles_nothing(
    broker: Broker, stream: str
) -> None:
    """Although the server still remembered everything when it began, or when it looked."""
    name = target(broker, stream)
    connection, sink = options(broker.url, name)
    began_s = time.time()

    def attempt() -> tuple[SinkWindow, Encoder]:
        stored = StoredRows(connection, began_s, name)
        return SinkWindow(connection, 500, stored=stored).__enter__(), Encoder(sink, "job")

    windows = [attempt(), attempt()]
    for first, last in ((1, ROWS), (ROWS + 1, 2 * ROWS)):
        # The first goes on while the second runs: its executor was only thought to be gone.
        for window, encoder in windows:
            window.add(*encoder.encode(identified(first, last), window.reply_prefix))
            window.flush()
            wait_until_forgotten(broker, name, WINDOW_S)
    for window, _ in windows:
        window.__exit__()

    assert list(range(1, 2 * ROWS + 1)) == data_of(broker, name)
    assert [0, 2 * ROWS] == [window.duplicates for window, _ in windows]


class Timed:
    """A clock that a look at the target moves on, as it does on a busy machine."""

    def __init__(self, looks_s: list[float]) -> None:
        self._looks_s = looks_s
        self.passed_s = 0.0
        self.looks = 0

    def __call__(self) -> float:
        return time.time() + self.passed_s

    def pass_on(self, data: bytes) -> bytes:
        """Let what a look takes go by when it begins."""
        if b"STREAM.INFO" in data:
            self.passed_s += self._looks_s.pop(0) if self._looks_s else 0.0
            self.looks += 1
        return data


def test_a_look_that_took_longer_than_the_server_remembers_is_taken_again(
    broker: Broker, stream: str, server: ServerProcess
) -> None:
    """What another attempt has stored meanwhile would be forgotten when this one sends it."""
    name = f"{stream}_target"
    broker.create(name, duplicate_window=600 * 1_000_000_000)
    # The first question is about the stream, before anything is read.
    clock = Timed([0, 400, 0])
    with Relay(server.port, clock.pass_on) as relay:
        connection, sink = options(relay.url, name)
        stored = StoredRows(connection, time.time() - 3600, name, clock=clock)
        frames = Encoder(sink, "job").encode(identified(1, 1), b"_INBOX.x.")[1]

        assert set() == stored.left_out(frames)
        looks = clock.looks
        assert set() == stored.left_out(frames)

    assert (3, 3) == (looks, clock.looks)


def test_a_target_that_cannot_be_looked_at_in_time_is_an_error(
    broker: Broker, stream: str, server: ServerProcess
) -> None:
    name = f"{stream}_target"
    broker.create(name, duplicate_window=10 * 1_000_000_000)
    clock = Timed([0, *[50.0] * 20])
    with Relay(server.port, clock.pass_on) as relay:
        connection, sink = options(relay.url, name)
        stored = StoredRows(connection, time.time() - 3600, name, clock=clock)
        frames = Encoder(sink, "job").encode(identified(1, 1), b"_INBOX.x.")[1]

        with pytest.raises(ClientError, match="hint: a longer one"):
            stored.left_out(frames)


def test_a_task_of_a_batch_job_that_is_tried_again_late_doubles_nothing(
    broker: Broker, stream: str
) -> None:
    """As when an executor is given up on after minutes: only its driver knows since when."""
    name = target(broker, stream)
    schema = StructType().add("data", "binary").add("message_id", "string")
    job = plan(*options(broker.url, name), schema)
    write(job, job.job, iter([identified(1, ROWS // 2)]))
    wait_until_forgotten(broker, name, WINDOW_S)

    written = write(job, job.job, iter([identified(1, ROWS)]))

    assert ROWS // 2 == written.duplicates
    assert list(range(1, ROWS + 1)) == data_of(broker, name)


def test_a_window_that_is_sent_again_is_sent_in_pieces(
    broker: Broker, stream: str, server: ServerProcess
) -> None:
    """So that a network that takes one of them in time is fast enough, however large it is."""
    sent: list[int] = []

    class Counting(StoredRows):
        def left_out(self, frames: Iterable[bytes]) -> set[int]:
            sent.append(sum(map(len, frames)))
            return set()

    with Relay(server.port) as relay:
        connection, sink = options(relay.url, stream)
        with SinkWindow(connection, 500, stored=Counting(connection, 0, "")) as window:
            rows = pa.record_batch(
                {"data": [bytes(200_000)] * 20, "message_id": [f"row-{n}" for n in range(20)]}
            )
            relay.mute()
            window.add(*Encoder(sink, "job").encode(rows, window.reply_prefix))
            relay.leave()
            relay.come_back()
            window.flush()

    assert (20, 20) == (window.acked, broker.info(stream)["state"]["messages"])
    assert max(sent) <= CHUNK_BYTES
    assert 2 * 4_000_000 < sum(sent)


def test_a_work_queue_is_written_to_for_longer_than_the_window(
    broker: Broker, stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Although nobody can look into it; which is said."""
    name = f"{stream}_queue"
    broker.create(name, retention="workqueue", duplicate_window=WINDOW_S * 1_000_000_000)
    connection, sink = options(broker.url, name)
    stored = StoredRows(connection, time.time() - 2 * WINDOW_S, name)
    with SinkWindow(connection, 500, stored=stored) as window:
        window.add(*Encoder(sink, "job").encode(identified(1, ROWS), window.reply_prefix))
        window.flush()

    assert ROWS == broker.info(name)["state"]["messages"]
    assert "may be stored twice" in caplog.text


class Gate:
    """Holds back the publications of a client until it is opened."""

    def __init__(self) -> None:
        self.held = threading.Event()
        self.opened = threading.Event()

    def pass_on(self, data: bytes) -> bytes:
        """Wait, if there are rows in what a client says."""
        if b"HPUB" in data:
            self.held.set()
            self.opened.wait(60)
        return data


@pytest.mark.parametrize("looks", [False, True])
def test_rows_that_a_server_took_too_long_to_store_are_an_error_if_they_are_there_twice(
    broker: Broker, stream: str, server: ServerProcess, looks: bool
) -> None:
    """Whether they were sent right when the batch began, or after a look at the target."""
    name = target(broker, stream)
    schema = StructType().add("data", "binary").add("message_id", "string")
    began_s = time.time() - (3600 if looks else 0)
    gate = Gate()
    with Relay(server.port, gate.pass_on) as relay, ThreadPoolExecutor(1) as threads:
        slow = plan(*options(relay.url, name), schema, began_s=began_s)
        first = threads.submit(write, slow, "job", iter([identified(1, ROWS)]))
        try:
            assert gate.held.wait(60)
            quick = plan(*options(broker.url, name), schema, began_s=began_s)
            second = write(quick, "job", iter([identified(1, ROWS + 1)]))
            wait_until_forgotten(broker, name, WINDOW_S)
        finally:
            gate.opened.set()
        written = first.result(60)

    assert (ROWS, 0) == (len(written.doubled), len(second.doubled))
    check([second])
    with pytest.raises(ClientError, match=f"{ROWS} rows are stored twice.*hint: a longer"):
        check([second, written])


def test_rows_that_are_stored_late_and_once_are_no_error(
    broker: Broker, stream: str, server: ServerProcess
) -> None:
    name = target(broker, stream)
    schema = StructType().add("data", "binary").add("message_id", "string")
    gate = Gate()
    with Relay(server.port, gate.pass_on) as relay, ThreadPoolExecutor(1) as threads:
        slow = plan(*options(relay.url, name), schema, began_s=time.time())
        written = threads.submit(write, slow, "job", iter([identified(1, ROWS)]))
        try:
            assert gate.held.wait(60)
            until_s = time.time() + 1.2 * WINDOW_S
            wait_until(lambda: time.time() > until_s)
        finally:
            gate.opened.set()

        check([written.result(60)])

    assert list(range(1, ROWS + 1)) == data_of(broker, name)


ORPHAN = """
import os, sys, time
import pyarrow as pa
from penstock.errors import ClientError
from penstock.spark.options import parse_sink
from penstock.spark.sink.publish import CHUNK_BYTES, SinkWindow
from penstock.spark.sink.sink import Encoder, plan, write

servers, subject, gone = sys.argv[1:]
connection, sink = parse_sink({"servers": servers, "subject": subject, "messageIds": "none"})
ready, told = os.pipe()
executor = os.getpid()


def parent_of(pid):
    with open(f"/proc/{pid}/stat") as status:
        return int(status.read().rpartition(")")[2].split()[1])


if os.fork():
    os.read(ready, 1)
    os._exit(0)
gone_from = os.getpid()
if gone == "jvm":
    # The daemon lives on, and has not noticed yet.
    if child := os.fork():
        os.waitpid(child, 0)
        os._exit(0)
with SinkWindow(connection, 500) as window:
    encoder = Encoder(sink, "job")
    rows = pa.record_batch({"data": [b"1"]})
    window.add(*encoder.encode(rows, window.reply_prefix))
    window.flush()
    os.write(told, b".")
    while parent_of(gone_from) == executor:
        time.sleep(0.01)
    try:
        window.add(*encoder.encode(rows, window.reply_prefix))
    except ClientError as error:
        print(error)
"""


@pytest.mark.parametrize("gone", ["daemon", "jvm"])
def test_a_task_whose_executor_is_gone_sends_no_more(
    broker: Broker, stream: str, gone: str
) -> None:
    """Whether that is noticed by the daemon that has started it, or not yet."""
    command = [sys.executable, "-c", ORPHAN, broker.url, f"{stream}.a", gone]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout

    assert "the executor of this task is gone" in said
    assert 1 == broker.info(stream)["state"]["messages"]


def test_a_job_with_a_prefix_can_be_run_again_at_any_time(broker: Broker, stream: str) -> None:
    name = target(broker, stream)
    given = {"servers": broker.url, "subject": f"{name}.a", "messageIdPrefix": "copy"}
    kinds = [("data", "binary"), ("stream", "string"), ("sequence", "long")]
    fields = [{"name": n, "type": k, "nullable": True, "metadata": {}} for n, k in kinds]
    schema = StructType.fromJson({"type": "struct", "fields": fields})
    rows = pa.record_batch(
        {
            "data": [b"%d" % n for n in range(ROWS)],
            "stream": ["S"] * ROWS,
            "sequence": list(range(ROWS)),
        }
    )

    def job() -> tuple[int, int]:
        written = PenstockDataSource(given).writer(schema, overwrite=False).write(iter([rows]))
        assert isinstance(written, TaskReport)
        return written.messages, written.duplicates

    first = job()
    wait_until_forgotten(broker, name, WINDOW_S)

    assert [(ROWS, 0), (ROWS, ROWS)] == [first, job()]
    assert list(range(ROWS)) == data_of(broker, name)
