"""`penstock stream report`, `subjects` and `find`: what all streams hold, and which are odd."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from penstock.cli.arguments import Verb, argument
from penstock.cli.connection import CONNECTION
from penstock.cli.context import Context
from penstock.cli.terminal import table
from penstock.cli.values import NEVER, show_count, show_size
from penstock.protocol.rfc3339 import parse_time
from penstock.protocol.times import SECOND_NS
from penstock.protocol.units import read_duration

if TYPE_CHECKING:
    from argparse import Namespace

HEADER = (
    *("STREAM", "STORAGE", "REPLICAS", "CONSUMERS", "SUBJECTS", "MESSAGES", "SIZE", "DELETED"),
    *("FULL", "BEHIND"),
)
SORTS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "name": lambda info: info["config"]["name"],
    "messages": lambda info: -info["state"]["messages"],
    "bytes": lambda info: -info["state"]["bytes"],
    "consumers": lambda info: -info["state"]["consumer_count"],
    "full": lambda info: -(fill(info) or 0.0),
}


async def report(context: Context) -> None:
    """Print figures of every stream: size, distance to its limits, lag of its origins."""
    infos = sorted(await context.js.streams.list(), key=SORTS[context.arguments.sort])
    context.show(table(HEADER, map(_row, infos), left=2) if infos else "", infos)
    if not infos:
        context.say("no streams")


async def subjects(context: Context) -> None:
    """Print the subjects of a stream with the messages on each."""
    arguments = context.arguments
    info = await context.js.streams.info(arguments.stream, subjects_filter=arguments.filter)
    counts: dict[str, int] = info["state"].get("subjects") or {}
    by_count = arguments.sort == "messages"
    names = sorted(counts, key=lambda name: (-counts[name] if by_count else 0, name))
    rows = [(name, show_count(counts[name])) for name in names]
    text = "\n".join(names) if arguments.names else table(("SUBJECT", "MESSAGES"), rows)
    context.show(text if names else "", {name: counts[name] for name in names})
    if not names:
        context.say("no subjects")


async def find(context: Context) -> None:
    """Print the names of the streams that fit every condition."""
    arguments, now_ns = context.arguments, round(datetime.now(UTC).timestamp() * SECOND_NS)
    infos = await context.js.streams.list(subject=arguments.subject)
    names = sorted(
        info["config"]["name"]
        for info in infos
        if _fits(info, arguments, now_ns) is not arguments.invert
    )
    context.show("\n".join(names), names)
    if not names:
        context.say("no such stream")


def fill(info: Mapping[str, Any]) -> float | None:
    """Return the share of the nearest limit that a stream has used; None without limits."""
    config, state = info["config"], info["state"]
    limits = ((state["messages"], "max_msgs"), (state["bytes"], "max_bytes"))
    shares = [used / config[name] for used, name in limits if config.get(name, -1) > 0]
    return max(shares, default=None)


def _row(info: Mapping[str, Any]) -> tuple[str, ...]:
    config, state, full = info["config"], info["state"], fill(info)
    origins = [*filter(None, [info.get("mirror")]), *(info.get("sources") or [])]
    return (
        config["name"],
        config["storage"],
        show_count(config["num_replicas"]),
        show_count(state["consumer_count"]),
        show_count(state.get("num_subjects", 0)),
        show_count(state["messages"]),
        show_size(state["bytes"]),
        show_count(state.get("num_deleted", 0)),
        "-" if full is None else f"{full:.0%}",
        show_count(max(origin.get("lag", 0) for origin in origins)) if origins else "-",
    )


def _fits(info: Mapping[str, Any], arguments: Namespace, now_ns: int) -> bool:
    config, state = info["config"], info["state"]
    last = state["last_ts"] if state["last_ts"] != NEVER else info["created"]
    conditions = (
        (arguments.empty, not state["messages"]),
        (arguments.unconsumed, not state["consumer_count"]),
        (arguments.idle, now_ns - parse_time(last) >= (arguments.idle or 0)),
        (arguments.created, now_ns - parse_time(info["created"]) <= (arguments.created or 0)),
        (arguments.mirrored, bool(config.get("mirror"))),
        (arguments.sourced, bool(config.get("sources"))),
        (arguments.full, (fill(info) or 0.0) * 100 >= (arguments.full or 0)),
    )
    return all(holds for wanted, holds in conditions if wanted)


VERBS = (
    Verb(
        name="report",
        summary="Show figures of every stream: size, limits, and lag of mirrors and sources.",
        run=report,
        arguments=(
            argument(
                "--sort",
                metavar="COLUMN",
                choices=tuple(SORTS),
                default="name",
                doc=f"`{'`, `'.join(SORTS)}` (default: name).",
            ),
            *CONNECTION,
        ),
    ),
    Verb(
        name="subjects",
        summary="List the subjects of a stream with the messages on each.",
        run=subjects,
        arguments=(
            argument("stream", metavar="NAME", doc=""),
            argument(
                "filter", metavar="FILTER", nargs="?", default=">", doc="Only matching subjects."
            ),
            argument(
                "--sort",
                metavar="COLUMN",
                choices=("name", "messages"),
                default="name",
                doc="`name` or `messages` (default: name).",
            ),
            argument("--names", action="store_true", doc="Print only names."),
            *CONNECTION,
        ),
    ),
    Verb(
        name="find",
        summary="List the streams that fit every condition.",
        run=find,
        arguments=(
            argument("--subject", metavar="SUBJECT", default="", doc="They store this subject."),
            argument("--empty", action="store_true", doc="They hold no messages."),
            argument("--unconsumed", action="store_true", doc="They have no consumers."),
            argument(
                "--idle",
                metavar="DURATION",
                type=read_duration,
                doc="Nothing was stored for this time.",
            ),
            argument(
                "--created",
                metavar="DURATION",
                type=read_duration,
                doc="They were created within this time.",
            ),
            argument("--full", metavar="PERCENT", type=int, doc="A limit is used to this share."),
            argument("--mirrored", action="store_true", doc="They are mirrors."),
            argument("--sourced", action="store_true", doc="They copy from other streams."),
            argument("--invert", action="store_true", doc="List the other streams."),
            *CONNECTION,
        ),
    ),
)
