"""`penstock doctor`: look at this machine and at a server, and name what is wrong."""

from __future__ import annotations

import asyncio
import json
import os
from argparse import Namespace
from collections.abc import AsyncIterator

from penstock.cli.arguments import Verb, argument
from penstock.cli.commands import EXIT_FAILURE
from penstock.cli.connection import CONNECTION
from penstock.cli.context import open_context
from penstock.cli.doctor import here, there
from penstock.cli.doctor.findings import BAD, Finding
from penstock.cli.hints import complaint_of
from penstock.errors import ConfigError, PenstockError


def examine(arguments: Namespace) -> int:
    """Print every finding; the exit code is 1 if one is bad."""
    return asyncio.run(_examine(arguments))


async def _examine(arguments: Namespace) -> int:
    found = []
    async for finding in _findings(arguments):
        found.append(finding)
        if not arguments.json:
            print(finding, flush=True)
    if arguments.json:
        print(json.dumps([each._asdict() for each in found], indent=2, ensure_ascii=False))
    return EXIT_FAILURE if any(each.level == BAD for each in found) else 0


async def _findings(arguments: Namespace) -> AsyncIterator[Finding]:
    for finding in here.examine(arguments.config):
        yield finding
    try:
        async with open_context(arguments, os.environ, command="doctor") as context:
            async for finding in there.examine(context):
                yield finding
    except ConfigError:
        raise
    except PenstockError as error:
        complaint = complaint_of(error, DOCTOR.option_names)
        yield Finding(BAD, "connection", complaint.text, complaint.hint)


DOCTOR = Verb(
    name="doctor",
    summary="Find what is wrong on this machine and on a server; exit with 1 if something is.",
    run=examine,
    connects=False,
    arguments=(
        argument(
            "-c",
            "--config",
            metavar="FILE",
            doc="A server's configuration: also look at its settings and its disk.",
        ),
        *CONNECTION,
    ),
)
