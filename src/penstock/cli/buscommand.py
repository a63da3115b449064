"""
Commands with verbs that work on a bus, and not just on a connection.

The bus is what `--bus` names. Its packages are imported when a verb runs, so that
help and reference need none of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from penstock.cli import manual
from penstock.cli.arguments import HELP_OPTIONS, Verb, argument, find_verb, parse
from penstock.cli.hints import Complaint, complaint_of
from penstock.cli.runner import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_USAGE, complain
from penstock.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from penstock.bus.config import BusConfig

__all__ = ["BUS", "EXIT_FAILURE", "JSON", "BusContext", "parse_time", "run_bus_command"]

SPAN = re.compile(r"(\d+)([smhd])")
SPAN_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}

BUS = argument(
    "--bus",
    doc="`nats://host:port`, `embedded:<directory>` or a YAML file; else the environment says.",
    metavar="BUS",
)
JSON = argument("-j", "--json", doc="Print JSON.", action="store_true")


@dataclass
class BusContext:
    """What a verb is given, and what it leaves: an exit code."""

    config: BusConfig
    given: Any
    exit_code: int = 0


def run_bus_command(command: str, summary: str, verbs: Sequence[Verb], words: list[str]) -> int:
    """Run one of a command's verbs and return the exit code."""
    if not words or words[0] in (*HELP_OPTIONS, "help"):
        print(manual.command_help(command, summary, verbs))
        return 0
    try:
        verb = find_verb(command, verbs, words[0])
        path = f"{command} {verb.name}"
        if set(words) & set(HELP_OPTIONS):
            print(manual.verb_help(path, verb))
            return 0
        return _run(verb, parse(verb, words[1:]))
    except ConfigError as error:
        complaint = complaint_of(error)
        hint = complaint.hint or f"penstock {command} --help"
        return complain(Complaint(complaint.text, hint), EXIT_USAGE)
    except PenstockError as error:
        return complain(complaint_of(error))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def parse_time(text: str, now: datetime | None = None) -> datetime:
    """Read a moment: ISO 8601, or `90s`, `15m`, `2h`, `7d` for so long ago."""
    if match := SPAN.fullmatch(text):
        span = timedelta(**{SPAN_UNITS[match[2]]: int(match[1])})
        return (now or datetime.now(UTC)) - span
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"`{text}` is no time; hint: 2h, or 2026-01-31T12:00:00Z") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _run(verb: Verb, given: Any) -> int:
    import asyncio

    from penstock.bus.opening import read_source

    try:
        context = BusContext(read_source(given.bus), given)
    except OSError as error:
        raise ConfigError(f"`{given.bus}`: {error.strerror}") from error
    asyncio.run(_finish(verb, context))
    return context.exit_code


async def _finish(verb: Verb, context: BusContext) -> None:
    await verb.run(context)
