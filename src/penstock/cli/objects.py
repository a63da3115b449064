"""`penstock object`: files of any size in buckets."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any

from penstock.cli.arguments import Verb, argument
from penstock.cli.confirm import FORCE, confirm
from penstock.cli.connection import CONNECTION
from penstock.cli.context import Context
from penstock.cli.runner import run_command
from penstock.cli.settings import one_of
from penstock.cli.terminal import Progress, table
from penstock.cli.values import (
    read_positive,
    show_age,
    show_count,
    show_many,
    show_size,
    show_time,
)
from penstock.client.jetstream.objectstore import STREAM_PREFIX, ObjectInfo, ObjectStore
from penstock.errors import ClientError, ConfigError, reason
from penstock.protocol.tables import details
from penstock.protocol.units import read_duration, read_size
from penstock.protocol.wellknown import OBJECTS

PIECE_BYTES = 1024 * 1024


def run(arguments: list[str]) -> int:
    """Run `penstock object` and return the exit code."""
    return run_command("object", VERBS, arguments)


async def create(context: Context) -> None:
    """Create a bucket."""
    arguments = context.arguments
    store = await ObjectStore.create(
        context.js,
        arguments.bucket,
        ttl=timedelta(microseconds=arguments.ttl / 1000),
        max_bytes=arguments.max_bytes,
        storage=arguments.storage,
        num_replicas=arguments.replicas,
        description=arguments.description,
    )
    await _show_bucket(context, store)


async def put(context: Context) -> None:
    """Store a file."""
    arguments = context.arguments
    name = arguments.name or arguments.file
    if name == "-":
        raise ConfigError("standard input has no name; hint: add --name")
    store = await ObjectStore.open(context.js, arguments.bucket)
    with _reading(arguments.file) as file:
        pieces = _pieces(context, file, name)
        info = await store.put(name, pieces, description=arguments.description)
    context.done(f"stored `{name}`, {show_size(info.size)}", _document(info))


async def get(context: Context) -> None:
    """Write an object to a file; without a terminal, to standard output."""
    arguments = context.arguments
    store = await ObjectStore.open(context.js, arguments.bucket)
    info = await store.info(arguments.name)
    if arguments.output == "-":
        async with aclosing(store.get(arguments.name)) as chunks:
            async for chunk in chunks:
                sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
        return
    target = Path(arguments.output or Path(arguments.name).name)
    _check_target(target, force=arguments.force)
    await _save(context, store, info, target)
    context.done(f"wrote `{target}`, {show_size(info.size)}", _document(info))


def _check_target(target: Path, *, force: bool) -> None:
    if target.exists():
        confirm(f"Replace the file `{target}`?", force=force)


async def _save(context: Context, store: ObjectStore, info: ObjectInfo, target: Path) -> None:
    """Write an object; the file takes its name once all of it is there and right."""
    partial, done = target.with_name(f"{target.name}.partial"), 0
    progress = Progress(f"reading {info.name}", info.size, shown=not context.arguments.json)
    try:
        with partial.open("wb") as file:
            async for chunk in store.get(info.name):
                file.write(chunk)
                progress.show(done := done + len(chunk))
        partial.replace(target)
    except OSError as error:
        raise ClientError(f"cannot write `{target}`: {reason(error)}") from None
    finally:
        progress.clear()
        partial.unlink(missing_ok=True)


async def list_objects(context: Context) -> None:
    """Print all buckets, or the objects of one."""
    if not context.arguments.bucket:
        await _list_buckets(context)
        return
    store = await ObjectStore.open(context.js, context.arguments.bucket)
    infos = sorted(await store.list(), key=lambda info: info.name)
    rows = [(info.name, show_size(info.size), show_time(info.modified)) for info in infos]
    text = table(("NAME", "SIZE", "MODIFIED"), rows)
    context.show(text if infos else "", [_document(info) for info in infos])
    if not infos:
        context.say("no objects")


async def _list_buckets(context: Context) -> None:
    now = datetime.now(UTC)
    streams = await context.js.streams.list(subject=f"{OBJECTS}>")
    infos = [info for info in streams if info["config"]["name"].startswith(STREAM_PREFIX)]
    infos.sort(key=lambda info: str(info["config"]["name"]))
    rows = [
        (
            _bucket(info),
            show_size(info["state"]["bytes"]),
            info["config"]["storage"],
            show_age(info["state"]["last_ts"], now),
        )
        for info in infos
    ]
    text = table(("BUCKET", "SIZE", "STORAGE", "LAST"), rows)
    context.show(text if infos else "", [_bucket_document(info) for info in infos])
    if not infos:
        context.say("no buckets\nhint: penstock object create BUCKET")


async def info(context: Context) -> None:
    """Print a bucket or an object in full."""
    store = await ObjectStore.open(context.js, context.arguments.bucket)
    if not context.arguments.name:
        await _show_bucket(context, store)
        return
    found = await store.info(context.arguments.name)
    rows = [
        ("size", show_size(found.size)),
        ("chunks", show_count(found.chunks)),
        ("modified", f"{show_time(found.modified)} UTC"),
        ("digest", found.digest),
        ("description", found.description),
        ("link", "/".join(found.link or ())),
    ]
    text = f"Object {found.name} in bucket {found.bucket}\n\n"
    context.show(text + details(row for row in rows if row[1]), _document(found))


async def remove(context: Context) -> None:
    """Delete an object, or a bucket with all its objects."""
    arguments = context.arguments
    store = await ObjectStore.open(context.js, arguments.bucket)
    if arguments.name:
        found = await store.info(arguments.name)
        question = f"Delete `{arguments.name}`, {show_size(found.size)}?"
        confirm(question, force=arguments.force)
        await store.delete(arguments.name)
        context.done(f"deleted `{arguments.name}`", {"deleted": arguments.name})
        return
    many = show_many(len(await store.list()), "object")
    confirm(f"Delete bucket `{arguments.bucket}` with {many}?", force=arguments.force)
    await store.destroy()
    context.done(f"deleted bucket `{arguments.bucket}`", {"deleted": arguments.bucket})


async def watch(context: Context) -> None:
    """Print objects as they change."""
    arguments, shown = context.arguments, 0
    store = await ObjectStore.open(context.js, arguments.bucket)
    async with aclosing(store.watch(updates_only=arguments.updates_only)) as infos:
        async for each in infos:
            what = "DEL" if each.deleted else "PUT"
            size = "" if each.deleted else f"  {show_size(each.size)}"
            context.show_event(f"{what} {each.name}{size}", _document(each))
            shown += 1
            if shown == arguments.count:
                return


def _reading(path: str) -> IO[bytes]:
    if path == "-":
        return sys.stdin.buffer
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise ConfigError(f"cannot read `{path}`: {reason(error)}") from None


def _pieces(context: Context, file: IO[bytes], name: str) -> Iterator[bytes]:
    total = 0 if file is sys.stdin.buffer else Path(file.name).stat().st_size
    progress, done = Progress(f"storing {name}", total, shown=not context.arguments.json), 0
    while piece := file.read(PIECE_BYTES):
        yield piece
        progress.show(done := done + len(piece))
    progress.clear()


async def _show_bucket(context: Context, store: ObjectStore) -> None:
    found = await store.status()
    config, state = found["config"], found["state"]
    rows = [
        ("description", config.get("description", "")),
        ("size", show_size(state["bytes"])),
        ("storage", config["storage"]),
        ("replicas", show_count(config["num_replicas"])),
        ("sealed", "yes" if config.get("sealed") else ""),
        ("stream", config["name"]),
    ]
    title = f"Bucket {store.bucket}, created {show_time(found['created'])} UTC\n\n"
    context.show(title + details(row for row in rows if row[1]), _bucket_document(found))


def _bucket(info: dict[str, Any]) -> str:
    return str(info["config"]["name"]).removeprefix(STREAM_PREFIX)


def _bucket_document(info: dict[str, Any]) -> dict[str, Any]:
    config = info["config"]
    return {
        "bucket": _bucket(info),
        "description": config.get("description", ""),
        "bytes": info["state"]["bytes"],
        "storage": config["storage"],
        "replicas": config["num_replicas"],
        "stream": config["name"],
    }


def _document(info: ObjectInfo) -> dict[str, Any]:
    names = ("bucket", "name", "size", "chunks", "digest", "modified", "description", "deleted")
    return {name: getattr(info, name) for name in names}


BUCKET = argument("bucket", metavar="BUCKET", doc="")
NAME = argument("name", metavar="NAME", doc="Name of the object.")
OPTIONAL_NAME = argument("name", metavar="NAME", nargs="?", doc="An object of it.")
DESCRIPTION = argument("--description", metavar="TEXT", default="", doc="Description.")

VERBS = (
    Verb(
        name="ls",
        aliases=("list",),
        summary="List buckets, or the objects of one.",
        run=list_objects,
        arguments=(
            argument("bucket", metavar="BUCKET", nargs="?", doc="List its objects."),
            *CONNECTION,
        ),
    ),
    Verb(
        name="create",
        aliases=("add",),
        summary="Create a bucket.",
        run=create,
        arguments=(
            BUCKET,
            DESCRIPTION,
            argument(
                "--ttl",
                metavar="DURATION",
                type=read_duration,
                default=0,
                doc="Age at which objects expire (default: never).",
            ),
            argument(
                "--max-bytes", metavar="SIZE", type=read_size, default=-1, doc="Maximum bytes."
            ),
            argument(
                "--storage",
                metavar="file|memory",
                type=one_of("file", "memory").read,
                default="file",
                doc="Storage of the objects (default: file).",
            ),
            argument(
                "--replicas",
                metavar="NUMBER",
                type=read_positive,
                default=1,
                doc="Copies in a cluster (default: 1).",
            ),
            *CONNECTION,
        ),
    ),
    Verb(
        name="put",
        summary="Store a file; it replaces the object of that name.",
        run=put,
        arguments=(
            BUCKET,
            argument("file", metavar="FILE", doc="The file; `-` reads standard input."),
            argument("--name", metavar="NAME", doc="Name of the object (default: the file's)."),
            DESCRIPTION,
            *CONNECTION,
        ),
    ),
    Verb(
        name="get",
        summary="Write an object to a file, and verify it.",
        run=get,
        arguments=(
            BUCKET,
            NAME,
            argument(
                "-o",
                "--output",
                metavar="FILE",
                doc="The file (default: the object's name); `-` is standard output.",
            ),
            FORCE,
            *CONNECTION,
        ),
    ),
    Verb(
        name="info",
        summary="Show a bucket or an object.",
        run=info,
        arguments=(BUCKET, OPTIONAL_NAME, *CONNECTION),
    ),
    Verb(
        name="rm",
        aliases=("delete",),
        summary="Delete an object, or a bucket with all its objects.",
        run=remove,
        arguments=(BUCKET, OPTIONAL_NAME, FORCE, *CONNECTION),
    ),
    Verb(
        name="watch",
        summary="Print objects as they change.",
        run=watch,
        arguments=(
            BUCKET,
            argument("--updates-only", action="store_true", doc="Leave out what is there now."),
            argument(
                "--count", metavar="NUMBER", type=read_positive, doc="Stop after this number."
            ),
            *CONNECTION,
        ),
        endless=True,
    ),
)
