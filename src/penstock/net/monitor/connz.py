"""
`/connz`: the connections, open and closed.

Connections are selected and sorted first. Only those on the requested page are described,
one by one as the document is written, and so are the subscriptions of each: the server can do
other things meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Any

from penstock.config.accounts import GLOBAL
from penstock.core.broker import Broker
from penstock.core.reports.record import SessionRecord, SubscriptionRecord, user_of
from penstock.core.routing.route import Subscription
from penstock.core.routing.trie import Steps, TooManySteps
from penstock.core.session import Session
from penstock.net.monitor import query
from penstock.net.monitor.query import Query, QueryError
from penstock.protocol import subjects, times

Connection = Session | SessionRecord

STATES = {
    "": ("open",),
    "open": ("open",),
    "closed": ("closed",),
    "any": ("open", "closed"),
    "all": ("open", "closed"),
}
ONLY_CLOSED = ("stop", "reason")
LISTED_MAX = 16_384
"""The maximum number of subscriptions in one answer: `/subsz` pages through all of them."""
STEPS_MAX = 100_000
"""The budget of tokens for finding the subscribers of a subject."""


@dataclass(frozen=True, kw_only=True)
class ConnzOptions:
    """The options of a request."""

    sort: str
    states: tuple[str, ...]
    offset: int
    limit: int
    client_id: int
    account: str
    user: str
    subject: bytes
    with_auth: bool
    with_subscriptions: bool
    with_details: bool


def connz(broker: Broker, asked: Query) -> dict[str, Any]:
    """Return the requested connections. The page is described lazily, on iteration."""
    options = read_options(asked)
    now_ns = broker.clock_ns()
    known = [each for each in _known(broker, options) if _is_of_account(each, options.account)]
    hearing = _hearing(broker, options) if options.subject else set()
    chosen = [each for each in known if _is_chosen(each, options, hearing)]
    key, most_first = SORTS[options.sort]
    chosen.sort(key=key, reverse=most_first)
    page = chosen[options.offset : options.offset + options.limit]
    return {
        "server_id": broker.server_id,
        "now": times.timestamp(now_ns),
        "num_connections": len(page),
        "total": len(known),
        "offset": options.offset,
        "limit": options.limit,
        "connections": _described(page, options, now_ns),
    }


def _described(
    page: list[Connection], options: ConnzOptions, now_ns: int
) -> Iterator[dict[str, Any]]:
    """Yield the entries of a page. Only the first ones get their subscriptions, up to a limit."""
    left = LISTED_MAX
    for connection in page:
        yield describe(connection, options, now_ns, listed_max=left)
        left -= min(left, _subscription_count(connection))


def read_options(asked: Query) -> ConnzOptions:
    """Read the options of a request; refuse invalid ones."""
    state = asked.get("state", "").lower()
    if state not in STATES:
        raise QueryError(f"Error decoding state for {asked['state']}")
    sort = asked.get("sort") or "cid"
    if sort not in SORTS:
        raise QueryError(f"invalid sorting option: {sort}")
    if sort in ONLY_CLOSED and state != "closed":
        raise QueryError(f"sort by {sort} only valid on closed connections")
    with_details = asked.get("subs", "").lower() == "detail"
    offset, limit = query.page(asked)
    client_id = query.integer(asked, "cid")
    return ConnzOptions(
        sort=sort,
        states=STATES[state],
        offset=offset,
        limit=1 if client_id else limit,
        client_id=client_id,
        account=asked.get("acc", ""),
        user=asked.get("user", ""),
        subject=asked.get("filter_subject", "").encode(),
        with_auth=query.boolean(asked, "auth"),
        with_subscriptions=not with_details and query.boolean(asked, "subs"),
        with_details=with_details,
    )


def _known(broker: Broker, options: ConnzOptions) -> Iterator[Connection]:
    if "open" in options.states:
        yield from broker.sessions.values()
    if "closed" in options.states:
        yield from broker.closed


def _is_of_account(connection: Connection, account: str) -> bool:
    return not account or account == _account_name(connection)


def _hearing(broker: Broker, options: ConnzOptions) -> set[Session | None]:
    """Return the sessions with a subscription that overlaps with a subject."""
    steps = Steps(STEPS_MAX)
    accounts = broker.accounts.values()
    chosen = [each for each in accounts if not options.account or each.name == options.account]
    try:
        return {
            subscription.session
            for account in chosen
            for subscription in account.routes.trie.overlapping(options.subject, steps)
            if subscription.origin is None
        }
    except TooManySteps:
        raise QueryError("filter_subject overlaps with too many subscriptions") from None


def _is_chosen(connection: Connection, options: ConnzOptions, hearing: set[Session | None]) -> bool:
    if options.client_id and connection.client_id != options.client_id:
        return False
    if options.user and options.user != _user(connection):
        return False
    if not options.subject:
        return True
    if isinstance(connection, Session):
        return connection in hearing
    patterns = [each.subject for each in connection.subscriptions]
    return any(subjects.overlap(options.subject, pattern) for pattern in patterns)


def describe(
    connection: Connection, options: ConnzOptions, now_ns: int, *, listed_max: int = 0
) -> dict[str, Any]:
    """Return one entry of the list, with up to `listed_max` subscriptions if requested."""
    is_open = isinstance(connection, Session)
    record = SessionRecord(connection) if isinstance(connection, Session) else connection
    until_ns = now_ns if is_open else record.stop_ns
    entry: dict[str, Any] = {
        "cid": record.client_id,
        "kind": "Client",
        "type": record.kind,
        "ip": record.ip,
        "port": record.port,
        "start": times.timestamp(record.start_ns),
        "last_activity": times.timestamp(record.last_activity_ns),
    }
    if not is_open:
        entry |= {"stop": times.timestamp(record.stop_ns), "reason": record.reason}
    entry |= {
        "rtt": _round_trip(record.round_trip_ns),
        "uptime": times.uptime(until_ns - record.start_ns),
        "idle": times.uptime(until_ns - record.last_activity_ns),
        "pending_bytes": record.outbox_bytes,
        "in_msgs": record.in_messages,
        "out_msgs": record.out_messages,
        "in_bytes": record.in_bytes,
        "out_bytes": record.out_bytes,
        "subscriptions": record.subscription_count,
    }
    extras = _extras(connection, record, options, listed_max)
    return entry | {name: value for name, value in extras if value}


def _extras(
    connection: Connection, record: SessionRecord, options: ConnzOptions, listed_max: int
) -> Iterator[tuple[str, Any]]:
    """Yield the optional fields; the caller drops empty ones."""
    yield "name", record.name
    yield "lang", record.language
    yield "version", record.version
    if record.tls is not None:
        yield "tls_version", record.tls.version
        yield "tls_cipher_suite", record.tls.cipher_suite
        yield "tls_first", record.tls.is_first
        if options.with_auth and (certificate := record.tls.certificate):
            shown = {
                "subject": certificate.distinguished_name,
                "spki_sha256": certificate.public_key_sha256,
                "cert_sha256": certificate.sha256,
            }
            yield "tls_peer_certs", [shown]
    if options.with_auth:
        yield "authorized_user", record.user
        yield "account", "" if record.account_name == GLOBAL else record.account_name
        yield "name_tag", record.account_name
    if not options.with_subscriptions and not options.with_details:
        return
    # A copy: the client may change its subscriptions while they are written.
    listed = list(islice(_subscriptions(connection), listed_max))
    if listed and options.with_subscriptions:
        yield "subscriptions_list", (each.subject.decode(errors="replace") for each in listed)
    if listed and options.with_details:
        own = {"cid": record.client_id}
        yield "subscriptions_list_detail", (describe_subscription(each) | own for each in listed)


def describe_subscription(subscription: Subscription | SubscriptionRecord) -> dict[str, Any]:
    """Return one subscription, as /subsz shows it too."""
    detail: dict[str, Any] = {"subject": subscription.subject.decode(errors="replace")}
    if subscription.queue:
        detail["qgroup"] = subscription.queue.decode(errors="replace")
    detail["sid"] = subscription.sid.decode(errors="replace")
    detail["msgs"] = subscription.delivered
    if subscription.messages_max:
        detail["max"] = subscription.messages_max
    return detail


def _subscriptions(connection: Connection) -> Iterable[Subscription | SubscriptionRecord]:
    if isinstance(connection, Session):
        return connection.subscriptions.values()
    return connection.subscriptions


def _subscription_count(connection: Connection) -> int:
    if isinstance(connection, Session):
        return len(connection.subscriptions)
    return connection.subscription_count


def _account_name(connection: Connection) -> str:
    return connection.account.name if isinstance(connection, Session) else connection.account_name


def _user(connection: Connection) -> str:
    return user_of(connection) if isinstance(connection, Session) else connection.user


def _uptime_ns(connection: Connection) -> int:
    if isinstance(connection, Session):
        return connection.broker.clock_ns() - connection.start_ns
    return connection.stop_ns - connection.start_ns


def _round_trip(round_trip_ns: int) -> str:
    """Return the duration without meaningless nanoseconds, as nats-server does."""
    if 1_000 < round_trip_ns < 1_000_000:
        round_trip_ns -= round_trip_ns % 1_000
    return times.duration(round_trip_ns)


SORTS: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "cid": (attrgetter("client_id"), False),
    "start": (attrgetter("client_id"), False),
    "subs": (_subscription_count, True),
    "pending": (attrgetter("outbox_bytes"), True),
    "msgs_to": (attrgetter("out_messages"), True),
    "msgs_from": (attrgetter("in_messages"), True),
    "bytes_to": (attrgetter("out_bytes"), True),
    "bytes_from": (attrgetter("in_bytes"), True),
    "last": (attrgetter("last_activity_ns"), True),
    "idle": (attrgetter("last_activity_ns"), False),
    "uptime": (_uptime_ns, False),
    "stop": (attrgetter("stop_ns"), True),
    "reason": (attrgetter("reason"), False),
    "rtt": (attrgetter("round_trip_ns"), True),
}
"""Sort option → its key, and whether to sort in descending order."""
