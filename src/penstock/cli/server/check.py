"""
`penstock server check`: one line and an exit code, for Nagios and everything that calls it.

Codes are those of its plugins: 0 is OK, 1 a warning, 2 critical, 3 unknown.
"""

from __future__ import annotations

import asyncio
import json
import os
from argparse import Namespace
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.cli.arguments import Verb, argument
from penstock.cli.connection import CONNECTION
from penstock.cli.context import Context, open_context
from penstock.cli.server.system import ask_all
from penstock.cli.stream.reports import fill
from penstock.cli.terminal import GREEN, RED, YELLOW, coloured
from penstock.errors import ConfigError, ConnectFailed, PenstockError
from penstock.protocol.times import SECOND_NS
from penstock.protocol.units import read_duration

STATES = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
COLOURS = (GREEN, YELLOW, RED, RED)
OK, WARNING, CRITICAL, UNKNOWN = range(4)


@dataclass
class Outcome:
    """The figures of a check, and the worst that was found."""

    level: int = OK
    texts: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)

    def measure(
        self, name: str, value: float, warn: float | None = None, critical: float | None = None
    ) -> None:
        """Take a figure, which should be below both bounds."""
        self.figures[name] = value
        for level, bound in ((CRITICAL, critical), (WARNING, warn)):
            if bound is not None and value >= bound:
                self.find(level, f"{name} is {value:g}, and should be below {bound:g}")
                return

    def find(self, level: int, text: str) -> None:
        """Take something that is wrong."""
        self.level = max(self.level, level)
        self.texts.append(text)


Look: TypeAlias = Callable[[Context, Outcome], Awaitable[None]]


async def connection(context: Context, outcome: Outcome) -> None:
    """Measure the way to the server and back."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await context.client.flush()
    bounds = (context.arguments.warn, context.arguments.critical)
    in_s = (None if bound is None else bound / SECOND_NS for bound in bounds)
    outcome.measure("rtt_s", loop.time() - began_s, *in_s)


async def stream(context: Context, outcome: Outcome) -> None:
    """Look at the limits and origins of one stream."""
    arguments = context.arguments
    info = await context.js.streams.info(_name(arguments.stream, "NAME of the stream"))
    outcome.figures["messages"] = info["state"]["messages"]
    outcome.figures["bytes"] = info["state"]["bytes"]
    share = fill(info)
    if share is not None and info["config"]["discard"] == "new":
        outcome.measure("full_percent", share * 100, *_percent(arguments))
    for origin in [*filter(None, [info.get("mirror")]), *(info.get("sources") or [])]:
        outcome.measure(f"lag_{origin['name']}", origin.get("lag", 0), *_lag(arguments))
        if origin.get("error"):
            outcome.find(CRITICAL, f"{origin['name']}: {origin['error']['description']}")


async def consumer(context: Context, outcome: Outcome) -> None:
    """Look at the lag of one consumer."""
    arguments = context.arguments
    info = await context.js.consumers.info(
        _name(arguments.stream, "NAME of the stream"), _name(arguments.consumer, "CONSUMER")
    )
    outcome.measure("pending", info["num_pending"], *_lag(arguments))
    outcome.figures["unacked"] = info["num_ack_pending"]
    bound = info["config"].get("max_ack_pending", -1)
    if 0 < bound <= info["num_ack_pending"]:
        outcome.find(CRITICAL, f"{bound} messages are unacked, which is the bound")
    if info["config"].get("deliver_subject") and not info.get("push_bound"):
        outcome.find(CRITICAL, "nobody subscribes to its deliver subject")


async def jetstream(context: Context, outcome: Outcome) -> None:
    """Look at the limits of the account."""
    info = await context.js.account_info()
    outcome.figures |= {"streams": info["streams"], "consumers": info["consumers"]}
    for used, limit in (("memory", "max_memory"), ("storage", "max_storage")):
        bound = info["limits"].get(limit, -1)
        outcome.figures[used] = info[used]
        if bound > 0:
            share = info[used] / bound * 100
            outcome.measure(f"{used}_percent", share, *_percent(context.arguments))


async def server(context: Context, outcome: Outcome) -> None:
    """Look at the health of every server; that needs a user of the system account."""
    answers = await ask_all(context, "SERVER.PING.HEALTHZ")
    outcome.figures["servers"] = len(answers)
    for answer in answers:
        if answer["data"]["status"] != "ok":
            text = answer["data"].get("error") or answer["data"]["status"]
            outcome.find(CRITICAL, f"{answer['server']['name']}: {text}")


CHECKS: dict[str, Look] = {
    "connection": connection,
    "stream": stream,
    "consumer": consumer,
    "jetstream": jetstream,
    "server": server,
}


def run_check(arguments: Namespace) -> int:
    """Run a check, print its line, and return its code."""
    outcome = Outcome()
    try:
        asyncio.run(_look(arguments, outcome))
    except ConfigError:
        raise
    except ConnectFailed as error:
        outcome.find(CRITICAL, str(error))
    except PenstockError as error:
        outcome.find(CRITICAL if "not found" in str(error) else UNKNOWN, str(error))
    print(_as_json(arguments, outcome) if arguments.json else _line(arguments, outcome))
    return outcome.level


async def _look(arguments: Namespace, outcome: Outcome) -> None:
    async with open_context(arguments, os.environ, command="server check") as context:
        await CHECKS[arguments.what](context, outcome)


def _line(arguments: Namespace, outcome: Outcome) -> str:
    state = coloured(STATES[outcome.level], COLOURS[outcome.level])
    figures = " ".join(f"{name}={value:g}" for name, value in outcome.figures.items())
    found = ": ".join(filter(None, (arguments.what, "; ".join(outcome.texts))))
    return f"{state} " + " | ".join(filter(None, (found, figures)))


def _as_json(arguments: Namespace, outcome: Outcome) -> str:
    document = {
        "check": arguments.what,
        "status": STATES[outcome.level],
        "problems": outcome.texts,
        "figures": outcome.figures,
    }
    return json.dumps(document, indent=2)


def _name(value: str | None, what: str) -> str:
    if not value:
        raise ConfigError(f"missing: {what}")
    return value


def _percent(arguments: Namespace) -> tuple[float, float]:
    return arguments.warn_percent, arguments.critical_percent


def _lag(arguments: Namespace) -> tuple[float | None, float | None]:
    return arguments.warn_lag, arguments.critical_lag


CHECK = Verb(
    name="check",
    summary="Check one thing; exit as Nagios expects: 0 OK, 1 warning, 2 critical, 3 unknown.",
    run=run_check,
    connects=False,
    arguments=(
        argument("what", metavar="WHAT", choices=tuple(CHECKS), doc=f"`{'`, `'.join(CHECKS)}`."),
        argument("stream", metavar="STREAM", nargs="?", doc="For `stream` and `consumer`."),
        argument("consumer", metavar="CONSUMER", nargs="?", doc="For `consumer`."),
        argument("--warn", metavar="DURATION", type=read_duration, doc="Time there and back."),
        argument("--critical", metavar="DURATION", type=read_duration, doc="The same, critical."),
        argument("--warn-lag", metavar="NUMBER", type=int, doc="Messages behind."),
        argument("--critical-lag", metavar="NUMBER", type=int, doc="The same, critical."),
        argument(
            "--warn-percent",
            metavar="NUMBER",
            type=float,
            default=80.0,
            doc="Share of a limit in use (default: 80).",
        ),
        argument(
            "--critical-percent",
            metavar="NUMBER",
            type=float,
            default=95.0,
            doc="The same, critical (default: 95).",
        ),
        *CONNECTION,
    ),
)
