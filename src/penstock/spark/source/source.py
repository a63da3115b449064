"""
The `penstock` data source of Spark: reads streams, and writes to them.

Offsets are stream sequences: a batch is a range of them, split evenly over the
tasks, and reading a range again gives the same rows. Nothing of Spark's progress is
kept on the server.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.errors import ClientError, PenstockError
from penstock.spark.connection import Connection
from penstock.spark.envelopes.opener import Opener
from penstock.spark.envelopes.payload import Decoder, new_decoder
from penstock.spark.options import (
    ConnectionOptions,
    SourceOptions,
    parse_sink,
    parse_source,
)
from penstock.spark.patience import Patience, is_transient, persistently
from penstock.spark.sink.checkpoint import began_s
from penstock.spark.source.fetch import read_range
from penstock.spark.source.loss import check_head, check_same_stream
from penstock.spark.source.position import Range, between, partition
from penstock.spark.source.pushdown import Narrowed, narrow
from penstock.spark.source.schema import COLUMNS, check, columns_of, ddl, types_of
from penstock.spark.source.stream import (
    StreamState,
    first_at,
    first_message,
    last_at,
    read_lag,
    read_state,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamWriter, Filter

T = TypeVar("T")
DRIVER_NAME = "penstock-spark-driver"


class PenstockDataSource(DataSource):
    """
    Read and write JetStream streams, of Penstock or of any NATS server.

    Registered as `penstock` by `penstock.spark.register(spark)`.

        orders = spark.read.format("penstock").option("stream", "ORDERS").load()

        query = (
            spark.readStream.format("penstock")
            .option("servers", "nats://127.0.0.1:4222")
            .option("stream", "ORDERS")
            .option("subjects", "orders.eu.>, orders.us.>")
            .option("maxMessagesPerTrigger", 200_000)
            .load()
            .writeStream.format("parquet")
            .option("checkpointLocation", "/lake/_checkpoints/orders")
            .start("/lake/orders")
        )

        orders.select("subject", "data").write.format("penstock").mode("append").save()

    Columns: `subject STRING, data BINARY, headers ARRAY<STRUCT<key, value>>, stream STRING,
    sequence BIGINT, time TIMESTAMP`. `.schema("subject STRING, sequence BIGINT")` or the option
    `columns` leaves out what is not needed, down to the wire.

    The options are those of `penstock.spark.options`: `ConnectionOptions` and `SourceOptions`
    for reading, `ConnectionOptions` and `SinkOptions` for writing; a wrong one is an error that
    names the valid ones.
    """

    cores = os.cpu_count() or 1
    """How many tasks can run at once; `register` knows it of the whole cluster."""

    driver = ""
    """The file that says how the driver's JVM is reached; `register` writes it."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "penstock"

    def schema(self) -> str:
        """Return the columns that the options ask for."""
        source = parse_source(self.options)[1]
        types = types_of(source.format)
        if source.format == "envelope":
            types = types | {"payload": _decoder(source).ddl}
        columns = columns_of(source.format) if source.columns == COLUMNS else source.columns
        return ddl(columns, types)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read a range, once."""
        connection, source = self._source(schema)
        # Spark refuses a reader that has `pushFilters` unless its own setting allows it.
        kind = FilteringReader if source.filter_pushdown else Reader
        return kind(connection, source, self._opener(schema), cores=self.cores)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Read on and on, a range at a time."""
        return StreamReader(*self._source(schema), self._opener(schema), cores=self.cores)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Write rows, once."""
        from penstock.spark.sink.sink import Writer, plan

        return Writer(plan(*parse_sink(self.options), schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Write the rows of every micro-batch."""
        from penstock.spark.sink.sink import StreamWriter, plan

        connection, sink = parse_sink(self.options)
        began = began_s(self.options, self.driver) if sink.message_ids != "none" else None
        return StreamWriter(plan(connection, sink, schema, began_s=began))

    def _source(self, schema: StructType) -> tuple[ConnectionOptions, SourceOptions]:
        connection, source = parse_source(self.options)
        given = [(field.name, field.dataType.simpleString()) for field in schema]
        columns = check(given, types_of(source.format))
        if source.format == "envelope":
            messages = [column for column in columns if column in COLUMNS]
            return connection, replace(source, format="raw", columns=(*messages, "data"))
        return connection, replace(source, columns=columns)

    def _opener(self, schema: StructType) -> Opener | None:
        source = parse_source(self.options)[1]
        return Opener(schema, _decoder(source)) if source.format == "envelope" else None


class Partition(InputPartition):
    """A range of one stream, known by when it was created."""

    def __init__(self, created: str, sequences: Range) -> None:
        self.created = created
        self.sequences = sequences


class Reader(DataSourceReader):
    """Reads from the starting to the ending position."""

    def __init__(
        self,
        connection: ConnectionOptions,
        source: SourceOptions,
        opener: Opener | None = None,
        *,
        cores: int = 1,
    ) -> None:
        self._connection = connection
        self._source = source
        self._opener = opener
        self._cores = cores
        self._narrowed = Narrowed()

    def partitions(self) -> list[InputPartition]:
        """Resolve the positions, now, and split the range between them."""
        patience = Patience(self._connection.retry_timeout_seconds)
        return persistently(patience, self._plan)

    def _plan(self) -> list[InputPartition]:
        source = self._source
        with Connection(self._connection, DRIVER_NAME) as connection:
            state = read_state(connection, source.stream)
            first = first_at(connection, state, source.starting_position)
            last = last_at(connection, state, source.ending_position)
            # What a filter leaves out need not be there.
            first = max(first, self._narrowed.first(connection, state))
            last = min(last, self._narrowed.sequence_max)
            if first <= last:
                first = check_head(state, source, first)
        ranges = _split(source, Range(first, last), self._cores)
        return [Partition(state.created, sequences) for sequences in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the range of one task."""
        if not isinstance(partition, Partition):
            # For an empty range, Spark makes up a partition of its own.
            return iter(())
        return _read(self._connection, self._source, self._opener, partition)


class FilteringReader(Reader):
    """Narrows the range by the conditions of the query."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        """Take what says something of sequence, time or subject. Spark checks it all again."""
        self._narrowed, self._source = narrow(self._source, filters)
        yield from filters


@dataclass(frozen=True)
class Offset:
    """Up to where a stream was read, as it stands in the checkpoint."""

    stream: str
    created: str
    sequence: int
    partitions: tuple[int, ...] = ()
    """
    Where the tasks begin that read up to here, for whoever does it again: with more cores, or
    other options. Nothing that is to be read is before the first of them.
    """

    def written(self) -> dict[str, Any]:
        """Return it as JSON. Spark compares the text, so the order of keys is part of it."""
        where = {"stream": self.stream, "created": self.created, "sequence": self.sequence}
        return where | ({"partitions": list(self.partitions)} if self.partitions else {})


def _offset(written: Mapping[str, Any], source: SourceOptions) -> Offset:
    """Read an offset from the checkpoint."""
    offset = Offset(
        str(written["stream"]),
        str(written["created"]),
        int(written["sequence"]),
        tuple(map(int, written.get("partitions", ()))),
    )
    if offset.stream != source.stream:
        raise ClientError(
            f"the checkpoint is of stream `{offset.stream}`, the query reads `{source.stream}`; "
            "hint: a query that reads another stream needs a checkpoint of its own"
        )
    return offset


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Answers the driver where the stream is, and reads ranges of it in the tasks."""

    def __init__(
        self,
        connection: ConnectionOptions,
        source: SourceOptions,
        opener: Opener | None = None,
        *,
        cores: int = 1,
    ) -> None:
        self._connection = connection
        self._source = source
        self._opener = opener
        self._cores = cores
        self._opened: Connection | None = None
        self._target: int | None = None
        self._planned: int | None = None
        """Up to where the newest micro-batch reads."""
        self._nothing_up_to = 0
        """Up to where there was nothing to read when it was looked for."""

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset of a query without a checkpoint."""
        state = self._state()
        position = self._source.starting_position
        first = self._ask(lambda connection: first_at(connection, state, position))
        return Offset(state.name, state.created, first - 1).written()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return what one micro-batch may hold, as far as Spark has a word for it."""
        if self._source.max_messages_per_trigger is not None:
            return ReadMaxRows(self._source.max_messages_per_trigger)
        if self._source.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._source.max_bytes_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return up to where the next micro-batch reads."""
        offset = _offset(start, self._source)
        state = self._state()
        check_same_stream(state, offset.created)
        last = state.last_sequence if self._target is None else self._target
        first = self._first_message(state, offset.sequence)
        if first > last:
            self._nothing_up_to = self._planned = max(offset.sequence, last)
            if not self._is_left_behind(state, offset.sequence):
                self._planned = offset.sequence
                return start
        elif isinstance(limit, ReadAllAvailable):
            self._planned = last
        else:
            self._planned = min(last, first - 1 + self._messages_max(state, limit))
        ranges = _split(self._source, Range(first, self._planned), self._cores)
        firsts = tuple(each.first for each in ranges)
        return replace(offset, sequence=self._planned, partitions=firsts).written()

    def _first_message(self, state: StreamState, sequence: int) -> int:
        """Return where behind a sequence there is something to read."""
        first = check_head(state, self._source, max(sequence, self._nothing_up_to) + 1)
        if not self._source.subjects and not state.has_holes:
            return first
        found = self._ask(
            lambda connection: first_message(connection, state, self._source.subjects, first)
        )
        return state.last_sequence + 1 if found is None else found

    def _is_left_behind(self, state: StreamState, sequence: int) -> bool:
        """Tell whether a checkpoint with nothing to read is in the older half of the stream."""
        # Once the head has passed it, it would look to whoever starts from there like a loss.
        middle = (state.earliest - 1 + self._nothing_up_to) // 2
        return state.earliest > 1 and sequence < middle

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the end of the stream, and how far behind it the newest micro-batch is."""
        state = self._state()
        end = Offset(state.name, state.created, state.last_sequence).written()
        if self._planned is None:
            return end
        try:
            lag = read_lag(self._opened_connection(), state, self._source.subjects, self._planned)
        except PenstockError as error:
            self.stop()
            if not is_transient(error):
                raise
            # A query does not fail for want of a figure.
            return end
        return end | {"behindMessages": lag.messages, "behindSeconds": lag.seconds}

    def prepareForTriggerAvailableNow(self) -> None:
        """Read what is there now, and then no more."""
        self._target = self._state().last_sequence

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the ranges that a micro-batch was split into when it was planned."""
        finish = _offset(end, self._source)
        state = self._state()
        check_same_stream(state, finish.created)
        if not finish.partitions:
            # The checkpoint moved on over what is not for this query.
            return [Partition(finish.created, Range(finish.sequence + 1, finish.sequence))]
        first = check_head(state, self._source, finish.partitions[0])
        return [
            Partition(finish.created, Range(max(first, each.first), each.last))
            for each in between(finish.partitions, finish.sequence)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the range of one task."""
        assert isinstance(partition, Partition)
        return _read(self._connection, self._source, self._opener, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the checkpoint is the only place that knows how far a query is."""

    def stop(self) -> None:
        """Hang up."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}

    def _messages_max(self, state: StreamState, limit: ReadLimit) -> int:
        """Return the strictest bound: Spark passes one of them, the options may have both."""
        bounds = []
        if isinstance(limit, ReadMaxRows):
            bounds.append(limit.max_rows)
        if self._source.max_messages_per_trigger is not None:
            bounds.append(self._source.max_messages_per_trigger)
        if self._source.max_bytes_per_trigger is not None and state.messages:
            average = max(1, state.bytes // state.messages)
            bounds.append(max(1, self._source.max_bytes_per_trigger // average))
        return min(bounds, default=state.last_sequence)

    def _state(self) -> StreamState:
        return self._ask(lambda connection: read_state(connection, self._source.stream))

    def _ask(self, question: Callable[[Connection], T]) -> T:
        """Ask over the connection there is, or a new one; the server may be starting again."""

        def attempt() -> T:
            try:
                return question(self._opened_connection())
            except PenstockError:
                self.stop()
                raise

        return persistently(Patience(self._connection.retry_timeout_seconds), attempt)

    def _opened_connection(self) -> Connection:
        if self._opened is None:
            self._opened = Connection(self._connection, DRIVER_NAME).__enter__()
        return self._opened


def _decoder(source: SourceOptions) -> Decoder:
    return new_decoder(source.payload_format, source.payload_schema, source.payload_message)


def _read(
    connection: ConnectionOptions,
    source: SourceOptions,
    opener: Opener | None,
    partition: Partition,
) -> Iterator[pa.RecordBatch]:
    if not partition.sequences.size:
        return iter(())
    batches = read_range(connection, source, partition.created, partition.sequences)
    return batches if opener is None else opener.open(batches)


def _split(source: SourceOptions, whole: Range, cores: int) -> list[Range]:
    return partition(
        whole,
        cores=cores,
        min_partitions=source.min_partitions,
        messages_max=source.max_messages_per_partition,
    )
