"""The examination of a server: connectivity, clock, limits, and streams that lose messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from penstock.cli.account import user_info
from penstock.cli.context import Context
from penstock.cli.doctor.findings import BAD, OK, WARNING, Finding
from penstock.cli.stream.reports import fill
from penstock.cli.values import show_count, show_many, show_size
from penstock.errors import JetStreamError, NoResponders
from penstock.protocol.rfc3339 import parse_time
from penstock.protocol.times import SECOND_NS
from penstock.protocol.version import NATS_VERSION

RTT_S_MAX = 0.25
CLOCK_S_MAX = 1.0
SHARE_MAX = 0.9


async def examine(context: Context) -> AsyncIterator[Finding]:
    """Look at the server, the account, and every stream and consumer in it."""
    began_s, began_ns = asyncio.get_running_loop().time(), time.time_ns()
    user = await user_info(context)
    rtt_s = asyncio.get_running_loop().time() - began_s
    yield _connection(context, rtt_s)
    if server_time := (user.get("server") or {}).get("time"):
        yield _clock(parse_time(server_time), began_ns + round(rtt_s * SECOND_NS / 2))
    try:
        info = await context.js.account_info()
    except (JetStreamError, NoResponders) as error:
        yield Finding(WARNING, "jetstream", str(error), "start it with `penstock serve -js`")
        return
    yield _limits(info)
    sound = True
    for stream in await context.js.streams.list():
        for finding in await _stream(context, stream):
            sound = False
            yield finding
    if sound:
        many = show_many(info["streams"], "stream")
        yield Finding(OK, "streams", f"nothing is wrong with {many}")


def _connection(context: Context, rtt_s: float) -> Finding:
    info = context.client.info
    version = str(info["version"])
    tls = ", TLS" if info.get("tls_required") else ""
    text = f"{context.client.server}, NATS {version}{tls}, {rtt_s * 1000:.1f} ms"
    if rtt_s > RTT_S_MAX:
        return Finding(WARNING, "connection", text, "the way there is long, or the server is busy")
    older = _numbers(version) < _numbers(NATS_VERSION)[:2]
    remedy = "an older server lacks some features" if older else ""
    return Finding(WARNING if older else OK, "connection", text, remedy)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.partition("-")[0].split(".") if part.isdigit()]


def _clock(theirs_ns: int, ours_ns: int) -> Finding:
    off_s = (theirs_ns - ours_ns) / SECOND_NS
    text = f"the server's is {abs(off_s):.3f} s {'ahead' if off_s > 0 else 'behind'}"
    if abs(off_s) <= CLOCK_S_MAX:
        return Finding(OK, "clock", text)
    return Finding(BAD, "clock", text, "synchronize both with NTP: ages and expiry depend on it")


def _limits(info: dict[str, Any]) -> Finding:
    """Compare the use of JetStream with the limits of the account."""
    used = []
    for name, limit in (("memory", "max_memory"), ("storage", "max_storage")):
        bound = info["limits"].get(limit, -1)
        if bound > 0 and info[name] > bound * SHARE_MAX:
            used.append(f"{name} {show_size(info[name])} of {show_size(bound)}")
    if used:
        return Finding(BAD, "limits", ", ".join(used), "purge streams, or raise the limit")
    text = f"storage {show_size(info['storage'])}, memory {show_size(info['memory'])}"
    return Finding(OK, "limits", text)


async def _stream(context: Context, info: dict[str, Any]) -> list[Finding]:
    """Return what is wrong with a stream and its consumers."""
    name, found = info["config"]["name"], []
    share = fill(info) or 0.0
    if info["config"]["discard"] == "new" and share >= SHARE_MAX:
        text = f"`{name}` is full to {share:.0%}, and refuses messages then"
        found.append(Finding(BAD, "streams", text, "raise its limits, or purge it"))
    for origin in [*filter(None, [info.get("mirror")]), *(info.get("sources") or [])]:
        if origin.get("error"):
            text = f"`{name}` does not copy `{origin['name']}`: {origin['error']['description']}"
            found.append(Finding(BAD, "streams", text))
    if info["state"]["consumer_count"]:
        consumers = await context.js.consumers.list(name)
        found += [each for consumer in consumers for each in _consumer(info, consumer, share)]
    return found


def _consumer(stream: dict[str, Any], info: dict[str, Any], share: float) -> Iterator[Finding]:
    name = f"`{info['stream_name']}` > `{info['name']}`"
    behind = info["num_pending"] + info["num_ack_pending"]
    loses = stream["config"]["discard"] == "old" and share >= 1.0
    if loses and behind >= stream["state"]["messages"] * SHARE_MAX:
        text = f"{name} is {show_count(behind)} behind: the stream's limit has reached it"
        yield Finding(BAD, "consumers", text, "it loses messages: raise the limit, or add workers")
    bound = info["config"].get("max_ack_pending", -1)
    if 0 < bound <= info["num_ack_pending"]:
        unacked = f"{show_many(bound, 'message')} {'is' if bound == 1 else 'are'} unacked"
        text = f"{name} gets no more: {unacked}"
        yield Finding(BAD, "consumers", text, "find what does not ack, or raise max_ack_pending")
    if info["config"].get("deliver_subject") and not info.get("push_bound"):
        if info["num_pending"]:
            text = f"nobody subscribes to the deliver subject of {name}"
            yield Finding(WARNING, "consumers", text)
    if info.get("paused"):
        yield Finding(WARNING, "consumers", f"{name} is paused")
