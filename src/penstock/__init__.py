"""Event streaming in Python that speaks NATS, with Spark as its data pipeline."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.protocol.version import VERSION as __version__

if TYPE_CHECKING:
    from penstock.bus import Envelope, EventBus
    from penstock.client import connect
    from penstock.config.jetstream import JetStreamConfig
    from penstock.config.server import Limits, ServerConfig
    from penstock.errors import PenstockError
    from penstock.net.embedded import serve
    from penstock.net.server import Server

# Public name → where it lives. Loaded when first asked for, so that a program
# which only publishes does not pay for the server, nor the other way round.
_LAZY = {
    "Envelope": "penstock.bus",
    "EventBus": "penstock.bus",
    "JetStreamConfig": "penstock.config.jetstream",
    "Limits": "penstock.config.server",
    "PenstockError": "penstock.errors",
    "Server": "penstock.net.server",
    "ServerConfig": "penstock.config.server",
    "connect": "penstock.client",
    "serve": "penstock.net.embedded",
}

__all__ = [
    "Envelope",
    "EventBus",
    "JetStreamConfig",
    "Limits",
    "PenstockError",
    "Server",
    "ServerConfig",
    "__version__",
    "connect",
    "serve",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return __all__
