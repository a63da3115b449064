"""
A server in this process for the bus to run on.

It is the whole of Penstock's server on a loopback port, so what holds here holds
on the network, and other programs can connect to it.
"""

from __future__ import annotations

import tempfile

from penstock.bus.config.bus import BusConfig
from penstock.bus.engines.nats.engine import NatsEngine
from penstock.config.jetstream import JetStreamConfig
from penstock.net.server import Server


def embedded_engine(config: BusConfig) -> NatsEngine:
    """Return an engine that starts a server of its own, and stops it."""
    return NatsEngine(config, host=LocalServer(config))


class LocalServer:
    """A server that lives as long as the engine is connected."""

    def __init__(self, config: BusConfig) -> None:
        self._embedded = config.embedded
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._server: Server | None = None

    async def start(self) -> tuple[str, ...]:
        """Start it; return where it is."""
        store_dir = self._embedded.store_dir
        if not store_dir:
            self._temporary = tempfile.TemporaryDirectory(prefix="penstock-")
            store_dir = self._temporary.name
        self._server = Server(
            host=self._embedded.host,
            port=self._embedded.port,
            jetstream=JetStreamConfig(store_dir=store_dir),
        )
        await self._server.start()
        return (self._server.url,)

    async def stop(self) -> None:
        """Stop it; delete what it stored, if nobody said where that should be."""
        if self._server is not None:
            await self._server.stop()
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None
