"""
The monitoring endpoints: which path shows which view, and how it is written.

Documents are JSON with one field per line and, in a long list, one entry per line. They are
written entry by entry. Documents that are asked for together are written by turns, so that a short
one does not wait for long ones, and the server turns to its clients in between.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from html import escape
from importlib import resources
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from penstock.core.broker import TURN_NS
from penstock.net.monitor import accountz, usage, views
from penstock.net.monitor.connz import connz
from penstock.net.monitor.healthz import healthz
from penstock.net.monitor.http import HttpServer, Request, Response, plain
from penstock.net.monitor.jsz import jsz
from penstock.net.monitor.metrics import CONTENT_TYPE, metrics
from penstock.net.monitor.pipelines import Pipelines
from penstock.net.monitor.query import QueryError
from penstock.protocol.version import NATS_VERSION, VERSION

if TYPE_CHECKING:
    from penstock.net.monitor.watched import Watched

ENDPOINTS = {
    "/": ("This page", "_index"),
    "/dashboard": ("All of it at a glance, live", "_dashboard"),
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
        self._http = HttpServer(self._respond)
        self._turn = asyncio.Lock()
        """Held by the one page that is being built on, however many are asked for."""
        self._pipelines = Pipelines(server.broker.clock_ns)
        server.broker.directory.install(self._pipelines.listen)
        self._endpoints: dict[str, Callable[[Request], Response | Document]] = {
            path: getattr(self, name) for path, (_, name) in ENDPOINTS.items()
        }

    async def start(self, listener: socket.socket, context: ssl.SSLContext | None = None) -> None:
        """Answer requests on a listening socket, over TLS if there is a context."""
        await self._http.start(listener, context)

    async def close(self) -> None:
        """Stop answering."""
        await self._http.close()

    async def _respond(self, request: Request) -> Response:
        path = ALIASES.get(request.path, request.path)
        if path not in self._endpoints:
            return plain(404, "404 page not found\n")
        self._server.http_requests[path] += 1
        try:
            if path == "/healthz":
                # A probe must not wait for the pages of others.
                return self._healthz(request)
            async with self._turn:
                # Between any two turns of pages, clients have theirs.
                await asyncio.sleep(0)
                answer = self._endpoints[path](request)
            return answer if isinstance(answer, Response) else await self._json(request, answer)
        except QueryError as error:
            return plain(400, str(error))

    async def _json(self, request: Request, document: Document) -> Response:
        """Respond with a document; with `callback`, as a call of that function (JSONP)."""
        callback = request.query.get("callback", "")
        if callback and not CALLBACK.fullmatch(callback):
            raise QueryError("callback must be the name of a function")
        made: list[bytes] = []
        pieces = write(document)
        while await self._build_on(pieces, made):
            if request.is_given_up():
                raise EOFError("nobody waits for the rest")
        body = b"".join(made)
        if callback:
            call = b"%b(%b);" % (callback.encode(), body)
            return Response(200, call, "application/javascript", ANYBODY)
        return Response(200, body, JSON, ANYBODY)

    async def _build_on(self, pieces: Iterator[str], made: list[bytes]) -> bool:
        """Make more pieces of a page for one turn; return whether some are left."""
        async with self._turn:
            await asyncio.sleep(0)
            until_ns = monotonic_ns() + TURN_NS
            for piece in pieces:
                made.append(piece.encode())
                if monotonic_ns() >= until_ns:
                    return True
        return False

    def _index(self, request: Request) -> Response:
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

    def _dashboard(self, request: Request) -> Response:
        page = resources.files("penstock.net.monitor").joinpath("dashboard", "index.html")
        return Response(200, page.read_bytes(), HTML)

    def _pipelinez(self, request: Request) -> Document:
        return self._pipelines.view()

    def _varz(self, request: Request) -> Document:
        return views.varz(self._server)

    def _connz(self, request: Request) -> Document:
        return connz(self._server.broker, request.query)

    def _subsz(self, request: Request) -> Document:
        return views.subsz(self._server.broker, request.query)

    def _jsz(self, request: Request) -> Document:
        return jsz(self._server, request.query)

    def _accountz(self, request: Request) -> Document:
        return accountz.accountz(self._server, request.query)

    def _accstatz(self, request: Request) -> Document:
        return accountz.accstatz(self._server.broker, request.query)

    def _leafz(self, request: Request) -> Document:
        return accountz.leafz(self._server.broker)

    def _routez(self, request: Request) -> Document:
        return accountz.routez(self._server.broker)

    def _gatewayz(self, request: Request) -> Document:
        return accountz.gatewayz(self._server.broker)

    def _ipqueuesz(self, request: Request) -> Document:
        return {}

    def _stacksz(self, request: Request) -> Response:
        return plain(200, usage.stacks())

    def _variables(self, request: Request) -> Document:
        return usage.variables()

    def _healthz(self, request: Request) -> Response:
        status, document = healthz(self._server, request.query)
        text = json.dumps(document, separators=(",", ":"))
        return Response(status, text.encode(), JSON, ANYBODY)

    def _metrics(self, request: Request) -> Response:
        text = metrics(self._server)
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
