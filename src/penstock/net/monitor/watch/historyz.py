"""`/historyz`: the last hour of the server's figures, or of one stream and its consumers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.net.monitor.query import Query
from penstock.net.monitor.watch.history import POINTS, STEP_S, History
from penstock.net.monitor.watch.reports import Reports
from penstock.net.monitor.watch.survey import KEPT
from penstock.net.monitor.watch.watcher import Watcher

CONSUMERS_MAX = 50


def historyz(watcher: Watcher, asked: Query) -> dict[str, Any]:
    """Return the series that are asked for, each with one number for each step, or null."""
    history, reports = watcher.history, watcher.reports
    document: dict[str, Any] = {
        "step_s": STEP_S,
        "points": POINTS,
        "end_s": (history.step + 1) * STEP_S,
    }
    account, stream = asked.get("account", ""), asked.get("stream", "")
    if not stream:
        return document | {name: history.of((name,)) for name in KEPT}
    document["stored"] = history.of(("stored", account, stream))
    if reports is not None:
        document["consumers"] = _consumers(history, reports, account, stream)
    return document


def _consumers(
    history: History, reports: Reports, account: str, stream: str
) -> Iterator[dict[str, Any]]:
    """Yield the backlog of those consumers that have the most."""
    found = [
        each
        for each in reports.consumers.values()
        if (each.account, each.stream) == (account, stream)
    ]
    for each in sorted(found, key=lambda one: -one.pending)[:CONSUMERS_MAX]:
        yield {"name": each.name, "pending": history.of(("pending", *each.key))}
