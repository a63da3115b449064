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
        "One process at a time reads for this service, others stand by, and what an earlier "
        "one left undone comes first. Order needs it; false lets several share the work.",
    )
    takeover_s: float = setting(
        3.0,
        "Time after which a standby takes the place of a process that is silent.",
        directive="takeover",
        positive=True,
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
