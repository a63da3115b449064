"""How the bus uses NATS: the connection, the stream that topics share, the durable consumer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from penstock.config.setting import Checked, setting
from penstock.protocol.times import DAY_S

GIB = 1024**3


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(Checked):
    """The durable consumers of a service, one for each pattern it handles."""

    max_ack_pending: int = setting(
        1000,
        "Messages delivered and not settled, at which no more are fetched.",
        positive=True,
    )
    max_waiting: int = setting(512, "Pull requests that may wait.", positive=True)
    ack_wait: float = setting(
        30.0,
        "Time after which a message nobody works on is delivered again.",
        positive=True,
    )
    fetch_batch: int = setting(500, "Messages asked for at once.", positive=True)
    fetch_wait: float = setting(0.1, "Time a request for messages stands.", positive=True)
    exclusive: bool = setting(
        False,
        "One process at a time handles for this service, and others stand by; otherwise all of "
        "them share the work by key.",
    )
    takeover: float = setting(
        3.0,
        "Time after which others take the keys of a process that is silent.",
        positive=True,
    )


@dataclass(frozen=True, kw_only=True)
class StreamConfig(Checked):
    """The stream that all topics share which have no limits of their own."""

    max_bytes: int = setting(GIB, "Bytes kept; 0 is no limit.")
    max_msgs: int = setting(1_000_000, "Messages kept; 0: no limit.")
    max_age: float = setting(DAY_S, "Time kept; 0 is no limit.")
    replicas: int = setting(1, "Servers of a cluster that keep a copy.", positive=True)
    storage: Literal["file", "memory"] = setting("file", "Where it is kept.")
    duplicate_window: float = setting(
        120.0,
        "Time within which an event id is stored once only.",
        positive=True,
    )


@dataclass(frozen=True, kw_only=True)
class JetStreamConfig(Checked):
    """Persistent topics."""

    enabled: bool = setting(True, "Whether topics are persistent unless declared otherwise.")
    domain: str = setting("", "JetStream domain to use.")
    request_timeout: float = setting(5.0, "Time a management request may take.", positive=True)
    consumer: ConsumerConfig = field(default_factory=ConsumerConfig)
    stream: StreamConfig = field(default_factory=StreamConfig)


@dataclass(frozen=True, kw_only=True)
class NatsConfig(Checked):
    """How to reach a NATS server or cluster."""

    urls: tuple[str, ...] = setting(
        ("nats://127.0.0.1:4222",), "Servers to connect to.", secret=True
    )
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
    connection_timeout: float = setting(10.0, "Time to reach one server.", positive=True)
    max_reconnects: int | None = setting(
        None,
        "Failed attempts before a server is given up; never if unset.",
    )
    reconnect_wait: float = setting(
        0.05,
        "First wait between two rounds; it doubles.",
        positive=True,
    )
    max_reconnect_wait: float = setting(2.0, "Longest wait between two rounds.", positive=True)
    flush_bytes: int = setting(
        128 * 1024, "Unsent bytes that are written without waiting.", positive=True
    )
    reconnect_buffer: int = setting(
        8 * 1024 * 1024,
        "Unsent bytes, also while reconnecting, at which publishing waits.",
        positive=True,
    )
    jetstream: JetStreamConfig = field(default_factory=JetStreamConfig)
