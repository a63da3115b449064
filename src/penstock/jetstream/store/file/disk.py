"""
The only module of JetStream that touches the file system.

`Disk` has exactly the operations that a store needs, so that the tests can use a simulated disk
instead: one that loses unsynced data, tears writes, fails and runs full.
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

LOCK = "LOCK"
NAME_BYTES_MAX = 255
"""The longest name of a file or directory that file systems accept."""


def is_file_name(name: str) -> bool:
    """Tell whether a directory may have this name: clients choose the names of streams."""
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
        """Close the file."""


class Lock(Protocol):
    """A directory locked by this process."""

    def release(self) -> None:
        """Unlock the directory."""


class Disk(Protocol):
    """A file system. Paths are strings, with `/` between names. All methods raise OSError."""

    def make_directory(self, path: str) -> None:
        """Make a directory and those above it, durably. It may exist already."""

    def add_directory(self, path: str) -> None:
        """
        Make one directory, in an existing one. It may exist already.

        One `sync_directory` of its parent makes it durable, together with all others made there.
        """

    def remove_directory(self, path: str) -> None:
        """Remove a directory and everything in it. It may be gone already."""

    def remove_some(self, path: str, count_max: int) -> int:
        """
        Remove at most `count_max` files and directories of a directory, itself last.

        Return how many were removed: fewer than `count_max` once nothing is left of it.
        """

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, in order; an empty list without such a directory."""

    def create(self, path: str) -> File:
        """Open a new, empty file; an existing one of that name loses its content."""

    def open(self, path: str) -> File:
        """Open an existing file."""

    def rename(self, path: str, new_path: str) -> None:
        """Rename a file, replacing any file of that name. Whole or not at all."""

    def remove(self, path: str) -> None:
        """Remove a file. It may be gone already."""

    def sync_directory(self, path: str) -> None:
        """Return once the names in a directory would survive a power cut. Any thread."""

    def lock(self, path: str) -> Lock:
        """Lock a directory for this process; raise StoreError if another has it."""


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
            file.uses.pop()  # The work of `release`, without the call

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes from an offset."""
        file = self._file
        descriptor = self._files.acquire(file)
        try:
            data = os.pread(descriptor, length, offset)
            if len(data) < length:
                data += _rest(descriptor, offset + len(data), length - len(data))
            return data
        finally:
            # The work of `release`, without the call: every get of a key comes through here.
            file.uses.pop()

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
            # Data written from here on is not covered.
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
        """Close the file."""
        self._files.discard(self._file)


class RealLock:
    """The lock on a directory: the operating system holds it, so it ends with the process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """Unlock the directory."""
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
        """Make one directory, in an existing one."""
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)

    def remove_directory(self, path: str) -> None:
        """Remove a directory and everything in it."""
        self.remove_some(path, sys.maxsize)

    def remove_some(self, path: str, count_max: int) -> int:
        """Remove at most `count_max` files and directories of a directory, itself last."""
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
        except (FileNotFoundError, NotADirectoryError):
            return []

    def create(self, path: str) -> RealFile:
        """Open a new, empty file."""
        return self._opened(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def open(self, path: str) -> RealFile:
        """Open an existing file."""
        try:
            return self._opened(path, os.O_RDWR)
        except PermissionError:
            # `penstock store check` must be able to read files that it may not change.
            return self._opened(path, os.O_RDONLY)

    def _opened(self, path: str, flags: int) -> RealFile:
        return RealFile(self._files, self._files.add(path, flags))

    def rename(self, path: str, new_path: str) -> None:
        """Rename a file, replacing any file of that name."""
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
        """Lock a directory for this process; raise StoreError if another has it."""
        descriptor = os.open(f"{path}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
    """Return the content of a small file, or None if it does not exist."""
    try:
        file = disk.open(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return file.read(0, file.size())
    finally:
        file.close()


def _rest(descriptor: int, offset: int, length: int) -> bytes:
    """Return the rest of a short read, up to the end of the file."""
    found = bytearray()
    while len(found) < length:
        more = os.pread(descriptor, length - len(found), offset + len(found))
        if not more:
            break
        found += more
    return bytes(found)
