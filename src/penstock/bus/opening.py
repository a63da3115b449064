"""The arguments of `EventBus.open`, and the engine that follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.bus.config.bus import BusConfig
from penstock.bus.config.loading import load_config
from penstock.bus.engine import Engine
from penstock.errors import ConfigError, MissingExtra

EMBEDDED = "embedded:"
NATS_SCHEMES = ("nats://", "tls://")
KAFKA_SCHEME = "kafka://"
FILE_SUFFIXES = (".yaml", ".yml", ".json")


def read_source(
    source: str | Path | Mapping[str, Any] | BusConfig | None, *, preset: str = ""
) -> BusConfig:
    """Return the configuration for a URL, a file, a mapping or a `BusConfig`."""
    if isinstance(source, BusConfig):
        if preset:
            raise ConfigError("a `preset` has no effect on a configuration that is complete")
        return source
    if isinstance(source, str):
        source = _from_text(source)
    return load_config(source, preset=preset)


def engine_of(config: BusConfig) -> Engine:
    """Make the engine that a configuration names."""
    if config.type == "embedded":
        # Imported late: a program on a NATS cluster does not load our server.
        from penstock.bus.engines.embedded import embedded_engine

        return embedded_engine(config)
    if config.type == "kafka":
        try:
            from penstock.bus.engines.kafka import KafkaEngine
        except ImportError:
            raise MissingExtra(
                "Kafka needs a package; hint: pip install 'penstock[kafka]'"
            ) from None

        return KafkaEngine(config)
    from penstock.bus.engines.nats.engine import NatsEngine

    return NatsEngine(config)


def _from_text(source: str) -> Mapping[str, Any] | Path:
    if source.startswith(EMBEDDED):
        return {"type": "embedded", "embedded": {"store_dir": source.removeprefix(EMBEDDED)}}
    if source.startswith(NATS_SCHEMES):
        return {"type": "nats", "nats": {"urls": source}}
    if source.startswith(KAFKA_SCHEME):
        return {"type": "kafka", "kafka": {"brokers": source.replace(KAFKA_SCHEME, "")}}
    if source.endswith(FILE_SUFFIXES):
        return Path(source)
    raise ConfigError(
        f"`{source}` is no bus; hint: `embedded:`, `embedded:<directory>`, `nats://host:4222`, "
        "`kafka://host:9092`, or the path of a .yaml file"
    )
