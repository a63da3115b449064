"""One stream in detail: its settings, its state, and its consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.net.monitor.console.views import kind_of
from penstock.net.monitor.query import Query
from penstock.net.monitor.watch.history import History
from penstock.net.monitor.watch.reports import Reports
from penstock.protocol.rfc3339 import format_time

if TYPE_CHECKING:
    from penstock.net.monitor.watched import Watched

CONSUMERS_MAX = 200


def stream_detail(
    server: Watched, history: History, reports: Reports, asked: Query
) -> dict[str, Any]:
    """Return everything about one stream but its messages."""
    account, name = asked.get("account", ""), asked.get("stream", "")
    engine = server.journal.engines.get(account) if server.journal is not None else None
    stream = engine.streams.get(name) if engine is not None else None
    report = reports.streams.get((account, name))
    if stream is None or report is None:
        return {"is_gone": True, "account": account, "name": name}
    state = stream.store.state()
    kind, title = kind_of(name)
    consumers = [reports.consumers.get((account, name, each)) for each in stream.consumers]
    known = sorted([each for each in consumers if each is not None], key=lambda one: -one.pending)
    return report._asdict() | {
        "kind": kind,
        "title": title,
        "fill": round(report.fill, 3),
        "config": stream.config.to_json(),
        "first_time": format_time(state.first_time_ns) if report.messages else "",
        "last_time": format_time(state.last_time_ns) if report.last else "",
        "subjects": state.subjects,
        "damage": stream.losses.faults[:20],
        "consumer_rows": [
            each._asdict() | {"spark": history.sketch(("pending", *each.key))}
            for each in known[:CONSUMERS_MAX]
        ],
    }
