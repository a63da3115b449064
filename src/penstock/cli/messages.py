"""`penstock pub`, `sub`, `request` and `reply`: single messages."""

from __future__ import annotations

import asyncio
import shlex
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import suppress

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
from penstock.cli.templates import NAMES, Filler
from penstock.cli.values import read_positive, show_size
from penstock.client import Message, Subscription
from penstock.errors import (
    ConfigError,
    NoResponders,
    PermissionDenied,
    RequestTimeout,
    reason,
)
from penstock.protocol.times import SECOND_NS
from penstock.protocol.units import read_duration

NO_RESPONDERS = 503


async def publish(context: Context) -> None:
    """Publish a message, once or several times."""
    arguments, payload = context.arguments, read_payload(context.arguments.payload)
    sent_bytes, filler = 0, Filler(enabled=arguments.templates)
    for number in range(arguments.count):
        if number:
            await asyncio.sleep(arguments.sleep / SECOND_NS)
        filler.next()
        sent_bytes += await _publish_one(context, payload, filler)
    if arguments.jetstream:
        return
    # The server sends its error, if any, before its answer to our ping.
    await context.client.flush()
    _check_permission(context)
    size, times = show_size(sent_bytes), ""
    if arguments.count > 1:
        size, times = show_size(sent_bytes // arguments.count), f"{arguments.count:,} times "
    context.done(
        f"published {size} {times}to `{arguments.subject}`",
        {"subject": arguments.subject, "bytes": len(payload), "count": arguments.count},
    )


async def _publish_one(context: Context, payload: bytes, filler: Filler) -> int:
    """Publish with templates filled; return the size."""
    arguments = context.arguments
    subject, body = filler.text(arguments.subject), filler.fill(payload)
    headers = [(name, filler.text(value)) for name, value in arguments.header or ()] or None
    if arguments.jetstream:
        await _store(context, subject, body, headers)
    else:
        await context.client.publish(subject, body, reply=arguments.reply, headers=headers)
    return len(body)


async def _store(
    context: Context, subject: str, body: bytes, headers: list[tuple[str, str]] | None
) -> None:
    """Publish and print JetStream's ack."""
    try:
        ack = await context.js.publish(subject, body, headers=headers)
    except NoResponders:
        raise NoResponders(
            f"no stream stores `{subject}`; hint: penstock stream create NAME --subjects {subject}"
        ) from None
    again = ", a duplicate" if ack.fields.get("duplicate") else ""
    if context.arguments.json:
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
    async for message in _until_silence(subscription, arguments.wait):
        received += 1
        _print_message(context, message, received)
        if received == arguments.count:
            return
    if not received:
        raise RequestTimeout(f"`{arguments.subject}`: no message; hint: wait longer with --wait")


async def _until_silence(subscription: Subscription, wait_ns: int | None) -> AsyncIterator[Message]:
    """Iterate over messages until none comes for a time."""
    wait_s = None if wait_ns is None else wait_ns / SECOND_NS
    with suppress(RequestTimeout):
        while True:
            yield await subscription.next(timeout_s=wait_s)


async def reply(context: Context) -> None:
    """Answer requests with a payload, with themselves, or with the output of a program."""
    arguments, filler = context.arguments, Filler()
    if sum(map(bool, (arguments.payload, arguments.echo, arguments.command))) != 1:
        raise ConfigError("which answer? hint: a payload, --echo or --command")
    subscription = await context.client.subscribe(arguments.subject, queue=arguments.queue)
    await context.client.flush()
    _check_permission(context)
    context.say(f"answering on `{arguments.subject}`; Ctrl-C ends")
    async for message in subscription:
        filler.next()
        _print_message(context, message, filler.number)
        if message.reply:
            await message.respond(await _answer(arguments, filler, message))
        if filler.number == arguments.count:
            await context.client.flush()
            return


async def _answer(arguments: Namespace, filler: Filler, message: Message) -> bytes:
    if arguments.echo:
        return message.payload
    if not arguments.command:
        text: str = arguments.payload
        return filler.fill(text.encode(errors="surrogateescape"), request=message.payload)
    try:
        process = await asyncio.create_subprocess_exec(
            *shlex.split(arguments.command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"`--command`: cannot run it: {reason(error)}") from None
    out, _ = await process.communicate(message.payload)
    return out


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
QUEUE = argument("--queue", metavar="GROUP", default="", doc="Join this queue group.")
STOP_AFTER = argument(
    "--count", metavar="NUMBER", type=read_positive, doc="Stop after this number of messages."
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
            "--sleep",
            metavar="DURATION",
            type=read_duration,
            default=0,
            doc="Time between two messages (default: none).",
        ),
        argument(
            "--no-templates",
            dest="templates",
            action="store_false",
            doc=f"Publish text in braces as it is, such as {NAMES}.",
        ),
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
        QUEUE,
        STOP_AFTER,
        argument(
            "--wait",
            metavar="DURATION",
            type=read_duration,
            doc="Stop if no message comes for this time (default: never).",
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
REPLY = Verb(
    name="reply",
    summary="Answer requests.",
    run=reply,
    arguments=(
        argument("subject", metavar="SUBJECT", doc="A subject, with wildcards `*` and `>`."),
        argument(
            "payload",
            metavar="PAYLOAD",
            nargs="?",
            doc=f"The answer, with templates: `{{{{Request}}}}`, {NAMES}.",
        ),
        argument("--echo", action="store_true", doc="Answer with the request."),
        argument(
            "--command",
            metavar="PROGRAM",
            default="",
            doc="Answer with the output of a program; the request is its input.",
        ),
        QUEUE,
        STOP_AFTER,
        RAW,
        *CONNECTION,
    ),
    endless=True,
)
