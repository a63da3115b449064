"""
Where the streams of an account are kept:

    <store_dir>/jetstream/<account>/streams/<name>/
        stream.json     the configuration and the time of creation
        sources.json    up to where its sources were read, see `origins`
        expiring        there if messages with a time to live were ever stored
        messages/       the segments, see `filestore`
        consumers/      one directory for each durable consumer

A stream that is deleted is first renamed, so that its name is free at once and
what is left of it after a crash is known to be rubbish.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from penstock.errors import StoreError
from penstock.jetstream.disk import Disk, read_whole, write_whole
from penstock.jetstream.filestore import FileSettings, open_file_store
from penstock.jetstream.model import StreamConfig, store_limits
from penstock.jetstream.store import Store, Work

if TYPE_CHECKING:
    from penstock.jetstream.stream import Stream

log = logging.getLogger("penstock")

FORMAT = 1
META = "stream.json"
EXPIRING = "expiring"
SOURCES = "sources.json"
DELETED = ".deleted"
"""A stream name has no dot, so nothing else ends like this."""


class StreamFiles:
    """The directories of an account's file streams."""

    def __init__(
        self, disk: Disk, store_dir: str, account: str, settings: FileSettings | None = None
    ) -> None:
        self.disk = disk
        self._settings = settings or FileSettings()
        self.root = f"{store_dir}/jetstream/{_directory(account)}/streams"
        self._deleted = 0

    def prepare(self) -> None:
        """Make the directory, and remove what deleted streams have left in it."""
        self.disk.make_directory(self.root)
        for name in self.disk.names(self.root):
            if name.endswith(DELETED):
                self.disk.remove_directory(f"{self.root}/{name}")

    def names(self) -> list[str]:
        """Return the names of the streams that are there."""
        return [name for name in self.disk.names(self.root) if not name.endswith(DELETED)]

    def path(self, name: str) -> str:
        """Return the directory of a stream."""
        return f"{self.root}/{name}"

    def consumers_path(self, name: str) -> str:
        """Return the directory of a stream's consumers."""
        return f"{self.path(name)}/consumers"

    def has_consumers(self, name: str) -> bool:
        """Tell whether a stream ever had consumers that were kept."""
        return bool(self.disk.names(self.consumers_path(name)))

    def read(self, name: str) -> tuple[StreamConfig, int]:
        """Return a stream's configuration and its time of creation; raise StoreError."""
        return read_meta(self.disk, self.path(name))

    def write(self, config: StreamConfig, created_ns: int) -> None:
        """Keep a stream's configuration, durably; whole or not at all."""
        directory = self.path(config.name)
        document = {"format": FORMAT, "created_ns": created_ns, "config": config.to_json()}
        self.disk.make_directory(directory)
        write_whole(self.disk, f"{directory}/{META}", json.dumps(document, indent=1).encode())

    def is_expiring(self, name: str) -> bool:
        """Tell whether some messages of a stream may have a time to live."""
        return EXPIRING in self.disk.names(self.path(name))

    def mark_expiring(self, name: str) -> None:
        """Note durably that some messages of a stream have a time to live."""
        write_whole(self.disk, f"{self.path(name)}/{EXPIRING}", b"")

    def read_sources(self, name: str) -> dict[str, Any] | None:
        """Return what was kept about the sources of a stream, if that is there and readable."""
        if SOURCES not in self.disk.names(self.path(name)):
            return None
        try:
            document = json.loads(read_whole(self.disk, f"{self.path(name)}/{SOURCES}") or b"")
        except ValueError:
            return None
        return document if isinstance(document, dict) else None

    def write_sources(self, name: str, document: dict[str, Any]) -> None:
        """Keep something about the sources of a stream, durably."""
        content = json.dumps(document, indent=1).encode()
        write_whole(self.disk, f"{self.path(name)}/{SOURCES}", content)

    def open_store(self, config: StreamConfig) -> tuple[Store, list[str]]:
        """Open or make the store of a stream; return it with what is to be told about it."""
        salt = salt_of(config.name)
        directory = f"{self.path(config.name)}/messages"
        return open_file_store(
            self.disk, directory, limits=store_limits(config), salt=salt, settings=self._settings
        )

    def bury(self, name: str) -> Grave:
        """Take a stream out of sight: its name is free from now on."""
        self._deleted += 1
        path = f"{self.root}/{self._deleted}{DELETED}"
        self.disk.rename(self.path(name), path)
        return Grave(self.disk, self.root, path)


def read_meta(disk: Disk, directory: str) -> tuple[StreamConfig, int]:
    """Return the configuration and time of creation of the stream kept in a directory."""
    path = f"{directory}/{META}"
    try:
        file = disk.open(path)
    except OSError as error:
        raise StoreError(f"`{path}` cannot be read: {error}") from error
    try:
        document = json.loads(file.read(0, file.size()))
        return StreamConfig.from_json(document["config"]), int(document["created_ns"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"`{path}` is damaged: {error!r}") from error
    finally:
        file.close()


def salt_of(stream: str) -> int:
    """Return what the checksums of a stream's messages start from."""
    return zlib.crc32(stream.encode())


def _directory(account: str) -> str:
    """Return an account's name as one that a directory may have."""
    quoted = quote(account, safe="$")
    return quoted.replace(".", "%2E") if quoted.startswith(".") else quoted


class Grave:
    """What is left of a stream that was deleted. A `store.Work`."""

    def __init__(self, disk: Disk, root: str, path: str) -> None:
        self._disk = disk
        self._root = root
        self._path = path

    def run(self) -> None:
        """Make sure the stream stays away, and give its room back."""
        self._disk.sync_directory(self._root)
        self._disk.remove_directory(self._path)

    def finish(self, error: Exception | None = None) -> None:
        """Say what stayed behind; the next start removes it."""
        if error is not None:
            log.error("`%s` can not be removed: %s", self._path, error)


class Deletion:
    """
    A deleted stream until nothing is left of it. A `commit.Durable`.

    The store is closed when a commit begins, because no other is under way then,
    which may still use its files.
    """

    def __init__(self, stream: Stream, grave: Grave | None, done: Callable[[], None]) -> None:
        self._stream = stream
        self._grave = grave
        self._done = done

    def begin_commit(self) -> Work | None:
        """Close the files; return what removes them."""
        with suppress(Exception):
            # What it could not save is about to be removed anyway.
            self._stream.store.close()
            if self._stream.consumer_files is not None:
                self._stream.consumer_files.discard()
        return self._grave

    def end_commit(self) -> None:
        """Say that it is done."""
        self._done()

    def fail_commit(self, reason: str) -> None:
        """Say that it is done all the same: its name is free, and the next start removes it."""
        self._done()


def close_store(store: Store) -> None:
    """Close a store; what could not be saved was never acknowledged."""
    try:
        store.close()
    except Exception as error:
        log.error("A store could not be closed in order: %s", error)
