"""Measurements: samples of single clients, and the outcome of a run made of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock.bench.report.histogram import Histogram
from penstock.bench.scenarios.plan import Plan

PERCENTILES = (50.0, 90.0, 99.0, 99.9, 99.99, 100.0)


@dataclass(frozen=True)
class Sample:
    """The work of one client, from its first message to its last."""

    messages: int
    size_bytes: int
    start_ns: int
    end_ns: int

    @property
    def duration_s(self) -> float:
        """The duration in seconds; never 0, so that it can be a divisor."""
        return max(self.end_ns - self.start_ns, 1) / 1e9

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.duration_s

    @property
    def bytes_rate(self) -> float:
        """Payload bytes per second."""
        return self.messages * self.size_bytes / self.duration_s


def together(samples: Iterable[Sample]) -> Sample | None:
    """Return several samples as one: from the first start to the last end."""
    active = [sample for sample in samples if sample.messages]
    if not active:
        return None
    return Sample(
        messages=sum(sample.messages for sample in active),
        size_bytes=active[0].size_bytes,
        start_ns=min(sample.start_ns for sample in active),
        end_ns=max(sample.end_ns for sample in active),
    )


@dataclass
class Tally:
    """The measurements of one client, as its process returns them."""

    sample: Sample
    latency_ns: Histogram
    disordered: int = 0
    foreign: int = 0
    error: str = ""


@dataclass(kw_only=True)
class Outcome:
    """One run against one server."""

    plan: Plan
    server: str
    version: str = ""
    publishers: Sequence[Sample] = ()
    subscribers: Sequence[Sample] = ()
    latency_ns: Histogram = field(default_factory=Histogram)
    expected: int = 0
    """Messages that the measured side should have handled."""
    received: int = 0
    disordered: int = 0
    foreign: int = 0
    resident_bytes: int | None = None
    """The server's memory right after the last message, all clients connected."""
    interrupted: bool = False
    errors: Sequence[str] = ()
    """The errors, each once."""

    @property
    def lost(self) -> int:
        """The number of messages that did not arrive."""
        return max(self.expected - self.received, 0)

    @property
    def sound(self) -> bool:
        """Whether every message arrived once and in order, and nothing failed."""
        return not (self.lost or self.disordered or self.errors or self.interrupted)

    @property
    def total(self) -> Sample | None:
        """All clients of both sides as one sample: from the first publish to the last receive."""
        return together((*self.publishers, *self.subscribers))

    @property
    def rate(self) -> float:
        """Messages per second, published and received together."""
        return self.total.rate if self.total else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {
            "server": self.server,
            "version": self.version,
            **asdict(self.plan),
            "rate": round(self.rate, 1),
            "bytes_rate": round(self.total.bytes_rate, 1) if self.total else 0.0,
            "duration_s": self.total.duration_s if self.total else 0.0,
            "expected": self.expected,
            "received": self.received,
            "lost": self.lost,
            "out_of_order": self.disordered,
            "interrupted": self.interrupted,
            "errors": list(self.errors),
            "resident_bytes": self.resident_bytes,
            "latency_ns": latency_json(self.latency_ns),
            "publisher_samples": [_sample_json(sample) for sample in self.publishers],
            "subscriber_samples": [_sample_json(sample) for sample in self.subscribers],
        }


def latency_json(histogram: Histogram) -> dict[str, Any] | None:
    """Return the percentiles by name, or None if nothing was timed."""
    if not histogram.count:
        return None
    values = histogram.percentiles(PERCENTILES)
    names = [f"p{percent:g}" for percent in PERCENTILES]
    return {
        "count": histogram.count,
        "min": histogram.minimum,
        "mean": round(histogram.mean),
        **dict(zip(names, values, strict=True)),
    }


def _sample_json(sample: Sample) -> dict[str, Any]:
    return {
        "messages": sample.messages,
        "duration_s": sample.duration_s,
        "rate": round(sample.rate, 1),
        "bytes_rate": round(sample.bytes_rate, 1),
    }
