"""
The event buses on a server, as far as the server can know them: by their streams.

A bus keeps its events, its dead letters and the leases of its services in streams with names that
belong together; see `penstock.bus.engines.nats.layout`. The consumers of a service are named
after it.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from penstock.jetstream.engine import JetStreamEngine
from penstock.jetstream.stream import Stream
from penstock.net.monitor.watch.reports import ConsumerReport, Reports, StreamReport
from penstock.protocol import times

if TYPE_CHECKING:
    from penstock.net.monitor.watched import Watched

Json = dict[str, Any]

OWN = "-own+"
DEAD, LEASES = "-dead", "-leases"
CONSUMERS_MAX = 500
MEMBERS_BYTES_MAX = 64 * 1024


def buses(server: Watched, reports: Reports) -> Generator[None, None, Json]:
    """Return every bus with its services."""
    found = []
    for account, name in sorted(_names(reports)):
        engine = server.journal.engines.get(account) if server.journal is not None else None
        if engine is None:
            continue
        dead = reports.streams.get((account, name + DEAD))
        kept = [each for each in reports.streams.values() if _is_of(each, account, name)]
        found.append(
            {
                "account": account,
                "name": name,
                "messages": sum(each.messages for each in kept),
                "rate": sum(each.rate for each in kept),
                "topics": [each.name.partition(OWN)[2] for each in kept if OWN in each.name],
                "dead": dead.messages if dead is not None else 0,
                "newest": dead.newest if dead is not None else "",
                "services": (yield from _services(engine, name, kept, reports)),
            }
        )
        yield
    return {"buses": found}


def _names(reports: Reports) -> set[tuple[str, str]]:
    """Return account and name of each bus: a stream with others that belong to it."""
    found = set()
    for account, stream in reports.streams:
        base = stream.partition(OWN)[0].removesuffix(DEAD).removesuffix(LEASES)
        if base != stream and (account, base) in reports.streams:
            found.add((account, base))
    return found


def _is_of(stream: StreamReport, account: str, name: str) -> bool:
    is_named = stream.name == name or stream.name.startswith(name + OWN)
    return stream.account == account and is_named


def _services(
    engine: JetStreamEngine, name: str, kept: list[StreamReport], reports: Reports
) -> Generator[None, None, list[Json]]:
    members = yield from _members(engine.streams.get(name + LEASES))
    services: dict[str, Json] = {
        service: {"name": service, "members": some, "reads": []}
        for service, some in members.items()
    }
    streams = {each.name for each in kept}
    left = CONSUMERS_MAX
    for one in reports.consumers.values():
        service, plus, pattern = one.name.partition("+")
        if one.account != engine.account.name or one.stream not in streams or not plus or not left:
            continue
        left -= 1
        known = services.setdefault(service, {"name": service, "members": [], "reads": []})
        known["reads"].append(_reading(engine, one, pattern))
        yield
    return [services[each] for each in sorted(services)]


def _reading(engine: JetStreamEngine, one: ConsumerReport, pattern: str) -> Json:
    """Return how far a service is with a pattern of topics."""
    topic = ".".join({"@": "*", "@@": ">"}.get(each, each) for each in pattern.split("+"))
    return {
        "pattern": topic,
        "stream": one.stream,
        "consumer": one.name,
        "pending": one.pending,
        "unacked": one.unacked,
        "unacked_max": one.unacked_max,
        "redelivered": one.redelivered,
        "rate": one.rate,
        "oldest_s": _oldest_s(engine, one),
    }


def _oldest_s(engine: JetStreamEngine, one: ConsumerReport) -> float:
    """Return the age of the oldest message that is not done; 0 if none waits or it is gone."""
    stream = engine.streams.get(one.stream)
    consumer = stream.consumers.get(one.name) if stream is not None else None
    if stream is None or consumer is None or not one.pending + one.unacked:
        return 0.0
    first = min(consumer.ledger.pending, default=consumer.backlog.next_sequence)
    message = stream.store.get(max(first, stream.store.first_sequence))
    if message is None:
        return 0.0
    return max(engine.context.clock_ns() - message[1], 0) / times.SECOND_NS


def _members(stream: Stream | None) -> Generator[None, None, dict[str, list[Json]]]:
    """Return the members of each service, by what its leader has written down."""
    found: dict[str, list[Json]] = {}
    for portion in stream.store.subject_portions(b">") if stream is not None else ():
        yield
        for subject, sequence, _ in portion:
            service = subject.decode(errors="replace").partition(".")[2]
            message = stream.store.get(sequence) if stream is not None else None
            members = read_lease(message[4]) if message is not None else None
            if members is not None:
                found[service] = members
            if len(found) >= CONSUMERS_MAX:
                return found
            yield
    return found


def read_lease(payload: bytes) -> list[Json] | None:
    """Return the members that a lease names; None if it is no lease: anybody may publish there."""
    if len(payload) > MEMBERS_BYTES_MAX:
        return None
    try:
        written = json.loads(payload)
        holder, members = str(written["holder"]), dict(written["members"])
        slots = {str(name): len(each) for name, each in members.items()}
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if holder:
        slots.setdefault(holder, 0)
    return [{"name": name, "slots": slots[name], "leads": name == holder} for name in sorted(slots)]
