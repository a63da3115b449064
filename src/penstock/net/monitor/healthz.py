"""`/healthz`: whether clients can connect and JetStream can store, or the problems."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.jetstream.engine import JetStreamEngine
from penstock.net.monitor import query
from penstock.net.monitor.query import Query

if TYPE_CHECKING:
    from penstock.net.monitor.watched import Watched

SWITCHES = ("js-enabled", "js-enabled-only", "js-server-only", "js-meta-only")
NEEDS = (("stream", "account"), ("consumer", "stream"))

BAD_REQUEST = 400
NOT_FOUND = 404
UNAVAILABLE = 503


class Problem(NamedTuple):
    """One problem."""

    status: int
    type: str
    """The kind of problem, in nats-server's words."""
    error: str
    where: dict[str, str]
    """The affected account, stream and consumer, as far as there is one."""


def healthz(
    server: Watched, asked: Query, findings: Sequence[Mapping[str, object]] = ()
) -> tuple[int, dict[str, Any]]:
    """
    Return the HTTP status, and "ok" or the problems.

    With `details`, findings that need an operator are told too. They do not change the status:
    whoever asks for it would restart the server, which helps against none of them.
    """
    switches = {name for name in SWITCHES if query.boolean(asked, name)}
    has_details = query.boolean(asked, "details")
    attention = {"attention": list(findings)} if has_details and findings else {}
    problems = list(_problems(server, asked, switches))
    if not problems:
        return 200, {"status": "ok"} | _damage(server) | attention
    if has_details:
        errors = [{"type": each.type, **each.where, "error": each.error} for each in problems]
        return problems[0].status, {"status": "error", "errors": errors} | attention
    first = problems[0]
    status = "unavailable" if first.status == NOT_FOUND else "error"
    return first.status, {"status": status, "error": first.error}


def _damage(server: Watched) -> dict[str, int]:
    """Return the numbers of damaged messages and files, if any. No restart brings them back."""
    engines = server.journal.engines.values() if server.journal is not None else ()
    streams = [stream for engine in engines for stream in engine.streams.values()]
    figures = {
        "lost_messages": sum(stream.store.lost for stream in streams),
        "faults": sum(len(stream.losses.faults) for stream in streams),
    }
    return {name: figure for name, figure in figures.items() if figure}


def _problems(server: Watched, asked: Query, switches: set[str]) -> Iterator[Problem]:
    for name, needed in NEEDS:
        if asked.get(name) and not asked.get(needed):
            text = f'"{needed}" must not be empty when checking {name} health'
            yield Problem(BAD_REQUEST, "BAD_REQUEST", text, {})
            return
    if not server.is_ready:
        yield Problem(UNAVAILABLE, "CONN", "the server accepts no connections", {})
    # `js-enabled-only` asks whether JetStream runs, `js-server-only` leaves the streams out.
    if server.journal is not None and not switches - {"js-meta-only"}:
        if server.journal.stuck_s:
            text = f"JetStream waits for its disk since {server.journal.stuck_s:.0f} s"
            yield Problem(UNAVAILABLE, "JETSTREAM", text, {})
        yield from _jetstream_problems(server.journal.engines, asked)


def _jetstream_problems(engines: Mapping[str, JetStreamEngine], asked: Query) -> Iterator[Problem]:
    account = asked.get("account", "")
    if account and account not in engines:
        text = f'JetStream account "{account}" not found'
        yield Problem(NOT_FOUND, "ACCOUNT", text, {"account": account})
        return
    for name, engine in engines.items():
        if not account or name == account:
            yield from _stream_problems(engine, asked)


def _stream_problems(engine: JetStreamEngine, asked: Query) -> Iterator[Problem]:
    account, stream, consumer = (asked.get(name, "") for name in ("account", "stream", "consumer"))
    where = {"account": engine.account.name}
    if stream and stream not in engine.streams:
        text = f'JetStream stream "{stream}" not found on account "{account}"'
        yield Problem(NOT_FOUND, "STREAM", text, where | {"stream": stream})
    elif consumer and consumer not in engine.streams[stream].consumers:
        place = f'stream "{stream}" on account "{account}"'
        text = f'JetStream consumer "{consumer}" not found for {place}'
        where |= {"stream": stream, "consumer": consumer}
        yield Problem(NOT_FOUND, "CONSUMER", text, where)
    for verb, failures in (
        ("be recovered", engine.unreadable),
        ("recover a consumer", engine.unreadable_consumers()),
        ("store", engine.failures()),
        ("store how far its consumers are", engine.consumer_failures()),
    ):
        for name, reason in failures.items():
            if not stream or stream == name:
                text = f"JetStream stream '{name}' cannot {verb}: {reason}"
                yield Problem(UNAVAILABLE, "STREAM", text, where | {"stream": name})
