"""The tables of the console: what each has, and how its rows are sorted, searched and described."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from penstock.core.reports.record import SessionRecord, user_of
from penstock.core.session import Session
from penstock.net.monitor.console.selecting import Row, Table
from penstock.net.monitor.query import Query
from penstock.net.monitor.watch.history import History
from penstock.net.monitor.watch.reports import ConsumerReport, Reports, StreamReport
from penstock.protocol import times

if TYPE_CHECKING:
    from penstock.core.account import Account
    from penstock.net.monitor.watched import Watched

SUBJECTS_MAX = 64
"""The number of subscriptions that are listed of a connection."""


class Views:
    """The tables of one server."""

    def __init__(self, server: Watched, history: History) -> None:
        self._server = server
        self._history = history
        self.tables: dict[str, Callable[[Reports, Query], Table[Any]]] = {
            "streams": self._streams,
            "consumers": self._consumers,
            "connections": self._connections,
            "accounts": self._accounts,
        }

    def _streams(self, reports: Reports, asked: Query) -> Table[StreamReport]:
        def describe(one: StreamReport) -> Row:
            kind, name = kind_of(one.name)
            row = one._asdict() | {"fill": round(one.fill, 3), "kind": kind, "title": name}
            return row | {"spark": self._history.sketch(("stored", *one.key))}

        return Table(
            items=reports.streams.values(),
            key=lambda one: "\n".join(one.key),
            account=lambda one: one.account,
            text=lambda one: f"{one.name} {one.account}",
            sorts={
                "name": lambda one: one.name.lower(),
                **_by("account", "messages", "bytes", "rate", "fill", "last", "consumers"),
            },
            describe=describe,
        )

    def _consumers(self, reports: Reports, asked: Query) -> Table[ConsumerReport]:
        stream = asked.get("stream", "")
        chosen = reports.consumers.values()

        def describe(one: ConsumerReport) -> Row:
            return one._asdict() | {"spark": self._history.sketch(("pending", *one.key))}

        return Table(
            items=(one for one in chosen if not stream or one.stream == stream),
            key=lambda one: "\n".join(one.key),
            account=lambda one: one.account,
            text=lambda one: f"{one.name} {one.stream} {one.account}",
            sorts={
                "pending": lambda one: one.pending,
                "name": lambda one: one.name.lower(),
                **_by(
                    "account", "stream", "unacked", "redelivered", "waiting", "rate", "delivered"
                ),
            },
            describe=describe,
        )

    def _connections(self, reports: Reports, asked: Query) -> Table[Any]:
        broker, now_ns = self._server.broker, self._server.broker.clock_ns()
        is_closed = asked.get("state") == "closed"
        found: Any = list(broker.closed)[::-1] if is_closed else list(broker.sessions.values())

        def describe(one: Session | SessionRecord) -> Row:
            return _connection(one, now_ns)

        return Table(
            items=found,
            key=lambda one: str(one.client_id),
            account=_account_of,
            text=lambda one: f"{_name_of(one)} {one.ip} {_user_of(one)} {one.client_id}",
            sorts={
                "cid": lambda one: -one.client_id if is_closed else one.client_id,
                "name": lambda one: _name_of(one).lower(),
                "address": lambda one: one.ip,
                "in": lambda one: one.in_messages,
                "out": lambda one: one.out_messages,
                "waiting": lambda one: one.outbox_bytes,
                "subscriptions": _subscription_count,
                "rtt": lambda one: one.round_trip_ns,
                "reason": lambda one: getattr(one, "reason", ""),
            },
            describe=describe,
        )

    def _accounts(self, reports: Reports, asked: Query) -> Table[Account]:
        streams = Counter(account for account, _ in reports.streams)
        stored: Counter[str] = Counter()
        for stream in reports.streams.values():
            stored[stream.account] += stream.bytes

        def describe(one: Account) -> Row:
            return {
                "name": one.name,
                "label": one.config.label,
                "connections": one.connections,
                "subscriptions": len(one.routes.trie),
                "slow_consumers": one.slow_consumers,
                "streams": streams[one.name],
                "bytes": stored[one.name],
                "is_system": one is self._server.broker.directory.system,
            }

        return Table(
            items=list(self._server.broker.accounts.values()),
            key=lambda one: one.name,
            account=lambda one: one.name,
            text=lambda one: one.name,
            sorts={
                "name": lambda one: one.name.lower(),
                "connections": lambda one: one.connections,
                "subscriptions": lambda one: len(one.routes.trie),
                "streams": lambda one: streams[one.name],
                "bytes": lambda one: stored[one.name],
                "slow_consumers": lambda one: one.slow_consumers,
            },
            describe=describe,
        )


def kind_of(name: str) -> tuple[str, str]:
    """Return what a stream is by its name, and the name that its users know it by."""
    for prefix, kind in (("KV_", "bucket"), ("OBJ_", "objects")):
        if name.startswith(prefix):
            return kind, name.removeprefix(prefix)
    return "stream", name


def _by(*names: str) -> dict[str, Callable[[Any], Any]]:
    def of(name: str) -> Callable[[Any], Any]:
        return lambda one: getattr(one, name)

    return {name: of(name) for name in names}


def _connection(one: Session | SessionRecord, now_ns: int) -> Row:
    record = SessionRecord(one) if isinstance(one, Session) else one
    row: Row = {
        "cid": record.client_id,
        "name": record.name,
        "kind": record.kind,
        "address": f"{record.ip}:{record.port}",
        "account": record.account_name,
        "user": record.user,
        "client": f"{record.language} {record.version}".strip(),
        "in": record.in_messages,
        "out": record.out_messages,
        "in_bytes": record.in_bytes,
        "out_bytes": record.out_bytes,
        "waiting": record.outbox_bytes,
        "subscriptions": record.subscription_count,
        "rtt": record.round_trip_ns,
        "tls": record.tls.version if record.tls is not None else "",
        "idle_s": round((now_ns - record.last_activity_ns) / times.SECOND_NS),
        "subjects": list(islice(_subjects(one), SUBJECTS_MAX)),
    }
    if not isinstance(one, Session):
        row |= {"reason": one.reason, "closed": times.timestamp(one.stop_ns)}
    return row


def _subjects(one: Session | SessionRecord) -> Iterator[str]:
    listed = one.subscriptions.values() if isinstance(one, Session) else one.subscriptions
    for each in listed:
        queue = f" (queue {each.queue.decode(errors='replace')})" if each.queue else ""
        yield each.subject.decode(errors="replace") + queue


def _account_of(one: Session | SessionRecord) -> str:
    return one.account.name if isinstance(one, Session) else one.account_name


def _name_of(one: Session | SessionRecord) -> str:
    if isinstance(one, SessionRecord):
        return one.name
    name = one.connect_options.get("name")
    return name if isinstance(name, str) else ""


def _user_of(one: Session | SessionRecord) -> str:
    return user_of(one) if isinstance(one, Session) else one.user


def _subscription_count(one: Session | SessionRecord) -> int:
    return len(one.subscriptions) if isinstance(one, Session) else one.subscription_count
