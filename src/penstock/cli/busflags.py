"""What the commands that work on a bus have in common: naming it, times, tables, errors."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.bus.config import BusConfig
from penstock.bus.opening import read_source
from penstock.errors import ConfigError, PenstockError
from penstock.flags import Flag, parse_flags

EXIT_FAILURE, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130

BUS = Flag(
    names=("bus",),
    kind=str,
    doc="nats://host:port, embedded:<directory>, or a YAML file; else the environment says.",
)
HELP = Flag(names=("h", "help"), kind=bool, doc="Show this message.")

SPAN = re.compile(r"(\d+)([smhd])")
SPAN_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}

Action = Callable[[BusConfig, Mapping[str, Any], Sequence[str]], Coroutine[Any, Any, int]]


def run_action(
    name: str, arguments: Sequence[str], *, actions: Mapping[str, Action], flags: Sequence[Flag]
) -> int:
    """Read the command line, do what it names, and return the exit code."""
    action, *rest = arguments or [""]
    try:
        given, words = parse_anywhere(rest, (*flags, BUS, HELP))
        if action in ("-h", "-help", "--help", "help") or given.get("h"):
            print(usage(name, actions, flags))
            return 0
        if action not in actions:
            raise ConfigError(f"`{action}` is none of {', '.join(actions)}")
        config = read_source(given.get("bus"))
        return asyncio.run(actions[action](config, given, words))
    except (ConfigError, FileNotFoundError) as error:
        print(f"penstock {name}: {error}\nSee penstock {name} --help", file=sys.stderr)
        return EXIT_USAGE
    except PenstockError as error:
        print(f"penstock {name}: {error}", file=sys.stderr)
        return EXIT_FAILURE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def parse_anywhere(
    arguments: Sequence[str], flags: Sequence[Flag]
) -> tuple[dict[str, Any], list[str]]:
    """Read flags before, between and after the words."""
    values: dict[str, Any] = {}
    words: list[str] = []
    rest = list(arguments)
    while rest:
        given, rest = parse_flags(rest, flags)
        values |= {item.flag.names[0]: item.value for item in given}
        if rest:
            words.append(rest.pop(0))
    return values, words


def usage(name: str, actions: Mapping[str, Action], flags: Sequence[Flag]) -> str:
    """Return the help of a command."""
    lines = [f"Usage: penstock {name} {'|'.join(actions)} [options]", ""]
    lines += [f"    {action:10}{_first_line(function)}" for action, function in actions.items()]
    lines += ["", "Options:"]
    lines += [f"    {_spell(flag):24}{flag.doc}" for flag in (*flags, BUS, HELP)]
    return "\n".join(lines)


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


def _first_line(function: Action) -> str:
    return (function.__doc__ or "").strip().splitlines()[0]


def _spell(flag: Flag) -> str:
    value = {bool: "", int: " <number>", str: " <text>"}[flag.kind]
    return ", ".join(f"-{name}" if len(name) < 2 else f"--{name}" for name in flag.names) + value
