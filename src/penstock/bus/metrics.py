"""What the bus counts."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass
class Metrics:
    """Counters since the bus was opened. Names end like those of Prometheus."""

    published_total: int = 0
    publish_acked_total: int = 0
    publish_failed_total: int = 0
    received_total: int = 0
    handled_total: int = 0
    handler_failures_total: int = 0
    handler_timeouts_total: int = 0
    retries_total: int = 0
    dead_letters_total: int = 0
    invalid_total: int = 0
    skipped_total: int = 0
    live_dropped_total: int = 0
    reconnects_total: int = 0
    in_flight: int = 0
    parked_keys: int = 0
    unacked: int = 0

    def prometheus(self) -> str:
        """Return them as Prometheus reads them."""
        lines = []
        for item in fields(self):
            name = f"penstock_bus_{item.name}"
            kind = "counter" if item.name.endswith("_total") else "gauge"
            lines += [f"# TYPE {name} {kind}", f"{name} {getattr(self, item.name)}"]
        return "\n".join(lines) + "\n"
