"""A server on a thread of its own, for scripts and notebooks that have no event loop."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from concurrent.futures import Future
from typing import Any

from penstock.config.server import JetStreamConfig, ServerConfig
from penstock.net.poller import new_event_loop
from penstock.net.server import Server

START_TIMEOUT_S = 30.0


class EmbeddedServer:
    """
    A running server; a context manager that stops it.

    Takes what `Server` takes. With `jetstream=True` it keeps streams in a directory of its
    own, which goes with it. `url` and `port` say where it is.
    """

    def __init__(self, config: ServerConfig | None = None, **settings: Any) -> None:
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if settings.get("jetstream") is True:
            self._temporary = tempfile.TemporaryDirectory(prefix="penstock-")
            settings["jetstream"] = JetStreamConfig(store_dir=self._temporary.name)
        elif settings.get("jetstream") is False:
            settings["jetstream"] = None
        self._server = Server(config, **settings)
        self._ready: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._main, name="penstock", daemon=True)
        self._thread.start()
        # An error in start(), such as a port in use, is raised here, to the caller.
        self._loop = self._ready.result(START_TIMEOUT_S)

    @property
    def url(self) -> str:
        """Where clients on this machine reach the server."""
        return self._server.url

    @property
    def port(self) -> int:
        """The port clients connect to."""
        return self._server.port

    @property
    def http_port(self) -> int | None:
        """The port of the monitoring endpoints, if they were asked for."""
        return self._server.http_port

    def stop(self) -> None:
        """Stop the server and wait until its thread has ended; twice is once."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._server.stop(), self._loop)
            self._thread.join()
        if self._temporary is not None:
            self._temporary.cleanup()

    def _main(self) -> None:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        try:
            await self._server.start()
        except BaseException as error:
            self._ready.set_exception(error)
            return
        self._ready.set_result(asyncio.get_running_loop())
        await self._server.wait_stopped()

    def __enter__(self) -> EmbeddedServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def serve(config: ServerConfig | None = None, **settings: Any) -> EmbeddedServer:
    """Start a server on its own thread: `with penstock.serve(jetstream=True) as server: ...`."""
    return EmbeddedServer(config, **settings)
