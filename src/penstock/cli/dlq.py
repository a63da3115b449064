"""`penstock dlq`: dead letters, from a shell."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.cli.arguments import Argument, Verb, argument
from penstock.cli.buscommand import (
    BUS,
    JSON,
    BusContext,
    run_bus_command,
)
from penstock.cli.main import EXIT_FAILURE
from penstock.cli.payload import payload_fields, payload_text
from penstock.cli.table import printable
from penstock.cli.units import read_moment
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.bus.bus import EventBus
    from penstock.bus.letters import DeadLetter, Selection

COLUMNS = "{0:>8}  {1:20}  {2:28}  {3:24}  {4}"


def _numbers(arity: str) -> Argument:
    doc = "Numbers of dead letters, as `list` prints them."
    return argument("number", doc=doc, nargs=arity, type=int)


ALL = argument("--all", doc="All there are.", action="store_true")
FILTERS = (
    argument("--topic", doc="Those that came from this topic.", metavar="TOPIC", default=""),
    argument("--service", doc="Those that this service gave up.", metavar="SERVICE", default=""),
    argument("--key", doc="Those of this aggregate id.", metavar="KEY", default=""),
    argument("--type", doc="Those of this event type.", metavar="TYPE", default=""),
    argument(
        "--since",
        doc="Given up since: `2h`, `7d`, `2026-01-31T12:00:00Z`.",
        metavar="TIME",
        type=read_moment,
    ),
    argument("--until", doc="Given up before.", metavar="TIME", type=read_moment),
)


def run(arguments: list[str]) -> int:
    """Run `penstock dlq` and return the exit code."""
    return run_bus_command("dlq", VERBS, arguments)


async def list_letters(context: BusContext) -> None:
    """List dead letters, oldest first."""
    from penstock.bus.letters import DeadLetterBox

    async with _open(context) as bus:
        if not context.given.json:
            print(COLUMNS.format("number", "time", "topic", "key", "cause"))
        async for letter in DeadLetterBox(bus).find(_selection(context)):
            print(json.dumps(_as_json(letter)) if context.given.json else _row(letter))


async def show(context: BusContext) -> None:
    """Show dead letters whole."""
    from penstock.bus.letters import DeadLetterBox

    async with _open(context) as bus:
        for number in sorted(context.given.number):
            letter = await DeadLetterBox(bus).show(number)
            print(json.dumps(_as_json(letter)) if context.given.json else _page(letter))


async def replay(context: BusContext) -> None:
    """Send dead letters back to their topics."""
    from penstock.bus.letters import DeadLetterBox

    selection = _chosen(context)
    async with _open(context) as bus:
        _say("replayed", await DeadLetterBox(bus).replay(selection), context)


async def discard(context: BusContext) -> None:
    """Delete dead letters for good."""
    from penstock.bus.letters import DeadLetterBox

    selection = _chosen(context)
    async with _open(context) as bus:
        _say("discarded", await DeadLetterBox(bus).discard(selection), context)


VERBS = (
    Verb(
        name="list",
        aliases=("ls",),
        summary="List dead letters, oldest first.",
        run=list_letters,
        arguments=(_numbers("*"), *FILTERS, JSON, BUS),
    ),
    Verb(
        name="show",
        summary="Show dead letters whole, with the history of their attempts.",
        run=show,
        arguments=(_numbers("+"), JSON, BUS),
    ),
    Verb(
        name="replay",
        summary="Send dead letters back to their topics, and remove them here.",
        run=replay,
        arguments=(_numbers("*"), *FILTERS, ALL, JSON, BUS),
    ),
    Verb(
        name="discard",
        summary="Delete dead letters for good.",
        run=discard,
        arguments=(_numbers("*"), *FILTERS, ALL, JSON, BUS),
    ),
)


def _open(context: BusContext) -> EventBus:
    from penstock.bus.bus import EventBus

    config = context.config
    if config.type == "embedded" and not config.embedded.store_dir:
        raise ConfigError("this bus keeps nothing; hint: --bus nats://… or embedded:<directory>")
    # What is on the broker is looked at, not put right.
    return EventBus(replace(config, strategy="skip"))


def _selection(context: BusContext) -> Selection:
    from penstock.bus.letters import Selection

    given = context.given
    return Selection(
        topic=given.topic,
        service=given.service,
        key=given.key,
        event_type=given.type,
        since=given.since,
        until=given.until,
        numbers=frozenset(given.number),
    )


def _chosen(context: BusContext) -> Selection:
    """Return the selection; one that selects everything must be meant."""
    from penstock.bus.letters import Selection

    selection = _selection(context)
    if selection == Selection() and not context.given.all:
        raise ConfigError("say which; hint: numbers, --topic, --key, --since … or --all")
    return selection


def _say(verb: str, letters: Sequence[DeadLetter], context: BusContext) -> None:
    for letter in letters:
        print(json.dumps(_as_json(letter)) if context.given.json else _row(letter))
    if not context.given.json:
        print(f"{len(letters)} {verb}")
    if not letters:
        context.exit_code = EXIT_FAILURE


def _row(letter: DeadLetter) -> str:
    time = f"{letter.time:%Y-%m-%dT%H:%M:%SZ}"
    texts = map(printable, (letter.topic, letter.key, letter.cause))
    return COLUMNS.format(letter.number, time, *texts)


def _page(letter: DeadLetter) -> str:
    lines = [
        f"dead letter {letter.number}",
        f"  topic    {letter.topic} (message {letter.sequence})",
        f"  service  {letter.service}",
        f"  key      {letter.key}",
        f"  type     {letter.event_type or 'unreadable'}",
        f"  time     {letter.time.isoformat()}",
        f"  cause    {letter.cause}",
    ]
    lines += [f"  attempt  {number}. {text}" for number, text in enumerate(letter.attempts, 1)]
    lines += [f"  trace    {line}" for line in letter.trace.splitlines()]
    lines += [f"  header   {name}: {value}" for name, value in letter.headers]
    return "\n".join([*map(printable, lines), "", payload_text(letter.payload)])


def _as_json(letter: DeadLetter) -> dict[str, Any]:
    return {
        "number": letter.number,
        "topic": letter.topic,
        "sequence": letter.sequence,
        "service": letter.service,
        "key": letter.key,
        "type": letter.event_type,
        "time": letter.time.isoformat(),
        "cause": letter.cause,
        "attempts": letter.attempts,
        "traceback": letter.trace,
        "headers": letter.headers,
        **payload_fields(letter.payload),
    }
