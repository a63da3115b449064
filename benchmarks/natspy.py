"""A Spark source that reads through nats-py, message by message, as a comparison for ours."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

FETCH = 1000


class NatsPySource(DataSource):
    """Reads the first messages of a stream, in two tasks."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "nats-py"

    def schema(self) -> str:
        """Return the columns."""
        return "subject STRING, data BINARY, stream STRING, sequence BIGINT, time TIMESTAMP"

    def reader(self, schema: Any) -> DataSourceReader:
        """Read once."""
        return NatsPyReader(dict(self.options))


class NatsPyReader(DataSourceReader):
    """Reads rows as tuples."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Split the range in two."""
        half = int(self._options["messages"]) // 2
        return [InputPartition((1, half)), InputPartition((half + 1, 2 * half))]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Fetch with a pull consumer."""
        import asyncio

        return iter(asyncio.run(self._fetch(*partition.value)))

    async def _fetch(self, first: int, last: int) -> list[tuple[Any, ...]]:
        import nats
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        client = await nats.connect(self._options["servers"])
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=first,
            ack_policy=AckPolicy.NONE,
        )
        stream = self._options["stream"]
        pull = await client.jetstream().pull_subscribe(
            "", stream=stream, config=config, durable=None
        )
        rows: list[tuple[Any, ...]] = []
        while len(rows) <= last - first:
            for message in await pull.fetch(min(FETCH, last - first + 1 - len(rows))):
                about = message.metadata
                rows.append(
                    (message.subject, message.data, stream, about.sequence.stream, about.timestamp)
                )
        await client.close()
        return rows
