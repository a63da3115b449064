"""
A small HTTP/1.1 server for the monitoring endpoints: GET and HEAD, streams of events, and POST
where somebody has signed in.

It runs on the operators' network, not on the open Internet. Still every request is bounded:
its size, its time, and the number of connections. When all places are taken, the address
with the most connections loses its least recently used one, so no number of idle
connections keeps a probe of `/healthz` out.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import ssl
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote, urlsplit

log = logging.getLogger("penstock")

HEAD_BYTES_MAX = 16 * 1024
CONNECTIONS_MAX = 128
REQUEST_S = 5.0
"""The time limit for the first request of a connection."""
IDLE_S = 60.0
"""The time limit for each further request of a connection."""
WRITE_S = 30.0
SEND_BYTES = 64 * 1024
"""The kernel keeps about this much for a reader; only then do we know that it has not read."""
LENGTH = re.compile(r"[0-9]{1,18}")
"""A content length that everybody reads as the same number."""
PARAMETERS_MAX = 64

FRAMING = ("content-length", "transfer-encoding", "host")
TEXT = "text/plain; charset=utf-8"
EVENTS = "text/event-stream; charset=utf-8"
LIVE = {"Cache-Control": "no-store"}
"""The headers of a response without a length."""


@dataclass(frozen=True)
class HttpRequest:
    """A parsed request."""

    method: str
    path: str
    query: Mapping[str, str]
    keeps_alive: bool = False
    headers: Mapping[str, str] = field(default_factory=dict, compare=False)
    body: bytes = b""
    peer: tuple[str, int] = ("", 0)
    """The address of the client."""
    is_given_up: Callable[[], bool] = field(default=lambda: False, compare=False)
    """Tells whether the client has hung up, as far as that can be known."""


@dataclass(frozen=True)
class Response:
    """The response to a request."""

    status: int
    body: bytes
    content_type: str = TEXT
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class EventStream:
    """A response that goes on until the client hangs up: each event is sent as it comes."""

    events: AsyncGenerator[bytes, None]


Handler = Callable[[HttpRequest], Awaitable[Response | EventStream]]
BodyMax = Callable[[HttpRequest], int]
"""Returns how long the body of a POST may be; 0 if there is nothing to post to."""


def _nothing(request: HttpRequest) -> int:
    return 0


class BadRequest(Exception):
    """A request that cannot be served; the response is sent before closing."""

    def __init__(self, status: int, **headers: str) -> None:
        self.response = plain(status, **headers)


class HttpServer:
    """Serves requests with a handler until it is closed."""

    def __init__(self, handler: Handler, body_max: BodyMax = _nothing) -> None:
        self._handler = handler
        self._body_max = body_max
        self._tasks: dict[asyncio.Task[None], str] = {}
        """Connection → its address, the least recently used first."""
        self._servers: list[asyncio.Server] = []

    async def start(self, listener: socket.socket, context: ssl.SSLContext | None = None) -> None:
        """Serve the connections of one more listening socket, over TLS if there is a context."""
        server = await asyncio.start_server(
            self._accept,
            sock=listener,
            limit=HEAD_BYTES_MAX,
            ssl=context,
            ssl_handshake_timeout=REQUEST_S if context is not None else None,
        )
        self._servers.append(server)

    async def close(self) -> None:
        """Stop listening and drop every connection. Idempotent."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks[task] = str((writer.get_extra_info("peername") or ("",))[0])
        task.add_done_callback(self._forget)
        if len(self._tasks) > CONNECTIONS_MAX:
            self._make_room()

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)

    def _make_room(self) -> None:
        """Drop the least recently used connection of the address with the most."""
        [(address, _)] = Counter(self._tasks.values()).most_common(1)
        victim = next(task for task, owner in self._tasks.items() if owner == address)
        self._forget(victim)
        victim.cancel()

    def _used(self) -> None:
        """Mark this task's connection as the most recently used."""
        task = asyncio.current_task()
        assert task is not None
        if task in self._tasks:
            self._tasks[task] = self._tasks.pop(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, from its first request to its last."""
        try:
            await self._serve_requests(reader, writer)
            writer.close()
        except (OSError, EOFError):
            # A client that hangs up, is slow or stays silent gets no answer.
            pass
        except Exception:
            log.exception("Error in the monitoring of the server")
        finally:
            # Flushed data is with the kernel already; nobody will take the rest.
            await _drop(writer)

    async def _serve_requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        _send_little_ahead(writer)
        patience_s = REQUEST_S
        keeps_alive = True
        peer = (writer.get_extra_info("peername") or ("", 0))[:2]
        while keeps_alive:
            try:
                request = await _read_request(reader, patience_s)
                request = replace(request, peer=peer, is_given_up=reader.at_eof)
                request = await self._with_body(request, reader)
            except BadRequest as refused:
                await _write(writer, encode(refused.response, keeps_alive=False))
                return
            self._used()
            keeps_alive = request.keeps_alive
            response = await self._handler(request)
            if isinstance(response, EventStream):
                await self._send_events(response, writer)
                return
            with_body = request.method != "HEAD"
            await _write(writer, encode(response, keeps_alive=keeps_alive, with_body=with_body))
            patience_s = IDLE_S
            # Pipelined requests are here already: without this, they would follow at once.
            await asyncio.sleep(0)

    async def _with_body(self, request: HttpRequest, reader: asyncio.StreamReader) -> HttpRequest:
        """Return a POST with its body, which is read only if it is welcome."""
        if request.method != "POST":
            return request
        size_max = self._body_max(request)
        if not size_max:
            raise BadRequest(405, Allow="GET, HEAD")
        if "content-length" not in request.headers:
            raise BadRequest(411)
        size = int(request.headers["content-length"])
        if size > size_max:
            raise BadRequest(413)
        async with asyncio.timeout(REQUEST_S):
            return replace(request, body=await reader.readexactly(size))

    async def _send_events(self, response: EventStream, writer: asyncio.StreamWriter) -> None:
        async with aclosing(response.events) as events:
            await _write(writer, encode(Response(200, b"", EVENTS, LIVE), keeps_alive=False))
            async for event in events:
                self._used()
                await _write(writer, event)


def plain(status: int, text: str | None = None, **headers: str) -> Response:
    """Return a plain-text response; by default with the phrase of its status."""
    if text is None:
        text = f"{status} {HTTPStatus(status).phrase}\n"
    return Response(status, text.encode(), headers=headers)


def parse(head: bytes) -> HttpRequest:
    """Read the request line and the header lines."""
    request_line, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    method, target, version = _words(request_line)
    headers = _headers(lines)
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        raise BadRequest(505 if version.startswith("HTTP/") else 400)
    if version == "HTTP/1.1" and "host" not in headers:
        raise BadRequest(400)
    if method not in ("GET", "HEAD", "POST"):
        raise BadRequest(405, Allow="GET, HEAD")
    # No other body is read, so the connection cannot continue after it.
    has_length = headers.get("content-length", "0") != "0" and method != "POST"
    has_body = has_length or "transfer-encoding" in headers
    connection = headers.get("connection", "").lower()
    wants_more = connection == "keep-alive" or (version == "HTTP/1.1" and connection != "close")
    path, query = _target(target)
    return HttpRequest(method, path, query, wants_more and not has_body, headers)


def encode(response: Response, *, keeps_alive: bool, with_body: bool = True) -> bytes:
    """Return an encoded response. Without its body, it still carries the size of it."""
    fields = {
        "Content-Type": response.content_type,
        **({} if response.headers is LIVE else {"Content-Length": str(len(response.body))}),
        "Date": formatdate(usegmt=True),
        "Connection": "keep-alive" if keeps_alive else "close",
        "X-Content-Type-Options": "nosniff",
        **response.headers,
    }
    lines = [f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
    return head + response.body if with_body else head


async def _read_request(reader: asyncio.StreamReader, patience_s: float) -> HttpRequest:
    try:
        async with asyncio.timeout(patience_s):
            head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise BadRequest(431) from None
    return parse(head)


def _send_little_ahead(writer: asyncio.StreamWriter) -> None:
    """Let `drain` return only when the kernel has everything, and let the kernel keep little."""
    # With TLS, a `high` of 0 would never let go.
    writer.transport.set_write_buffer_limits(high=1, low=0)
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    async with asyncio.timeout(WRITE_S):
        await writer.drain()


async def _drop(writer: asyncio.StreamWriter) -> None:
    if not writer.transport.is_closing():
        writer.transport.abort()
    with suppress(OSError):
        async with asyncio.timeout(REQUEST_S):
            await writer.wait_closed()
    writer.transport.abort()


def _words(request_line: str) -> tuple[str, str, str]:
    words = request_line.split(" ")
    if len(words) != 3:
        raise BadRequest(400)
    return words[0], words[1], words[2]


def _headers(lines: Iterable[str]) -> dict[str, str]:
    """Read header lines; refuse repeated ones that decide where a request ends."""
    headers: dict[str, str] = {}
    for name, value in map(_header, lines):
        if name in headers and name in FRAMING:
            # A proxy in front of us may have used the other one.
            raise BadRequest(400)
        headers[name] = value
    if "content-length" in headers and "transfer-encoding" in headers:
        raise BadRequest(400)
    if not LENGTH.fullmatch(headers.get("content-length", "0")):
        raise BadRequest(400)
    return headers


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not name or name != name.strip():
        raise BadRequest(400)
    return name.lower(), value.strip()


def _target(target: str) -> tuple[str, dict[str, str]]:
    """Split a target into path and parameters; of repeated parameters, the first counts."""
    try:
        parts = urlsplit(target)
        pairs = parse_qsl(parts.query, keep_blank_values=True, max_num_fields=PARAMETERS_MAX)
    except ValueError:
        raise BadRequest(400) from None
    return unquote(parts.path) or "/", dict(reversed(pairs))
