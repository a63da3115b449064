"""
Files that stay open as long as there are descriptors for them.

A server may have tens of thousands of streams, each with a segment and a log to write to, and far
fewer descriptors. So a file is known by its path: when too many are open, the least recently used
one is closed, and opened again when it is needed. A file with unsynced writes stays open: after
closing and opening it again, the operating system might not report that those writes failed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import threading
from collections import OrderedDict

FILES_MAX = 4096
FILES_MIN = 64


def files_max() -> int:
    """Return how many files to keep open: a part of the process limit, the rest is for sockets."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return FILES_MAX
    return max(min(soft // 4, FILES_MAX), FILES_MIN)


class OpenFile:
    """One file, open or not."""

    __slots__ = (
        "descriptor",
        "error",
        "flags",
        "identity",
        "is_dirty",
        "is_recent",
        "path",
        "uses",
    )

    def __init__(self, path: str, descriptor: int, flags: int) -> None:
        self.path = path
        self.descriptor = descriptor
        """-1 while it is not open."""
        self.flags = flags
        """How to open it again."""
        found = os.fstat(descriptor)
        self.identity = found.st_dev, found.st_ino
        self.uses: list[None] = []
        """One entry for each call under way: threads can add to and take from a list safely."""
        self.is_recent = True
        """Whether it was used since the last search for a file to close."""
        self.is_dirty = False
        """Whether it has unsynced writes."""
        self.error: OSError | None = None
        """The error of a sync that nobody asked for: the next requested sync raises it."""


class OpenFiles:
    """All open files of a disk. Any thread."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._lock = threading.Lock()
        self._open: OrderedDict[OpenFile, None] = OrderedDict()

    def add(self, path: str, flags: int, mode: int = 0o600) -> OpenFile:
        """Open a file."""
        with self._lock:
            self._make_room()
            descriptor = os.open(path, flags | os.O_CLOEXEC, mode)
            file = OpenFile(path, descriptor, flags & ~(os.O_CREAT | os.O_TRUNC) | os.O_CLOEXEC)
            self._open[file] = None
            return file

    def acquire(self, file: OpenFile) -> int:
        """Return the descriptor of a file, which stays open until it is released."""
        file.uses.append(None)
        file.is_recent = True
        # The closing thread takes the descriptor away first and then checks the uses.
        descriptor = file.descriptor
        return descriptor if descriptor >= 0 else self._opened_again(file)

    def release(self, file: OpenFile) -> None:
        """Allow a file to be closed when its descriptor is needed."""
        file.uses.pop()

    def discard(self, file: OpenFile) -> None:
        """Close a file for good."""
        with self._lock:
            descriptor, file.descriptor = file.descriptor, -1
            if file in self._open:
                del self._open[file]
                os.close(descriptor)

    def _opened_again(self, file: OpenFile) -> int:
        try:
            with self._lock:
                if file.descriptor < 0:
                    self._make_room()
                    file.descriptor = _open_again(file)
                    self._open[file] = None
                return file.descriptor
        except OSError:
            file.uses.pop()
            raise

    def _make_room(self) -> None:
        """Close a file if too many are open: one not used recently, preferably a clean one."""
        if len(self._open) < self._count_max:
            return
        for may_be_dirty in (False, False, True):
            for _ in range(len(self._open)):
                file = next(iter(self._open))
                if file.is_recent and not may_be_dirty:
                    file.is_recent = False
                elif (may_be_dirty or not file.is_dirty) and self._close_unused(file):
                    return
                self._open.move_to_end(file)

    def _close_unused(self, file: OpenFile) -> bool:
        descriptor, file.descriptor = file.descriptor, -1
        if file.uses:
            file.descriptor = descriptor
            return False
        if file.is_dirty:
            _sync(file, descriptor)
        del self._open[file]
        os.close(descriptor)
        return True


def sync_data(descriptor: int) -> None:
    """Return once written data would survive a power cut."""
    if hasattr(fcntl, "F_FULLFSYNC"):  # pragma: no cover - macOS: fsync leaves it in the drive
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    elif hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:  # pragma: no cover
        os.fsync(descriptor)


def _sync(file: OpenFile, descriptor: int) -> None:
    """Sync a file before it is closed; its owner gets an error with the next sync."""
    try:
        sync_data(descriptor)
        file.is_dirty = False
    except OSError as error:
        file.error = error


def _open_again(file: OpenFile) -> int:
    descriptor = os.open(file.path, file.flags)
    found = os.fstat(descriptor)
    if (found.st_dev, found.st_ino) != file.identity:
        os.close(descriptor)
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), file.path)
    return descriptor
