"""The server as the monitoring and the system account's requests see it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.config.file.loading import ServerOptions
    from penstock.config.server import ServerConfig
    from penstock.core.broker import Broker
    from penstock.net.committer import Journal
    from penstock.net.listeners.acceptor import Door
    from penstock.net.monitor.usage import CpuShare
    from penstock.net.reactor import Reactor


class Watched(Protocol):
    """A server with figures and settings to show."""

    config: ServerConfig
    config_load_ns: int
    """When the configuration was last read."""
    broker: Broker
    reactor: Reactor
    door: Door
    """Serves new connections."""
    journal: Journal | None
    """JetStream, if it is on."""
    usage: CpuShare
    options: ServerOptions | None
    """The options of the process, with the place of each; None for a server in a program."""
    is_ready: bool
    """Whether clients can connect."""
    websocket_port: int
    """0 without a WebSocket listener."""
    http_port: int | None
    http_requests: Counter[str]
    """The number of requests for each path of the monitoring."""
