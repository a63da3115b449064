"""`penstock kv`: buckets of keys and values."""

from __future__ import annotations

from contextlib import aclosing
from datetime import timedelta

from penstock.cli.arguments import Verb, argument
from penstock.cli.confirm import FORCE, confirm
from penstock.cli.connection import CONNECTION
from penstock.cli.context import Context
from penstock.cli.kv.view import (
    bucket_document,
    bucket_text,
    entry_document,
    event_text,
    history_text,
    list_text,
)
from penstock.cli.payload import payload_text, read_payload, write_raw
from penstock.cli.runner import run_command
from penstock.cli.settings import one_of
from penstock.cli.values import read_positive, show_many, show_time
from penstock.client.jetstream.keyvalue import STREAM_PREFIX, KeyNotFound, KeyValue
from penstock.protocol import wellknown
from penstock.protocol.units import read_duration, read_size


def run(arguments: list[str]) -> int:
    """Run `penstock kv` and return the exit code."""
    return run_command("kv", VERBS, arguments)


async def list_buckets(context: Context) -> None:
    """Print all buckets."""
    streams = await context.js.streams.list(subject=f"{wellknown.KEY_VALUE}>")
    infos = [info for info in streams if info["config"]["name"].startswith(STREAM_PREFIX)]
    infos.sort(key=lambda info: str(info["config"]["name"]))
    documents = [bucket_document(info) for info in infos]
    context.show(list_text(infos) if infos else "", documents)
    if not infos:
        context.say("no buckets\nhint: penstock kv create BUCKET")


async def create(context: Context) -> None:
    """Create a bucket."""
    arguments = context.arguments
    bucket = await KeyValue.create(
        context.js,
        arguments.bucket,
        history=arguments.history,
        ttl=timedelta(microseconds=arguments.ttl / 1000),
        max_bytes=arguments.max_bytes,
        max_msg_size=arguments.max_value_size,
        storage=arguments.storage,
        num_replicas=arguments.replicas,
        description=arguments.description,
    )
    await _show_info(context, bucket)


async def info(context: Context) -> None:
    """Print one bucket in full."""
    await _show_info(context, await _open(context))


async def put(context: Context) -> None:
    """Set a key."""
    bucket, value = await _open(context), read_payload(context.arguments.value)
    _done(context, await bucket.put(context.arguments.key, value))


async def create_key(context: Context) -> None:
    """Set a key that has no value yet."""
    bucket, value = await _open(context), read_payload(context.arguments.value)
    _done(context, await bucket.create_key(context.arguments.key, value))


async def update(context: Context) -> None:
    """Set a key unless it has changed since a revision."""
    bucket, value = await _open(context), read_payload(context.arguments.value)
    revision = await bucket.update(
        context.arguments.key, value, revision=context.arguments.revision
    )
    _done(context, revision)


async def get(context: Context) -> None:
    """Print a value."""
    arguments = context.arguments
    entry = await (await _open(context)).get(arguments.key, revision=arguments.revision)
    if arguments.raw:
        write_raw(entry.value)
        return
    if not arguments.json:
        context.say(f"{entry.key}  revision {entry.revision}  {show_time(entry.time)} UTC")
    context.show(payload_text(entry.value), entry_document(entry))


async def delete(context: Context) -> None:
    """Delete a key, but keep its history."""
    bucket = await _open(context)
    arguments = context.arguments
    revision = await bucket.delete(arguments.key, revision=arguments.revision)
    _done(context, revision, "was deleted")


async def purge(context: Context) -> None:
    """Delete a key and its history."""
    arguments = context.arguments
    bucket = await _open(context)
    confirm(f"Delete `{arguments.key}` with its history?", force=arguments.force)
    revision = await bucket.purge(arguments.key, revision=arguments.revision)
    _done(context, revision, "was deleted with its history")


async def keys(context: Context) -> None:
    """Print the keys that have a value."""
    found = sorted(await (await _open(context)).keys(*context.arguments.patterns))
    context.show("\n".join(found), found)
    if not found:
        context.say("no keys")


async def history(context: Context) -> None:
    """Print the revisions of a key."""
    arguments = context.arguments
    entries = await (await _open(context)).history(arguments.key)
    if not entries:
        raise KeyNotFound(f"no key `{arguments.key}` in bucket `{arguments.bucket}`")
    context.show(history_text(entries), [entry_document(entry) for entry in entries])


async def watch(context: Context) -> None:
    """Print keys as they change."""
    arguments = context.arguments
    bucket = await _open(context)
    shown = 0
    changes = bucket.watch(
        *arguments.patterns, history=arguments.history, updates_only=arguments.updates_only
    )
    async with aclosing(changes) as entries:
        async for entry in entries:
            if arguments.raw:
                write_raw(entry.value)
            else:
                context.show_event(event_text(entry), entry_document(entry))
            shown += 1
            if shown == arguments.count:
                return


async def remove(context: Context) -> None:
    """Delete a bucket and all its keys."""
    name = context.arguments.bucket
    bucket = await _open(context)
    values = show_many((await bucket.info())["state"]["messages"], "value")
    confirm(f"Delete bucket `{name}` with {values}?", force=context.arguments.force)
    await bucket.destroy()
    context.done(f"deleted bucket `{name}`", {"deleted": name})


async def _open(context: Context) -> KeyValue:
    return await KeyValue.open(context.js, context.arguments.bucket)


def _done(context: Context, revision: int, what: str = "is") -> None:
    key = context.arguments.key
    context.done(f"`{key}` {what} at revision {revision}", {"key": key, "revision": revision})


async def _show_info(context: Context, bucket: KeyValue) -> None:
    found = await bucket.info()
    context.show(bucket_text(found), bucket_document(found))


BUCKET = argument("bucket", metavar="BUCKET", doc="")
KEY = argument("key", metavar="KEY", doc="")
VALUE = argument(
    "value", metavar="VALUE", nargs="?", doc="The value; `-` or no value reads standard input."
)
PATTERNS = argument(
    "patterns", metavar="KEY", nargs="*", doc="Only these keys; wildcards: `orders.*`, `orders.>`."
)
ONLY_AT = argument(
    "--revision", metavar="NUMBER", type=int, doc="Only if the key is still at this revision."
)
RAW = argument("--raw", action="store_true", doc="Print only the value.")

VERBS = (
    Verb(
        name="ls",
        aliases=("list",),
        summary="List buckets.",
        run=list_buckets,
        arguments=CONNECTION,
    ),
    Verb(
        name="create",
        aliases=("add",),
        summary="Create a bucket.",
        run=create,
        arguments=(
            BUCKET,
            argument(
                "--history",
                metavar="NUMBER",
                type=int,
                default=1,
                doc="Revisions kept per key, at most 64 (default: 1).",
            ),
            argument(
                "--ttl",
                metavar="DURATION",
                type=read_duration,
                default=0,
                doc="Age at which values expire (default: never).",
            ),
            argument(
                "--max-bytes",
                metavar="SIZE",
                type=read_size,
                default=-1,
                doc="Maximum bytes stored.",
            ),
            argument(
                "--max-value-size",
                metavar="SIZE",
                type=read_size,
                default=-1,
                doc="Maximum size of a value.",
            ),
            argument(
                "--storage",
                metavar="file|memory",
                type=one_of("file", "memory").read,
                default="file",
                doc="Storage of the values.",
            ),
            argument(
                "--replicas", metavar="NUMBER", type=int, default=1, doc="Copies in a cluster."
            ),
            argument("--description", metavar="TEXT", default="", doc="Description."),
            *CONNECTION,
        ),
    ),
    Verb(
        name="info",
        summary="Show the configuration and state of a bucket.",
        run=info,
        arguments=(BUCKET, *CONNECTION),
    ),
    Verb(name="put", summary="Set a key.", run=put, arguments=(BUCKET, KEY, VALUE, *CONNECTION)),
    Verb(
        name="create-key",
        summary="Set a key that has no value yet.",
        run=create_key,
        arguments=(BUCKET, KEY, VALUE, *CONNECTION),
    ),
    Verb(
        name="update",
        summary="Set a key unless it has changed since a revision.",
        run=update,
        arguments=(
            BUCKET,
            KEY,
            VALUE,
            argument(
                "--revision",
                metavar="NUMBER",
                type=int,
                required=True,
                doc="The expected revision of the key.",
            ),
            *CONNECTION,
        ),
    ),
    Verb(
        name="get",
        summary="Print a value.",
        run=get,
        arguments=(
            BUCKET,
            KEY,
            argument(
                "--revision",
                metavar="NUMBER",
                type=int,
                default=0,
                doc="Revision to print (default: the latest).",
            ),
            RAW,
            *CONNECTION,
        ),
    ),
    Verb(
        name="del",
        summary="Delete a key, but keep its history.",
        run=delete,
        arguments=(BUCKET, KEY, ONLY_AT, *CONNECTION),
    ),
    Verb(
        name="purge",
        summary="Delete a key and its history.",
        run=purge,
        arguments=(BUCKET, KEY, ONLY_AT, FORCE, *CONNECTION),
    ),
    Verb(
        name="keys",
        summary="List the keys that have a value.",
        run=keys,
        arguments=(BUCKET, PATTERNS, *CONNECTION),
    ),
    Verb(
        name="history",
        summary="List the revisions of a key.",
        run=history,
        arguments=(BUCKET, KEY, *CONNECTION),
    ),
    Verb(
        name="watch",
        summary="Print the current values, and then all changes.",
        run=watch,
        arguments=(
            BUCKET,
            PATTERNS,
            argument("--history", action="store_true", doc="Start with every stored revision."),
            argument("--updates-only", action="store_true", doc="Print only changes."),
            argument(
                "--count",
                metavar="NUMBER",
                type=read_positive,
                doc="Stop after this number of entries.",
            ),
            RAW,
            *CONNECTION,
        ),
        endless=True,
    ),
    Verb(
        name="rm",
        aliases=("delete",),
        summary="Delete a bucket and all its keys.",
        run=remove,
        arguments=(BUCKET, FORCE, *CONNECTION),
    ),
)
