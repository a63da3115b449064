"""
Where the streams of an account are kept:

    <store_dir>/jetstream/<account>/streams/<name>/
        stream.json     the configuration and the time of creation
        sources.json    up to where its sources were read, see `origins`
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

from penstock.config.accounts import directory_name
from penstock.errors import StoreError
from penstock.jetstream.commit import Change
from penstock.jetstream.config.stream import StreamConfig, store_limits
from penstock.jetstream.store.file.disk import Disk, read_whole, write_whole
from penstock.jetstream.store.file.log import FileSettings, open_file_store
from penstock.jetstream.store.file.segmentfile import segment_number
from penstock.jetstream.store.values import Store, Work

if TYPE_CHECKING:
    from penstock.jetstream.stream import Stream

log = logging.getLogger("penstock")

FORMAT = 1
META = "stream.json"
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
        self.root = f"{store_dir}/jetstream/{directory_name(account)}/streams"
        self._deleted = 0

    def prepare(self) -> None:
        """Make the directory; remove what deleted streams have left, and those never made."""
        self.disk.make_directory(self.root)
        for name in self.disk.names(self.root):
            if name.endswith(DELETED) or self._was_never_made(name):
                self.disk.remove_directory(f"{self.root}/{name}")

    def _was_never_made(self, name: str) -> bool:
        path = self.path(name)
        is_known = META in self.disk.names(path)
        return not is_known and not any(map(self._segments, (path, f"{path}/messages")))

    def _segments(self, path: str) -> list[str]:
        return [name for name in self.disk.names(path) if segment_number(name) is not None]

    def names(self) -> list[str]:
        """Return the names of the streams that are there."""
        return [name for name in self.disk.names(self.root) if not name.endswith(DELETED)]

    def path(self, name: str) -> str:
        """Return the directory of a stream."""
        return f"{self.root}/{name}"

    def consumers_path(self, name: str) -> str:
        """Return the directory of a stream's consumers."""
        return f"{self.path(name)}/consumers"

    def make_room_for_consumers(self, name: str) -> None:
        """Make the directory of a stream's consumers, if an older server left it to the first."""
        self.disk.make_directory(self.consumers_path(name))

    def has_consumers(self, name: str) -> bool:
        """Tell whether a stream ever had consumers that were kept."""
        return bool(self.disk.names(self.consumers_path(name)))

    def read(self, name: str) -> tuple[StreamConfig, int]:
        """Return a stream's configuration and its time of creation; raise StoreError."""
        return read_meta(self.disk, self.path(name))

    def make(self, config: StreamConfig, created_ns: int) -> Store:
        """Make the files of a stream, durably once `sync_names` was called. Any thread."""
        directory = self.path(config.name)
        for path in (directory, f"{directory}/messages", self.consumers_path(config.name)):
            self.disk.add_directory(path)
        self.write(config, created_ns)
        return self.open_store(config)[0]

    def sync_names(self) -> None:
        """Make the names of all streams durable. Any thread."""
        self.disk.sync_directory(self.root)

    def write(self, config: StreamConfig, created_ns: int) -> None:
        """Keep a stream's configuration, durably; whole or not at all. Any thread."""
        document = {"format": FORMAT, "created_ns": created_ns, "config": config.to_json()}
        content = json.dumps(document, indent=1).encode()
        write_whole(self.disk, f"{self.path(config.name)}/{META}", content)

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
        """Keep something about the sources of a stream, durably. Any thread."""
        content = json.dumps(document, indent=1).encode()
        write_whole(self.disk, f"{self.path(name)}/{SOURCES}", content)

    def open_store(self, config: StreamConfig) -> tuple[Store, list[str]]:
        """Open or make the store of a stream; return it with what is to be told about it."""
        salt = salt_of(config.name)
        directory = f"{self.path(config.name)}/messages"
        return open_file_store(
            self.disk, directory, limits=store_limits(config), salt=salt, settings=self._settings
        )

    def bury(self, name: str) -> str:
        """Take a stream out of sight: its name is free from now on. Return what is left of it."""
        self._deleted += 1
        path = f"{self.root}/{self._deleted}{DELETED}"
        self.disk.rename(self.path(name), path)
        return path


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


class Creation:
    """A stream on its way to be one; who asks for it meanwhile waits."""

    def __init__(self, files: StreamFiles, config: StreamConfig, created_ns: int) -> None:
        self.config = config
        self.store: Store | None = None
        self._files = files
        self._created_ns = created_ns
        self._waiting: list[Callable[[], None]] = []

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self.config.name

    def run(self) -> None:
        """Make its files, or none. Any thread."""
        path = self._files.path(self.name)
        is_new = not self._files.disk.names(path)
        try:
            self.store = self._files.make(self.config, self._created_ns)
        except Exception:
            if is_new:
                with suppress(OSError):
                    self._files.disk.remove_directory(path)
            raise

    def wait(self, action: Callable[[], None]) -> None:
        """Do something once the stream is there, or will never be."""
        self._waiting.append(action)

    def let_go(self) -> None:
        """Go on with what waited."""
        for action in self._waiting:
            action()


class Deletion(Change):
    """
    A deleted stream until it can not come back. A `commit.Durable`.

    The store is closed when a commit begins, because no other is under way then,
    which may still use its files.
    """

    def __init__(
        self,
        stream: Stream,
        done: Callable[[Exception | None], None],
        *,
        last: Callable[[], None] | None,
    ) -> None:
        self._stream = stream
        super().__init__(lambda: None, done, last=last)

    def begin_commit(self) -> Work:
        """Close the files."""
        with suppress(Exception):
            # What it could not save is about to be removed anyway.
            self._stream.store.discard()
            if self._stream.consumer_files is not None:
                self._stream.consumer_files.discard()
        return self


def close_store(store: Store) -> None:
    """Close a store; what could not be saved was never acknowledged."""
    try:
        store.close()
    except Exception as error:
        log.error("A store could not be closed in order: %s", error)
