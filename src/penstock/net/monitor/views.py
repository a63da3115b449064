"""
The documents of the monitoring endpoints, as functions of a server.

The names of the fields are those of nats-server, since its tools read them. Messages cost
no extra counting: the views add up the figures of the sessions on request. (`/connz`,
`/jsz` and `/healthz` have their own files.)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, ValuesView
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from penstock import hot
from penstock.core.account import Account
from penstock.core.broker import Broker
from penstock.core.routing.route import Route, Subscription
from penstock.net.monitor import query, usage
from penstock.net.monitor.connz import describe_subscription
from penstock.net.monitor.jsz import jetstream_varz
from penstock.net.monitor.query import Query, QueryError
from penstock.protocol import subjects, times
from penstock.protocol.version import FEATURE_FLAGS, VERSION

if TYPE_CHECKING:
    from penstock.net.monitor.watched import Watched

ROUTES_LOOKED_AT = 4096
"""The maximum number of cached routes whose fan-out is computed."""


def varz(server: Watched) -> dict[str, Any]:
    """Return the general state of the server."""
    return {
        **_identity(server),
        **_settings(server),
        "cluster": {},
        "gateway": {},
        "leaf": {},
        "mqtt": {},
        "websocket": _websocket(server),
        "jetstream": jetstream_varz(server),
        **_times(server),
        "mem": usage.resident_bytes(),
        "cores": usage.cores(),
        "cpu": server.usage.cpu_percent(),
        **_figures(server),
        "http_req_stats": dict(server.http_requests),
        "system_account": server.broker.directory.system.name,
        "penstock": {"version": VERSION, "compiled": hot.COMPILED},
    }


def statsz(server: Watched) -> dict[str, Any]:
    """Return the figures for monitoring tools, as in `$SYS.SERVER.<id>.STATSZ`."""
    broker = server.broker
    in_messages, in_bytes, out_messages, out_bytes = broker.totals()
    sent = {"msgs": out_messages, "bytes": out_bytes}
    received = {"msgs": in_messages, "bytes": in_bytes}
    figures = {
        "start": times.timestamp(broker.start_ns),
        "mem": usage.resident_bytes(),
        "cores": usage.cores(),
        "cpu": server.usage.cpu_percent(),
        "connections": len(broker.sessions),
        "total_connections": broker.total_connections,
        "active_accounts": sum(1 for each in broker.accounts.values() if each.connections),
        "subscriptions": subscription_count(broker),
        "sent": sent,
        "sent_to_clients": sent,
        "received": received,
        "received_from_clients": received,
        "slow_consumers": broker.slow_consumers,
        "active_servers": 1,
    }
    jetstream = jetstream_varz(server)
    return figures | ({"jetstream": jetstream} if jetstream else {})


def _identity(server: Watched) -> dict[str, Any]:
    info = server.broker.info
    names = ("server_id", "server_name", "version", "proto", "go", "host", "port")
    only_if_said = ("auth_required",)
    config = server.config
    labels = {"tags": list(config.server_tags), "metadata": dict(config.server_metadata)}
    return (
        {name: info[name] for name in names}
        | {name: info[name] for name in only_if_said if info.get(name)}
        | {name: value for name, value in labels.items() if value}
        | {"feature_flags": FEATURE_FLAGS}
    )


def _settings(server: Watched) -> dict[str, Any]:
    config, limits = server.config, server.config.limits
    ports = (server.http_port or 0, 0)
    http_port, https_port = ports if config.https_port is None else ports[::-1]
    settings = {
        # nats-server shows no limit as -1, and takes 0 for its default.
        "max_connections": limits.max_connections or -1,
        "ping_interval": _nanoseconds(limits.ping_interval),
        "ping_max": limits.ping_max,
        "http_host": config.monitor_host,
        "http_port": http_port,
        "http_base_path": "",
        "https_port": https_port,
        "auth_timeout": limits.auth_timeout,
        "max_control_line": limits.max_control_line,
        "max_payload": limits.max_payload,
        "max_pending": limits.max_pending,
        "write_deadline": _nanoseconds(limits.write_deadline),
    }
    if limits.max_subscriptions:
        settings["max_subscriptions"] = limits.max_subscriptions
    return settings


def _websocket(server: Watched) -> dict[str, Any]:
    config = server.config.websocket
    if config is None:
        return {}
    settings = {
        "advertise": config.advertise,
        "no_auth_user": config.no_auth_user,
        "jwt_cookie": config.jwt_cookie,
        "handshake_timeout": _nanoseconds(config.handshake_timeout),
        "auth_timeout": config.auth_timeout,
        "no_tls": config.no_tls,
        "same_origin": config.same_origin,
        "allowed_origins": list(config.allowed_origins),
        "compression": config.compression,
    }
    said = {name: value for name, value in settings.items() if value}
    return {"host": config.host, "port": server.websocket_port} | said


def _times(server: Watched) -> dict[str, Any]:
    broker = server.broker
    now_ns = broker.clock_ns()
    return {
        "start": times.timestamp(broker.start_ns),
        "now": times.timestamp(now_ns),
        "uptime": times.uptime(now_ns - broker.start_ns),
        "config_load_time": times.timestamp(server.config_load_ns),
    }


def _figures(server: Watched) -> dict[str, Any]:
    broker = server.broker
    in_messages, in_bytes, out_messages, out_bytes = broker.totals()
    return {
        "connections": len(broker.sessions),
        "total_connections": broker.total_connections,
        "routes": 0,
        "remotes": 0,
        "leafnodes": 0,
        "in_msgs": in_messages,
        "in_bytes": in_bytes,
        "in_client_msgs": in_messages,
        "in_client_bytes": in_bytes,
        "out_msgs": out_messages,
        "out_bytes": out_bytes,
        "out_client_msgs": out_messages,
        "out_client_bytes": out_bytes,
        "slow_consumers": broker.slow_consumers,
        "stale_connections": broker.stale_connections,
        "stalled_clients": server.reactor.stalled_clients,
        "subscriptions": subscription_count(broker),
        "slow_consumer_stats": _only_clients(broker.slow_consumers),
        "stale_connection_stats": _only_clients(broker.stale_connections),
    }


def subscription_count(broker: Broker) -> int:
    """Return the number of subscriptions, including the server's own."""
    return sum(len(account.routes.trie) for account in broker.accounts.values())


def subsz(broker: Broker, asked: Query) -> dict[str, Any]:
    """Return the figures of subscriptions and routes; with `subs`, list those of clients."""
    offset, limit = query.page(asked)
    test = asked.get("test", "").encode()
    if test and not subjects.is_valid_literal(test):
        raise QueryError(f"invalid test subject, must be valid publish subject: {asked['test']}")
    name = asked.get("acc")
    accounts = [each for each in broker.accounts.values() if not name or each.name == name]
    document = {
        "server_id": broker.server_id,
        "now": times.timestamp(broker.clock_ns()),
        **route_figures(broker, accounts),
        "total": 0,
        "offset": offset,
        "limit": limit,
    }
    if query.boolean(asked, "subs"):
        groups = _matching(accounts, test) if test else _of_sessions(broker, accounts)
        document["total"] = sum(map(len, groups))
        page = _page(groups, offset, limit)
        if page:
            document["subscriptions_list"] = map(_describe_subscription, page)
    return document


def _matching(accounts: list[Account], test: bytes) -> list[list[Subscription]]:
    """Return the clients' subscriptions that match a subject, by account."""
    found = [account.routes.trie.match(test) for account in accounts]
    return [[each for each in some if each.session and not each.origin] for some in found]


def _of_sessions(broker: Broker, accounts: list[Account]) -> list[ValuesView[Subscription]]:
    """Return the clients' subscriptions, by client."""
    chosen = set(accounts)
    sessions = [each for each in broker.sessions.values() if each.account in chosen]
    return [each.subscriptions.values() for each in sessions]


def _page(
    groups: Sequence[Collection[Subscription]], offset: int, limit: int
) -> list[Subscription]:
    """Return up to `limit` subscriptions from an offset on, skipping whole groups."""
    page: list[Subscription] = []
    for group in groups:
        if offset < len(group):
            page += islice(group, offset, offset + limit - len(page))
        offset = max(offset - len(group), 0)
        if len(page) >= limit:
            break
    return page


def _describe_subscription(subscription: Subscription) -> dict[str, Any]:
    session = subscription.session
    assert session is not None, "it was found through its session"
    account = {"account": session.account.name, "account_tag": session.account.name}
    return account | describe_subscription(subscription) | {"cid": session.client_id}


def route_figures(broker: Broker, accounts: list[Account]) -> dict[str, Any]:
    """Return the figures of some accounts' routes."""
    tables = [account.routes for account in accounts]
    routes = chain.from_iterable(table.cache.values() for table in tables)
    fanouts = [_fanout(route) for route in islice(routes, ROUTES_LOOKED_AT)]
    matches = sum(table.matches for table in tables)
    messages = max(broker.totals()[0], 1)
    return {
        "num_subscriptions": sum(len(table.trie) for table in tables),
        "num_cache": sum(len(table.cache) for table in tables),
        "num_inserts": sum(table.inserts for table in tables),
        "num_removes": sum(table.removes for table in tables),
        "num_matches": matches,
        # Hits are not counted: they are the messages whose route was not computed anew.
        "cache_hit_rate": max(messages - matches, 0) / messages,
        "max_fanout": max(fanouts, default=0),
        "avg_fanout": sum(fanouts) / max(len(fanouts), 1),
    }


def _fanout(route: Route) -> int:
    shared = sum([len(subscriptions) for _, subscriptions in route.shared])
    alone = len(route.single) + len(route.careful) + len(route.handlers)
    return shared + alone + len(route.queues) + len(route.careful_queues)


def _only_clients(count: int) -> dict[str, int]:
    return {"clients": count, "routes": 0, "gateways": 0, "leafs": 0}


def _nanoseconds(seconds: float) -> int:
    return int(seconds * times.SECOND_NS)
