"""How the bus uses Kafka: the cluster, the producer, the consumer group, topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from typing import Literal

from penstock.config.setting import Checked, setting
from penstock.protocol.times import DAY_S


@dataclass(frozen=True, kw_only=True)
class KafkaProducerConfig(Checked):
    """The one producer: idempotent, and acked by all replicas that are in sync."""

    linger: float = setting(0.005, "Time a message waits for others to be sent with.")
    batch_bytes: int = setting(
        128 * 1024, "Bytes of messages sent to a partition at once.", positive=True
    )
    buffer: int = setting(
        64 * 1024 * 1024,
        "Unsent bytes at which publishing waits.",
        positive=True,
    )
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = setting(
        "none", "How batches travel; brokers store them as they come unless the topic says how."
    )


@dataclass(frozen=True, kw_only=True)
class KafkaConsumerConfig(Checked):
    """The one consumer group of a service."""

    max_ack_pending: int = setting(
        1000,
        "Messages delivered and not settled, at which no more are fetched.",
        positive=True,
    )
    fetch_batch: int = setting(500, "Messages taken at once.", positive=True)
    fetch_wait: float = setting(
        0.1,
        "Time the broker may wait for messages to answer with.",
        positive=True,
    )
    buffer: int = setting(16 * 1024 * 1024, "Bytes fetched ahead.", positive=True)
    start: Literal["earliest", "latest"] = setting(
        "earliest", "Where a service begins that has not read a topic before."
    )
    commit_interval: float = setting(
        0.5,
        "Time between two commits of what is settled; closing and handing over commit at once.",
        positive=True,
    )
    instance: str = setting(
        "",
        "Name of this process in the group (`group.instance.id`), another for each: one that is "
        "back within `session_timeout` has its partitions again, and none moves meanwhile.",
    )
    session_timeout: float = setting(
        45.0,
        "Time after which a process that died loses its partitions.",
        positive=True,
    )
    max_poll_interval: float = setting(
        300.0,
        "Time a process may take to hand partitions over: longer than handlers take.",
        positive=True,
    )
    discovery_interval: float = setting(
        5.0,
        "Time between two looks for topics that are new.",
        positive=True,
    )


@dataclass(frozen=True, kw_only=True)
class KafkaTopicConfig(Checked):
    """Defaults for topics that are not declared, or that leave a setting out."""

    partitions: int = setting(4, "Partitions of a topic.", positive=True)
    replicas: int = setting(1, "Brokers that keep a copy.", positive=True)
    max_age: float = setting(DAY_S, "Time kept; 0 is no limit.")
    max_bytes: int = setting(0, "Bytes kept; 0 is no limit.")


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
    connection_timeout: float = setting(10.0, "Time to reach the cluster.", positive=True)
    request_timeout: float = setting(10.0, "Time a management request may take.", positive=True)
    producer: KafkaProducerConfig = field(default_factory=KafkaProducerConfig)
    consumer: KafkaConsumerConfig = field(default_factory=KafkaConsumerConfig)
    topic: KafkaTopicConfig = field(default_factory=KafkaTopicConfig)
    properties: Mapping[str, str] = setting(
        MISSING,
        "Any other property of librdkafka, by its own name; wins over all of these.",
        default_factory=dict,
    )
