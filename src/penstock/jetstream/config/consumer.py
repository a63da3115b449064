"""
The configuration of a consumer: every option once, JSON in and out.

The order of the fields is that of nats-server's answers. `ConsumerConfig` holds values,
`consumerrules` says which of them make sense.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from penstock.jetstream.config.stream import (
    REQUIRED_LEVEL,
    SERVER_LEVEL,
    SERVER_VERSION,
    option,
)
from penstock.protocol import strictjson
from penstock.protocol.rfc3339 import parse_time
from penstock.protocol.times import SECOND_NS
from penstock.protocol.version import API_LEVEL, NATS_VERSION

NEVER_NS = 100 * 365 * 24 * 3600 * SECOND_NS
"""The ack wait when acks come with flow control: such messages are not redelivered."""

DELIVER_POLICIES = (
    "all",
    "last",
    "new",
    "by_start_sequence",
    "by_start_time",
    "last_per_subject",
)
ACK_POLICIES = ("none", "all", "explicit", "flow_control")
REPLAY_POLICIES = ("instant", "original")
PRIORITY_POLICIES = ("none", "overflow", "pinned_client", "prioritized")


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig:
    """The options of a consumer."""

    durable_name: str = option("", "string", omit_empty=True)
    name: str = option("", "string", omit_empty=True)
    description: str = option("", "string", omit_empty=True)
    deliver_policy: str = option("all", DELIVER_POLICIES)
    opt_start_seq: int = option(0, "uint64", omit_empty=True)
    opt_start_time: str = option("", "string", omit_empty=True)
    ack_policy: str = option("none", ACK_POLICIES)
    ack_wait: int = option(0, "time.Duration", omit_empty=True)
    max_deliver: int = option(0, "int", omit_empty=True)
    backoff: tuple[int, ...] = option((), "[]time.Duration", omit_empty=True)
    filter_subject: str = option("", "subject", omit_empty=True)
    filter_subjects: tuple[str, ...] = option((), "[]subject", omit_empty=True)
    replay_policy: str = option("instant", REPLAY_POLICIES)
    rate_limit_bps: int = option(0, "uint64", omit_empty=True)
    sample_freq: str = option("", "string", omit_empty=True)
    max_waiting: int = option(0, "int", omit_empty=True)
    max_ack_pending: int = option(0, "int", omit_empty=True)
    flow_control: bool = option(False, "bool", omit_empty=True)
    headers_only: bool = option(False, "bool", omit_empty=True)
    max_batch: int = option(0, "int", omit_empty=True)
    max_expires: int = option(0, "time.Duration", omit_empty=True)
    max_bytes: int = option(0, "int", omit_empty=True)
    deliver_subject: str = option("", "subject", omit_empty=True)
    deliver_group: str = option("", "subject", omit_empty=True)
    idle_heartbeat: int = option(0, "time.Duration", omit_empty=True)
    inactive_threshold: int = option(0, "time.Duration", omit_empty=True)
    num_replicas: int = option(0, "int")
    mem_storage: bool = option(False, "bool", omit_empty=True)
    direct: bool = option(False, "bool", omit_empty=True)
    sourcing: bool = option(False, "bool", omit_empty=True)
    metadata: Mapping[str, str] = option(None, "map[string]string", omit_empty=True, factory=dict)
    pause_until: str = option("", "string", omit_empty=True)
    priority_groups: tuple[str, ...] = option((), "[]string", omit_empty=True)
    priority_policy: str = option(
        "none",
        strictjson.OneOf(PRIORITY_POLICIES, "unknown priority policy: {}"),
        omit_empty=True,
    )
    priority_timeout: int = option(0, "time.Duration", omit_empty=True)

    @property
    def is_durable(self) -> bool:
        """Whether it outlives its clients."""
        return bool(self.durable_name)

    @property
    def ack_waits_ns(self) -> tuple[int, ...]:
        """The ack wait of the first delivery, the second, ...; the last one repeats."""
        if self.ack_policy == "flow_control":
            return (NEVER_NS,)
        return self.backoff or (self.ack_wait,)

    @property
    def is_private(self) -> bool:
        """Whether it serves another stream: it counts against no limit."""
        return self.direct or self.sourcing

    @property
    def is_push(self) -> bool:
        """Whether it sends messages without a request."""
        return bool(self.deliver_subject)

    @property
    def filters(self) -> tuple[bytes, ...]:
        """The subjects it delivers; empty for all."""
        if self.filter_subject:
            return (self.filter_subject.encode(),)
        return tuple(each.encode() for each in self.filter_subjects)

    @property
    def sample_percent(self) -> int:
        """The percentage of acks to publish a metric for."""
        return int(self.sample_freq.removesuffix("%") or "0")

    @property
    def pause_until_ns(self) -> int:
        """The end of the pause; 0 if it was never paused."""
        return parse_time(self.pause_until) if self.pause_until else 0

    @property
    def required_level(self) -> int:
        """The API level that a server needs to serve such a consumer."""
        if self.ack_policy == "flow_control":
            return 4
        is_grouped = self.priority_policy != "none" or self.priority_groups
        return 1 if is_grouped or self.priority_timeout or self.pause_until_ns else 0

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ConsumerConfig:
        """Build a configuration from fields that `strictjson` has checked."""
        options: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
        }
        return cls(**options)

    def but(self, **changes: Any) -> ConsumerConfig:
        """Return the same with some options changed; watching a key makes a few of these."""
        other = object.__new__(ConsumerConfig)
        # Like `dataclasses.replace`, which takes ten times as long with this number of fields.
        other.__dict__.update(self.__dict__, **changes)
        return other

    def to_json(self) -> dict[str, Any]:
        """Return the configuration as it is stored."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in self.__dict__.items()
            if name not in EMPTY or (value and value != EMPTY[name])
        }

    def to_answer(self) -> dict[str, Any]:
        """Return the configuration for an answer, with the server's metadata."""
        versions = {
            SERVER_LEVEL: str(API_LEVEL),
            SERVER_VERSION: NATS_VERSION,
            REQUIRED_LEVEL: str(self.required_level),
        }
        metadata = dict(sorted((dict(self.metadata) | versions).items()))
        return self.but(metadata=metadata).to_json()


CONSUMER_CONFIG_FIELDS = {item.name: item.metadata["kind"] for item in fields(ConsumerConfig)}
EMPTY = {
    item.name: "none" if item.default == "none" else None
    for item in fields(ConsumerConfig)
    if item.metadata["omit_empty"]
}
"""Options that are left out when unset, and the values that mean the same as unset."""
