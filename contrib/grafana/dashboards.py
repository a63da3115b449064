"""
The Grafana dashboards, as tables of panels: `python contrib/grafana/dashboards.py` writes them.

A row of a table is a title, a unit of Grafana, and the expressions with their legends. Tests
hold that every metric here is one that a server, a bus or a pipeline really has.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

WIDTH, HEIGHT, COLUMNS = 8, 8, 3
RATE = "$__rate_interval"


class Panel(NamedTuple):
    """A chart: what it shows, in which unit."""

    title: str
    unit: str
    lines: dict[str, str]
    """Expression by legend."""


def rate(metric: str, by: str = "") -> str:
    """Return the expression for the growth of a counter, per second."""
    total = f"rate({metric}[{RATE}])"
    return f"sum by ({by}) ({total})" if by else total


BROKER = (
    Panel("Messages", "cps", {
        "in": rate("penstock_in_messages_total"), "out": rate("penstock_out_messages_total"),
    }),
    Panel("Bytes", "Bps", {
        "in": rate("penstock_in_bytes_total"), "out": rate("penstock_out_bytes_total"),
    }),
    Panel("Connections", "none", {"{{instance}}": "penstock_connections"}),
    Panel("Subscriptions", "none", {"{{instance}}": "penstock_subscriptions"}),
    Panel("Output waiting for clients", "bytes", {"{{instance}}": "penstock_pending_bytes"}),
    Panel("Clients cut off or slowed down", "cps", {
        "slow consumers": rate("penstock_slow_consumers_total"),
        "stale": rate("penstock_stale_connections_total"),
        "publishers stalled": rate("penstock_stalled_clients_total"),
    }),
    Panel("Processor", "percentunit", {"{{instance}}": rate("process_cpu_seconds_total")}),
    Panel("Memory", "bytes", {"{{instance}}": "process_resident_memory_bytes"}),
    Panel("New connections", "cps", {
        "{{instance}}": rate("penstock_connections_accepted_total"),
    }),
)  # fmt: skip

JETSTREAM = (
    Panel("Stored in files", "bytes", {"{{instance}}": "penstock_jetstream_storage_bytes"}),
    Panel("Stored in memory", "bytes", {"{{instance}}": "penstock_jetstream_memory_bytes"}),
    Panel("Messages stored", "cps", {
        "{{stream}}": f"rate(penstock_stream_last_sequence[{RATE}])",
    }),
    Panel("Messages kept", "none", {"{{stream}}": "penstock_stream_messages"}),
    Panel("Still to deliver", "none", {
        "{{stream}} {{consumer}}": "penstock_consumer_pending_messages",
    }),
    Panel("Delivered, not acked", "none", {
        "{{stream}} {{consumer}}": "penstock_consumer_ack_pending_messages",
    }),
    Panel("Time of a commit", "s", {
        "mean": f"{rate('penstock_jetstream_commit_seconds_total')} / "
        f"{rate('penstock_jetstream_commits_total')}",
    }),
    Panel("API", "cps", {
        "requests": rate("penstock_jetstream_api_requests_total"),
        "errors": rate("penstock_jetstream_api_errors_total"),
    }),
    Panel("Damage", "none", {
        "lost messages of {{stream}}": "penstock_stream_lost_messages > 0",
        "faults in {{stream}}": "penstock_stream_faults > 0",
        "unreadable streams": "penstock_jetstream_unreadable_streams > 0",
        "{{stream}} cannot store": "penstock_stream_failed > 0",
    }),
)  # fmt: skip

BUS = (
    Panel("Events published", "cps", {
        "stored": rate("penstock_bus_publish_acked_total", "job"),
        "failed": rate("penstock_bus_publish_failed_total", "job"),
    }),
    Panel("Events handled", "cps", {"{{job}}": rate("penstock_bus_handled_total", "job")}),
    Panel("Handlers that failed", "cps", {
        "failures of {{job}}": rate("penstock_bus_handler_failures_total", "job"),
        "timeouts of {{job}}": rate("penstock_bus_handler_timeouts_total", "job"),
    }),
    Panel("Backlog", "none", {"{{job}}": "max by (job) (penstock_bus_backlog_messages)"}),
    Panel("Age of the oldest event", "s", {
        "{{job}}": "max by (job) (penstock_bus_backlog_age_seconds)",
    }),
    Panel("Dead letters", "none", {"{{job}}": "max by (job) (penstock_bus_dead_letters)"}),
    Panel("Keys that wait", "none", {"{{job}}": "sum by (job) (penstock_bus_parked_keys)"}),
    Panel("Members", "none", {
        "{{job}}": "max by (job) (penstock_bus_members)",
        "take-overs of {{job}}": "sum by (job) (penstock_bus_takeovers_total)",
    }),
    Panel("Time of a handler, p99", "s", {
        "{{job}}": "histogram_quantile(0.99, "
        + rate("penstock_bus_handler_seconds_bucket", "job, le") + ")",
    }),
)  # fmt: skip

DASHBOARDS = {"broker": BROKER, "jetstream": JETSTREAM, "bus": BUS}


def dashboard(name: str, panels: tuple[Panel, ...]) -> dict[str, Any]:
    """Return one dashboard in Grafana's model."""
    return {
        "uid": f"penstock-{name}",
        "title": f"Penstock: {name}",
        "tags": ["penstock"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [{
            "name": "source", "label": "Data source", "type": "datasource", "query": "prometheus",
        }]},
        "panels": [chart(number, panel) for number, panel in enumerate(panels)],
    }  # fmt: skip


def chart(number: int, panel: Panel) -> dict[str, Any]:
    """Return one panel, at its place in the grid."""
    row, column = divmod(number, COLUMNS)
    source = {"type": "prometheus", "uid": "${source}"}
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": source,
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": letter, "datasource": source, "expr": line, "legendFormat": legend}
            for letter, (legend, line) in zip("ABCDEF", panel.lines.items(), strict=False)
        ],
    }  # fmt: skip


def write(folder: Path) -> None:
    """Write a file for each dashboard."""
    for name, panels in DASHBOARDS.items():
        text = json.dumps(dashboard(name, panels), indent=2)
        (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(Path(__file__).parent)
