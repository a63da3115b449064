"""
The files of an account's streams:

    <store_dir>/jetstream/<account>/streams/<name>/
        stream.json     the configuration and the time of creation
        sources.json    the positions in its sources, see `origins`
        messages/       the segments, see `filestore`
        consumers/      one directory for each durable consumer
        restoring       exists only until the stream is restored completely

Deleting a stream first renames it, so that its name is free immediately and its remains after a
crash are known to be rubbish. The same goes for a stream that was only half restored.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from penstock.config.accounts import directory_name
from penstock.errors import StoreError
from penstock.jetstream.config.stream import StreamConfig, store_limits
from penstock.jetstream.store.file.disk import Disk, write_whole
from penstock.jetstream.store.file.documents import read_document, write_document
from penstock.jetstream.store.file.log import FileSettings, open_file_store
from penstock.jetstream.store.file.segmentfile import segment_number
from penstock.jetstream.store.store import Store
from penstock.jetstream.store.values import Findings

log = logging.getLogger("penstock")

FORMAT = 1
META = "stream.json"
SOURCES = "sources.json"
RESTORING = "restoring"
MESSAGES, CONSUMERS = "messages", "consumers"
UNFINISHED = frozenset((MESSAGES, CONSUMERS, f"{META}.tmp", f"{RESTORING}.tmp"))
"""The content of a stream's directory until the stream exists."""
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
        """Make the directory; remove the remains of deleted streams and of unfinished ones."""
        self.disk.make_directory(self.root)
        for name in self.disk.names(self.root):
            found = self.disk.names(self.path(name))
            is_unfinished = UNFINISHED.issuperset(found) and not self._has_messages(name)
            if name.endswith(DELETED) or is_unfinished:
                self.disk.remove_directory(self.path(name))
            elif RESTORING in found:
                self._remove_restored(name)
        for name in sorted({*self.disk.names(self.root)}.difference(self.names())):
            log.warning("`%s` is not the directory of a stream: left alone", self.path(name))

    def _remove_restored(self, name: str) -> None:
        log.warning("Stream '%s' was not restored completely, and is removed", name)
        # A crash in the middle of the removal must not leave a part without the mark.
        path = self.bury(name)
        self.sync_names()
        self.disk.remove_directory(path)

    def _has_messages(self, name: str) -> bool:
        path = self.path(name)
        return any(map(self._segments, (path, f"{path}/{MESSAGES}")))

    def _segments(self, path: str) -> list[str]:
        return [name for name in self.disk.names(path) if segment_number(name) is not None]

    def names(self) -> list[str]:
        """Return the names of the streams on disk."""
        return [name for name in self.disk.names(self.root) if self.disk.names(self.path(name))]

    def path(self, name: str) -> str:
        """Return the directory of a stream."""
        return f"{self.root}/{name}"

    def consumers_path(self, name: str) -> str:
        """Return the directory of a stream's consumers."""
        return f"{self.path(name)}/{CONSUMERS}"

    def has_consumers(self, name: str) -> bool:
        """Tell whether a stream ever had consumers on disk."""
        return bool(self.disk.names(self.consumers_path(name)))

    def read(self, name: str) -> tuple[StreamConfig, int]:
        """Return a stream's configuration and its time of creation; raise StoreError."""
        return read_meta(self.disk, self.path(name))

    def make(self, config: StreamConfig, created_ns: int, *, is_restored: bool = False) -> Store:
        """Make the files of a stream, durably once `sync_names` was called. Any thread."""
        directory = self.path(config.name)
        for path in (directory, f"{directory}/{MESSAGES}", self.consumers_path(config.name)):
            self.disk.add_directory(path)
        if is_restored:
            write_whole(self.disk, f"{directory}/{RESTORING}", b"")
        # First: whatever has a configuration has the files of an empty store too.
        store, _ = self._open_store(config, is_new=True)
        try:
            self.write(config, created_ns)
        except Exception:
            store.discard()
            raise
        return store

    def sync_names(self) -> None:
        """Make the names of all streams durable. Any thread."""
        self.disk.sync_directory(self.root)

    def restored(self, name: str) -> None:
        """Keep a stream from now on, durably: it is restored completely. Any thread."""
        self.disk.remove(f"{self.path(name)}/{RESTORING}")
        self.disk.sync_directory(self.path(name))

    def write(self, config: StreamConfig, created_ns: int) -> None:
        """Store a stream's configuration, durably; whole or not at all. Any thread."""
        document = {"format": FORMAT, "created_ns": created_ns, "config": config.to_json()}
        write_document(self.disk, f"{self.path(config.name)}/{META}", document)

    def read_sources(self, name: str) -> dict[str, Any] | None:
        """Return the stored positions in a stream's sources, if there are any to be read."""
        with suppress(StoreError):
            return _read_sources(self.disk, self.path(name))
        return None

    def write_sources(self, name: str, document: dict[str, Any]) -> None:
        """Store the positions in a stream's sources, durably. Any thread."""
        write_document(self.disk, f"{self.path(name)}/{SOURCES}", document)

    def open_store(self, config: StreamConfig) -> tuple[Store, Findings]:
        """Open the store of a stream; return it with what was found there."""
        missing = missing_consumers(self.disk, self.path(config.name))
        self.disk.make_directory(self.consumers_path(config.name))
        store, found = self._open_store(config, is_new=False)
        missing += source_faults(self.disk, self.path(config.name), config, store.last_sequence)
        return store, found._replace(faults=found.faults + missing)

    def _open_store(self, config: StreamConfig, *, is_new: bool) -> tuple[Store, Findings]:
        return open_file_store(
            self.disk,
            f"{self.path(config.name)}/{MESSAGES}",
            limits=store_limits(config),
            salt=salt_of(config.name),
            settings=self._settings,
            is_new=is_new,
        )

    def bury(self, name: str) -> str:
        """Rename a stream's directory, which frees its name. Return the new path."""
        self._deleted += 1
        path = f"{self.root}/{self._deleted}{DELETED}"
        self.disk.rename(self.path(name), path)
        return path


def read_meta(disk: Disk, directory: str) -> tuple[StreamConfig, int]:
    """Return the configuration and time of creation of the stream kept in a directory."""
    path = f"{directory}/{META}"
    document = read_document(disk, path, ("format", "created_ns", "config"))
    if document is None:
        raise StoreError(f"`{path}` is missing")
    try:
        config = StreamConfig.from_json(document["config"])
        created_ns = int(document["created_ns"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"`{path}` is damaged: {error!r}") from error
    if config.name != directory.rpartition("/")[2]:
        raise StoreError(f"`{path}` is that of stream `{config.name}`")
    return config, created_ns


def _read_sources(disk: Disk, directory: str) -> dict[str, Any] | None:
    """Return the positions in its sources of the stream kept in a directory, if any."""
    return read_document(disk, f"{directory}/{SOURCES}", ("last_sequence", "positions"))


def source_faults(
    disk: Disk, directory: str, config: StreamConfig, last_sequence: int
) -> list[str]:
    """Return a fault if the positions in a stream's sources are damaged, or should be there."""
    try:
        found = _read_sources(disk, directory)
    except StoreError as error:
        return [f"{error}: what was copied and removed may be copied again"]
    if found is not None or not config.sources or not last_sequence:
        return []
    return [f"`{directory}/{SOURCES}` is missing: what was copied and removed may be copied again"]


def missing_consumers(disk: Disk, directory: str) -> list[str]:
    """Return a note if a stream's directory has none for consumers: it is made with the stream."""
    if CONSUMERS in disk.names(directory):
        return []
    return [f"`{directory}/{CONSUMERS}` is missing, and all consumers with it"]


def salt_of(stream: str) -> int:
    """Return the start value of the checksums of a stream's messages."""
    return zlib.crc32(stream.encode())


class Creation:
    """A stream that is being made; requests for it wait meanwhile."""

    def __init__(
        self,
        files: StreamFiles,
        config: StreamConfig,
        created_ns: int,
        *,
        is_restored: bool = False,
    ) -> None:
        self.config = config
        self.is_restored = is_restored
        self.store: Store | None = None
        self._files = files
        self._created_ns = created_ns
        self._waiting: list[Callable[[], None]] = []

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self.config.name

    def run(self) -> None:
        """Make its files, all or none. Any thread."""
        path = self._files.path(self.name)
        is_new = not self._files.disk.names(path)
        try:
            self.store = self._files.make(
                self.config, self._created_ns, is_restored=self.is_restored
            )
        except Exception:
            if is_new:
                with suppress(OSError):
                    self._files.disk.remove_directory(path)
            raise

    def wait(self, action: Callable[[], None]) -> None:
        """Do something once the stream exists, or will never exist."""
        self._waiting.append(action)

    def let_go(self) -> None:
        """Run the actions that waited."""
        for action in self._waiting:
            action()


def close_store(store: Store) -> None:
    """Close a store; messages that could not be saved were never acknowledged."""
    try:
        store.close()
    except Exception as error:
        log.error("A store could not be closed in order: %s", error)
