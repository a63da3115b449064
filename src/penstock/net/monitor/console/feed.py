"""
The event stream of the console: figures, findings and the rows of one view, as they change.

A page opens one stream for the view it shows. After each survey it gets the figures, and of the
view only the rows that have changed since the last time. Cells of a page can so be changed one
by one, and nothing is asked for again and again.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator
from typing import TYPE_CHECKING, Any

from penstock.net.monitor.console.buses import buses
from penstock.net.monitor.console.detail import stream_detail
from penstock.net.monitor.console.selecting import read, select
from penstock.net.monitor.console.settings import explain
from penstock.net.monitor.console.views import Views
from penstock.net.monitor.pipelines import Pipelines
from penstock.net.monitor.query import Query, QueryError
from penstock.net.monitor.turns import Turns
from penstock.net.monitor.watch.history import STEP_S
from penstock.net.monitor.watch.reports import Reports, ServerReport
from penstock.net.monitor.watch.watcher import Watcher
from penstock.protocol import times
from penstock.protocol.version import NATS_VERSION, VERSION

if TYPE_CHECKING:
    from penstock.net.monitor.watched import Watched

Json = dict[str, Any]

FEEDS_MAX = 32
FINDINGS_MAX = 200


class Feeds:
    """The event streams of one server."""

    def __init__(
        self,
        server: Watched,
        watcher: Watcher,
        turns: Turns,
        pipelines: Pipelines,
    ) -> None:
        self._server = server
        self._watcher = watcher
        self._turns = turns
        self._pipelines = pipelines
        self._views = Views(server, watcher.history)
        self._open = 0

    @property
    def is_full(self) -> bool:
        """Whether there are as many streams as may be."""
        return self._open >= FEEDS_MAX

    def check(self, asked: Query) -> None:
        """Refuse a view that does not exist, and options that make no sense."""
        view = asked.get("view", "")
        if view in self._views.tables:
            read(asked, self._views.tables[view](NOTHING, asked).sorts)
        elif view not in ("", "bus", "pipelines", "config", "stream"):
            raise QueryError(f"there is no view `{view}`")

    async def events(self, asked: Query) -> AsyncGenerator[bytes, None]:
        """Yield the events of one view until the page is closed."""
        self._open += 1
        changes = Changes()
        try:
            with self._watcher.viewing():
                reports = self._watcher.reports or await self._watcher.next()
                while True:
                    for name, document in await self._turns.whole(self._look(reports, asked)):
                        event = changes.of(name, document)
                        if event is not None:
                            yield event
                    reports = await self._watcher.next()
        finally:
            self._open -= 1

    def _look(
        self, reports: Reports, asked: Query
    ) -> Generator[None, None, list[tuple[str, Json]]]:
        found = [("head", self._head(reports))]
        view = asked.get("view", "")
        if view in self._views.tables:
            page = yield from select(self._views.tables[view](reports, asked), asked)
            found.append(("table", page._asdict()))
        elif view == "bus":
            found.append(("document", (yield from buses(self._server, reports))))
        elif view == "stream":
            detail = stream_detail(self._server, self._watcher.history, reports, asked)
            found.append(("document", detail))
        elif view == "pipelines":
            found.append(("document", self._pipelines.view()))
        elif view == "config":
            found.append(("document", explain(self._server)))
        return found

    def _head(self, reports: Reports) -> Json:
        broker = self._server.broker
        found = self._watcher.findings
        return {
            "name": broker.server_name,
            "version": VERSION,
            "nats_version": NATS_VERSION,
            "time": times.timestamp(reports.server.time_ns),
            "at_s": reports.server.time_ns / times.SECOND_NS,
            "step_s": STEP_S,
            "uptime": times.uptime(reports.server.time_ns - broker.start_ns),
            "figures": reports.as_figures(),
            "accounts": sorted(broker.accounts),
            "findings": [each.as_json() for each in found[:FINDINGS_MAX]],
            "more_findings": max(len(found) - FINDINGS_MAX, 0),
        }


NOTHING = Reports(ServerReport(0), {}, {}, [], [])
"""Reports of nothing, to ask a table what it can be sorted by."""


class Changes:
    """Remembers what a page has been told, so that it is told only what is new."""

    def __init__(self) -> None:
        self._told: dict[str, Any] = {}
        self._rows: dict[str, Json] = {}

    def of(self, name: str, document: Json) -> bytes | None:
        """Return the event that tells a document, or None if there is nothing new in it."""
        if name == "table":
            rows, self._rows = self._rows, document["rows"]
            new = {key: row for key, row in document["rows"].items() if rows.get(key) != row}
            document = document | {"order": list(document["rows"]), "rows": None}
            if not new and self._told.get(name) == document:
                return None
            self._told[name] = document
            return encode(name, document | {"rows": new})
        if self._told.get(name) == document:
            return None
        self._told[name] = document
        return encode(name, document)


def encode(name: str, document: Json) -> bytes:
    """Return an event as a page's EventSource reads it."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), json.dumps(document).encode())
