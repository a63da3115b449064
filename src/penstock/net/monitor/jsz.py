"""
`/jsz`: the state of JetStream, down to each consumer on request.

The names of the fields are those of nats-server. A limit that is not set is -1. Streams and
consumers are described lazily, while the document is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.config.jetstream import JetStreamConfig
from penstock.jetstream.api import streaminfo
from penstock.jetstream.config.stream import REQUIRED_LEVEL
from penstock.jetstream.consumers.consumer import Consumer
from penstock.jetstream.engine import JetStreamEngine
from penstock.jetstream.stream import Stream
from penstock.net.monitor import query
from penstock.net.monitor.query import Query
from penstock.protocol import times
from penstock.protocol.rfc3339 import format_time
from penstock.protocol.version import API_LEVEL

if TYPE_CHECKING:
    from penstock.net.monitor.watched import Watched

Json = dict[str, Any]

SWITCHES = ("accounts", "streams", "consumers", "config")
IGNORED_SWITCHES = ("leader-only", "stream-leader-only", "raft", "direct-consumers")
"""Options that change nothing, because one server leads everything; but they must be valid."""
LIMITS = {"default_max_consumers": 1000}
NO_RESERVATION = (1 << 64) - 1
"""The reservation of an account without limits, as nats-server reports it."""


def jsz(server: Watched, asked: Query) -> Json:
    """Return the figures of JetStream, in the requested detail."""
    offset, limit = query.page(asked)
    chosen = {name for name in SWITCHES if query.boolean(asked, name)}
    for name in IGNORED_SWITCHES:
        query.boolean(asked, name)
    head = {"server_id": server.broker.server_id, "now": times.timestamp(server.broker.clock_ns())}
    journal = server.journal
    if journal is None:
        return _stats([], 0) | head | {"disabled": True} | _disabled()
    engines = list(journal.engines.values())
    document = _stats(engines, API_LEVEL) | head | describe(journal.config) | _totals(engines)
    account = asked.get("acc", "")
    listed = [each for each in engines if each.account.name == account] if account else []
    if not account and chosen - {"config"}:
        listed = sorted(engines, key=lambda each: each.account.name)[offset:]
    if listed[:limit]:
        document["account_details"] = (_account(each, chosen) for each in listed[:limit])
    return document | {"total": len(engines)}


def jetstream_varz(server: Watched) -> Json:
    """Return JetStream's part of `/varz`; empty if it is off."""
    if server.journal is None:
        return {}
    described = describe(server.journal.config)
    stats = _stats(list(server.journal.engines.values()), API_LEVEL)
    return {"config": described["config"], "stats": stats, "limits": described["limits"]}


def describe(config: JetStreamConfig) -> Json:
    """Return the settings of JetStream."""
    settings: Json = {
        "max_memory": _or_unlimited(config.max_mem),
        "max_storage": _or_unlimited(config.max_file),
        "store_dir": f"{config.store_dir}/jetstream",
    }
    if config.sync_interval == "always":
        settings["sync_always"] = True
    else:
        settings["sync_interval"] = int(config.sync_interval * times.SECOND_NS)
    if config.domain:
        settings["domain"] = config.domain
    return {"config": settings | {"strict": True}, "limits": LIMITS}


def _or_unlimited(limit: int | None) -> int:
    return -1 if limit is None else limit


def _disabled() -> Json:
    counts = dict.fromkeys(("streams", "consumers", "messages", "bytes", "total"), 0)
    return {"config": {"max_memory": 0, "max_storage": 0}} | counts


def _stats(engines: list[JetStreamEngine], level: int) -> Json:
    return {
        "memory": sum(engine.used_bytes("memory") for engine in engines),
        "storage": sum(engine.used_bytes("file") for engine in engines),
        "reserved_memory": sum(engine.reserved_bytes("memory") for engine in engines),
        "reserved_storage": sum(engine.reserved_bytes("file") for engine in engines),
        "accounts": len(engines),
        "ha_assets": 0,
        **_api(
            level,
            sum(engine.context.api_requests for engine in engines),
            sum(engine.context.api_errors for engine in engines),
        ),
    }


def _api(level: int, total: int, errors: int) -> Json:
    return {"api": {"level": level, "total": total, "errors": errors}}


def _totals(engines: list[JetStreamEngine]) -> Json:
    streams = [stream for engine in engines for stream in engine.streams.values()]
    return {
        "streams": len(streams),
        "consumers": sum(len(stream.consumers) for stream in streams),
        "messages": sum(stream.store.messages for stream in streams),
        "bytes": sum(stream.store.size_bytes for stream in streams),
    }


def _account(engine: JetStreamEngine, chosen: set[str]) -> Json:
    name = engine.account.name
    details: Json = {"name": name, "id": name} | _stats([engine], 0)
    context, most_of = engine.context, engine.quota.limits
    limits = {"memory": most_of.max_memory, "storage": most_of.max_store}
    for kind, most in limits.items():
        details[f"reserved_{kind}"] = most if most >= 0 else NO_RESERVATION
    details |= {"accounts": 0, **_api(0, context.api_requests, context.api_errors)}
    if chosen & {"streams", "consumers"}:
        details["stream_detail"] = _streams(engine, chosen)
    return details


def _streams(engine: JetStreamEngine, chosen: set[str]) -> Iterator[Json]:
    """Yield the description of each stream that still exists when its turn comes."""
    for name in sorted(engine.streams):
        if name in engine.streams:
            yield _stream(engine.streams[name], chosen)


def _stream(stream: Stream, chosen: set[str]) -> Json:
    details: Json = {
        "name": stream.name,
        "created": format_time(stream.created_ns),
        "cluster": {"leader": stream.context.shared.server_name},
    }
    if "config" in chosen:
        details["config"] = stream.config.to_json()
    details["state"] = streaminfo.state(stream)
    if "consumers" in chosen and stream.consumers:
        details["consumer_detail"] = _consumers(stream, chosen)
    return details


def _consumers(stream: Stream, chosen: set[str]) -> Iterator[Json]:
    for name in sorted(stream.consumers):
        consumer = stream.consumers.get(name)
        if consumer is not None:
            yield _consumer(consumer, chosen)


def _consumer(consumer: Consumer, chosen: set[str]) -> Json:
    info, config = consumer.info(), consumer.config
    if "config" not in chosen:
        del info["config"]
        return info
    metadata = dict(config.metadata) | {REQUIRED_LEVEL: "0"}
    return info | {"config": config.to_json() | {"metadata": metadata}}
