"""
Reports: what the server looked like at one moment, as plain values.

A survey makes them; the rules of `attention`, the history and the console only read them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

StreamKey = tuple[str, str]
"""Account and stream."""
ConsumerKey = tuple[str, str, str]
"""Account, stream and consumer."""


class ServerReport(NamedTuple):
    """The figures of the whole server."""

    time_ns: int
    in_messages: int = 0
    in_bytes: int = 0
    out_messages: int = 0
    out_bytes: int = 0
    in_rate: float = 0.0
    """The first of four: what was added to the totals in a second."""
    in_bytes_rate: float = 0.0
    out_rate: float = 0.0
    out_bytes_rate: float = 0.0
    connections: int = 0
    subscriptions: int = 0
    memory_bytes: int = 0
    cpu_percent: float = 0.0
    slow_consumers: int = 0
    """Clients cut off since the start."""
    slow_lately: int = 0
    """Those of the last quarter of an hour."""
    slow_last: str = ""
    """The last of them: its name or number, and why."""
    storage_bytes: int = 0
    storage_max: int = -1
    """The limit on that; -1 without one."""
    disk_free: int = -1
    """Bytes left in the file system of the store; -1 without a store."""
    disk_full_s: float = -1.0
    """When the disk or the limit will be reached if this goes on; -1 if it will not."""


class StreamReport(NamedTuple):
    """One stream."""

    account: str
    name: str
    created: str
    storage: str
    messages: int
    bytes: int
    first: int
    last: int
    consumers: int
    messages_max: int
    bytes_max: int
    age_max_ns: int
    per_subject_max: int
    discards_old: bool
    retention: str
    lost: int
    """Messages that are damaged on disk."""
    faults: int
    """Damage found in its files."""
    failure: str
    """Why it cannot store; empty while it can."""
    rate: float = 0.0
    """Messages stored in a second."""
    newest: str = ""
    """Of dead letters: where the newest comes from, and the kind of its cause."""

    @property
    def key(self) -> StreamKey:
        """Its identity in the reports."""
        return self.account, self.name

    @property
    def fill(self) -> float:
        """How full it is by its limits of messages and bytes: 1 is full, -1 without limits."""
        parts = ((self.messages, self.messages_max), (self.bytes, self.bytes_max))
        return max((used / most for used, most in parts if most > 0), default=-1.0)

    @property
    def is_at_limit(self) -> bool:
        """Whether old messages go because of a limit."""
        return self.age_max_ns > 0 or (self.discards_old and self.fill >= AT_LIMIT)


AT_LIMIT = 0.9
"""How full a stream is whose limit removes messages; a block at a time, so it is not always 1."""


class ConsumerReport(NamedTuple):
    """One consumer."""

    account: str
    stream: str
    name: str
    pending: int
    unacked: int
    unacked_max: int
    """`max_ack_pending`; 0 without a bound."""
    redelivered: int
    waiting: int
    """Pull requests that wait."""
    delivered: int
    """Deliveries since it was made."""
    withdrawn: int
    """Messages that were removed before they were delivered, as far as that was counted."""
    is_paused: bool
    rate: float = 0.0
    """Deliveries in a second."""
    passed: int = 0
    """Messages that a limit of the stream removed before they were delivered, lately."""
    pending_before: int = -1
    """The number of pending messages a minute ago or more; -1 if it is not that old."""
    filters: tuple[str, ...] = ()

    @property
    def key(self) -> ConsumerKey:
        """Its identity in the reports."""
        return self.account, self.stream, self.name


class PipelineReport(NamedTuple):
    """One Spark pipeline, as it reported itself."""

    account: str
    name: str
    stream: str
    behind_messages: int
    age_s: float
    """The time since its last report."""
    stored_since: int = 0
    """Messages that its stream got since then."""


class Reports(NamedTuple):
    """Everything that was seen at one moment."""

    server: ServerReport
    streams: dict[StreamKey, StreamReport]
    consumers: dict[ConsumerKey, ConsumerReport]
    pipelines: list[PipelineReport]
    unreadable: list[tuple[str, str, str]]
    """Account, stream and reason of each that could not be brought back."""

    def as_figures(self) -> dict[str, Any]:
        """Return the figures of the server for the console."""
        return self.server._asdict() | {
            "streams": len(self.streams),
            "consumers": len(self.consumers),
            "stored": sum(each.rate for each in self.streams.values()),
        }
