"""`penstock events`: what servers report, as it happens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from penstock.cli.arguments import Verb, argument
from penstock.cli.connection import CONNECTION
from penstock.cli.context import Context
from penstock.cli.values import read_positive
from penstock.client import Message
from penstock.protocol.tables import printable

QUEUE_MESSAGES_MAX = 10_000
ADVISORIES = ("$JS.EVENT.ADVISORY.>", "$JS.EVENT.METRIC.>")
OF_THE_SYSTEM = ("$SYS.ACCOUNT.*.CONNECT", "$SYS.ACCOUNT.*.DISCONNECT", "$SYS.SERVER.>")
NAMES = ("stream", "consumer", "stream_seq", "deliveries", "action", "reason", "error")
"""The fields of an advisory that a line shows."""


async def listen(context: Context) -> None:
    """Print advisories of JetStream, and what the system account hears of connections."""
    arguments, shown = context.arguments, 0
    queue: asyncio.Queue[Message] = asyncio.Queue(QUEUE_MESSAGES_MAX)

    def arrived(message: Message) -> None:
        if not queue.full():
            queue.put_nowait(message)

    for subject in arguments.subject or (*ADVISORIES, *OF_THE_SYSTEM):
        await context.client.subscribe(subject, callback=arrived)
    await context.client.flush()
    context.say("listening for events; Ctrl-C ends")
    while shown != arguments.count:
        message = await queue.get()
        document = _document(message)
        context.show_event(f"{_clock(document)}  {_line(message.subject, document)}", document)
        shown += 1


def _document(message: Message) -> dict[str, Any]:
    try:
        document = json.loads(message.payload)
    except ValueError:
        document = {}
    return {"subject": message.subject, **(document if isinstance(document, dict) else {})}


def _clock(document: Mapping[str, Any]) -> str:
    time = document.get("timestamp")
    return time[11:19] if isinstance(time, str) else datetime.now(UTC).strftime("%H:%M:%S")


def _line(subject: str, document: Mapping[str, Any]) -> str:
    kind = str(document.get("type", subject)).rpartition(".")[2]
    client = document.get("client") or {}
    who = [str(client.get(name)) for name in ("user", "name", "host") if client.get(name)]
    fields = [f"{name} {document[name]}" for name in NAMES if document.get(name)]
    return printable("  ".join([kind.replace("_", " "), *fields, *who]))


EVENTS = Verb(
    name="events",
    summary="Print what servers report: JetStream's advisories, and connections.",
    run=listen,
    arguments=(
        argument(
            "subject",
            metavar="SUBJECT",
            nargs="*",
            doc="Subjects to listen on (default: all events that the user may hear).",
        ),
        argument(
            "--count", metavar="NUMBER", type=read_positive, doc="Stop after this number of events."
        ),
        *CONNECTION,
    ),
    endless=True,
)
