"""Topics as the brokers have them, and changing that. Blocks; never used while publishing."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, cast

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConsumerGroupDescription,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicMetadata,
)

from penstock.bus.config.bus import BusConfig, TopicOptions
from penstock.bus.engine import Membership, TopicState
from penstock.bus.engines.kafka.layout import PARTITIONS_MAX
from penstock.bus.engines.kafka.properties import (
    checked,
    common,
    explained,
    library_logger,
    text_of,
)
from penstock.errors import BusError, ConnectFailed

FIXABLE = frozenset(("retention", "max_bytes", "compression"))
UNLIMITED = -1
SEGMENT_BYTES_MIN = 1024 * 1024
SEGMENTS_PER_LIMIT = 4
"""Kafka drops whole segments, so a topic that is limited is made of several."""
PROPAGATION_POLL_S = 0.02
PASSING = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError._NOENT,
)
"""
Errors for a partition that has no leader yet, or another than we know of.

A new partition is known before it has a leader; one of a broker that was restarted has a new one.
"""

COMPRESSIONS = {"none": "uncompressed", "gzip": "gzip", "snappy": "snappy"}
COMPRESSIONS |= {"lz4": "lz4", "zstd": "zstd"}


class KafkaAdmin:
    """Topics, groups and records on the brokers."""

    def __init__(self, config: BusConfig, producer: Producer) -> None:
        self._kafka = config.kafka
        self._defaults = config.kafka.topic
        self._timeout_s = config.kafka.request_timeout
        self._producer = producer
        properties = common(config) | dict(config.kafka.properties)
        self._admin = checked(lambda: AdminClient(properties, logger=library_logger))

    def close(self) -> None:
        """Let the connection go, which nothing else would do for a while."""
        del self._admin

    def topics(self, timeout_s: float | None = None) -> dict[str, int]:
        """Return every topic there is, and how many partitions it has."""
        found = self._metadata(timeout_s or self._timeout_s)
        return {name: len(topic.partitions) for name, topic in found.items()}

    def inspect(self, name: str) -> TopicState | None:
        """Return how the brokers keep a topic."""
        metadata = self._metadata(self._timeout_s).get(name)
        if metadata is None:
            return None
        resource = ConfigResource(ResourceType.TOPIC, name)
        entries = self._result(self._admin.describe_configs([resource])[resource], name)
        partitions = len(metadata.partitions)
        self._await_leaders(name, partitions)
        retention_bytes = int(entries["retention.bytes"].value)
        retention_ms = int(entries["retention.ms"].value)
        names = {value: key for key, value in COMPRESSIONS.items()}
        options = TopicOptions(
            persistence="persistent",
            retention=None if retention_ms == UNLIMITED else retention_ms / 1000,
            max_bytes=None if retention_bytes == UNLIMITED else retention_bytes * partitions,
            replicas=len(metadata.partitions[0].replicas),
            partitions=partitions,
            compression=cast(Any, names.get(entries["compression.type"].value)),
        )
        return TopicState(options=options, shared=False, fixable=FIXABLE)

    def count(self, name: str) -> int:
        """Return how many records a topic has."""
        numbers = range(self.topics().get(name, 0))
        ends = self.ends(TopicPartition(name, number) for number in numbers)
        return sum(behind - first for first, behind in ends)

    def groups(self) -> list[str]:
        """Return every consumer group there is."""
        listed = self._result(self._admin.list_consumer_groups(), "groups")
        return [group.group_id for group in listed.valid]

    def services(self, prefix: str) -> dict[str, Membership]:
        """Return the members of each group whose name begins so, and their partitions."""
        groups = [name for name in self.groups() if name.startswith(prefix)]
        if not groups:
            return {}
        described = self._admin.describe_consumer_groups(groups)
        return {
            name.removeprefix(prefix): _membership(self._result(future, name))
            for name, future in sorted(described.items())
        }

    def create(self, name: str, options: TopicOptions, *, forever: bool = False) -> None:
        """Make a topic, and return once it can be used; somebody else may be faster."""
        partitions = options.partitions or self._defaults.partitions
        if partitions > PARTITIONS_MAX:
            raise BusError(f"`partitions` must be {PARTITIONS_MAX:,} at most: {partitions}")
        limits = {
            "retention.ms": _milliseconds(0.0 if forever else self._defaults.max_age),
            "retention.bytes": _share(0 if forever else self._defaults.max_bytes, partitions),
        } | self._settings(options, partitions)
        self._make(name, partitions, limits, replicas=options.replicas)

    def create_own(self, name: str, **settings: str) -> None:
        """Make a topic of the bus's own, of one partition, unless it is there."""
        if name not in self.topics():
            self._make(name, 1, {key.replace("_", "."): one for key, one in settings.items()})

    def update(self, name: str, options: TopicOptions) -> None:
        """Change the limits of a topic; what was not asked for stays."""
        changes = self._settings(options, self.topics()[name])
        resource = ConfigResource(
            ResourceType.TOPIC,
            name,
            incremental_configs=[
                ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
                for key, value in changes.items()
            ],
        )
        self._result(self._admin.incremental_alter_configs([resource])[resource], name)

    def ends(self, partitions: Iterable[TopicPartition]) -> list[tuple[int, int]]:
        """Return the first offset of each partition, and the one behind its last."""
        wanted = list(partitions)
        if not wanted:
            return []
        specs = (OffsetSpec.earliest(), OffsetSpec.latest())  # type: ignore[no-untyped-call]
        first, behind = [self._offsets(wanted, spec) for spec in specs]
        return list(zip(first, behind, strict=True))

    def _offsets(self, wanted: list[TopicPartition], spec: OffsetSpec) -> list[int]:
        """Ask for offsets, again while a partition has no leader that both sides know of."""
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            futures = self._admin.list_offsets(dict.fromkeys(wanted, spec))
            try:
                return [futures[one].result(self._timeout_s).offset for one in wanted]
            except (KafkaException, TimeoutError) as error:
                is_passing = isinstance(error, KafkaException) and error.args[0].code() in PASSING
                if not is_passing or time.monotonic() > deadline_s:
                    raise BusError(f"offsets cannot be asked: {text_of(error)}") from error
            time.sleep(PROPAGATION_POLL_S)
            with suppress(KafkaException):
                # It would go on asking for the leader it knows, for a quarter of an hour.
                self._admin.list_topics(timeout=self._timeout_s)

    def _metadata(self, timeout_s: float) -> dict[str, TopicMetadata]:
        try:
            found = self._producer.list_topics(timeout=timeout_s).topics
        except KafkaException as error:
            brokers = ", ".join(self._kafka.brokers)
            raise ConnectFailed(f"no broker answers at {brokers}: {text_of(error)}") from error
        return {name: topic for name, topic in found.items() if topic.error is None}

    def _make(
        self, name: str, partitions: int, config: dict[str, str], *, replicas: int | None = None
    ) -> None:
        topic = NewTopic(
            name,
            num_partitions=partitions,
            replication_factor=replicas or self._defaults.replicas,
            config=config,
        )
        try:
            self._admin.create_topics([topic])[name].result(self._timeout_s)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise BusError(f"`{name}` cannot be made: {text_of(error)}") from error
        deadline_s = time.monotonic() + self._timeout_s
        while name not in self.topics():
            if time.monotonic() > deadline_s:
                raise BusError(f"`{name}` was made, and is not there after {self._timeout_s} s")
            time.sleep(PROPAGATION_POLL_S)
        self._await_leaders(name, partitions)

    def _await_leaders(self, name: str, partitions: int) -> None:
        """
        Return once every partition is led, or may not be for a while.

        A leader that comes up between the first produce and the second refuses the one and takes
        the other. The first, sent again, looks like one that it has: told as stored, and lost.
        """
        wanted = [TopicPartition(name, number) for number in range(partitions)]
        with suppress(BusError):
            self._offsets(wanted, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def _settings(self, options: TopicOptions, partitions: int) -> dict[str, str]:
        """Return what was asked for in Kafka's words."""
        if options.max_msgs is not None:
            raise BusError(
                "Kafka keeps no topic to a number of messages (`max_msgs`); "
                "hint: `retention` or `max_bytes`"
            )
        settings = {}
        if options.retention is not None:
            settings["retention.ms"] = _milliseconds(options.retention)
        if options.max_bytes is not None:
            share = _share(options.max_bytes, partitions)
            segment = max(SEGMENT_BYTES_MIN, int(share) // SEGMENTS_PER_LIMIT)
            settings |= {"retention.bytes": share, "segment.bytes": str(segment)}
        if options.compression is not None:
            if options.compression not in COMPRESSIONS:
                known = ", ".join(COMPRESSIONS)
                raise BusError(
                    f"Kafka has no `compression` {options.compression}; hint: one of {known}"
                )
            settings["compression.type"] = COMPRESSIONS[options.compression]
        return settings

    def _result(self, future: Any, name: str) -> Any:
        with explained(f"`{name}`"):
            return future.result(self._timeout_s)


def _milliseconds(seconds: float) -> str:
    return str(round(seconds * 1000) or UNLIMITED)


def _share(total: int, partitions: int) -> str:
    """Return the part of one partition: Kafka limits each."""
    return str(-(-total // partitions) or UNLIMITED)


def _membership(group: ConsumerGroupDescription) -> Membership:
    """Return who is in a group, and how many partitions each has."""
    members = {
        one.group_instance_id or f"{one.host} {one.member_id}": len(one.assignment.topic_partitions)
        for one in group.members
    }
    return Membership(members=members)
