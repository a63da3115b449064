"""`penstock consumer`: create, show, edit and pull from consumers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from penstock.cli.arguments import Verb, argument
from penstock.cli.confirm import FORCE, confirm
from penstock.cli.connection import CONNECTION
from penstock.cli.consumer.settings import CONSUMER_SETTINGS, as_fields
from penstock.cli.consumer.view import ConsumerFigures, info_text, list_text, report_text
from penstock.cli.context import Context
from penstock.cli.payload import headers_field, message_text, payload_fields, write_raw
from penstock.cli.runner import run_command
from penstock.cli.settings import CONFIG_FILE, difference, given, options, without_told
from penstock.cli.values import (
    read_positive,
    read_until,
    rfc3339,
    show_duration,
    show_many,
    show_time,
)
from penstock.cli.watch import WATCH, watch
from penstock.client import Message
from penstock.errors import ClientError
from penstock.protocol.tables import details
from penstock.protocol.times import SECOND_NS, timestamp
from penstock.protocol.units import read_duration


def run(arguments: list[str]) -> int:
    """Run `penstock consumer` and return the exit code."""
    return run_command("consumer", VERBS, arguments)


async def list_consumers(context: Context) -> None:
    """Print the consumers of a stream."""
    stream = context.arguments.stream
    if context.arguments.names:
        names = sorted(await context.js.consumers.names(stream))
        context.show("\n".join(names), names)
        return
    infos = sorted(await context.js.consumers.list(stream), key=lambda info: str(info["name"]))
    context.show(list_text(infos) if infos else "", infos)
    if not infos:
        context.say(f"no consumers\nhint: penstock consumer create {stream} NAME")


async def info(context: Context) -> None:
    """Print one consumer in full."""
    arguments = context.arguments
    found = await context.js.consumers.info(arguments.stream, arguments.consumer)
    context.show(info_text(found), found)


async def create(context: Context) -> None:
    """Create a consumer; a different one with the same name is an error."""
    arguments = context.arguments
    config = as_fields(given(CONSUMER_SETTINGS, arguments))
    if not arguments.config:
        config.setdefault("ack_policy", "explicit")
    if arguments.consumer:
        config["name"] = config["durable_name"] = arguments.consumer
    if arguments.ephemeral:
        config.pop("durable_name", None)
    created = await context.js.consumers.create(arguments.stream, **config)
    context.show(info_text(created), created)


async def edit(context: Context) -> None:
    """Show the changes, ask, and apply them."""
    stream, name = context.arguments.stream, context.arguments.consumer
    found = await context.js.consumers.info(stream, name)
    old = without_told(found["config"])
    own: dict[str, Any] = {field: old[field] for field in ("name", "durable_name") if field in old}
    new = as_fields({**old, **given(CONSUMER_SETTINGS, context.arguments), **own})
    changes = difference(CONSUMER_SETTINGS, old, new)
    if changes:
        context.say(details(changes))
        confirm(f"Apply these changes to consumer `{name}`?", force=context.arguments.force)
        found = await context.js.consumers.update(stream, **{**new, "name": name})
        context.say(f"changed consumer `{name}`")
    else:
        context.say(f"consumer `{name}` needs no change")
    context.show("", found)


async def remove(context: Context) -> None:
    """Delete a consumer, but no messages."""
    stream, name = context.arguments.stream, context.arguments.consumer
    found = await context.js.consumers.info(stream, name)
    pending = show_many(found["num_pending"] + found["num_ack_pending"], "message")
    confirm(
        f"Delete consumer `{name}` with {pending} pending?",
        force=context.arguments.force,
    )
    await context.js.consumers.delete(stream, name)
    context.done(f"deleted consumer `{name}`", {"deleted": name})


async def next_messages(context: Context) -> None:
    """Pull messages, print and ack them."""
    arguments = context.arguments
    found = await context.js.consumers.info(arguments.stream, arguments.consumer)
    config = found["config"]
    if config.get("deliver_subject"):
        raise ClientError(
            f"`{arguments.consumer}` is a push consumer; "
            f"hint: penstock sub {config['deliver_subject']}"
        )
    acks = arguments.ack and config["ack_policy"] != "none"
    received = 0
    async with context.js.pull_consumer(arguments.stream, arguments.consumer) as consumer:
        while received < arguments.count:
            batch = min(arguments.count - received, BATCH_MAX)
            # Print the available messages at once, and only then wait for more.
            messages = await consumer.fetch(batch, no_wait=True)
            messages = messages or await consumer.fetch(1, expires_s=arguments.wait / SECOND_NS)
            for message in messages:
                _print_message(context, message)
                if acks:
                    await message.ack_sync()
            received += len(messages)
            if not messages:
                break
    if not received:
        raise ClientError(
            f"no message for `{arguments.consumer}` within {show_duration(arguments.wait)}"
        )


async def pause(context: Context) -> None:
    """Stop deliveries until a time."""
    arguments = context.arguments
    answer = await context.js.consumers.pause(
        arguments.stream, arguments.consumer, pause_until=arguments.until
    )
    until = show_time(answer.get("pause_until", arguments.until))
    context.done(f"paused consumer `{arguments.consumer}` until {until} UTC", answer)


async def resume(context: Context) -> None:
    """Deliver again."""
    arguments = context.arguments
    answer = await context.js.consumers.pause(arguments.stream, arguments.consumer)
    context.done(f"resumed consumer `{arguments.consumer}`", answer)


async def report(context: Context) -> None:
    """Print figures of every consumer of a stream, or of all streams."""
    stream = context.arguments.stream
    names = [stream] if stream else sorted(await context.js.streams.names())
    infos = [info for name in names for info in await context.js.consumers.list(name)]
    infos.sort(key=lambda info: (-info["num_pending"], info["stream_name"], info["name"]))
    context.show(report_text(infos) if infos else "", infos)
    if not infos:
        context.say("no consumers")


async def watch_consumer(context: Context) -> None:
    """Show the figures of a consumer as they change."""
    arguments = context.arguments
    figures = ConsumerFigures(context.js, arguments.stream, arguments.consumer)
    await watch(context, figures.look)


BATCH_MAX = 100
"""The maximum size of a request: its acks must arrive within the ack wait."""


def _print_message(context: Context, message: Message) -> None:
    if context.arguments.raw:
        write_raw(message.payload)
        return
    metadata = message.metadata
    again = f"  delivery {metadata.deliveries}" if metadata.deliveries > 1 else ""
    title = f"[{metadata.stream_sequence}] {message.subject}{again}"
    document = {
        "stream": metadata.stream,
        "consumer": metadata.consumer,
        "subject": message.subject,
        "sequence": metadata.stream_sequence,
        "deliveries": metadata.deliveries,
        "pending": metadata.pending,
        "time": timestamp(metadata.timestamp_ns),
        "headers": headers_field(message.header_pairs),
        **payload_fields(message.payload),
    }
    context.show_event(message_text(title, message.header_pairs, message.payload), document)


STREAM = argument("stream", metavar="STREAM", doc="")
CONSUMER = argument("consumer", metavar="CONSUMER", doc="")
SETTINGS = (*options(CONSUMER_SETTINGS), CONFIG_FILE)

VERBS = (
    Verb(
        name="ls",
        aliases=("list",),
        summary="List the consumers of a stream.",
        run=list_consumers,
        arguments=(
            STREAM,
            argument("--names", action="store_true", doc="Print only names."),
            *CONNECTION,
        ),
    ),
    Verb(
        name="info",
        summary="Show the configuration and state of a consumer.",
        run=info,
        arguments=(STREAM, CONSUMER, *CONNECTION),
    ),
    Verb(
        name="create",
        aliases=("add",),
        summary="Create a consumer.",
        run=create,
        arguments=(
            STREAM,
            argument(
                "consumer",
                metavar="NAME",
                nargs="?",
                doc="Name of the consumer; without one it is ephemeral, with a generated name.",
            ),
            argument(
                "--ephemeral",
                action="store_true",
                doc="Delete it when unused, although it has a name.",
            ),
            *SETTINGS,
            *CONNECTION,
        ),
    ),
    Verb(
        name="edit",
        summary="Edit a consumer: show the changes, ask, and apply them.",
        run=edit,
        arguments=(STREAM, CONSUMER, FORCE, *SETTINGS, *CONNECTION),
    ),
    Verb(
        name="rm",
        aliases=("delete",),
        summary="Delete a consumer, but no messages.",
        run=remove,
        arguments=(STREAM, CONSUMER, FORCE, *CONNECTION),
    ),
    Verb(
        name="next",
        summary="Pull the next messages, print and ack them.",
        run=next_messages,
        arguments=(
            STREAM,
            CONSUMER,
            argument(
                "--count",
                metavar="NUMBER",
                type=read_positive,
                default=1,
                doc="Messages to pull (default: 1).",
            ),
            argument(
                "--wait",
                metavar="DURATION",
                type=read_duration,
                default=5 * SECOND_NS,
                doc="Time to wait for the next message (default: 5s).",
            ),
            argument(
                "--ack",
                action="store_true",
                default=True,
                doc="Ack printed messages (the default).",
            ),
            argument(
                "--no-ack",
                dest="ack",
                action="store_false",
                doc="Do not ack: messages are redelivered after the ack wait.",
            ),
            argument("--raw", action="store_true", doc="Print only payloads."),
            *CONNECTION,
        ),
    ),
    Verb(
        name="pause",
        summary="Stop deliveries until a time.",
        run=pause,
        arguments=(
            STREAM,
            CONSUMER,
            argument(
                "until",
                metavar="TIME",
                type=lambda text: rfc3339(read_until(text, datetime.now(UTC))),
                doc="A time, or how long from now: `10m`, `2026-11-15T09:00:00Z`.",
            ),
            *CONNECTION,
        ),
    ),
    Verb(
        name="resume",
        summary="Deliver again after a pause.",
        run=resume,
        arguments=(STREAM, CONSUMER, *CONNECTION),
    ),
    Verb(
        name="report",
        summary="Show figures of every consumer, the one that is most behind first.",
        run=report,
        arguments=(
            argument("stream", metavar="STREAM", nargs="?", doc="Default: all streams."),
            *CONNECTION,
        ),
    ),
    Verb(
        name="watch",
        summary="Show pending, unacked and redelivered messages, live.",
        run=watch_consumer,
        arguments=(STREAM, CONSUMER, *WATCH, *CONNECTION),
        endless=True,
    ),
)
