"""
`/metrics`: the figures of the server in Prometheus's text format.

The format has a few lines for each metric, so it needs no library.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from penstock import hot
from penstock.core.broker import Broker
from penstock.net.monitor import usage
from penstock.net.monitor.jsmetrics import jetstream_metrics
from penstock.net.monitor.metric import Metric
from penstock.net.monitor.views import subscription_count
from penstock.protocol import times
from penstock.protocol.version import NATS_VERSION, VERSION

if TYPE_CHECKING:
    from penstock.net.monitor.watched import Watched

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def metrics(server: Watched, more: Iterable[Metric] = ()) -> str:
    """Return every metric of the server, and more."""
    by_path = [({"path": path}, count) for path, count in sorted(server.http_requests.items())]
    return render(
        [
            _info(server.broker),
            *(Metric(name, help, [({}, value)]) for name, help, value in _figures(server)),
            Metric("penstock_http_requests_total", "Requests for monitoring.", by_path),
            *jetstream_metrics(server.journal),
            *more,
        ]
    )


def render(found: Iterable[Metric]) -> str:
    """Write metrics in Prometheus's text format."""
    lines = [line for metric in found if metric.samples for line in _lines(metric)]
    return "\n".join(lines) + "\n"


def _info(broker: Broker) -> Metric:
    labels = {
        "version": VERSION,
        "nats_version": NATS_VERSION,
        "server_id": broker.server_id,
        "server_name": broker.server_name,
        "compiled": str(hot.COMPILED).lower(),
    }
    return Metric("penstock_info", "Which server this is; always 1.", [(labels, 1)])


def _figures(server: Watched) -> Iterator[tuple[str, str, float]]:
    broker = server.broker
    in_messages, in_bytes, out_messages, out_bytes = broker.totals()
    pending = sum(session.outbox_bytes for session in broker.sessions.values())
    tables = [account.routes for account in broker.accounts.values()]

    yield (
        "penstock_start_time_seconds",
        "When the server started.",
        broker.start_ns / times.SECOND_NS,
    )
    yield "penstock_connections", "Open client connections.", len(broker.sessions)
    yield (
        "penstock_connections_accepted_total",
        "Connections ever accepted.",
        broker.total_connections,
    )
    yield "penstock_subscriptions", "Active subscriptions.", subscription_count(broker)
    yield "penstock_in_messages_total", "Messages received from clients.", in_messages
    yield "penstock_in_bytes_total", "Payload bytes received from clients.", in_bytes
    yield "penstock_out_messages_total", "Messages sent to clients.", out_messages
    yield "penstock_out_bytes_total", "Payload bytes sent to clients.", out_bytes
    yield "penstock_pending_bytes", "Output waiting for clients to take it.", pending
    yield "penstock_slow_consumers_total", "Clients cut off as too slow.", broker.slow_consumers
    yield "penstock_stale_connections_total", "Clients that went silent.", broker.stale_connections
    stalled = server.reactor.stalled_clients
    yield "penstock_stalled_clients_total", "Times a publisher was slowed down.", stalled
    remembered = sum(len(table.cache) for table in tables)
    yield "penstock_routes", "Subjects whose subscribers are remembered.", remembered
    worked_out = sum(table.matches for table in tables)
    yield "penstock_routes_matched_total", "Routes worked out.", worked_out
    # These two have the same names in all programs that Prometheus watches.
    yield "process_resident_memory_bytes", "Resident memory.", usage.resident_bytes()
    yield "process_cpu_seconds_total", "Processor time used.", time.process_time()


def _lines(metric: Metric) -> Iterator[str]:
    yield f"# HELP {metric.name} {metric.help}"
    yield f"# TYPE {metric.name} {metric.type}"
    for labels, value in metric.samples:
        pairs = ",".join(f'{name}="{text.translate(ESCAPES)}"' for name, text in labels.items())
        yield f"{metric.name}{{{pairs}}} {value}" if pairs else f"{metric.name} {value}"
