"""A server on its own thread, for scripts and notebooks without an event loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Unpack

from penstock.config.server import ServerConfig, ServerSettings
from penstock.net.poller import new_event_loop
from penstock.net.server import Server

START_TIMEOUT_S = 30.0


class EmbeddedServer:
    """
    A running server; a context manager that stops it.

    Takes the arguments of `Server`. `url` and `port` are its address.
    """

    def __init__(
        self, config: ServerConfig | None = None, **settings: Unpack[ServerSettings]
    ) -> None:
        self._server = Server(config, **settings)
        self._ready: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._main, name="penstock", daemon=True)
        self._thread.start()
        # An error in start(), such as a port in use, is raised here, to the caller.
        self._loop = self._ready.result(START_TIMEOUT_S)

    @property
    def url(self) -> str:
        """The URL for clients on this machine."""
        return self._server.url

    @property
    def port(self) -> int:
        """The port for clients."""
        return self._server.port

    @property
    def http_port(self) -> int | None:
        """The port of the monitoring endpoints, if they are on."""
        return self._server.http_port

    def stop(self) -> None:
        """Stop the server and wait until its thread has ended. Idempotent."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._server.stop(), self._loop)
            self._thread.join()

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


def serve(config: ServerConfig | None = None, **settings: Unpack[ServerSettings]) -> EmbeddedServer:
    """Start a server on its own thread: `with penstock.serve(jetstream=True) as server: ...`."""
    return EmbeddedServer(config, **settings)
