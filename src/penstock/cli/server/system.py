"""Ask servers about themselves, as a user of the system account may."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.cli.context import Context
from penstock.client.jetstream.api import encode, read_object
from penstock.errors import ClientError, NoResponders, RequestTimeout
from penstock.protocol.times import SECOND_NS

SILENCE_S = 0.3
"""Once a server has answered, the others have this time."""
NO_RESPONDERS = 503
NOT_ALLOWED = (
    "the servers answer only users of the system account; hint: log in as one, by --user or --creds"
)


PING = "SERVER.PING"


async def ask_all(context: Context, what: str = PING, **options: Any) -> list[dict[str, Any]]:
    """Ask every server; return the answers in the order they came, with the time it took."""
    client, loop = context.client, asyncio.get_running_loop()
    target = f"$SYS.REQ.{what}"
    found: list[dict[str, Any]] = []
    began_s = loop.time()
    async with await client.subscribe(client.new_inbox()) as replies:
        await client.publish(target, encode(options) if options else b"", reply=replies.subject)
        wait_s = context.arguments.timeout / SECOND_NS
        while True:
            try:
                message = await replies.next(timeout_s=wait_s)
            except RequestTimeout:
                break
            if message.status[0] == NO_RESPONDERS:
                raise NoResponders(NOT_ALLOWED)
            found.append({**read_object(message.payload), "rtt_s": loop.time() - began_s})
            wait_s = SILENCE_S
    if not found:
        raise NoResponders(NOT_ALLOWED)
    return [answer for answer in found if _checked(answer)]


async def ask_one(context: Context, server: str, what: str, **options: Any) -> dict[str, Any]:
    """Ask one server, by its name or id."""
    infos = [answer["server"] for answer in await ask_all(context)]
    ids = [info["id"] for info in infos if server in (info["id"], info["name"])] or [
        info["id"] for info in infos if not server and len(infos) == 1
    ]
    if len(ids) != 1:
        names = ", ".join(f"`{info['name']}`" for info in infos)
        raise ClientError(f"which server? hint: one of {names}")
    target = f"$SYS.REQ.SERVER.{ids[0]}.{what}"
    reply = await context.client.request(target, encode(options) if options else b"")
    answer = read_object(reply.payload)
    _checked(answer)
    return answer


def _checked(answer: dict[str, Any]) -> bool:
    error = answer.get("error")
    if error:
        description = error.get("description", "") if isinstance(error, dict) else error
        raise ClientError(f"a server refused: {description}")
    return True
