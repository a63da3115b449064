"""`penstock dlq`: dead letters, from a shell."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.bus.bus import EventBus
from penstock.bus.config import BusConfig
from penstock.bus.letters import DeadLetter, DeadLetterBox, Selection
from penstock.cli.busflags import EXIT_FAILURE, Action, parse_time, run_action
from penstock.errors import ConfigError
from penstock.flags import Flag

FLAGS = (
    Flag(names=("topic",), kind=str, doc="Those that came from this topic."),
    Flag(names=("service",), kind=str, doc="Those that this service gave up."),
    Flag(names=("key",), kind=str, doc="Those of this aggregate id."),
    Flag(names=("type",), kind=str, doc="Those of this event type."),
    Flag(names=("since",), kind=str, doc="Given up since: 2h, 7d, 2026-01-31T12:00:00Z."),
    Flag(names=("until",), kind=str, doc="Given up before."),
    Flag(names=("all",), kind=bool, doc="Replay or discard all there are."),
    Flag(names=("json",), kind=bool, doc="Print one JSON object a line."),
)
LETTER_COLUMNS = "{0:>8}  {1:20}  {2:28}  {3:24}  {4}"


def run(arguments: list[str]) -> int:
    """Run `penstock dlq` and return the exit code."""
    return run_action("dlq", arguments, actions=ACTIONS, flags=FLAGS)


async def list_letters(config: BusConfig, flags: Mapping[str, Any], words: Sequence[str]) -> int:
    """List dead letters, oldest first: [NUMBER ...]."""
    selection = _selection(flags, words)
    if not flags.get("json"):
        print(LETTER_COLUMNS.format("number", "time", "topic", "key", "cause"))
    async with _open(config) as bus:
        async for letter in DeadLetterBox(bus).find(selection):
            print(json.dumps(_as_json(letter)) if flags.get("json") else _row(letter))
    return 0


async def show(config: BusConfig, flags: Mapping[str, Any], words: Sequence[str]) -> int:
    """Show dead letters whole, with the history of their attempts: NUMBER ..."""
    if not words:
        raise ConfigError("say which: penstock dlq show NUMBER")
    async with _open(config) as bus:
        for number in sorted(_numbers(words)):
            letter = await DeadLetterBox(bus).show(number)
            print(json.dumps(_as_json(letter)) if flags.get("json") else _page(letter))
    return 0


async def replay(config: BusConfig, flags: Mapping[str, Any], words: Sequence[str]) -> int:
    """Send dead letters back to their topics and remove them here: [NUMBER ...] or a filter."""
    selection = _chosen(flags, words)
    async with _open(config) as bus:
        letters = await DeadLetterBox(bus).replay(selection)
    return _say("replayed", letters, flags)


async def discard(config: BusConfig, flags: Mapping[str, Any], words: Sequence[str]) -> int:
    """Delete dead letters for good: [NUMBER ...] or a filter."""
    selection = _chosen(flags, words)
    async with _open(config) as bus:
        letters = await DeadLetterBox(bus).discard(selection)
    return _say("discarded", letters, flags)


ACTIONS: Mapping[str, Action] = {
    "list": list_letters,
    "show": show,
    "replay": replay,
    "discard": discard,
}


def _open(config: BusConfig) -> EventBus:
    if config.type == "embedded" and not config.embedded.store_dir:
        raise ConfigError("this bus keeps nothing; hint: --bus nats://… or embedded:<directory>")
    # What is on the broker is looked at, not put right.
    return EventBus(replace(config, strategy="skip"))


def _selection(flags: Mapping[str, Any], words: Sequence[str]) -> Selection:
    return Selection(
        topic=flags.get("topic", ""),
        service=flags.get("service", ""),
        key=flags.get("key", ""),
        event_type=flags.get("type", ""),
        since=parse_time(flags["since"]) if "since" in flags else None,
        until=parse_time(flags["until"]) if "until" in flags else None,
        numbers=_numbers(words),
    )


def _chosen(flags: Mapping[str, Any], words: Sequence[str]) -> Selection:
    """Return the selection; one that selects everything must be meant."""
    selection = _selection(flags, words)
    if selection == Selection() and not flags.get("all"):
        raise ConfigError(
            "say which: numbers, --topic, --service, --key, --type, --since, --until, --all"
        )
    return selection


def _numbers(words: Sequence[str]) -> frozenset[int]:
    wrong = [word for word in words if not word.isdigit()]
    if wrong:
        raise ConfigError(f"`{wrong[0]}` is no number of a dead letter; hint: penstock dlq list")
    return frozenset(map(int, words))


def _say(verb: str, letters: Sequence[DeadLetter], flags: Mapping[str, Any]) -> int:
    for letter in letters:
        print(json.dumps(_as_json(letter)) if flags.get("json") else _row(letter))
    if not flags.get("json"):
        print(f"{len(letters)} {verb}")
    return 0 if letters else EXIT_FAILURE


def _row(letter: DeadLetter) -> str:
    time = f"{letter.time:%Y-%m-%dT%H:%M:%SZ}"
    return LETTER_COLUMNS.format(letter.number, time, letter.topic, letter.key, letter.cause)


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
    lines += [f"  header   {name}: {value}" for name, value in letter.headers]
    return "\n".join([*lines, "", letter.payload.decode(errors="replace")])


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
        "headers": letter.headers,
        "payload": letter.payload.decode(errors="replace"),
    }
