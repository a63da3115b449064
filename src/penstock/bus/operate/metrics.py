"""The counters of the bus."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, fields
from itertools import accumulate
from typing import Any

HANDLER_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of handler times, in seconds; longer times go into a last bucket."""


def counter(help: str) -> Any:
    """Return a counter that begins at 0, with its help text."""
    return field(default=0, metadata={"help": help})


@dataclass
class Seconds:
    """Durations, as a Prometheus histogram."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(HANDLER_BUCKETS_S) + 1))
    total_s: float = 0.0

    def record(self, duration_s: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(HANDLER_BUCKETS_S, duration_s)] += 1
        self.total_s += duration_s

    def prometheus(self, name: str, help: str) -> list[str]:
        """Return the lines of the histogram."""
        lines = [f"# HELP {name} {help}", f"# TYPE {name} histogram"]
        bounds = [*map(str, HANDLER_BUCKETS_S), "+Inf"]
        sums = list(accumulate(self.counts))
        lines += [
            f'{name}_bucket{{le="{bound}"}} {count}'
            for bound, count in zip(bounds, sums, strict=True)
        ]
        return [*lines, f"{name}_sum {self.total_s:.6f}", f"{name}_count {sums[-1]}"]


@dataclass
class Metrics:
    """Counters since the bus was opened. Names end like those of Prometheus."""

    published_total: int = counter("Events handed over to be stored.")
    publish_acked_total: int = counter("Events the broker has stored.")
    publish_failed_total: int = counter("Events that were not stored, or may not be.")
    received_total: int = counter("Messages fetched, or received live.")
    handled_total: int = counter("Calls of handlers that succeeded.")
    handler_failures_total: int = counter("Calls of handlers that failed.")
    handler_timeouts_total: int = counter("Calls of handlers that took too long.")
    retries_total: int = counter("Further attempts that were planned.")
    dead_letters_total: int = counter("Messages moved to a dead-letter topic.")
    dead_letters: int = counter("Dead letters that are kept, counted every few seconds.")
    invalid_total: int = counter("Messages that could not be read.")
    skipped_total: int = counter("Messages of topics without a handler that were skipped.")
    live_dropped_total: int = counter("Live messages dropped because too much was in flight.")
    reconnects_total: int = counter("Times the connection was lost and came back.")
    members: int = counter("Processes that share the work of the service, as far as is known.")
    slots: int = counter("Parts of the keys that this process has; partitions, on Kafka.")
    takeovers_total: int = counter("Times this process gave the keys of a silent one to others.")
    in_flight: int = counter("Messages queued, running, parked or held.")
    parked_keys: int = counter("Keys that wait for another attempt, or are blocked.")
    unacked: int = counter("Events that wait for the broker's ack.")
    handler_seconds: Seconds = field(
        default_factory=Seconds, metadata={"help": "Time a call of a handler took."}
    )

    def prometheus(self) -> str:
        """Return the counters in the text format of Prometheus."""
        lines = []
        for item in fields(self):
            name, help = f"penstock_bus_{item.name}", item.metadata["help"]
            value = getattr(self, item.name)
            if isinstance(value, Seconds):
                lines += value.prometheus(name, help)
                continue
            kind = "counter" if item.name.endswith("_total") else "gauge"
            lines += [f"# HELP {name} {help}", f"# TYPE {name} {kind}", f"{name} {value}"]
        return "\n".join(lines) + "\n"
