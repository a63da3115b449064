"""`penstock dlq`: dead letters on the command line."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.cli.arguments import Argument, Verb, argument
from penstock.cli.buscommand import WHICH, BusContext, run_bus_command
from penstock.cli.commands import EXIT_FAILURE
from penstock.cli.connection import JSON
from penstock.cli.payload import payload_fields, payload_text
from penstock.cli.terminal import table
from penstock.cli.values import read_moment
from penstock.errors import BusError, ConfigError
from penstock.protocol.tables import printable

if TYPE_CHECKING:
    from penstock.bus.bus import EventBus
    from penstock.bus.config.bus import BusConfig
    from penstock.bus.deadletters.stored import DeadLetter, DeadLetterBox, Selection

Act: TypeAlias = "Callable[[DeadLetterBox, Selection], AsyncGenerator[DeadLetter, None]]"

HEADER = ("NUMBER", "TIME", "BUS", "TOPIC", "KEY", "CAUSE")

CAUSE_CHARACTERS_MAX = 200
"""The beginning of a cause that the list shows; `show` and `--json` have all of it."""


def _numbers(arity: str) -> Argument:
    doc = "Numbers of dead letters, as `list` prints them."
    return argument("number", doc=doc, nargs=arity, type=int)


ALL = argument("--all", doc="All dead letters.", action="store_true")
TOPIC = argument("--topic", doc="Only from this topic.", metavar="TOPIC", default="")
FILTERS = (
    TOPIC,
    argument("--service", doc="Only those of this service.", metavar="SERVICE", default=""),
    argument("--key", doc="Only with this aggregate id.", metavar="KEY", default=""),
    argument("--type", doc="Only of this event type.", metavar="TYPE", default=""),
    argument(
        "--since",
        doc="Only since this time: `2h`, `7d`, `2026-01-31T12:00:00Z`.",
        metavar="TIME",
        type=read_moment,
    ),
    argument("--until", doc="Only before this time.", metavar="TIME", type=read_moment),
)

LINES = replace(JSON, doc="Print JSON, for scripts: a line for each dead letter.")
OPTIONS = (LINES, *(one for one in WHICH if one is not JSON))


def run(arguments: list[str]) -> int:
    """Run `penstock dlq` and return the exit code."""
    return run_bus_command("dlq", VERBS, arguments)


async def list_letters(context: BusContext) -> None:
    """List dead letters, oldest first."""
    from penstock.bus.deadletters.stored import DeadLetterBox

    configs, rows = await context.configs(), []
    for config in configs:
        async with _open(config) as bus:
            async for letter in DeadLetterBox(bus).find(_selection(context)):
                rows.append(_row(letter, config))
                if context.given.json:
                    print(json.dumps(_as_json(letter, config)), flush=True)
    if rows and not context.given.json:
        print(table(HEADER, rows, left=6))
    if not rows:
        _say_none(configs, _selection(context))


async def show(context: BusContext) -> None:
    """Show dead letters in full."""
    from penstock.bus.deadletters.stored import Selection

    for number in sorted(context.given.number):
        selection = Selection(numbers=frozenset((number,)), topic=context.given.topic)
        config, letters = await _one_bus(context, selection)
        if not letters:
            raise BusError(f"there is no dead letter {number}")
        for letter in letters:
            document = _as_json(letter, config)
            print(json.dumps(document) if context.given.json else _page(letter, config))


async def replay(context: BusContext) -> None:
    """Send dead letters back to their topics."""
    from penstock.bus.deadletters.stored import DeadLetterBox

    await _act(context, "replayed", DeadLetterBox.replaying)


async def discard(context: BusContext) -> None:
    """Delete dead letters for good."""
    from penstock.bus.deadletters.stored import DeadLetterBox

    await _act(context, "discarded", DeadLetterBox.discarding)


async def _act(context: BusContext, done: str, act: Act) -> None:
    """Apply `act` to each selected letter, and report each one as it is done."""
    from penstock.bus.deadletters.stored import DeadLetterBox

    selection, count = _chosen(context), 0
    config, letters = await _one_bus(context, selection)
    try:
        async with _open(config) as bus, aclosing(act(DeadLetterBox(bus), selection)) as acted:
            async for letter in acted:
                count += 1
                _print(letter, config, context)
    except BaseException:
        task = asyncio.current_task()
        is_cut = task is not None and task.cancelling() > 1
        more = ", possibly one more: it was interrupted" if is_cut else ""
        say(f"{count} of {len(letters)} {done}{more}; run the same command again for the others")
        raise
    if not context.given.json:
        print(f"{count} {done}")
    if not count:
        context.exit_code = EXIT_FAILURE


VERBS = (
    Verb(
        name="list",
        aliases=("ls",),
        summary="List dead letters, oldest first.",
        run=list_letters,
        arguments=(_numbers("*"), *FILTERS, *OPTIONS),
    ),
    Verb(
        name="show",
        summary="Show dead letters in full, with the history of their attempts.",
        run=show,
        arguments=(_numbers("+"), TOPIC, *OPTIONS),
    ),
    Verb(
        name="replay",
        summary="Send dead letters back to their topics, and remove them from the list.",
        run=replay,
        arguments=(_numbers("*"), *FILTERS, ALL, *OPTIONS),
    ),
    Verb(
        name="discard",
        summary="Delete dead letters for good.",
        run=discard,
        arguments=(_numbers("*"), *FILTERS, ALL, *OPTIONS),
    ),
)


def _open(config: BusConfig) -> EventBus:
    from penstock.bus.bus import EventBus

    if config.type == "embedded" and not config.embedded.store_dir:
        raise ConfigError("this bus stores nothing; hint: --bus nats://… or embedded:<directory>")
    # Only look at the broker: do not apply the declared topics.
    if config.type == "kafka":
        # A topic remembers what is discarded there, and may have to be made.
        return EventBus(replace(config, strategy="create_only", topics={}))
    return EventBus(replace(config, strategy="skip"))


async def _one_bus(context: BusContext, selection: Selection) -> tuple[BusConfig, list[DeadLetter]]:
    """Return the only bus with matching letters, and the letters; several buses are an error."""
    from penstock.bus.deadletters.stored import DeadLetterBox

    found = []
    configs = await context.configs()
    for config in configs:
        async with _open(config) as bus:
            letters = [letter async for letter in DeadLetterBox(bus).find(selection)]
        if letters:
            found.append((config, letters))
    if len(found) > 1:
        names = ", ".join(f"`{config.namespace}`" for config, _ in found)
        raise ConfigError(f"several buses have matching dead letters: {names}; hint: --namespace")
    if not found:
        _say_none(configs, selection)
    return found[0] if found else (configs[0] if configs else context.config, [])


def _say_none(configs: Sequence[BusConfig], selection: Selection) -> None:
    from penstock.bus.deadletters.stored import Selection

    names = ", ".join(f"`{config.namespace}`" for config in configs)
    which = "no dead letters" if selection == Selection() else "none of the dead letters asked for"
    say(f"{which} in {names}" if names else "there is no bus here")


def say(text: str) -> None:
    """Print to stderr for people; stdout is for data."""
    print(f"penstock: {text}", file=sys.stderr, flush=True)


def _selection(context: BusContext) -> Selection:
    from penstock.bus.deadletters.stored import Selection

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
    """Return the selection; selecting everything needs `--all`."""
    from penstock.bus.deadletters.stored import Selection

    selection = _selection(context)
    if selection == Selection() and not context.given.all:
        raise ConfigError("no selection; hint: numbers, --topic, --key, --since … or --all")
    return selection


def _print(letter: DeadLetter, config: BusConfig, context: BusContext) -> None:
    if context.given.json:
        print(json.dumps(_as_json(letter, config)), flush=True)
    else:
        print("  ".join(map(printable, _row(letter, config))), flush=True)


def _row(letter: DeadLetter, config: BusConfig) -> tuple[str, ...]:
    time = f"{letter.time:%Y-%m-%dT%H:%M:%SZ}"
    cause = letter.cause
    if len(cause) > CAUSE_CHARACTERS_MAX:
        cause = f"{cause[:CAUSE_CHARACTERS_MAX]}…"
    return (str(letter.number), time, config.namespace, letter.topic, letter.key, cause)


def _page(letter: DeadLetter, config: BusConfig) -> str:
    lines = [
        f"dead letter {letter.number}",
        f"  bus      {config.namespace}",
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


def _as_json(letter: DeadLetter, config: BusConfig) -> dict[str, Any]:
    return {
        "number": letter.number,
        "bus": config.namespace,
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
