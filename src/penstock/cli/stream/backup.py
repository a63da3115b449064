"""
`penstock stream backup` and `restore`.

A backup that was interrupted can be resumed: what has arrived stays, and the other messages
are read one after the other up to the end that the stream had at the beginning.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from penstock.cli.arguments import Verb, argument
from penstock.cli.connection import CONNECTION
from penstock.cli.context import Context
from penstock.cli.settings import CONFIG_FILE, given, options
from penstock.cli.stream import archive
from penstock.cli.stream.archive import Backup, open_backup, partial
from penstock.cli.stream.reading import messages
from penstock.cli.stream.settings import STREAM_SETTINGS
from penstock.cli.terminal import Progress
from penstock.cli.values import show_many, show_size
from penstock.client import StoredMessage
from penstock.client.messages import encode_headers
from penstock.errors import ClientError, ConfigError, JetStreamError, reason
from penstock.files import PUBLIC, replace_file
from penstock.jetstream.snapshots.archive import ArchiveEntry, ArchiveReader, ArchiveWriter
from penstock.protocol import errorcodes
from penstock.protocol.rfc3339 import parse_time

GONE = "were removed while the backup ran"


async def backup(context: Context) -> None:
    """Save one stream, or all of them."""
    arguments = context.arguments
    for name, target in await _targets(context):
        if arguments.resume and _is_complete(target):
            context.say(f"stream `{name}` is saved already, in `{target}`")
            continue
        with _writing(target):
            saved = await _save(context, name, target)
        context.done(_sentence(saved, name), _document(saved))


async def restore(context: Context) -> None:
    """Create one stream from its backup, or all of a directory."""
    arguments = context.arguments
    for path in _sources(arguments.source, all_of_them=arguments.all):
        saved = open_backup(path)
        contents = saved.verify()
        if arguments.check:
            context.done(_sentence(saved, saved.stream, "verified"), _document(saved))
            continue
        if arguments.resume and await _exists(context, saved.stream):
            context.say(f"stream `{saved.stream}` exists already")
            continue
        config = {**saved.meta["config"], **given(STREAM_SETTINGS, arguments)}
        progress = Progress(f"restoring {saved.stream}", contents.bytes, shown=not arguments.json)
        with saved.open() as file:
            chunks = _chunks(file, progress)
            info = await context.js.streams.restore(config, saved.meta["state"], chunks)
        progress.clear()
        many = show_many(info["state"]["messages"], "message")
        context.done(f"restored stream `{saved.stream}` with {many}", info)


async def _targets(context: Context) -> list[tuple[str, Path]]:
    """Return the streams to save, and where to."""
    arguments = context.arguments
    target = Path(arguments.target or arguments.stream or ".")
    if not arguments.stream or arguments.all == bool(arguments.target):
        raise ConfigError("which stream, and where to? hint: NAME TARGET, or --all TARGET")
    if not arguments.all:
        return [(arguments.stream, target)]
    return [(name, target / name) for name in sorted(await context.js.streams.names())]


def _sources(path: Path, *, all_of_them: bool) -> list[Path]:
    if not all_of_them:
        return [path]
    found = sorted(meta.parent for meta in path.glob(f"*/{archive.META}"))
    found += sorted(path.glob(f"*{archive.TAR}"))
    if not found:
        raise ClientError(f"there is no backup in the directories of `{path}`")
    return found


async def _exists(context: Context, stream: str) -> bool:
    try:
        await context.js.streams.info(stream)
    except JetStreamError as error:
        if error.err_code != errorcodes.STREAM_NOT_FOUND.err_code:
            raise
        return False
    return True


def _is_complete(target: Path) -> bool:
    return target.is_file() or (target / archive.META).is_file()


async def _save(context: Context, name: str, target: Path) -> Backup:
    """Save one stream; the files take their names once they are complete and verified."""
    folder = partial(target) if archive.is_file(target) else target
    folder.mkdir(parents=True, exist_ok=True)
    meta, data = folder / archive.META, folder / archive.DATA
    info = await context.js.streams.info(name)
    described = _resumable(meta, data, info) if context.arguments.resume else None
    if described is None:
        described = await _fetch(context, name, info["created"], meta, data)
    else:
        await _fetch_rest(context, name, described, data)
    with partial(data).open("rb") as file:
        contents = archive.survey(file)
    described |= {"sha256": contents.digest, "bytes": contents.bytes, "held": contents.messages}
    archive.check(partial(data), described, contents)
    meta.unlink(missing_ok=True)
    partial(data).replace(data)
    _write(meta, described)
    partial(meta).unlink()
    if archive.is_file(target):
        archive.pack(folder, target)
    return Backup(target, described)


async def _fetch(
    context: Context, name: str, created: str, meta: Path, data: Path
) -> dict[str, Any]:
    """Receive the whole archive."""
    arguments = context.arguments
    with_consumers = not arguments.no_consumers
    async with context.js.streams.snapshot(name, consumers=with_consumers) as snapshot:
        described = {"config": snapshot.config, "state": snapshot.state, "created": created}
        _write(partial(meta), described)
        progress = Progress(f"saving {name}", snapshot.state["bytes"], shown=not arguments.json)
        received = 0
        with partial(data).open("wb") as file:
            async for chunk in snapshot:
                file.write(chunk)
                received += len(chunk)
                progress.show(received)
        progress.clear()
    return described


def _resumable(meta: Path, data: Path, info: dict[str, Any]) -> dict[str, Any] | None:
    """Return the description of an interrupted backup of the same stream, if there is one."""
    try:
        described: dict[str, Any] = json.loads(partial(meta).read_text(encoding="utf-8"))
        with _arrived(data).open("rb") as file:
            has_messages = any(entry.sequence for entry in _entries(file))
    except (FileNotFoundError, ValueError):
        return None
    # The state and the consumers come first: with a message, they have arrived.
    return described if has_messages and described.get("created") == info["created"] else None


def _arrived(data: Path) -> Path:
    """Return what has arrived of an archive, also where resuming it was interrupted, too."""
    kept = data.with_suffix(".arrived")
    return kept if kept.exists() else partial(data)


async def _fetch_rest(context: Context, name: str, described: dict[str, Any], data: Path) -> None:
    """Keep the entries that have arrived, and read the messages behind them."""
    kept = data.with_suffix(".arrived")
    _arrived(data).replace(kept)
    writer, first = ArchiveWriter(), 1
    with kept.open("rb") as old, partial(data).open("wb") as new:
        new.write(writer.start())
        for entry in _entries(old):
            new.write(writer.add(entry))
            first = entry.sequence + 1
        context.say(f"stream `{name}`: resumed at sequence {first}")
        last = described["state"]["last_seq"]
        async for message in messages(context.js, name, first=first, last=last):
            new.write(writer.add(_entry_of(message)))
        new.write(writer.end())
    kept.unlink()


def _entry_of(message: StoredMessage) -> ArchiveEntry:
    pairs = message.header_pairs
    return ArchiveEntry(
        message.subject.encode(),
        parse_time(message.time),
        message.sequence,
        encode_headers(pairs) if pairs else b"",
        message.payload,
    )


def _entries(file: IO[bytes]) -> Iterator[ArchiveEntry]:
    """Yield the entries of an archive that may end anywhere."""
    reader = ArchiveReader()
    while piece := file.read(archive.PIECE_BYTES):
        yield from archive.read(reader, piece)


async def _chunks(file: IO[bytes], progress: Progress) -> AsyncIterator[bytes]:
    sent = 0
    while piece := file.read(archive.PIECE_BYTES):
        yield piece
        sent += len(piece)
        progress.show(sent)


def _write(path: Path, document: dict[str, Any]) -> None:
    replace_file(path, json.dumps(document, indent=2, ensure_ascii=False), mode=PUBLIC)


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ClientError(f"cannot write the backup to `{target}`: {reason(error)}") from None


def _sentence(saved: Backup, name: str, done: str = "saved") -> str:
    held, state = saved.meta.get("held"), saved.meta["state"]["messages"]
    many = show_many(state if held is None else held, "message")
    size = f", {show_size(saved.meta['bytes'])}" if "bytes" in saved.meta else ""
    text = f"{done} stream `{name}` with {many}{size} in `{saved.path}`"
    gone = 0 if held is None else state - held
    return f"{text}; {show_many(gone, 'message')} {GONE}" if gone else text


def _document(saved: Backup) -> dict[str, Any]:
    names = ("held", "bytes", "sha256")
    figures = {name: saved.meta[name] for name in names if name in saved.meta}
    return {"stream": saved.stream, "path": str(saved.path), **figures}


VERBS = (
    Verb(
        name="backup",
        summary="Save a stream with its consumers to a directory or a `.tar` file.",
        run=backup,
        arguments=(
            argument("stream", metavar="NAME", nargs="?", doc="The stream; with --all, TARGET."),
            argument("target", metavar="TARGET", nargs="?", doc="A directory, or a file `….tar`."),
            argument("--all", action="store_true", doc="Save every stream, in its own directory."),
            argument("--resume", action="store_true", doc="Go on where a backup was interrupted."),
            argument("--no-consumers", action="store_true", doc="Leave out the consumers."),
            *CONNECTION,
        ),
    ),
    Verb(
        name="restore",
        summary="Create a stream from its backup, with its consumers.",
        run=restore,
        arguments=(
            argument("source", metavar="SOURCE", type=Path, doc="The directory or file."),
            argument("--all", action="store_true", doc="Restore every backup in SOURCE."),
            argument("--resume", action="store_true", doc="Leave out streams that exist."),
            argument("--check", action="store_true", doc="Only verify the backup."),
            CONFIG_FILE,
            *options(STREAM_SETTINGS),
            *CONNECTION,
        ),
    ),
)
