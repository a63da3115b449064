"""
Commands with verbs that work on a bus, not only on a connection.

`--bus` names the bus; without it, the bus is on the server that every other command uses.
The bus packages are imported when a verb runs, so that help and reference need none of
them.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.cli.arguments import Verb, argument
from penstock.cli.connection import (
    CONNECTION,
    INBOX_PREFIX,
    JSON,
    SERVER,
    bus_settings,
    settings_of,
)
from penstock.cli.runner import run_command
from penstock.errors import ConfigError, ConnectFailed
from penstock.protocol.times import SECOND_NS

if TYPE_CHECKING:
    from argparse import Namespace

    from penstock.bus.config.bus import BusConfig
    from penstock.bus.config.nats import NatsConfig

NAMESPACE_VARIABLE = "PENSTOCK_BUS_NAMESPACE"
URLS_VARIABLE = "PENSTOCK_BUS_NATS_URLS"

BUS = argument(
    "--bus",
    doc="`nats://…`, `kafka://…`, `embedded:<directory>`, or a YAML file (default: from the "
    "environment, else the server).",
    metavar="BUS",
)
NAMESPACE = argument(
    "--namespace",
    doc="Namespace of the bus (default: that of the YAML file, else every bus).",
    metavar="NAME",
    default="",
)
WHICH = (
    JSON,
    BUS,
    NAMESPACE,
    *(one for one in CONNECTION if one not in (JSON, INBOX_PREFIX)),
)
"""Options of every verb that works on a bus."""


@dataclass
class BusContext:
    """The context of one run of a verb, with its exit code."""

    config: BusConfig
    given: Any
    is_named: bool
    """Whether one bus is selected, instead of all on the server."""
    exit_code: int = 0

    async def configs(self) -> list[BusConfig]:
        """Return the configuration of the selected bus, or of each bus on the server."""
        if self.is_named:
            return [self.config]
        from penstock.bus.opening import engine_of

        engine = engine_of(self.config)
        await engine.connect()
        try:
            names = await engine.namespaces()
        finally:
            await engine.close()
        return [replace(self.config, namespace=name) for name in names]


def run_bus_command(command: str, verbs: Sequence[Verb], words: list[str]) -> int:
    """Run one of a command's verbs and return the exit code."""
    return run_command(command, verbs, words, _run)


def _run(path: str, verb: Verb, arguments: Namespace) -> int:
    import asyncio

    # The bus also raises everything it logs; a person wants to read it once.
    logging.getLogger("penstock").addHandler(logging.NullHandler())
    config = _config(arguments, os.environ)
    is_named = bool(
        arguments.namespace or os.environ.get(NAMESPACE_VARIABLE) or _is_file(arguments.bus)
    )
    context = BusContext(config, arguments, is_named)
    # SIGTERM ends a command as Ctrl-C does: it says how far it got.
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        asyncio.run(verb.run(context))
    except ConnectFailed as error:
        if not arguments.bus:
            raise
        raise ConnectFailed(f"{error}; hint: is it running, and is --bus right?") from None
    finally:
        signal.signal(signal.SIGTERM, before)
    return context.exit_code


def _config(arguments: Namespace, environ: Mapping[str, str]) -> BusConfig:
    """Return the bus that the options and the environment select."""
    from penstock.bus.opening import read_source

    config = read_source(arguments.bus)
    if not arguments.bus and config.type == "embedded" and not config.embedded.store_dir:
        config = replace(config, type="nats")
    # A person at a terminal should not wait for a server that is not there.
    config = replace(config, connect_timeout=0.0)
    if arguments.namespace:
        config = replace(config, namespace=arguments.namespace)
    if config.type != "nats":
        return config
    return replace(config, nats=_nats(config.nats, arguments, environ))


def _nats(nats: NatsConfig, arguments: Namespace, environ: Mapping[str, str]) -> NatsConfig:
    # A bus that is named has its own address, unless an option overrides it.
    settings = settings_of(arguments, environ, only_named=bool(arguments.bus))
    changes: dict[str, Any] = bus_settings(settings)
    server = settings.get("server", "")
    if server.startswith("kafka:"):
        raise ConfigError("--server and NATS_URL name NATS servers; hint: --bus kafka://host:9092")
    if server:
        changes["urls"] = tuple(one.strip() for one in server.split(","))
    elif not arguments.bus and not environ.get(URLS_VARIABLE):
        changes["urls"] = (SERVER,)
    jetstream = replace(nats.jetstream, request_timeout=arguments.timeout / SECOND_NS)
    if "domain" in settings:
        jetstream = replace(jetstream, domain=settings["domain"])
    return replace(nats, jetstream=jetstream, **changes)


def _is_file(bus: str | None) -> bool:
    from penstock.bus.opening import FILE_SUFFIXES

    return bus is not None and bus.endswith(FILE_SUFFIXES)
