"""
The rules for what needs an operator's attention, as functions of reports.

The console, `/healthz?details=1` and the metric `penstock_attention` show their findings, and the
alert rules for Prometheus are made from them, so all of these agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from penstock.net.monitor.watch.reports import ConsumerReport, Reports, StreamReport

BEHIND_MIN = 100
"""Less than this waits for its turn now and then, however fast a consumer is."""
GROWTH_MIN = 1.05
STILL_S = 60.0
DISK_HOURS = 24.0
DISK_FREE_MIN = 256 << 20
HOUR_S = 3600.0


@dataclass(frozen=True)
class Finding:
    """One thing that needs attention."""

    rule: str
    text: str
    """A sentence."""
    where: dict[str, str] = field(default_factory=dict)
    """The account, stream, consumer or pipeline that it is about."""
    severity: str = "warning"

    def as_json(self) -> dict[str, object]:
        """Return it for a page."""
        return {"rule": self.rule, "severity": self.severity, "text": self.text, **self.where}


@dataclass(frozen=True)
class Rule:
    """A rule, and what its alert tells."""

    name: str
    severity: str
    summary: str
    advice: str
    find: Callable[[Reports], Iterator[tuple[str, dict[str, str]]]]


def findings(reports: Reports) -> list[Finding]:
    """Return what all rules find, the most severe first; an empty list if all is well."""
    return [found for rule in RULES for found in apply(rule, reports)]


def apply(rule: Rule, reports: Reports) -> list[Finding]:
    """Return what one rule finds."""
    return [Finding(rule.name, text, where, rule.severity) for text, where in rule.find(reports)]


def _of_stream(one: StreamReport) -> dict[str, str]:
    return {"account": one.account, "stream": one.name}


def _of_consumer(one: ConsumerReport) -> dict[str, str]:
    return {"account": one.account, "stream": one.stream, "consumer": one.name}


def _damage(reports: Reports) -> Iterator[tuple[str, dict[str, str]]]:
    for account, stream, reason in reports.unreadable:
        text = f"`{stream}` could not be brought back whole: {reason}"
        yield text, {"account": account, "stream": stream}
    for one in reports.streams.values():
        if one.lost:
            yield f"`{one.name}` has lost {one.lost:,} messages: damaged on disk", _of_stream(one)
        elif one.faults:
            faults = f"{one.faults:,} damaged or missing files were found"
            yield f"`{one.name}`: {faults}; the log names them", _of_stream(one)


def _failure(reports: Reports) -> Iterator[tuple[str, dict[str, str]]]:
    for one in reports.streams.values():
        if one.failure:
            yield f"`{one.name}` cannot store: {one.failure}", _of_stream(one)


def _disk(reports: Reports) -> Iterator[tuple[str, dict[str, str]]]:
    server = reports.server
    if 0 <= server.disk_free < DISK_FREE_MIN:
        yield f"the disk has {server.disk_free >> 20:,} MB left", {}
    elif 0 <= server.disk_full_s < DISK_HOURS * HOUR_S:
        yield f"the disk will be full in {_hours(server.disk_full_s)} if this goes on", {}


def _losing(reports: Reports) -> Iterator[tuple[str, dict[str, str]]]:
    for one in reports.consumers.values():
        if one.passed:
            yield (
                f"`{one.name}` loses messages: the limit of `{one.stream}` removed {one.passed:,} "
                "that it had not read",
                _of_consumer(one),
            )


def _stuck(reports: Reports) -> Iterator[tuple[str, dict[str, str]]]:
    for one in reports.consumers.values():
        if one.pending and 0 < one.unacked_max <= one.unacked:
            yield (
                f"`{one.name}` on `{one.stream}` gets no more: {one.unacked:,} messages are not "
                f"acked, and {one.pending:,} wait",
                _of_consumer(one),
            )


def _behind(reports: Reports) -> Iterator[tuple[str, dict[str, str]]]:
    for one in reports.consumers.values():
        if one.pending < BEHIND_MIN or one.pending_before < 0 or one.is_paused:
            continue
        if one.pending > one.pending_before * GROWTH_MIN:
            grown = one.pending - one.pending_before
            yield (
                f"`{one.name}` on `{one.stream}` is {one.pending:,} messages behind, "
                f"{grown:,} more than a minute ago",
                _of_consumer(one),
            )


def _dead_letters(reports: Reports) -> Iterator[tuple[str, dict[str, str]]]:
    for one in reports.streams.values():
        bus = bus_of_dead(reports, one)
        if bus and one.messages:
            newest = f", the newest {one.newest}" if one.newest else ""
            count = f"{one.messages:,} dead letter{'s' if one.messages > 1 else ''}"
            yield f"bus `{bus}` has {count}{newest}", _of_stream(one) | {"bus": bus}


def bus_of_dead(reports: Reports, one: StreamReport) -> str:
    """Return the bus whose dead letters a stream has; empty if it is another stream."""
    bus = one.name.removesuffix("-dead")
    return bus if bus != one.name and (one.account, bus) in reports.streams else ""


def _slow(reports: Reports) -> Iterator[tuple[str, dict[str, str]]]:
    server = reports.server
    if server.slow_lately:
        count = f"{server.slow_lately:,} client{'s were' if server.slow_lately > 1 else ' was'}"
        last = f", the last {server.slow_last}" if server.slow_last else ""
        yield f"{count} cut off as too slow in the last 15 minutes{last}", {}


def _standstill(reports: Reports) -> Iterator[tuple[str, dict[str, str]]]:
    for one in reports.pipelines:
        behind = one.behind_messages + one.stored_since
        if one.age_s > STILL_S and behind > 0:
            yield (
                f"pipeline `{one.name}` stands still: no batch for {_span(one.age_s)}, "
                f"{behind:,} messages behind on `{one.stream}`",
                {"account": one.account, "pipeline": one.name, "stream": one.stream},
            )


def _span(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds < HOUR_S else _hours(seconds)


def _hours(seconds: float) -> str:
    return f"{max(seconds / HOUR_S, 0.1):.1f} h"


RULES = (
    Rule(
        "store_failure",
        "critical",
        "A stream cannot store",
        "Publishing to it is refused. Make room on the disk or mend it; the stream tries again "
        "by itself.",
        _failure,
    ),
    Rule(
        "damage",
        "critical",
        "Damage was found in a store",
        "`penstock store check` names it; restore the stream from a backup.",
        _damage,
    ),
    Rule(
        "disk",
        "critical",
        "The disk is full, or will be soon",
        "Lower the limits of the largest streams, purge what is not needed, or add space.",
        _disk,
    ),
    Rule(
        "losing",
        "critical",
        "A consumer loses messages",
        "The limit of the stream removes messages before the consumer reads them. Raise the limit "
        "or make the consumer faster.",
        _losing,
    ),
    Rule(
        "stuck",
        "warning",
        "A consumer has reached max_ack_pending",
        "Its clients do not ack. Look at them, then raise `max_ack_pending` if they are well.",
        _stuck,
    ),
    Rule(
        "behind",
        "warning",
        "A consumer is behind and falls further behind",
        "Add clients or make them faster; raise `max_ack_pending` if they wait for acks.",
        _behind,
    ),
    Rule(
        "dead_letters",
        "warning",
        "A bus has dead letters",
        "`penstock dlq list` shows them; replay them once the cause is gone, or discard them.",
        _dead_letters,
    ),
    Rule(
        "slow_consumers",
        "warning",
        "Clients were cut off as too slow",
        "They lose core messages while they are away. Make them read faster, or spread the load "
        "with a queue group.",
        _slow,
    ),
    Rule(
        "standstill",
        "warning",
        "A pipeline stands still",
        "Look at its driver: it has reported no batch while messages wait.",
        _standstill,
    ),
)
"""Every rule; the order is that of the findings."""
