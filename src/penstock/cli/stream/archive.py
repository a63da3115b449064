"""
A backup of a stream on disk: a directory, or one `.tar` file of the same two files.

    backup.json      the configuration and the state of the stream, and a checksum of the archive
    stream.tar.s2    the messages and consumers, in the archive format of nats-server

The names are those of `nats stream backup`, so each command restores what the other has saved.
While a backup is written its files end in `.partial`; they replace the last backup only when
they are complete and verified.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from penstock.errors import ClientError, reason
from penstock.jetstream.snapshots.archive import ArchiveEntry, ArchiveReader

META, DATA = "backup.json", "stream.tar.s2"
PARTIAL = ".partial"
TAR = ".tar"
PIECE_BYTES = 128 * 1024


@dataclass
class Contents:
    """The figures of an archive."""

    messages: int = 0
    last_sequence: int = 0
    bytes: int = 0
    is_complete: bool = False
    digest: str = ""


@dataclass(frozen=True)
class Backup:
    """A backup that is complete."""

    path: Path
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def stream(self) -> str:
        """The name of the stream."""
        return str(self.meta["config"]["name"])

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Open the archive."""
        with _reading(self.path), _opened(self.path, DATA) as file:
            yield file

    def verify(self) -> Contents:
        """Read every byte; raise if the archive is damaged or does not fit its description."""
        with self.open() as file:
            contents = survey(file)
        check(self.path, self.meta, contents)
        return contents


def check(path: Path, meta: Mapping[str, Any], contents: Contents) -> None:
    """Raise if an archive does not fit its description."""
    state, problem = meta["state"], ""
    if meta.get("sha256", contents.digest) != contents.digest:
        problem = "its checksum is not the one it had"
    elif not contents.is_complete:
        problem = "it has no end"
    elif contents.last_sequence > state["last_seq"] or contents.messages > state["messages"]:
        problem = "it has more messages than its description"
    if problem:
        raise ClientError(f"the backup in `{path}` is damaged: {problem}")


def open_backup(path: Path) -> Backup:
    """Open a backup in a directory or a file."""
    with _reading(path), _opened(path, META) as file:
        try:
            meta = json.load(file)
            name, state = meta["config"]["name"], meta["state"]
            fits = isinstance(name, str) and isinstance(state["last_seq"] + state["messages"], int)
        except (ValueError, KeyError, TypeError):
            fits = False
    if not fits:
        raise ClientError(f"`{path}`: `{META}` does not describe a backup of a stream")
    return Backup(path, meta)


def survey(file: IO[bytes]) -> Contents:
    """Read an archive to its end and return what it holds."""
    contents, digest = Contents(), hashlib.sha256()
    reader = ArchiveReader()
    while piece := file.read(PIECE_BYTES):
        digest.update(piece)
        contents.bytes += len(piece)
        for entry in read(reader, piece):
            if not entry.sequence:
                continue
            if entry.sequence <= contents.last_sequence:
                raise ClientError("the archive is damaged: its messages are not in order")
            contents.messages += 1
            contents.last_sequence = entry.sequence
    contents.is_complete = reader.is_complete
    contents.digest = digest.hexdigest()
    return contents


def read(reader: ArchiveReader, piece: bytes) -> Iterator[ArchiveEntry]:
    """Yield the entries that a piece of an archive completes."""
    try:
        yield from reader.feed(piece)
    except ValueError as error:
        raise ClientError(f"the archive is damaged: {error}") from None


def partial(path: Path) -> Path:
    """Return the path of a file that is not complete yet."""
    return path.with_name(path.name + PARTIAL)


def is_file(path: Path) -> bool:
    """Return whether a backup goes into one file, by its name."""
    return path.suffix == TAR


def pack(folder: Path, target: Path) -> None:
    """Put the two files of a backup into one, and remove them."""
    packed = folder / target.name
    with tarfile.open(packed, "w") as tar:
        for name in (META, DATA):
            tar.add(folder / name, name)
    packed.replace(target)
    for name in (META, DATA):
        (folder / name).unlink()
    folder.rmdir()


@contextmanager
def _opened(path: Path, name: str) -> Iterator[IO[bytes]]:
    if path.is_dir():
        with (path / name).open("rb") as file:
            yield file
        return
    with tarfile.open(path) as tar:
        member = tar.extractfile(name)
        assert member is not None, "a regular file"
        with member:
            yield member


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn the errors of files into ours."""
    try:
        yield
    except (OSError, tarfile.TarError, KeyError) as error:
        text = str(error).strip("'\"") if isinstance(error, KeyError) else reason(error)
        raise ClientError(f"cannot read the backup in `{path}`: {text}") from None
