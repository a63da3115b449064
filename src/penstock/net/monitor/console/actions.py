"""
Actions of somebody who has signed in: each as requests of that user.

Permissions are not looked at here: the server checks them, as for any client. What cannot be
undone is confirmed by the name of what it is done to.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import PenstockError
from penstock.net.monitor.console import letters
from penstock.net.monitor.console.fields import Fields, number, numbers, text
from penstock.net.monitor.console.signing import Refused, Visit, name_of

if TYPE_CHECKING:
    from penstock.net.monitor.watched import Watched

log = logging.getLogger("penstock")

Json = dict[str, Any]
LETTERS_MAX = 500
PAUSE_S_MAX = 365 * 24 * 3600
HEADERS_MAX = 64


class Context(NamedTuple):
    """An action that is asked for: where, by whom, and with what."""

    server: Watched
    visit: Visit
    fields: Fields

    def text(self, name: str, default: str | None = None) -> str:
        """Return a text of the request."""
        return text(self.fields, name, default)


class Action(NamedTuple):
    """An action: what it does, and the name that confirms it."""

    run: Callable[[Context], Awaitable[Json]]
    confirmed_by: Callable[[Context], str] | None


async def act(server: Watched, visit: Visit, fields: Fields) -> Json:
    """Do what is asked for, and log who asked."""
    name = text(fields, "action")
    action = ACTIONS.get(name)
    if action is None:
        raise Refused(400, "there is no such action")
    context = Context(server, visit, fields)
    target = ""
    if action.confirmed_by is not None:
        target = action.confirmed_by(context)
        if fields.get("confirm") != target:
            raise Refused(400, "the name that was typed is another one; nothing was done")
    said = f"{name} {target or context.text('subject', '')!r}"
    try:
        result = await action.run(context)
    except PenstockError as error:
        log.warning("Console: %s: %s failed: %.200r", name_of(visit), said, error)
        raise
    log.info("Console: %s from %s: %s %s", name_of(visit), visit.peer, said, json.dumps(result))
    return result


async def _publish(context: Context) -> Json:
    pairs = context.fields.get("headers", [])
    if not isinstance(pairs, list) or len(pairs) > HEADERS_MAX:
        raise Refused(400, f"`headers` are a list of at most {HEADERS_MAX}")
    headers = [(text({"header": a}, "header"), text({"value": b}, "value", "")) for a, b in pairs]
    payload = context.text("payload", "").encode()
    client, denied = context.visit.client, list[Exception]()

    def deny(subject: bytes, error: Exception) -> None:
        denied.append(error)

    client.connection.publish_denied.append(deny)
    try:
        await client.publish(context.text("subject"), payload, headers=headers or None)
        await client.flush()
    finally:
        client.connection.publish_denied.remove(deny)
    if denied:
        raise denied[0]
    return {"bytes": len(payload)}


async def _purge(context: Context) -> Json:
    subject = context.text("subject", "")
    request = {"filter": subject} if subject else {}
    streams = context.visit.client.jetstream().streams
    return {"purged": await streams.purge(context.text("stream"), **request)}


async def _delete_stream(context: Context) -> Json:
    await context.visit.client.jetstream().streams.delete(context.text("stream"))
    return {}


async def _delete_message(context: Context) -> Json:
    streams = context.visit.client.jetstream().streams
    await streams.delete_message(context.text("stream"), number(context.fields, "sequence"))
    return {}


async def _delete_consumer(context: Context) -> Json:
    consumers = context.visit.client.jetstream().consumers
    await consumers.delete(context.text("stream"), context.text("consumer"))
    return {}


async def _pause(context: Context) -> Json:
    seconds = number(context.fields, "seconds", most=PAUSE_S_MAX)
    until = datetime.now(UTC) + timedelta(seconds=seconds)
    request = {"pause_until": until.isoformat()} if seconds else {}
    consumers = context.visit.client.jetstream().consumers
    await consumers.pause(context.text("stream"), context.text("consumer"), **request)
    return {"seconds": seconds}


async def _kick(context: Context) -> Json:
    return await _order(context, "KICK", {"cid": number(context.fields, "cid")})


async def _reload(context: Context) -> Json:
    return await _order(context, "RELOAD", {})


async def _order(context: Context, kind: str, request: Json) -> Json:
    """Ask the server as only users of the system account may."""
    broker, visit = context.server.broker, context.visit
    if visit.session.account is not broker.directory.system:
        raise Refused(403, "only a user of the system account may do this; sign in as one")
    subject = f"$SYS.REQ.SERVER.{broker.server_id}.{kind}"
    answer = json.loads((await visit.client.request(subject, json.dumps(request).encode())).payload)
    if "error" in answer:
        raise Refused(409, answer["error"]["description"])
    return {}


async def _replay(context: Context) -> Json:
    chosen = numbers(context.fields, "letters", count_max=LETTERS_MAX)
    return await letters.replay(context.visit.client, context.text("bus"), chosen)


async def _discard(context: Context) -> Json:
    chosen = numbers(context.fields, "letters", count_max=LETTERS_MAX)
    return await letters.discard(context.visit.client, context.text("bus"), chosen)


def _field(name: str) -> Callable[[Context], str]:
    return lambda context: str(context.fields.get(name, ""))


ACTIONS = {
    "publish": Action(_publish, None),
    "purge": Action(_purge, _field("stream")),
    "delete_stream": Action(_delete_stream, _field("stream")),
    "delete_message": Action(_delete_message, _field("sequence")),
    "delete_consumer": Action(_delete_consumer, _field("consumer")),
    "pause": Action(_pause, _field("consumer")),
    "kick": Action(_kick, _field("cid")),
    "reload": Action(_reload, lambda context: "reload"),
    "replay": Action(_replay, _field("bus")),
    "discard": Action(_discard, _field("bus")),
}
"""Every action by its name. Of a message that is published, the subject was typed anyway."""
