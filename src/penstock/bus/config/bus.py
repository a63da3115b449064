"""
Every setting of the bus, once; those of NATS and Kafka have a file each.

The dataclasses are the only place where a setting and its default are defined. A
YAML file has the same tree with the keys below; an environment variable is the
path to a key, `PENSTOCK_BUS_NATS_JETSTREAM_CONSUMER_ACK_WAIT=10s`; code names the
dataclasses themselves. What is given later wins: preset, file, environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from penstock.bus.config.kafka import KafkaConfig
from penstock.bus.config.nats import GIB, NatsConfig
from penstock.bus.events.names import is_name
from penstock.config.setting import Checked, setting
from penstock.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class EmbeddedConfig(Checked):
    """The server in this process."""

    store_dir: str = setting(
        "", "Directory of the streams; one that is deleted on close, if unset."
    )
    host: str = setting("127.0.0.1", "Address others may connect to.")
    port: int = setting(0, "Port others may connect to; 0 is any free one.")


@dataclass(frozen=True, kw_only=True)
class PublisherConfig(Checked):
    """How events leave."""

    max_pending: int = setting(
        256,
        "Unacked messages at which a publisher waits.",
        positive=True,
    )
    publish_timeout: float = setting(
        120.0,
        "Time an ack may take: longer than a restart of the broker, and not longer than "
        "`duplicate_window`.",
        positive=True,
    )
    deduplicate: bool = setting(
        True,
        "Send the event id along, so that what is published again, after a lost connection "
        "too, is stored once. Costs a header in every message.",
    )
    max_results: int = setting(
        100_000,
        "Unread results of one stream at which its publishers wait.",
        positive=True,
    )
    rate: float = setting(0.0, "Messages a second; 0 is no limit.")
    rate_burst: int = setting(100, "Messages that may exceed the rate at once.", positive=True)
    compression: Literal["none", "zstd", "lz4"] = setting(
        "none", "How large messages are compressed."
    )
    compress_from: int = setting(
        4096,
        "Size from which a message is compressed.",
        positive=True,
    )


@dataclass(frozen=True, kw_only=True)
class SubscriberConfig(Checked):
    """How events are handled."""

    lanes: int = setting(256, "Handlers that run at once; a key stays on its lane.", positive=True)
    max_threads: int = setting(
        16,
        "Threads for handlers that are plain functions.",
        positive=True,
    )
    process_timeout: float = setting(30.0, "Time one attempt may take.", positive=True)
    max_attempts: int = setting(5, "Attempts before a message is given up.", positive=True)
    backoff: float = setting(0.1, "Wait before the second attempt.")
    max_backoff: float = setting(30.0, "Longest wait between attempts.", positive=True)
    backoff_factor: float = setting(2.0, "Growth of that wait.", positive=True)
    on_exhausted: Literal["dead_letter", "block"] = setting(
        "dead_letter",
        "After the last attempt: move the message away and go on, or block its key.",
    )
    dead_letter_prefix: str = setting("dead-letters", "First token of dead-letter topics.")
    max_dead_letters: int = setting(
        1_000_000,
        "Dead letters kept on NATS, whatever their age. There is a warning at half of it. At "
        "the limit no more are stored, and the keys of failed events wait.",
        positive=True,
    )
    unhandled: Literal["hold", "skip"] = setting(
        "hold", "What happens to messages of topics that have no handler (yet)."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.backoff > self.max_backoff:
            raise ConfigError(
                f"`backoff` ({self.backoff} s) is longer than `max_backoff` ({self.max_backoff} s)"
            )
        if not is_name(self.dead_letter_prefix):
            raise ConfigError(
                f"`dead_letter_prefix` must be of A-Z a-z 0-9 - and _: {self.dead_letter_prefix!r}"
            )


@dataclass(frozen=True, kw_only=True)
class BacklogConfig(Checked):
    """When the bus says that its handlers do not keep up."""

    max_lag: int = setting(10_000, "Messages waiting.", positive=True)
    max_age: float = setting(300.0, "Age of the oldest message waiting.", positive=True)
    recover_ratio: float = setting(
        0.5, "Part of either bound below which the backlog is over.", positive=True
    )
    interval: float = setting(30.0, "Time between two looks.", positive=True)


@dataclass(frozen=True, kw_only=True)
class HealthConfig(Checked):
    """Heartbeats through the broker and back, and what it means when they stay out."""

    interval: float = setting(120.0, "Time between two heartbeats.", positive=True)
    timeout: float = setting(10.0, "Time a heartbeat may take to come back.", positive=True)
    warning_misses: int = setting(3, "Misses in a row that are a warning.", positive=True)
    error_misses: int = setting(5, "Misses in a row that are an error.", positive=True)
    critical_misses: int = setting(10, "Misses in a row that are critical.", positive=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.warning_misses < self.error_misses < self.critical_misses:
            raise ConfigError("`warning_misses`, `error_misses`, `critical_misses` must increase")


@dataclass(frozen=True, kw_only=True)
class TopicOptions(Checked):
    """The settings of a topic. Those left out follow the shared stream."""

    persistence: Literal["persistent", "ephemeral", "auto"] = setting(
        "auto", "Kept by the broker, or gone once delivered; auto is what the engine can do."
    )
    retention: float | None = setting(None, "Time messages are kept.", positive=True)
    max_bytes: int | None = setting(None, "Bytes kept.", positive=True)
    max_msgs: int | None = setting(None, "Messages kept.", positive=True)
    replicas: int | None = setting(None, "Copies in a cluster.", positive=True)
    partitions: int | None = setting(
        None, "Parts on Kafka, each read by one process; NATS needs none.", positive=True
    )
    compression: Literal["none", "s2", "gzip", "snappy", "lz4", "zstd"] | None = setting(
        None, "How the broker stores it: s2 on NATS, the others on Kafka."
    )
    description: str = setting("", "For people who look at the broker.")

    @property
    def limits(self) -> bool:
        """Whether it asks for anything the shared stream does not give."""
        return any(
            value is not None
            for value in (
                self.retention,
                self.max_bytes,
                self.max_msgs,
                self.replicas,
                self.compression,
            )
        )


class TopicSettings(TypedDict, total=False):
    """The fields of `TopicOptions` as keywords."""

    persistence: Literal["persistent", "ephemeral", "auto"]
    retention: float | None
    max_bytes: int | None
    max_msgs: int | None
    replicas: int | None
    partitions: int | None
    compression: Literal["none", "s2", "gzip", "snappy", "lz4", "zstd"] | None
    description: str


@dataclass(frozen=True, kw_only=True)
class BusConfig(Checked):
    """The whole bus."""

    type: Literal["nats", "embedded", "kafka"] = setting(
        "embedded",
        "The engine. Default: the one whose `urls` or `brokers` are set, else this.",
    )
    service: str = setting("penstock", "Name of the durable consumer: one for each service.")
    namespace: str = setting("events", "First token of every subject, name of the stream.")
    strategy: Literal["create_only", "create_or_update", "validate_only", "skip"] = setting(
        "create_only",
        "What is done about topics on the broker: create_only (production), create_or_update "
        "(development), validate_only (staging), skip.",
    )
    connect_timeout: float = setting(
        60.0,
        "Time the broker is waited for when the bus opens; 0: it is asked once.",
    )
    shutdown_timeout: float = setting(
        25.0,
        "Time handlers and publishes get to finish: less than who stops the process waits.",
        positive=True,
    )
    nats: NatsConfig = field(default_factory=NatsConfig)
    kafka: KafkaConfig = field(default_factory=KafkaConfig)
    embedded: EmbeddedConfig = field(default_factory=EmbeddedConfig)
    publisher: PublisherConfig = field(default_factory=PublisherConfig)
    subscriber: SubscriberConfig = field(default_factory=SubscriberConfig)
    backlog: BacklogConfig = field(default_factory=BacklogConfig)
    health: HealthConfig = field(default_factory=HealthConfig)
    topics: Mapping[str, TopicOptions] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("service", "namespace"):
            value = getattr(self, name)
            if not is_name(value):
                raise ConfigError(f"`{name}` must be of A-Z a-z 0-9 - and _: {value!r}")
        prefix = self.subscriber.dead_letter_prefix
        for topic in self.topics:
            if topic.partition(".")[0] == prefix:
                raise ConfigError(f"`topics`: `{topic}` begins with the `dead_letter_prefix`")
        self._check_window()

    def _check_window(self) -> None:
        """Refuse to publish again after the server may have forgotten the event's id."""
        timeout_s = self.publisher.publish_timeout
        window_s = self.nats.jetstream.stream.duplicate_window
        if self.type != "kafka" and self.publisher.deduplicate and timeout_s > window_s:
            raise ConfigError(
                f"`publish_timeout` ({timeout_s:g} s) is longer than `duplicate_window` "
                f"({window_s:g} s), so an event could be stored twice"
            )

    @property
    def max_ack_pending(self) -> int:
        """Messages delivered and not settled, at which no more are fetched."""
        if self.type == "kafka":
            return self.kafka.consumer.max_ack_pending
        return self.nats.jetstream.consumer.max_ack_pending


class BusSettings(TypedDict, total=False):
    """The fields of `BusConfig` as keywords, so that checkers and editors know them."""

    type: Literal["nats", "embedded", "kafka"]
    service: str
    namespace: str
    strategy: Literal["create_only", "create_or_update", "validate_only", "skip"]
    connect_timeout: float
    shutdown_timeout: float
    nats: NatsConfig
    kafka: KafkaConfig
    embedded: EmbeddedConfig
    publisher: PublisherConfig
    subscriber: SubscriberConfig
    backlog: BacklogConfig
    health: HealthConfig
    topics: Mapping[str, TopicOptions]


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "balanced": {},
    "high_throughput": {
        "nats": {
            "jetstream": {
                "consumer": {"max_ack_pending": 10_000, "max_waiting": 1000},
                "stream": {"max_bytes": 2 * GIB, "max_msgs": 2_000_000},
            }
        },
        "kafka": {
            "producer": {"linger": 0.01, "batch_bytes": 1024 * 1024},
            "consumer": {"max_ack_pending": 10_000, "fetch_batch": 2000},
        },
        "publisher": {"max_pending": 10_000, "deduplicate": False},
    },
    "low_latency": {
        "nats": {
            "jetstream": {
                "consumer": {"max_ack_pending": 500, "max_waiting": 256, "ack_wait": 10.0}
            }
        },
        "kafka": {
            "producer": {"linger": 0.0, "batch_bytes": 16 * 1024},
            "consumer": {"max_ack_pending": 500},
        },
    },
}
"""The settings each preset changes, by their keys in a configuration file."""
