"""
The `penstock` data source of Spark: reads streams, and writes to them.

Offsets are stream sequences: a batch is a range of them in each stream, split evenly
over the tasks, and reading a range again gives the same rows. Nothing of Spark's
progress is kept on the server.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from penstock.errors import ClientError, ConfigError
from penstock.spark.connection import Connection
from penstock.spark.envelopes.envelope import DECOMPRESSED
from penstock.spark.envelopes.opener import Decompressor, EnvelopeOpener, Opener
from penstock.spark.envelopes.payload import Decoder, new_decoder
from penstock.spark.options import (
    ConnectionOptions,
    SourceOptions,
    parse_sink,
    parse_source,
)
from penstock.spark.patience import Patience, persistently
from penstock.spark.sink.checkpoint import began_s
from penstock.spark.source.admission import split
from penstock.spark.source.counting import new_census
from penstock.spark.source.follow import DRIVER_NAME, SourceFollower
from penstock.spark.source.loss import check_head
from penstock.spark.source.position import Position, Positions, Range
from penstock.spark.source.pushdown import Narrowed, narrow
from penstock.spark.source.schema import COLUMNS, check, columns_of, ddl, types_of
from penstock.spark.source.stream import StreamState, last_at, start_at
from penstock.spark.source.streams import check_subjects, find_streams, none_match
from penstock.spark.source.tasks import Piece, new_tasks, read_task
from penstock.spark.version import has_limits

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamWriter, Filter


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
        kind = FilteringReader if source.filter_pushdown else RangeReader
        return kind(connection, source, self._opener(schema), cores=self.cores)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Read on and on, a range at a time."""
        kind = _stream_reader()
        connection, source = self._source(schema)
        if source.ending_position != Positions():
            raise ConfigError(
                "`endingPosition` is where a batch ends, and a streaming query does not; hint: "
                "its trigger `availableNow` ends it where the streams end now"
            )
        return kind(connection, source, self._opener(schema), cores=self.cores)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Write rows, once."""
        from penstock.spark.sink.sink import ALWAYS_S, Writer, plan

        connection, sink = parse_sink(self.options)
        began = ALWAYS_S if sink.message_id_prefix and sink.message_ids != "none" else None
        return Writer(plan(connection, sink, schema, overwrite=overwrite, began_s=began))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Write the rows of every micro-batch."""
        from penstock.spark.sink.sink import plan
        from penstock.spark.sink.streaming import new_writer

        connection, sink = parse_sink(self.options)
        began = began_s(self.options, self.driver) if sink.message_ids != "none" else None
        return new_writer(plan(connection, sink, schema, began_s=began), schema)

    def _source(self, schema: StructType) -> tuple[ConnectionOptions, SourceOptions]:
        connection, source = parse_source(self.options)
        given = [(field.name, field.dataType.simpleString()) for field in schema]
        columns = check(given, types_of(source.format))
        read = tuple(column for column in columns if column in COLUMNS)
        is_opened = source.format == "envelope" or DECOMPRESSED in columns
        if is_opened and "data" not in read:
            read = (*read, "data")
        raw = replace(
            source,
            format="raw",
            payload_format="json",
            payload_schema="",
            payload_message="",
            columns=read,
        )
        return connection, raw

    def _opener(self, schema: StructType) -> Opener | None:
        source = parse_source(self.options)[1]
        if source.format == "envelope":
            return EnvelopeOpener(schema, _decoder(source))
        return Decompressor(schema.names) if DECOMPRESSED in schema.names else None


def _stream_reader() -> type[SourceFollower]:
    """Return how this version of Spark has streams followed."""
    if not has_limits():
        from penstock.spark.source.unlimited import UnlimitedReader

        return UnlimitedReader
    from penstock.spark.source.limited import StreamReader

    return StreamReader


class RangeReader(DataSourceReader):
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
        self._given = self._source = source
        self._opener = opener
        self._cores = cores
        self._narrowed = Narrowed()

    def partitions(self) -> list[InputPartition]:
        """Resolve the positions, now, and split the range between them."""
        patience = Patience(self._connection.retry_timeout_seconds)
        return persistently(patience, self._plan)

    def _plan(self) -> list[InputPartition]:
        with Connection(self._connection, DRIVER_NAME) as connection:
            states = find_streams(connection, self._source)
            if not states:
                raise ClientError(none_match(self._source))
            check_subjects(connection, self._given, states)
            wholes = [
                new_census(connection, state, self._source, self._whole(connection, state))
                for state in states.values()
            ]
            ranges = split(wholes, self._source, self._cores)
        return new_tasks(
            [
                Piece(state.name, state.created, each)
                for state, found in zip(states.values(), ranges, strict=True)
                for each in found
            ],
            self._source,
        )

    def _whole(self, connection: Connection, state: StreamState) -> Range:
        """Return what is to be read of a stream."""
        source = self._source
        starting = source.starting_position.of(state.name, Position("earliest"))
        ending = source.ending_position.of(state.name, Position("latest"))
        first, last = start_at(connection, state, starting), last_at(connection, state, ending)
        # What a filter leaves out need not be there.
        first = max(first, self._narrowed.first(connection, state))
        last = min(last, self._narrowed.sequence_max)
        return Range(check_head(state, source, first) if first <= last else first, last)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the ranges of one task."""
        return read_task(self._connection, self._source, self._opener, partition)


class FilteringReader(RangeReader):
    """Narrows the range by the conditions of the query."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        """Take what says something of sequence, time or subject. Spark checks it all again."""
        self._narrowed, self._source = narrow(self._source, filters)
        yield from filters


def _decoder(source: SourceOptions) -> Decoder:
    return new_decoder(source.payload_format, source.payload_schema, source.payload_message)
