"""
Metrics and probes of a bus over HTTP: `/metrics`, `/live` and `/ready`.

Alive means that the event loop turns, ready that the broker can be reached. The
answers come from the memory of the bus; only the backlog asks the broker.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from penstock.bus.bus import EventBus
from penstock.errors import PenstockError

HEAD_BYTES_MAX = 8192
REQUEST_TIMEOUT_S = 5.0
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"

Answer = tuple[HTTPStatus, str]


class Exporter:
    """Serves one open bus. Use with `async with`."""

    def __init__(self, bus: EventBus, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._bus = bus
        self._host = host
        self.port = port
        """The port it listens on; any free port if it was 0."""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Exporter:
        self._server = await asyncio.start_server(
            self._serve, self._host, self.port, limit=HEAD_BYTES_MAX
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def answer(self, path: str) -> Answer:
        """Return the answer to a path."""
        if path == "/metrics":
            return HTTPStatus.OK, await self._metrics()
        if path == "/live":
            return HTTPStatus.OK, "alive\n"
        if path == "/ready":
            health = self._bus.health()
            if health.connected:
                return HTTPStatus.OK, "ready\n"
            why = health.last_error or "the bus is not open"
            return HTTPStatus.SERVICE_UNAVAILABLE, f"not connected: {why}\n"
        return HTTPStatus.NOT_FOUND, "/metrics, /live and /ready are here\n"

    async def _metrics(self) -> str:
        text = self._bus.snapshot().prometheus()
        connected = int(self._bus.health().connected)
        text += f"# TYPE penstock_bus_connected gauge\npenstock_bus_connected {connected}\n"
        if not connected:
            return text
        try:
            backlog = await self._bus.backlog()
        except PenstockError:
            return text  # an unknown value is left out
        return text + (
            "# TYPE penstock_bus_backlog_messages gauge\n"
            f"penstock_bus_backlog_messages {backlog.messages}\n"
            "# TYPE penstock_bus_backlog_age_seconds gauge\n"
            f"penstock_bus_backlog_age_seconds {backlog.age_s:.3f}\n"
            "# TYPE penstock_bus_backlog_unhandled_messages gauge\n"
            f"penstock_bus_backlog_unhandled_messages {sum(backlog.unhandled.values())}\n"
            "# TYPE penstock_bus_active gauge\n"
            f"penstock_bus_active {int(self._bus.health().active)}\n"
        )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                method, path, *_ = head.decode("latin-1").split(" ", 2)
                status, body = await self.answer(path.partition("?")[0])
                writer.write(_response(status, body, with_body=method != "HEAD"))
                await writer.drain()
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            pass  # not a request, or one whose sender has gone
        except asyncio.LimitOverrunError:
            pass  # no request is that long
        finally:
            self._tasks.discard(task)
            writer.close()


def _response(status: HTTPStatus, body: str, *, with_body: bool) -> bytes:
    data = body.encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        f"Content-Type: {PROMETHEUS}\r\n"
        f"Content-Length: {len(data)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (data if with_body else b"")
