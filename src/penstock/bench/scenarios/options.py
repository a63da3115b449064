"""
The command line of `penstock bench`.

Flags follow Go's rules, as in nats-bench: one dash or two, and the subject last. The
subject may also come first.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from penstock.bench.scenarios import engines, servers
from penstock.bench.scenarios.plan import Plan
from penstock.bench.scenarios.scenarios import find
from penstock.config.file.flags import Flag, Given, parse_flags
from penstock.errors import ConfigError
from penstock.protocol import subjects

SERVERS_COMPARED = ("penstock", "nats")
ROUNDS_COMPARED = 3


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a command line."""

    plan: Plan
    servers: tuple[str, ...]
    rounds: int
    csv: str = ""
    json: bool = False
    html: str = ""
    only: str = ""
    engines: tuple[str, ...] = ()
    quick: bool = False
    history: bool = True
    help: bool = False


_DOCS = {item.name: item.metadata["doc"] for item in fields(Plan)}


def _plan_flag(field_name: str, *names: str, kind: type[int] | type[str] = int) -> Flag:
    return Flag(names=names, kind=kind, doc=_DOCS[field_name], directives=(field_name,))


RUN_FLAGS = (
    _plan_flag("scenario", "scenario", kind=str),
    _plan_flag("subject", "subject", kind=str),
    _plan_flag("subscribers", "ns", "num-subs"),
    _plan_flag("publishers", "np", "num-pubs"),
    _plan_flag("messages", "n", "num-msgs"),
    _plan_flag("size_bytes", "ms", "msg-size"),
    _plan_flag("rate", "rate"),
)

TUNING_FLAGS = (
    _plan_flag("window", "window"),
    _plan_flag("batch", "batch"),
    _plan_flag("storage", "storage", kind=str),
    Flag(
        names=("stall",),
        kind=int,
        doc="Seconds without progress before a run is aborted.",
        directives=("stall_s",),
    ),
)

COMMON_FLAGS = (
    Flag(
        names=("s", "server"),
        kind=str,
        doc=f"Servers to measure, repeatable: {', '.join(servers.PROGRAMS)}, or a URL.",
    ),
    Flag(names=("rounds",), kind=int, doc="Rounds; servers take turns, the median round counts."),
    Flag(names=("csv",), kind=str, doc="Write a row for every client to this file."),
    Flag(names=("json",), kind=bool, doc="Print JSON instead of a report."),
    Flag(names=("no-history",), kind=bool, doc="Do not add the results to the history."),
    Flag(names=("h", "help"), kind=bool, doc="Show this message."),
)

COMPARE_FLAGS = (
    Flag(names=("html",), kind=str, doc="File for the page (default: bench.html)."),
    Flag(names=("only",), kind=str, doc="Run only shapes with this text in their name."),
    Flag(
        names=("engine",),
        kind=str,
        doc="Compare engines of the event bus instead of servers: embedded, nats, kafka.",
    ),
    Flag(
        names=("quick",),
        kind=bool,
        doc="Run one round with fewer messages, for a first impression.",
    ),
)


def parse_run(arguments: Sequence[str]) -> Options:
    """Return the options of `penstock bench`."""
    given, rest = _parse(arguments, (*RUN_FLAGS, *TUNING_FLAGS, *COMMON_FLAGS))
    settings = _plan_settings(given)
    if len(rest) > 1:
        raise ConfigError(f"only one subject is possible: {', '.join(f'`{one}`' for one in rest)}")
    if rest:
        settings["subject"] = rest[0]
    settings.setdefault("subject", unique_subject())
    _check_subject(settings["subject"])
    plan = Plan(**settings)
    chosen = _values(given)
    if not chosen.get("h"):
        find(plan.scenario).check(plan)
    named = _servers(given) or ["penstock"]
    rounds = chosen.get("rounds", ROUNDS_COMPARED if len(named) > 1 else 1)
    return _options(plan, named, rounds, chosen)


def parse_compare(arguments: Sequence[str]) -> Options:
    """Return the options of `penstock bench compare`."""
    given, rest = _parse(arguments, (*COMPARE_FLAGS, *TUNING_FLAGS, *COMMON_FLAGS))
    if rest:
        raise ConfigError(f"`{rest[0]}` is one argument too many")
    chosen = _values(given)
    quick = bool(chosen.get("quick"))
    rounds = chosen.get("rounds", 1 if quick else ROUNDS_COMPARED)
    plan = Plan(subject=unique_subject(), **_plan_settings(given))
    return _options(plan, _servers(given) or list(SERVERS_COMPARED), rounds, chosen)


def unique_subject() -> str:
    """Return a subject without other traffic."""
    return f"penstock.bench.{secrets.token_hex(4)}"


def _parse(arguments: Sequence[str], flags: Sequence[Flag]) -> tuple[list[Given], list[str]]:
    """Return the flags from any position, and the other arguments."""
    given: list[Given] = []
    others: list[str] = []
    rest = list(arguments)
    while rest:
        found, rest = parse_flags(rest, flags)
        given += found
        others += rest[:1]
        rest = rest[1:]
    return given, others


def _plan_settings(given: Sequence[Given]) -> dict[str, Any]:
    return {item.flag.directives[0]: item.value for item in given if item.flag.directives}


def _values(given: Sequence[Given]) -> dict[str, Any]:
    return {item.flag.names[0]: item.value for item in given if not item.flag.directives}


def _servers(given: Sequence[Given]) -> list[str]:
    lists = [str(item.value) for item in given if item.flag.names[0] == "s"]
    return list(dict.fromkeys(name for text in lists for name in servers.parse(text)))


def _options(plan: Plan, named: list[str], rounds: int, chosen: dict[str, Any]) -> Options:
    if rounds < 1:
        raise ConfigError(f"`rounds` must be positive: {rounds}")
    return Options(
        plan=plan,
        servers=tuple(named),
        rounds=rounds,
        csv=chosen.get("csv", ""),
        json=bool(chosen.get("json")),
        html=chosen.get("html", "bench.html"),
        only=chosen.get("only", ""),
        engines=engines.parse(chosen.get("engine", "")),
        quick=bool(chosen.get("quick")),
        history=not chosen.get("no-history"),
        help=bool(chosen.get("h")),
    )


def _check_subject(subject: str) -> None:
    if not subjects.is_valid_literal(subject.encode()):
        raise ConfigError(f"`{subject}` is not a valid subject to publish to")
