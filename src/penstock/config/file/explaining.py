"""The effective settings of a server, and where each of them came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, fields, is_dataclass
from typing import Any

from penstock.config.file.directives import SECTIONS, WEBSOCKET
from penstock.config.file.loading import ServerOptions
from penstock.config.jetstream import JetStreamConfig
from penstock.config.server import Authorization, Limits, ProcessConfig, ServerConfig
from penstock.config.transport import TlsConfig, WebSocketConfig

DEFAULT = "default"
HIDDEN = "(hidden)"


@dataclass(frozen=True)
class Setting:
    """A setting in effect."""

    directive: str
    value: Any
    """The value as a configuration file has it."""
    source: str


def settings(options: ServerOptions) -> Iterator[Setting]:
    """Yield the settings in effect. A listener that is off has none."""
    for (config, prefix), holder in _holders(options).items():
        if holder is None:
            continue
        for item in fields(config):
            if name := item.metadata.get("directive"):
                source = options.sources.get(prefix + name, DEFAULT)
                yield Setting(prefix + name, _shown(holder, item), source)


def written(value: Any, *, is_size: bool) -> str:
    """Return a value as a configuration file has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value / 60:g}m" if value >= 60 else f"{value:g}s"
    if isinstance(value, int) and is_size:
        return _size(value)
    return str(value)


def _holders(options: ServerOptions) -> dict[tuple[type, str], Any]:
    """Return the instance of each part of the configuration; None for a part that is off."""
    server = options.server
    websocket = server.websocket
    holders: dict[tuple[type, str], Any] = {
        (ServerConfig, ""): server,
        (Authorization, ""): server.authorization,
        (TlsConfig, ""): server.tls,
        (WebSocketConfig, ""): websocket,
        (TlsConfig, WEBSOCKET): websocket.tls if websocket is not None else None,
        (JetStreamConfig, ""): server.jetstream,
        (Limits, ""): server.limits,
        (ProcessConfig, ""): options.process,
    }
    return {part: holders[part] for part in SECTIONS}


def _shown(holder: Any, item: Field[Any]) -> Any:
    """Return the value of a field: short if it is large, hidden if it is a secret."""
    value = getattr(holder, item.name)
    if value is None or value == () or value == {}:
        return None
    if not item.repr:
        return HIDDEN
    if isinstance(value, tuple) and any(is_dataclass(each) for each in value):
        names = [str(getattr(each, "name", "") or getattr(each, "id", "")) for each in value]
        return f"{len(value)}: {', '.join(names)}" if all(names) else str(len(value))
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Mapping):
        return {name: "…" if is_dataclass(each) else each for name, each in value.items()}
    if is_dataclass(value):
        return "set"
    return written(value, is_size=item.metadata["size"])


def _size(size: int) -> str:
    for unit, factor in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if size >= factor and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)
