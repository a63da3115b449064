"""
The leftovers of deleted streams.

A stream is deleted when the new name of its directory is safe. Its files, which may be many, are
removed afterwards: a few between two commits, so that no ack waits for all of them. The next start
removes what a crash leaves of them, see `StreamFiles.prepare`.
"""

from __future__ import annotations

import logging
from collections import deque

from penstock.jetstream.store.file.disk import Disk
from penstock.jetstream.store.values import Work

log = logging.getLogger("penstock")

SWEPT_MAX = 32
"""The number of files and directories to remove at a time."""


class Rubbish:
    """Directories to remove."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._paths: deque[str] = deque()

    def __len__(self) -> int:
        return len(self._paths)

    def add(self, path: str) -> None:
        """Queue a directory for removal."""
        self._paths.append(path)

    def sweep(self) -> Work:
        """Return the next piece of work; there must be something left."""
        return Sweep(self._disk, self._paths)


class Sweep:
    """The removal of a few files. A `Work`."""

    def __init__(self, disk: Disk, paths: deque[str]) -> None:
        self._disk = disk
        self._paths = paths
        self._path = paths[0]
        self._removed = 0

    def run(self) -> None:
        """Remove the files."""
        self._removed = self._disk.remove_some(self._path, SWEPT_MAX)

    def finish(self, error: Exception | None = None) -> None:
        """Continue with the next directory when this one is gone or cannot be removed."""
        if error is not None:
            log.error("`%s` cannot be removed: %s", self._path, error)
        if error is not None or self._removed < SWEPT_MAX:
            self._paths.popleft()
