"""
The only module of JetStream that touches the file system.

`Disk` is what a store needs of one, and no more, so that the tests can put a
simulated disk in its place: one that loses what was not synced, tears writes,
fails and runs full.
"""

from __future__ import annotations

import fcntl
import os
import sys
import unicodedata
from contextlib import suppress
from itertools import islice
from typing import Protocol

from penstock.errors import StoreError
from penstock.jetstream.store.file.openfiles import OpenFile, OpenFiles, files_max, sync_data

NAME_BYTES_MAX = 255
"""What file systems take for the name of a file or a directory."""


def is_file_name(name: str) -> bool:
    """Tell whether a directory may be called so: what a client names is kept under its name."""
    if not name or name in (".", "..") or any(map(_is_forbidden, name)):
        return False
    try:
        name.encode()
        return len(os.fsencode(name)) <= NAME_BYTES_MAX
    except UnicodeEncodeError:
        return False


def _is_forbidden(character: str) -> bool:
    return character == "/" or unicodedata.category(character) == "Cc"


class File(Protocol):
    """An open file. Nothing here is buffered in this process. All methods raise OSError."""

    def write(self, data: bytes, offset: int) -> None:
        """Write all of `data` at an offset. After an error, any part of it may be there."""

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes from an offset; fewer than asked only at the end of the file."""

    def size(self) -> int:
        """Return the length of the file."""

    def truncate(self, length: int) -> None:
        """Cut the file off."""

    def sync(self) -> None:
        """Return once everything written before would survive a power cut. Any thread."""

    def close(self) -> None:
        """Let go of the file."""


class Lock(Protocol):
    """A directory held by this process."""

    def release(self) -> None:
        """Let others have the directory."""


class Disk(Protocol):
    """A file system. Paths are strings, with `/` between names. All methods raise OSError."""

    def make_directory(self, path: str) -> None:
        """Make a directory and those above it, durably. It may be there already."""

    def add_directory(self, path: str) -> None:
        """
        Make one directory, in one that is there. It may be there already.

        A `sync_directory` of the one above makes it durable, and all others made there.
        """

    def remove_directory(self, path: str) -> None:
        """Remove a directory and everything in it. It may be gone already."""

    def remove_some(self, path: str, count_max: int) -> int:
        """
        Remove at most so many files and directories of a directory, itself the last.

        Return how many those were: fewer than `count_max` once nothing is left of it.
        """

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, in order; none if there is no such directory."""

    def create(self, path: str) -> File:
        """Open a new, empty file; one of that name loses its content."""

    def open(self, path: str) -> File:
        """Open a file that is there."""

    def rename(self, path: str, new_path: str) -> None:
        """Give a file another name, in place of what had it. Whole or not at all."""

    def remove(self, path: str) -> None:
        """Remove a file. It may be gone already."""

    def sync_directory(self, path: str) -> None:
        """Return once the names in a directory would survive a power cut. Any thread."""

    def lock(self, path: str) -> Lock:
        """Take a directory for this process; raise StoreError if another has it."""


class RealFile:
    """A file of the operating system."""

    def __init__(self, files: OpenFiles, file: OpenFile) -> None:
        self._files = files
        self._file = file

    def write(self, data: bytes, offset: int) -> None:
        """Write all of `data` at an offset."""
        file = self._file
        descriptor = self._files.acquire(file)
        try:
            file.is_dirty = True
            written = os.pwrite(descriptor, data, offset)
            if written < len(data):
                view = memoryview(data)
                while written < len(data):
                    written += os.pwrite(descriptor, view[written:], offset + written)
        finally:
            self._files.release(file)

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes from an offset."""
        descriptor = self._files.acquire(self._file)
        try:
            data = os.pread(descriptor, length, offset)
            while len(data) < length:
                more = os.pread(descriptor, length - len(data), offset + len(data))
                if not more:
                    break
                data += more
            return data
        finally:
            self._files.release(self._file)

    def size(self) -> int:
        """Return the length of the file."""
        descriptor = self._files.acquire(self._file)
        try:
            return os.fstat(descriptor).st_size
        finally:
            self._files.release(self._file)

    def truncate(self, length: int) -> None:
        """Cut the file off."""
        descriptor = self._files.acquire(self._file)
        try:
            self._file.is_dirty = True
            os.ftruncate(descriptor, length)
        finally:
            self._files.release(self._file)

    def sync(self) -> None:
        """Return once everything written before would survive a power cut."""
        file = self._file
        descriptor = self._files.acquire(file)
        try:
            # What is written from here on is not covered.
            file.is_dirty = False
            try:
                sync_data(descriptor)
            except OSError:
                file.is_dirty = True
                raise
            if file.error is not None:
                error, file.error = file.error, None
                raise error
        finally:
            self._files.release(file)

    def close(self) -> None:
        """Let go of the file."""
        self._files.discard(self._file)


class RealLock:
    """The lock on a directory: held by the operating system, so gone with the process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """Let others have the directory."""
        os.close(self._descriptor)


class RealDisk:
    """The file system of the operating system."""

    def __init__(self) -> None:
        self._files = OpenFiles(files_max())

    def make_directory(self, path: str) -> None:
        """Make a directory and those above it, durably."""
        if os.path.isdir(path):
            return
        above = os.path.dirname(path.rstrip("/"))
        if above:
            self.make_directory(above)
        os.mkdir(path, 0o700)
        self.sync_directory(above or ".")

    def add_directory(self, path: str) -> None:
        """Make one directory, in one that is there."""
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)

    def remove_directory(self, path: str) -> None:
        """Remove a directory and everything in it."""
        self.remove_some(path, sys.maxsize)

    def remove_some(self, path: str, count_max: int) -> int:
        """Remove at most so many files and directories of a directory, itself the last."""
        if not os.path.isdir(path):
            return 0
        removed = 0
        with os.scandir(path) as entries:
            some = list(islice(entries, count_max))
        for entry in some:
            if removed == count_max:
                break
            if entry.is_dir(follow_symlinks=False):
                removed += self.remove_some(entry.path, count_max - removed)
            else:
                self.remove(entry.path)
                removed += 1
        if removed < count_max:
            os.rmdir(path)
            removed += 1
        return removed

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, in order."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def create(self, path: str) -> RealFile:
        """Open a new, empty file."""
        return self._opened(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def open(self, path: str) -> RealFile:
        """Open a file that is there."""
        try:
            return self._opened(path, os.O_RDWR)
        except PermissionError:
            # `penstock store check` must be able to look at what it may not change.
            return self._opened(path, os.O_RDONLY)

    def _opened(self, path: str, flags: int) -> RealFile:
        return RealFile(self._files, self._files.add(path, flags))

    def rename(self, path: str, new_path: str) -> None:
        """Give a file another name, in place of what had it."""
        os.replace(path, new_path)

    def remove(self, path: str) -> None:
        """Remove a file."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return

    def sync_directory(self, path: str) -> None:
        """Return once the names in a directory would survive a power cut."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: str) -> RealLock:
        """Take a directory for this process; raise StoreError if another has it."""
        descriptor = os.open(f"{path}/LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            if not isinstance(error, BlockingIOError):
                raise
            raise StoreError(
                f"store directory `{path}` is in use by process {holder or 'unknown'}; "
                "hint: stop that server, or give this one a `store_dir` of its own"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        return RealLock(descriptor)


def write_whole(disk: Disk, path: str, data: bytes) -> None:
    """Replace a small file, durably: a power cut leaves the old content or the new."""
    directory = path.rpartition("/")[0]
    draft = disk.create(f"{path}.tmp")
    try:
        draft.write(data, 0)
        draft.sync()
    finally:
        draft.close()
    disk.rename(f"{path}.tmp", path)
    disk.sync_directory(directory)


def read_whole(disk: Disk, path: str) -> bytes | None:
    """Return the content of a small file, or None if there is none."""
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        return file.read(0, file.size())
    finally:
        file.close()
