"""
Every setting of the bus, once.

The dataclasses are the only place where a setting and its default are defined. A
YAML file has the same tree with the keys below; an environment variable is the
path to a key, `PENSTOCK_BUS_NATS_JETSTREAM_CONSUMER_ACK_WAIT=10s`; code names the
dataclasses themselves. What is given later wins: preset, file, environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal

from penstock.errors import ConfigError
from penstock.setting import setting

GIB = 1024**3
DAY_S = 86_400.0


class Checked:
    """Refuses numbers that are negative, or zero where that means nothing."""

    def __post_init__(self) -> None:
        for item in fields(self):  # type: ignore[arg-type]
            value = getattr(self, item.name)
            name = key_of(item)
            if isinstance(value, int | float) and value < 0:
                raise ConfigError(f"`{name}` must not be negative: {value}")
            if item.metadata.get("positive") and value == 0:
                raise ConfigError(f"`{name}` must be more than 0")


def key_of(item: Any) -> str:
    """Return what a field is called in a file."""
    return item.metadata.get("directive") or item.name  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(Checked):
    """The one durable consumer."""

    ack_pending_max: int = setting(
        1000,
        "Messages delivered and not settled, at which no more are fetched.",
        directive="max_ack_pending",
        positive=True,
    )
    waiting_max: int = setting(
        512, "Pull requests that may wait.", directive="max_waiting", positive=True
    )
    ack_wait_s: float = setting(
        30.0,
        "Time after which a message nobody works on is delivered again.",
        directive="ack_wait",
        positive=True,
    )
    fetch_messages: int = setting(
        500, "Messages asked for at once.", directive="fetch_batch", positive=True
    )
    fetch_wait_s: float = setting(
        0.1, "Time a request for messages stands.", directive="fetch_wait", positive=True
    )
    exclusive: bool = setting(
        True,
        "One process at a time reads for this service, and what an earlier one left undone "
        "comes first. Order across restarts needs it; false lets several share the work.",
    )


@dataclass(frozen=True, kw_only=True)
class StreamConfig(Checked):
    """The stream that all topics share which have no limits of their own."""

    bytes_max: int = setting(GIB, "Bytes kept; 0 is no limit.", directive="max_bytes")
    messages_max: int = setting(1_000_000, "Messages kept; 0: no limit.", directive="max_msgs")
    age_s_max: float = setting(DAY_S, "Time kept; 0 is no limit.", directive="max_age")
    replicas: int = setting(1, "Servers of a cluster that keep a copy.", positive=True)
    storage: Literal["file", "memory"] = setting("file", "Where it is kept.")
    duplicate_window_s: float = setting(
        120.0,
        "Time within which an event id is stored once only.",
        directive="duplicate_window",
        positive=True,
    )


@dataclass(frozen=True, kw_only=True)
class JetStreamConfig(Checked):
    """Persistent topics."""

    enabled: bool = setting(True, "Whether topics are persistent unless declared otherwise.")
    domain: str = setting("", "JetStream domain to use.")
    request_timeout_s: float = setting(
        5.0, "Time a management request may take.", directive="request_timeout", positive=True
    )
    consumer: ConsumerConfig = field(default_factory=ConsumerConfig)
    stream: StreamConfig = field(default_factory=StreamConfig)


@dataclass(frozen=True, kw_only=True)
class NatsConfig(Checked):
    """How to reach a NATS server or cluster."""

    urls: tuple[str, ...] = setting(("nats://127.0.0.1:4222",), "Servers to connect to.")
    user: str | None = setting(None, "User name.")
    password: str | None = setting(None, "Password of the user.", secret=True)
    token: str | None = setting(None, "Authentication token.", secret=True)
    nkey_seed: str | None = setting(None, "Seed of an nkey user.", secret=True)
    credentials: str | None = setting(None, "Path of a creds file.")
    tls_ca: str | None = setting(
        None, "Path of the certificates to trust; those of the system if unset."
    )
    tls_certificate: str | None = setting(None, "Path of the client's certificate.")
    tls_key: str | None = setting(None, "Path of the client's key.")
    tls_handshake_first: bool = setting(False, "Start TLS before the server's INFO.")
    connect_timeout_s: float = setting(
        10.0, "Time to reach one server.", directive="connection_timeout", positive=True
    )
    reconnect_attempts_max: int | None = setting(
        None,
        "Failed attempts before a server is given up; never if unset.",
        directive="max_reconnects",
    )
    reconnect_wait_s: float = setting(
        0.05,
        "First wait between two rounds; it doubles.",
        directive="reconnect_wait",
        positive=True,
    )
    reconnect_wait_s_max: float = setting(
        2.0, "Longest wait between two rounds.", directive="max_reconnect_wait", positive=True
    )
    flush_bytes: int = setting(
        128 * 1024, "Unsent bytes that are written without waiting.", positive=True
    )
    reconnect_buffer_bytes: int = setting(
        8 * 1024 * 1024,
        "Unsent bytes, also while reconnecting, at which publishing waits.",
        directive="reconnect_buffer",
        positive=True,
    )
    jetstream: JetStreamConfig = field(default_factory=JetStreamConfig)


@dataclass(frozen=True, kw_only=True)
class KafkaProducerConfig(Checked):
    """The one producer: idempotent, and acked by all replicas that are in sync."""

    linger_s: float = setting(
        0.005, "Time a message waits for others to be sent with.", directive="linger"
    )
    batch_bytes: int = setting(
        128 * 1024, "Bytes of messages sent to a partition at once.", positive=True
    )
    buffer_bytes: int = setting(
        64 * 1024 * 1024,
        "Unsent bytes at which publishing waits.",
        directive="buffer",
        positive=True,
    )
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = setting(
        "none", "How batches travel; brokers store them as they come unless the topic says how."
    )


@dataclass(frozen=True, kw_only=True)
class KafkaConsumerConfig(Checked):
    """The one consumer group of a service."""

    ack_pending_max: int = setting(
        1000,
        "Messages delivered and not settled, at which no more are fetched.",
        directive="max_ack_pending",
        positive=True,
    )
    fetch_messages: int = setting(
        500, "Messages taken at once.", directive="fetch_batch", positive=True
    )
    fetch_wait_s: float = setting(
        0.1, "Time the broker may wait for messages to answer with.", positive=True
    )
    buffer_bytes: int = setting(
        16 * 1024 * 1024, "Bytes fetched ahead.", directive="buffer", positive=True
    )
    start: Literal["earliest", "latest"] = setting(
        "earliest", "Where a service begins that has not read a topic before."
    )
    commit_interval_s: float = setting(
        0.5,
        "Time between two commits of what is settled; closing and handing over commit at once.",
        directive="commit_interval",
        positive=True,
    )
    session_timeout_s: float = setting(
        45.0,
        "Time after which a process that died loses its partitions.",
        directive="session_timeout",
        positive=True,
    )
    poll_interval_s_max: float = setting(
        300.0,
        "Time a process may take to hand partitions over: longer than handlers take.",
        directive="max_poll_interval",
        positive=True,
    )
    discovery_interval_s: float = setting(
        5.0,
        "Time between two looks for topics that are new.",
        directive="discovery_interval",
        positive=True,
    )


@dataclass(frozen=True, kw_only=True)
class KafkaTopicConfig(Checked):
    """What a topic is that is not declared, or leaves something out."""

    partitions: int = setting(4, "Partitions of a topic.", positive=True)
    replicas: int = setting(1, "Brokers that keep a copy.", positive=True)
    age_s_max: float = setting(DAY_S, "Time kept; 0 is no limit.", directive="max_age")
    bytes_max: int = setting(0, "Bytes kept; 0 is no limit.", directive="max_bytes")


@dataclass(frozen=True, kw_only=True)
class KafkaConfig(Checked):
    """How to reach a Kafka cluster."""

    brokers: tuple[str, ...] = setting(("127.0.0.1:9092",), "Brokers to ask for the others.")
    protocol: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = setting(
        "plaintext", "How to speak to the brokers: with TLS, with SASL, or both."
    )
    mechanism: str = setting("PLAIN", "SASL: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER…")
    user: str | None = setting(None, "SASL user name.")
    password: str | None = setting(None, "SASL password.", secret=True)
    ca_file: str | None = setting(None, "Certificates that brokers are trusted by.")
    certificate_file: str | None = setting(None, "Our certificate, for mutual TLS.")
    key_file: str | None = setting(None, "Its key.")
    key_password: str | None = setting(None, "Password of the key.", secret=True)
    connect_timeout_s: float = setting(
        10.0, "Time to reach the cluster.", directive="connection_timeout", positive=True
    )
    request_timeout_s: float = setting(
        10.0, "Time a management request may take.", directive="request_timeout", positive=True
    )
    producer: KafkaProducerConfig = field(default_factory=KafkaProducerConfig)
    consumer: KafkaConsumerConfig = field(default_factory=KafkaConsumerConfig)
    topic: KafkaTopicConfig = field(default_factory=KafkaTopicConfig)
    properties: Mapping[str, str] = setting(
        MISSING,
        "Any other property of librdkafka, by its own name; wins over all of these.",
        default_factory=dict,
    )


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
        5.0, "Time an ack may take.", directive="publish_timeout", positive=True
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
    unhandled: Literal["hold", "skip"] = setting(
        "hold", "What happens to messages of topics that have no handler (yet)."
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
    shutdown_timeout_s: float = setting(
        30.0,
        "Time handlers and publishes get to finish.",
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
            if not value or not value.replace("-", "").replace("_", "").isalnum():
                raise ConfigError(f"`{name}` must be letters, digits, `-` and `_`: {value!r}")

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
