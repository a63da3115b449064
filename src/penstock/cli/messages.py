"""`penstock pub`, `penstock sub` and `penstock request`: single messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from penstock.cli.arguments import Verb, argument
from penstock.cli.connection import CONNECTION
from penstock.cli.context import Context
from penstock.cli.payload import (
    headers_field,
    message_text,
    payload_fields,
    read_payload,
    write_raw,
)
from penstock.cli.values import read_positive, show_count, show_size
from penstock.client import Message
from penstock.errors import NoResponders, PermissionDenied, RequestTimeout
from penstock.protocol.times import SECOND_NS

NO_RESPONDERS = 503


async def publish(context: Context) -> None:
    """Publish a message, once or several times."""
    arguments = context.arguments
    payload = read_payload(arguments.payload)
    headers = arguments.header or None
    if arguments.jetstream:
        await _store(context, payload)
        return
    for _ in range(arguments.count):
        await context.client.publish(
            arguments.subject, payload, reply=arguments.reply, headers=headers
        )
    # The server sends its error, if any, before its answer to our ping.
    await context.client.flush()
    _check_permission(context)
    times = f"{show_count(arguments.count)} times " if arguments.count > 1 else ""
    context.done(
        f"published {show_size(len(payload))} {times}to `{arguments.subject}`",
        {"subject": arguments.subject, "bytes": len(payload), "count": arguments.count},
    )


async def _store(context: Context, payload: bytes) -> None:
    """Publish and print JetStream's ack."""
    arguments = context.arguments
    for _ in range(arguments.count):
        try:
            ack = await context.js.publish(
                arguments.subject, payload, headers=arguments.header or None
            )
        except NoResponders:
            raise NoResponders(
                f"no stream stores `{arguments.subject}`; "
                f"hint: penstock stream create NAME --subjects {arguments.subject}"
            ) from None
        again = ", a duplicate" if ack.fields.get("duplicate") else ""
        if arguments.json:
            context.show_event("", ack.fields)
        else:
            context.say(f"stored in `{ack.stream}` as {ack.sequence}{again}")


async def subscribe(context: Context) -> None:
    """Print messages as they arrive."""
    arguments = context.arguments
    subscription = await context.client.subscribe(arguments.subject, queue=arguments.queue)
    await context.client.flush()
    _check_permission(context)
    context.say(f"listening on `{arguments.subject}`; Ctrl-C ends")
    received = 0
    async for message in subscription:
        received += 1
        _print_message(context, message, received)
        if received == arguments.count:
            return


async def request(context: Context) -> None:
    """Publish a request and print the replies."""
    arguments = context.arguments
    payload = read_payload(arguments.payload)
    received = 0
    async for message in _replies(context, payload):
        received += 1
        _print_message(context, message, received)
    if not received:
        raise RequestTimeout(f"`{arguments.subject}`: no reply")


async def _replies(context: Context, payload: bytes) -> AsyncIterator[Message]:
    """Iterate over `--replies` replies, or fewer when the timeout comes first."""
    arguments, client = context.arguments, context.client
    headers = arguments.header or None
    if arguments.replies == 1:
        yield await client.request(arguments.subject, payload, headers=headers)
        return
    inbox = client.new_inbox()
    deadline_s = asyncio.get_running_loop().time() + arguments.timeout / SECOND_NS
    async with await client.subscribe(inbox) as answers:
        await client.publish(arguments.subject, payload, reply=inbox, headers=headers)
        for _ in range(arguments.replies):
            try:
                message = await answers.next(
                    timeout_s=deadline_s - asyncio.get_running_loop().time()
                )
            except RequestTimeout:
                return
            if message.status[0] == NO_RESPONDERS:
                raise NoResponders(f"nobody listens on `{arguments.subject}`")
            yield message


def _check_permission(context: Context) -> None:
    denied = [error for error in context.errors if isinstance(error, PermissionDenied)]
    if denied:
        raise denied[0]


def _print_message(context: Context, message: Message, number: int) -> None:
    if context.arguments.raw:
        write_raw(message.payload)
        return
    reply = f"  reply to {message.reply}" if message.reply else ""
    title = f"[{number}] {message.subject}{reply}"
    document = {
        "subject": message.subject,
        "reply": message.reply,
        "headers": headers_field(message.header_pairs),
        **payload_fields(message.payload),
    }
    context.show_event(message_text(title, message.header_pairs, message.payload), document)


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise ValueError(f"`{text}` is not a header; hint: 'Name: value'")
    return name.strip(), value.strip()


SUBJECT = argument("subject", metavar="SUBJECT", doc="")
PAYLOAD = argument(
    "payload",
    metavar="PAYLOAD",
    nargs="?",
    doc="The payload; `-` or no payload reads standard input.",
)
HEADER = argument(
    "-H",
    "--header",
    metavar="'NAME: VALUE'",
    type=_header,
    action="append",
    doc="A header, `Name: value`; repeatable.",
)
RAW = argument("--raw", action="store_true", doc="Print only payloads.")

PUBLISH = Verb(
    name="pub",
    summary="Publish a message.",
    run=publish,
    arguments=(
        SUBJECT,
        PAYLOAD,
        HEADER,
        argument("--reply", metavar="SUBJECT", default="", doc="Reply subject of the message."),
        argument(
            "--count",
            metavar="NUMBER",
            type=read_positive,
            default=1,
            doc="Number of messages (default: 1).",
        ),
        argument(
            "-J",
            "--jetstream",
            action="store_true",
            doc="Wait until a stream has stored the message.",
        ),
        *CONNECTION,
    ),
)
SUBSCRIBE = Verb(
    name="sub",
    summary="Print messages as they arrive.",
    run=subscribe,
    arguments=(
        argument("subject", metavar="SUBJECT", doc="A subject, with wildcards `*` and `>`."),
        argument("--queue", metavar="GROUP", default="", doc="Join this queue group."),
        argument(
            "--count",
            metavar="NUMBER",
            type=read_positive,
            doc="Stop after this number of messages.",
        ),
        RAW,
        *CONNECTION,
    ),
    endless=True,
)
REQUEST = Verb(
    name="request",
    summary="Publish a request and print the replies.",
    run=request,
    arguments=(
        SUBJECT,
        PAYLOAD,
        HEADER,
        argument(
            "--replies",
            metavar="NUMBER",
            type=read_positive,
            default=1,
            doc="Replies to wait for, until the timeout (default: 1).",
        ),
        RAW,
        *CONNECTION,
    ),
)
