"""
Commands with verbs that work on a bus, and not just on a connection.

The bus is what `--bus` names. Its packages are imported when a verb runs, so that
help and reference need none of them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.cli.arguments import Verb, argument
from penstock.cli.runner import run_command
from penstock.errors import ConnectFailed

if TYPE_CHECKING:
    from argparse import Namespace

    from penstock.bus.config import BusConfig

BUS = argument(
    "--bus",
    doc="`nats://…`, `kafka://…`, `embedded:<directory>`, a YAML file; else the environment says.",
    metavar="BUS",
)
JSON = argument("-j", "--json", doc="Print JSON.", action="store_true")


@dataclass
class BusContext:
    """What a verb is given, and what it leaves: an exit code."""

    config: BusConfig
    given: Any
    exit_code: int = 0


def run_bus_command(command: str, verbs: Sequence[Verb], words: list[str]) -> int:
    """Run one of a command's verbs and return the exit code."""
    return run_command(command, verbs, words, _run)


def _run(path: str, verb: Verb, arguments: Namespace) -> int:
    import asyncio

    from penstock.bus.opening import read_source

    # What the bus logs it also raises; a person wants to read it once.
    logging.getLogger("penstock").addHandler(logging.NullHandler())
    context = BusContext(read_source(arguments.bus), arguments)
    try:
        asyncio.run(verb.run(context))
    except ConnectFailed as error:
        raise ConnectFailed(f"{error}; hint: does it run, and is it the one --bus names?") from None
    return context.exit_code
