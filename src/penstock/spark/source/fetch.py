"""
How a task reads a range of sequences.

It has the server make a pull consumer that lives in memory, wants no acks and is
forgotten soon after its task, asks it for large batches, always one ahead, and
turns what comes into Arrow record batches while it is still in the receive buffer.

The range is done when its last sequence came, or one behind it. Where neither
comes, because the end of the range was deleted or does not match the subjects,
the leader of the stream is asked whether anything is left: a consumer lives on any
replica, and one that has not caught up says that there is nothing to read.

A lost connection, a deleted consumer or a gap begins again behind the last row, so
rows come once and in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock import hot
from penstock.client.jetstream.api import decode
from penstock.client.jetstream.pullrequests import PullRequests
from penstock.client.jetstream.status import NextStep
from penstock.client.messages import parse_metadata
from penstock.errors import ConnectionLost, JetStreamError, PenstockError
from penstock.hot.deliveries import Columns
from penstock.hot.wire import MSG, Op
from penstock.spark.connection import Connection
from penstock.spark.options import ConnectionOptions, SourceOptions
from penstock.spark.patience import Patience
from penstock.spark.pool import lend
from penstock.spark.source.columns import record_batch
from penstock.spark.source.direct import check_direct, read_page
from penstock.spark.source.loss import Watch
from penstock.spark.source.position import Range
from penstock.spark.source.schema import wanted
from penstock.spark.source.stream import (
    StreamState,
    create_consumer,
    delete_consumers,
    find_state,
    has_messages,
    state_of,
    subject_filter,
)

if TYPE_CHECKING:
    import pyarrow as pa

PULL_MESSAGES_MAX = 25_000
PULL_EXPIRES_NS = 2_000_000_000
BYTES_USED_UP = 409
CONNECTION_NAME = "penstock-spark-source"


def read_range(
    connection: ConnectionOptions,
    source: SourceOptions,
    created: str,
    whole: Range,
    *,
    unfinished: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """
    Yield the rows of a range, in order; `created` says of which stream of that name.

    `unfinished` is where the micro-batch begins that would fail with it.
    """
    task = _Task(source, Watch(source, created, whole, unfinished), whole)
    patience = Patience(connection.retry_timeout_seconds)
    while not task.done:
        before = task.next
        try:
            with lend(connection, CONNECTION_NAME) as opened:
                yield from task.read(opened)
        except PenstockError as error:
            if task.next > before:
                patience.succeeded()
            patience.wait(error)
    yield from task.finish()


class _Task:
    """Where in its range a task is, over as many connections as it takes."""

    def __init__(self, source: SourceOptions, watch: Watch, whole: Range) -> None:
        self.next = whole.first
        """The first sequence that has not been seen."""
        self.done = False
        self._source = source
        self._last = whole.last
        self._watch = watch
        self._wanted = wanted(source.columns)
        self._rows: list[pa.RecordBatch] = []
        self._row_bytes = 0
        self._head_reply = b""
        """Where the answer comes to that says where the head of the stream is."""

    def read(self, connection: Connection) -> Iterator[pa.RecordBatch]:
        """Read on from where the task is; may end without being done."""
        state = find_state(connection, self._source.stream)
        if state is None:
            self._watch.gone()
            self.done = True
            return
        self.next = max(self.next, self._watch.begin(state, self.next))
        if self.next > self._last:
            self.done = True
            return
        if state.last_sequence < self._last:
            raise ConnectionLost(
                f"stream `{state.name}` ends at sequence {state.last_sequence}, but had "
                f"{self._last} before: its leader has not caught up, or it was restored from an "
                "older state; hint: if it was, start with a new checkpoint"
            )
        if state.is_work_queue:
            check_direct(state)
            yield from self._read_in_place(connection)
        else:
            yield from self._read_by_consumer(connection, state)
        if self.done:
            self._end(connection)

    def _end(self, connection: Connection) -> None:
        state = find_state(connection, self._source.stream)
        if state is None:
            self._watch.gone()
        else:
            self._watch.end(state)

    def _read_by_consumer(
        self, connection: Connection, state: StreamState
    ) -> Iterator[pa.RecordBatch]:
        consumer = self._create(connection, state)
        try:
            if consumer["num_pending"]:
                yield from self._pull(_Pulls(connection, self._source, consumer["name"]))
            else:
                # Its replica of the stream may not have caught up.
                self._ask_store(connection)
        finally:
            delete_consumers(connection, self._source.stream, [consumer["name"]])

    def _read_in_place(self, connection: Connection) -> Iterator[pa.RecordBatch]:
        while not self.done:
            page = read_page(connection, self._source, Range(self.next, self._last))
            if page.sequences:
                self.next = self._watch.saw(page.sequences)
                self.done = self.next > self._last
            else:
                # Any replica answers, and this one may not have caught up.
                self._ask_store(connection)
            if page.rows.num_rows:
                yield page.rows

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that did not make a whole batch."""
        if self._rows:
            yield self._combine()

    def _create(self, connection: Connection, state: StreamState) -> dict[str, Any]:
        start = {"deliver_policy": "by_start_sequence", "opt_start_seq": self.next}
        return create_consumer(connection, state, start | subject_filter(self._source.subjects))

    def _pull(self, pulls: _Pulls) -> Iterator[pa.RecordBatch]:
        connection = pulls.connection
        while not self.done:
            pulls.keep_going(self._last - self.next + 1)
            connection.receive_up_to(min(pulls.bytes_to_come, self._source.batch_bytes_max // 2))
            columns = Columns._make(
                hot.collect_deliveries(
                    connection.inbound.unread, self._wanted, pulls.delivered + 1, self._last
                )
            )
            if columns.row_count:
                connection.inbound.start += columns.consumed
                self._add(columns)
                pulls.arrived(columns)
                self._look_for_head(connection)
                if self._row_bytes >= self._source.batch_bytes_max // 4:
                    yield self._combine()
                self._look_for_end(connection, columns.pending)
            else:
                self._handle(pulls, connection.inbound.take())

    def _add(self, columns: Columns) -> None:
        batch = record_batch(columns, self._source.columns, self._source.stream)
        self.next = self._watch.saw(columns.sequences)
        self._rows.append(batch)
        self._row_bytes += columns.consumed

    def _combine(self) -> pa.RecordBatch:
        import pyarrow as pa

        rows, self._rows, self._row_bytes = self._rows, [], 0
        return rows[0] if len(rows) == 1 else pa.concat_batches(rows)

    def _look_for_head(self, connection: Connection) -> None:
        """Ask where the head of the stream is, between deliveries, if there are holes to judge."""
        if self._watch.wants_to_look:
            self._watch.asked()
            self._head_reply = connection.new_reply()
            subject = f"{connection.options.api_prefix}.STREAM.INFO.{self._source.stream}"
            connection.publish(subject, b"", self._head_reply)

    def _look_for_end(self, connection: Connection, pending: int) -> None:
        """A consumer that has nothing more has told us so; but see for yourself."""
        if self.next > self._last:
            self.done = True
        elif pending == 0:
            self._ask_store(connection)

    def _ask_store(self, connection: Connection) -> None:
        left = Range(self.next, self._last)
        self.done = not has_messages(connection, self._source.stream, self._source.subjects, left)
        if not self.done:
            # It may be on its way, but what arrived meanwhile was dropped: begin again here.
            raise ConnectionLost("the consumer said it was done before it was")

    def _handle(self, pulls: _Pulls, operation: Op | None) -> None:
        """Deal with what is no delivery in order."""
        connection = pulls.connection
        if operation is None:
            connection.receive()
        elif operation[0] != MSG:
            connection.attend(operation)
        elif operation[3]:
            delivery = parse_metadata(operation[3])
            is_next = delivery.consumer_sequence == pulls.delivered + 1
            if not is_next or delivery.stream_sequence <= self._last:
                raise ConnectionLost("the consumer skipped a message")
            self.done = True
        elif operation[1] == self._head_reply:
            info = decode(operation[5][operation[4] :])
            self._watch.look(state_of(self._source.stream, info))
        elif pulls.ran_dry(operation):
            self._ask_store(connection)


class _Pulls:
    """The pull requests of one consumer: two at a time, so that the server never waits."""

    def __init__(self, connection: Connection, source: SourceOptions, consumer: str) -> None:
        self.connection = connection
        self.delivered = 0
        """The consumer's own sequence of the last message."""
        self.bytes_to_come = 0
        """How much that is likely to be: less, if requests end early, but not for long."""
        self._bytes_max = source.fetch_bytes_max
        self._refused = False
        """Whether the last thing heard was that a message did not fit a request."""
        self._stuck = False
        """Whether the next message has to be asked for alone, whatever its size."""
        self._ended = 0
        """How many requests have ended since a message came."""
        prefix, inbox = connection.options.api_prefix, connection.new_reply() + b"-"
        self._requests = PullRequests(prefix, source.stream, consumer, inbox)

    def keep_going(self, messages_max: int) -> None:
        """Ask for more if there is room, but never for more than the range can hold."""
        outstanding = self._requests.outstanding
        if self._stuck:
            if not outstanding:
                self._ask(1, 0)
            return
        batch = min(PULL_MESSAGES_MAX, messages_max - outstanding)
        if batch > 0 and outstanding <= PULL_MESSAGES_MAX:
            self._ask(batch, self._bytes_max)

    def arrived(self, columns: Columns) -> None:
        """Count messages that came, and from them guess what is still to come."""
        self.delivered += columns.row_count
        self._requests.arrived(columns.row_count)
        self._stuck = self._refused = False
        self._ended = 0
        messages_to_come = min(self._requests.outstanding, columns.pending)
        self.bytes_to_come = columns.consumed * messages_to_come // columns.row_count

    def ran_dry(self, operation: Op) -> bool:
        """Read a status line; tell whether requests end for want of messages."""
        outcome, error = self._requests.read(operation)
        if outcome is NextStep.ALIVE:
            return False
        if outcome is NextStep.FAILED:
            raise error
        if outcome is NextStep.GONE:
            raise ConnectionLost(f"the consumer is gone: {error}") from error
        if isinstance(error, JetStreamError) and error.code == BYTES_USED_UP:
            # Twice in a row with nothing between: a message larger than a whole request.
            self._stuck = self._refused
            self._refused = True
            return False
        self._ended += 1
        # Others follow those that end, so there is always one that has not: two are enough.
        return self._ended == 2 or not self._requests.outstanding

    def _ask(self, batch: int, bytes_max: int) -> None:
        limits = {"max_bytes": bytes_max} if bytes_max else {}
        body = self._requests.ask(batch, expires=PULL_EXPIRES_NS, **limits)
        requests = self._requests
        self.connection.publish(requests.subject.decode(), body, requests.reply)
