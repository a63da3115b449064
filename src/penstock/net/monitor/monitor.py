"""
The monitoring endpoints: which path shows which view, and how it is written.

Documents are JSON with one field per line and, in a long list, one entry per line. They are
written entry by entry. Documents that are asked for together are written by turns, so that a short
one does not wait for long ones, and the server turns to its clients in between.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from penstock.net.monitor import accountz, pagefiles, usage, views
from penstock.net.monitor.connz import connz
from penstock.net.monitor.console.feed import Feeds
from penstock.net.monitor.console.requests import PREFIX, Requests
from penstock.net.monitor.healthz import healthz
from penstock.net.monitor.http import EventStream, HttpRequest, HttpServer, Response, plain
from penstock.net.monitor.jsz import jsz
from penstock.net.monitor.metrics import CONTENT_TYPE, metrics
from penstock.net.monitor.pipelines import Pipelines
from penstock.net.monitor.query import QueryError
from penstock.net.monitor.turns import Turns
from penstock.net.monitor.watch.alerts import attention_metrics
from penstock.net.monitor.watch.historyz import historyz
from penstock.net.monitor.watch.survey import Surveyor, disk_free
from penstock.net.monitor.watch.watcher import Watcher
from penstock.protocol.version import NATS_VERSION, VERSION

if TYPE_CHECKING:
    from penstock.net.monitor.watched import Watched

ENDPOINTS = {
    "/": ("This page", "_index"),
    "/console": ("All of it at a glance, live", "_console"),
    "/eventz": ("What the console shows, as it changes", "_eventz"),
    "/historyz": ("The last hour of the figures", "_historyz"),
    "/varz": ("General state and figures", "_varz"),
    "/connz": ("Connections", "_connz"),
    "/subsz": ("Subscriptions and routes", "_subsz"),
    "/jsz": ("JetStream", "_jsz"),
    "/pipelinez": ("Spark pipelines", "_pipelinez"),
    "/accountz": ("Accounts", "_accountz"),
    "/accstatz": ("Figures of accounts", "_accstatz"),
    "/leafz": ("Leaf nodes; one server has none", "_leafz"),
    "/routez": ("Routes; one server has none", "_routez"),
    "/gatewayz": ("Gateways; one server has none", "_gatewayz"),
    "/ipqueuesz": ("Inner queues; there are none", "_ipqueuesz"),
    "/stacksz": ("Where each thread is", "_stacksz"),
    "/debug/vars": ("How it was started, and its memory", "_variables"),
    "/healthz": ("Is all well?", "_healthz"),
    "/metrics": ("Figures for Prometheus", "_metrics"),
}
"""Each path with its description, and the method of `Monitor` that serves it."""
ALIASES = {"/subscriptionsz": "/subsz"}
CALLBACK = re.compile(r"[A-Za-z_$][\w$.]{0,127}", re.ASCII)
JSON = "application/json"
HTML = "text/html; charset=utf-8"
Document = Mapping[str, Any]
ANYBODY = {"Access-Control-Allow-Origin": "*"}
"""Pages of any origin may read these figures, as with nats-server."""

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name} · Penstock</title>
<style>
  :root {{ color-scheme: light dark; }}
  body {{ font: 16px/1.6 system-ui, sans-serif; max-width: 40rem; margin: 3rem auto; }}
  h1 {{ font-size: 1.4rem; margin-bottom: 0; }}
  p {{ margin-top: 0; opacity: .7; overflow-wrap: anywhere; }}
  dl {{ display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1.5rem; }}
  dd {{ margin: 0; }}
</style>
<h1>Penstock</h1>
<p>{version}, speaks NATS {nats_version} · {name}</p>
<dl>
{links}
</dl>
"""


class Monitor:
    """The views of one server, over HTTP."""

    def __init__(self, server: Watched) -> None:
        self._server = server
        self._requests = Requests(server)
        self._http = HttpServer(self._respond, self._requests.body_max)
        self._turns = Turns()
        self._pipelines = Pipelines(server.broker.clock_ns)
        server.broker.directory.install(self._pipelines.listen)
        clock_ns = server.broker.clock_ns
        surveyor = Surveyor(server, self._pipelines, clock_ns=clock_ns, free_bytes=disk_free)
        self._watcher = Watcher(surveyor, self._turns)
        self._feeds = Feeds(server, self._watcher, self._turns, self._pipelines)
        self._endpoints: dict[str, Callable[[HttpRequest], Response | EventStream | Document]] = {
            path: getattr(self, name) for path, (_, name) in ENDPOINTS.items()
        }

    async def start(
        self, listeners: Iterable[socket.socket], context: ssl.SSLContext | None = None
    ) -> None:
        """Answer requests on listening sockets, over TLS if there is a context."""
        self._watcher.start()
        for listener in listeners:
            await self._http.start(listener, context)

    async def close(self) -> None:
        """Stop answering."""
        await self._http.close()
        await self._watcher.close()
        await self._requests.close()

    async def _respond(self, request: HttpRequest) -> Response | EventStream:
        path = ALIASES.get(request.path, request.path)
        if path.startswith(PREFIX):
            return await self._requests.respond(request)
        if path not in self._endpoints:
            return pagefiles.NOT_FOUND
        self._server.http_requests[path] += 1
        try:
            if path == "/healthz":
                # A probe must not wait for the pages of others.
                return self._healthz(request)
            answer = await self._turns.at_once(lambda: self._endpoints[path](request))
            if isinstance(answer, Response | EventStream):
                return answer
            return await self._json(request, answer)
        except QueryError as error:
            return plain(400, str(error))

    async def _json(self, request: HttpRequest, document: Document) -> Response:
        """Respond with a document; with `callback`, as a call of that function (JSONP)."""
        callback = request.query.get("callback", "")
        if callback and not CALLBACK.fullmatch(callback):
            raise QueryError("callback must be the name of a function")
        made: list[str] = []
        pieces = write(document)
        while await self._turns.go_on(pieces, made):
            if request.is_given_up():
                raise EOFError("nobody waits for the rest")
        body = "".join(made).encode()
        if callback:
            call = b"%b(%b);" % (callback.encode(), body)
            return Response(200, call, "application/javascript", ANYBODY)
        return Response(200, body, JSON, ANYBODY)

    def _index(self, request: HttpRequest) -> Response:
        links = [
            f'<dt><a href="{path.removeprefix("/")}">{path}</a><dd>{title}'
            for path, (title, _) in ENDPOINTS.items()
            if path != "/"
        ]
        page = PAGE.format(
            name=escape(self._server.broker.server_name),
            version=VERSION,
            nats_version=NATS_VERSION,
            links="\n".join(links),
        )
        return Response(200, page.encode(), HTML)

    def _console(self, request: HttpRequest) -> Response:
        return pagefiles.file("index.html")

    def _eventz(self, request: HttpRequest) -> Response | EventStream:
        self._feeds.check(request.query)
        if self._feeds.is_full:
            return plain(503, "503 as many pages are open as may be; close one\n")
        return EventStream(self._feeds.events(request.query))

    def _historyz(self, request: HttpRequest) -> Document:
        return historyz(self._watcher, request.query)

    def _pipelinez(self, request: HttpRequest) -> Document:
        return self._pipelines.view()

    def _varz(self, request: HttpRequest) -> Document:
        return views.varz(self._server)

    def _connz(self, request: HttpRequest) -> Document:
        return connz(self._server.broker, request.query)

    def _subsz(self, request: HttpRequest) -> Document:
        return views.subsz(self._server.broker, request.query)

    def _jsz(self, request: HttpRequest) -> Document:
        return jsz(self._server, request.query)

    def _accountz(self, request: HttpRequest) -> Document:
        return accountz.accountz(self._server, request.query)

    def _accstatz(self, request: HttpRequest) -> Document:
        return accountz.accstatz(self._server.broker, request.query)

    def _leafz(self, request: HttpRequest) -> Document:
        return accountz.leafz(self._server.broker)

    def _routez(self, request: HttpRequest) -> Document:
        return accountz.routez(self._server.broker)

    def _gatewayz(self, request: HttpRequest) -> Document:
        return accountz.gatewayz(self._server.broker)

    def _ipqueuesz(self, request: HttpRequest) -> Document:
        return {}

    def _stacksz(self, request: HttpRequest) -> Response:
        return plain(200, usage.stacks())

    def _variables(self, request: HttpRequest) -> Document:
        return usage.variables()

    def _healthz(self, request: HttpRequest) -> Response:
        findings = [each.as_json() for each in self._watcher.findings]
        status, document = healthz(self._server, request.query, findings)
        text = json.dumps(document, separators=(",", ":"))
        return Response(status, text.encode(), JSON, ANYBODY)

    def _metrics(self, request: HttpRequest) -> Response:
        text = metrics(self._server, attention_metrics(self._watcher))
        return Response(200, text.encode(), CONTENT_TYPE)


def write(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the JSON of a document in pieces: by field, and by entry of a lazy list."""
    if not document:
        yield "{}\n"
        return
    separator = "{"
    for name, value in document.items():
        yield f"{separator}\n  {json.dumps(name)}: "
        separator = ","
        yield from _write_value(value)
    yield "\n}\n"


def _write_value(value: Any) -> Iterator[str]:
    if isinstance(value, Iterator):
        yield from _write_entries(value)
    elif isinstance(value, dict) and any(isinstance(each, Iterator) for each in value.values()):
        separator = "{"
        for name, each in value.items():
            yield f"{separator}{json.dumps(name)}: "
            separator = ", "
            yield from _write_value(each)
        yield "}"
    else:
        yield json.dumps(value)


def _write_entries(entries: Iterator[Any]) -> Iterator[str]:
    separator = "["
    for entry in entries:
        yield f"{separator}\n    "
        yield from _write_value(entry)
        separator = ","
    yield "[]" if separator == "[" else "\n  ]"
