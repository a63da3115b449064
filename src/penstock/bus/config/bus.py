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
from typing import Any, Literal

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

    window_messages_max: int = setting(
        256,
        "Unacked messages at which a publisher waits.",
        directive="max_pending",
        positive=True,
    )
    ack_timeout_s: float = setting(
        120.0,
        "Time an ack may take: longer than a restart of the broker, and not longer than "
        "`duplicate_window`.",
        directive="publish_timeout",
        positive=True,
    )
    deduplicate: bool = setting(
        True,
        "Send the event id along, so that what is published again, after a lost connection "
        "too, is stored once. Costs a header in every message.",
    )
    results_max: int = setting(
        100_000, "Unread results of one stream at which its publishers wait.", positive=True
    )
    rate_per_s: float = setting(0.0, "Messages a second; 0 is no limit.", directive="rate")
    rate_burst: int = setting(100, "Messages that may exceed the rate at once.", positive=True)
    compression: Literal["none", "zstd", "lz4"] = setting(
        "none", "How large messages are compressed."
    )
    compress_bytes_min: int = setting(
        4096,
        "Size from which a message is compressed.",
        directive="compress_from",
        positive=True,
    )


@dataclass(frozen=True, kw_only=True)
class SubscriberConfig(Checked):
    """How events are handled."""

    lanes: int = setting(256, "Handlers that run at once; a key stays on its lane.", positive=True)
    threads_max: int = setting(
        16,
        "Threads for handlers that are plain functions.",
        directive="max_threads",
        positive=True,
    )
    handler_timeout_s: float = setting(
        30.0, "Time one attempt may take.", directive="process_timeout", positive=True
    )
    attempts_max: int = setting(
        5, "Attempts before a message is given up.", directive="max_attempts", positive=True
    )
    backoff_s: float = setting(0.1, "Wait before the second attempt.", directive="backoff")
    backoff_s_max: float = setting(
        30.0, "Longest wait between attempts.", directive="max_backoff", positive=True
    )
    backoff_factor: float = setting(2.0, "Growth of that wait.", positive=True)
    on_exhausted: Literal["dead_letter", "block"] = setting(
        "dead_letter",
        "After the last attempt: move the message away and go on, or block its key.",
    )
    dead_letter_prefix: str = setting("dead-letters", "First token of dead-letter topics.")
    dead_letters_max: int = setting(
        1_000_000,
        "Dead letters kept on NATS, whatever their age. There is a warning at half of it; when "
        "they are so many, no more are made and their keys wait.",
        directive="max_dead_letters",
        positive=True,
    )
    unhandled: Literal["hold", "skip"] = setting(
        "hold", "What happens to messages of topics that have no handler (yet)."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.backoff_s > self.backoff_s_max:
            raise ConfigError(
                f"`backoff` ({self.backoff_s} s) is longer than `max_backoff` "
                f"({self.backoff_s_max} s)"
            )


@dataclass(frozen=True, kw_only=True)
class BacklogConfig(Checked):
    """When the bus says that its handlers do not keep up."""

    messages_max: int = setting(10_000, "Messages waiting.", directive="max_lag", positive=True)
    age_s_max: float = setting(
        300.0, "Age of the oldest message waiting.", directive="max_age", positive=True
    )
    recover_ratio: float = setting(
        0.5, "Part of either bound below which the backlog is over.", positive=True
    )
    interval_s: float = setting(
        30.0, "Time between two looks.", directive="interval", positive=True
    )


@dataclass(frozen=True, kw_only=True)
class HealthConfig(Checked):
    """Heartbeats through the broker and back, and what it means when they stay out."""

    interval_s: float = setting(
        120.0, "Time between two heartbeats.", directive="interval", positive=True
    )
    timeout_s: float = setting(
        10.0, "Time a heartbeat may take to come back.", directive="timeout", positive=True
    )
    warning_misses: int = setting(3, "Misses in a row that are a warning.", positive=True)
    error_misses: int = setting(5, "Misses in a row that are an error.", positive=True)
    critical_misses: int = setting(10, "Misses in a row that are critical.", positive=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.warning_misses < self.error_misses < self.critical_misses:
            raise ConfigError("`warning_misses`, `error_misses`, `critical_misses` must increase")


@dataclass(frozen=True, kw_only=True)
class TopicOptions(Checked):
    """What a topic is to be. What is left out is as the shared stream has it."""

    persistence: Literal["persistent", "ephemeral", "auto"] = setting(
        "auto", "Kept by the broker, or gone once delivered; auto is what the engine can do."
    )
    retention_s: float | None = setting(
        None, "Time messages are kept.", directive="retention", positive=True
    )
    bytes_max: int | None = setting(None, "Bytes kept.", directive="max_bytes", positive=True)
    messages_max: int | None = setting(None, "Messages kept.", directive="max_msgs", positive=True)
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
                self.retention_s,
                self.bytes_max,
                self.messages_max,
                self.replicas,
                self.compression,
            )
        )


@dataclass(frozen=True, kw_only=True)
class BusConfig(Checked):
    """The whole bus."""

    type: Literal["nats", "embedded", "kafka"] = setting("embedded", "The engine.")
    service: str = setting("penstock", "Name of the durable consumer: one for each service.")
    namespace: str = setting("events", "First token of every subject, name of the stream.")
    strategy: Literal["create_only", "create_or_update", "validate_only", "skip"] = setting(
        "create_only",
        "What is done about topics on the broker: create_only (production), create_or_update "
        "(development), validate_only (staging), skip.",
    )
    connect_timeout_s: float = setting(
        60.0,
        "Time the broker is waited for when the bus opens; 0: it is asked once.",
        directive="connect_timeout",
    )
    shutdown_timeout_s: float = setting(
        25.0,
        "Time handlers and publishes get to finish: less than who stops the process waits.",
        directive="shutdown_timeout",
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

    @property
    def ack_pending_max(self) -> int:
        """Messages delivered and not settled, at which no more are fetched."""
        if self.type == "kafka":
            return self.kafka.consumer.ack_pending_max
        return self.nats.jetstream.consumer.ack_pending_max


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
"""What each preset changes, in the keys of a file."""
