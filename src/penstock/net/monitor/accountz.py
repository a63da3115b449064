"""
`/accountz`, `/accstatz`, and views of features that a single server does not have.

Routes, gateways and leaf nodes connect servers; tools ask for them all the same.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from penstock.config.accounts import Export, Import
from penstock.core.account import Account, Figures
from penstock.core.broker import Broker
from penstock.core.reports.system import account_stats
from penstock.net.monitor import query
from penstock.net.monitor.query import Query, QueryError
from penstock.net.monitor.views import route_figures
from penstock.protocol import times

if TYPE_CHECKING:
    from penstock.net.monitor.watched import Watched

Json = dict[str, Any]

RESPONSES = {"singleton": "Singleton", "stream": "Streamed", "chunked": "Chunked"}


def accountz(server: Watched, asked: Query) -> Json:
    """Return the names of all accounts, or the details of one."""
    broker = server.broker
    document = _head(broker) | {"system_account": broker.directory.system.name}
    name = asked.get("acc", "")
    if not name:
        return document | {"accounts": list(broker.accounts)}
    return document | {"account_detail": account_detail(server, name)}


def account_detail(server: Watched, name: str) -> Json:
    """Return the details of one account."""
    broker = server.broker
    account = broker.accounts.get(name)
    if account is None:
        raise QueryError(f"Account {name} does not exist")
    config, claims = account.config, account.config.claims
    has_jetstream = server.journal is not None and name in server.journal.engines
    detail: Json = {
        "account_name": name,
        "update_time": times.timestamp(server.config_load_ns),
        "expired": False,
        "complete": True,
        "jetstream_enabled": has_jetstream,
        "leafnode_connections": 0,
        "client_connections": account.connections,
        "subscriptions": len(account.routes.trie),
    }
    if account is broker.directory.system:
        detail["is_system"] = True
    shared = {
        "exports": [_export(each) for each in config.exports],
        "imports": [_import(each) for each in config.imports],
        "mappings": _mappings(account),
    }
    detail |= {key: value for key, value in shared.items() if value}
    detail["name_tag"] = config.label
    if claims is not None:
        detail |= {"issuer_key": claims.issuer, "tags": list(claims.tags)}
        detail["expired"] = 0 < claims.expires_s <= broker.clock_ns() / times.SECOND_NS
    return detail | {"sublist_stats": route_figures(broker, [account])}


def accstatz(broker: Broker, asked: Query) -> Json:
    """Return the figures of all accounts with connections; with `unused`, of all."""
    wants_all = query.boolean(asked, "unused")
    accounts = broker.accounts.values()
    chosen = [each for each in accounts if wants_all or each.connections]
    figures: dict[Account, list[Figures]] = defaultdict(list)
    for session in broker.sessions.values():
        figures[session.account].append(session.figures)
    stats = [account_stats(broker, each, figures[each]) for each in chosen]
    return _head(broker) | {"account_statz": stats}


def leafz(broker: Broker) -> Json:
    """Return the leaf nodes, which is an empty list."""
    return _head(broker) | {"leafnodes": 0, "leafs": []}


def routez(broker: Broker) -> Json:
    """Return the routes to other servers, which is an empty list."""
    head = _head(broker)
    named = {"server_id": head["server_id"], "server_name": broker.server_name, "now": head["now"]}
    return named | {"num_routes": 0, "routes": []}


def gatewayz(broker: Broker) -> Json:
    """Return the gateways to other clusters, which is empty."""
    return _head(broker) | {"outbound_gateways": {}, "inbound_gateways": {}}


def _head(broker: Broker) -> Json:
    return {"server_id": broker.server_id, "now": times.timestamp(broker.clock_ns())}


def _export(export: Export) -> Json:
    document: Json = {"subject": export.subject, "type": export.kind}
    if export.kind == "service":
        document["response_type"] = RESPONSES[export.response]
    if export.accounts is not None:
        document["approved_accounts"] = list(export.accounts)
    if export.needs_token:
        document["token_req"] = True
    return document


def _import(taken: Import) -> Json:
    document: Json = {
        "subject": taken.subject,
        "account": taken.account,
        "local_subject": taken.local,
        "type": taken.kind,
        "invalid": False,
        "share": taken.share,
    }
    return document | ({"tracking": False} if taken.kind == "service" else {})


def _mappings(account: Account) -> Json:
    return {
        mapping.source: [
            {"subject": each.subject, "weight": each.weight} for each in mapping.destinations
        ]
        for mapping in account.config.mappings
    }
