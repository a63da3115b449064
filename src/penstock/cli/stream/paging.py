"""`penstock stream view`: the messages of a stream, page by page."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

from penstock.cli.arguments import Verb, argument
from penstock.cli.connection import CONNECTION
from penstock.cli.context import Context
from penstock.cli.payload import headers_field, message_text, payload_fields, write_raw
from penstock.cli.stream.reading import ALL, first_since, messages
from penstock.cli.values import read_moment, read_positive, show_time
from penstock.client import StoredMessage
from penstock.errors import ConfigError
from penstock.protocol.times import SECOND_NS

PAGE = 10


async def view(context: Context) -> None:
    """Print messages; on a terminal, ask after each page."""
    arguments = context.arguments
    first, shown = await _first(context), 0
    pages = sys.stdin.isatty() and sys.stdout.isatty() and not arguments.json
    found = messages(context.js, arguments.stream, first=first, subject=arguments.subject)
    async for message in found:
        if shown == arguments.count:
            return
        if pages and arguments.count is None and shown and not shown % PAGE and not _goes_on():
            return
        print_stored(context, message)
        shown += 1
    if not shown:
        context.say("no messages")


async def _first(context: Context) -> int:
    """Return the first sequence to show."""
    arguments = context.arguments
    named = [value for value in (arguments.start, arguments.since, arguments.last) if value]
    if len(named) > 1:
        raise ConfigError("only one of `--start`, `--since` and `--last` can be used")
    if arguments.last:
        state = (await context.js.streams.info(arguments.stream))["state"]
        return int(state["last_seq"]) - int(arguments.last) + 1
    if arguments.since:
        time_ns = round(arguments.since.timestamp() * SECOND_NS)
        return await first_since(context.js, arguments.stream, time_ns)
    return arguments.start or 1


def _goes_on() -> bool:
    print("-- Enter for more, q ends --", end=" ", file=sys.stderr, flush=True)
    return not sys.stdin.readline().strip().lower().startswith("q")


def print_stored(context: Context, message: StoredMessage) -> None:
    """Print one of several stored messages."""
    if context.arguments.raw:
        write_raw(message.payload)
        return
    title = f"[{message.sequence}] {message.subject}  {show_time(message.time)} UTC"
    text = message_text(title, message.header_pairs, message.payload)
    context.show_event(text, stored_document(message))


def stored_document(message: StoredMessage) -> dict[str, object]:
    """Return a stored message for JSON."""
    return {
        "stream": message.stream,
        "subject": message.subject,
        "sequence": message.sequence,
        "time": message.time,
        "headers": headers_field(message.header_pairs),
        **payload_fields(message.payload),
    }


VERBS = (
    Verb(
        name="view",
        summary="Print the messages of a stream, page by page.",
        run=view,
        arguments=(
            argument("stream", metavar="NAME", doc=""),
            argument(
                "--subject", metavar="SUBJECT", default=ALL, doc="Only messages on these subjects."
            ),
            argument(
                "--start", metavar="SEQUENCE", type=read_positive, doc="The first message to show."
            ),
            argument(
                "--since",
                metavar="TIME",
                type=lambda text: read_moment(text, datetime.now(UTC)),
                doc="Only messages since this time: `2h`, `2026-11-15T09:00:00Z`.",
            ),
            argument(
                "--last",
                metavar="NUMBER",
                type=read_positive,
                doc="Only this number of the newest sequences.",
            ),
            argument(
                "--count",
                metavar="NUMBER",
                type=read_positive,
                doc=f"Stop after this number (default: pages of {PAGE}; all without a terminal).",
            ),
            argument("--raw", action="store_true", doc="Print only payloads."),
            *CONNECTION,
        ),
    ),
)
