"""
A disk that fails as disks fail, driven by a seed.

What was not synced may be lost in a crash, sector by sector and in any order;
names that were not synced may be lost too, the youngest first. A sync that fails
loses what it should have written, and the next one does not notice: so does
Linux. A write that fails may have written a part. A full disk is full.
"""

from __future__ import annotations

import errno
import os
import random

from penstock.errors import StoreError
from penstock.jetstream.store.file.disk import File
from penstock.jetstream.store.file.encryption import EncryptedFile, Keys

SECTOR_BYTES = 64
"""Small, so that small tests tear records too."""


class SimInode:
    """The content of a file: as it reads, and as it would be after a crash."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.durable = bytearray()
        self.unsynced: list[tuple[int, bytes | None]] = []
        """Writes as offset and data, truncations as length and None; in order."""


class SimFile:
    """An open file of a simulated disk."""

    def __init__(self, disk: SimDisk, inode: SimInode) -> None:
        self._disk = disk
        self._inode = inode
        self._open = True

    def write(self, data: bytes, offset: int) -> None:
        self._check()
        problem = self._disk.trouble("write") or self._disk.room_for(self._inode, offset, data)
        if problem is not None:
            data = data[: self._disk.random.randrange(len(data) + 1)]
        _put(self._inode.content, offset, data)
        self._inode.unsynced.append((offset, data))
        if problem is not None:
            raise problem

    def read(self, offset: int, length: int) -> bytes:
        self._check()
        if problem := self._disk.unreadable("read"):
            raise problem
        return bytes(self._inode.content[offset : offset + length])

    def size(self) -> int:
        self._check()
        return len(self._inode.content)

    def truncate(self, length: int) -> None:
        self._check()
        if problem := self._disk.trouble("truncate"):
            raise problem
        _cut(self._inode.content, length)
        self._inode.unsynced.append((length, None))

    def sync(self) -> None:
        self._check()
        inode = self._inode
        if problem := self._disk.trouble("sync"):
            _persist_some(inode, self._disk.random)
            raise problem
        for offset, data in inode.unsynced:
            _replay(inode.durable, offset, data)
        inode.unsynced.clear()

    def close(self) -> None:
        self._check()
        self._open = False

    def _check(self) -> None:
        assert self._open, "a closed file is used"


class SimLock:
    """The lock of a simulated directory."""

    def __init__(self, disk: SimDisk, path: str) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        self._disk.locks.discard(self._path)


class SimDisk:
    """
    A `Disk` in memory. `capacity_bytes` is all it holds.

    `fault_rate` of the calls that change it fail, and `read_fault_rate` of those that read.
    With `keys` its files are encrypted; `names_now` has them as they lie on the disk.
    """

    keys: Keys | None = None

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.fault_rate = 0.0
        self.read_fault_rate = 0.0
        self.capacity_bytes: int | None = None
        self.locks: set[str] = set()
        self.names_now: dict[str, SimInode] = {}
        self._names_durable: dict[str, SimInode] = {}
        self._changes: list[tuple[str, SimInode | None]] = []
        self.directories = {""}

    def crash(self) -> SimDisk:
        """Return the disk as it is after a power cut."""
        after = SimDisk(self.random.randrange(1 << 30))
        names = dict(self._names_durable)
        for path, inode in self._changes[: self.random.randint(0, len(self._changes))]:
            _rename(names, path, inode)
        survivors: dict[int, SimInode] = {}
        for path, inode in names.items():
            if id(inode) not in survivors:
                _persist_some(inode, self.random)
                fresh = SimInode()
                fresh.content = bytearray(inode.durable)
                fresh.durable = bytearray(inode.durable)
                survivors[id(inode)] = fresh
            after.names_now[path] = survivors[id(inode)]
        after._names_durable = dict(after.names_now)
        after.directories = set(self.directories)
        return after

    def trouble(self, action: str) -> OSError | None:
        """Return the error this call ends in, if it does."""
        if self.random.random() < self.fault_rate:
            return OSError(errno.EIO, f"{os.strerror(errno.EIO)} ({action})")
        return None

    def unreadable(self, action: str) -> OSError | None:
        """Return the error that reading ends in, if it does."""
        if self.read_fault_rate and self.random.random() < self.read_fault_rate:
            return OSError(errno.EIO, f"{os.strerror(errno.EIO)} ({action})")
        return None

    def room_for(self, inode: SimInode, offset: int, data: bytes) -> OSError | None:
        """Return the error if the disk is too small for a write."""
        growth = max(offset + len(data) - len(inode.content), 0)
        if self.capacity_bytes is not None and self.used_bytes + growth > self.capacity_bytes:
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return None

    @property
    def used_bytes(self) -> int:
        return sum(len(inode.content) for inode in self.names_now.values())

    def make_directory(self, path: str) -> None:
        while path:
            self.directories.add(path)
            path = path.rpartition("/")[0]

    def add_directory(self, path: str) -> None:
        assert path.rpartition("/")[0] in self.directories, path
        self.directories.add(path)

    def remove_directory(self, path: str) -> None:
        for name in [name for name in self.names_now if name.startswith(f"{path}/")]:
            self.remove(name)
        inside = {each for each in self.directories if each.startswith(f"{path}/")}
        self.directories -= {path, *inside}

    def remove_some(self, path: str, count_max: int) -> int:
        files = [name for name in self.names_now if name.startswith(f"{path}/")]
        for name in files[:count_max]:
            self.remove(name)
        inside = [each for each in self.directories if f"{each}/".startswith(f"{path}/")]
        empty = sorted(inside, reverse=True)[: count_max - len(files[:count_max])]
        self.directories -= set(empty)
        return len(files[:count_max]) + len(empty)

    def names(self, path: str) -> list[str]:
        everything = (*self.names_now, *self.directories)
        inside = [name for name in everything if name.rpartition("/")[0] == path and name != path]
        return sorted(name.rpartition("/")[2] for name in inside)

    def create(self, path: str) -> File:
        assert path.rpartition("/")[0] in self.directories
        if problem := self.trouble("create"):
            raise problem
        inode = SimInode()
        self._change(path, inode)
        return self._file(inode)

    def open(self, path: str) -> File:
        if path not in self.names_now:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if problem := self.unreadable("open"):
            raise problem
        return self._file(self.names_now[path])

    def add(self, path: str, content: bytes) -> None:
        """Put a durable file there, as it lies on the disk."""
        inode = SimInode()
        inode.content[:] = inode.durable[:] = content
        self.names_now[path] = self._names_durable[path] = inode

    def _file(self, inode: SimInode) -> File:
        file = SimFile(self, inode)
        return file if self.keys is None else EncryptedFile(file, self.keys)

    def rename(self, path: str, new_path: str) -> None:
        if problem := self.trouble("rename"):
            raise problem
        if path in self.directories:
            self._rename_directory(path, new_path)
            return
        inode = self.names_now[path]
        del self.names_now[path]
        self.names_now[new_path] = inode
        # One change, so that a crash leaves the old name or the new one.
        self._changes.append((f"{path}\0{new_path}", inode))

    def _rename_directory(self, path: str, new_path: str) -> None:
        inside = [each for each in self.directories if f"{each}/".startswith(f"{path}/")]
        self.directories -= set(inside)
        self.directories |= {new_path + each.removeprefix(path) for each in inside}
        change = f"{path}\0{new_path}", None
        _rename(self.names_now, *change)
        self._changes.append(change)

    def remove(self, path: str) -> None:
        if problem := self.trouble("remove"):
            raise problem
        if path in self.names_now:
            self._change(path, None)

    def sync_directory(self, path: str) -> None:
        if problem := self.trouble("sync directory"):
            raise problem
        for change in self._changes:
            _rename(self._names_durable, *change)
        self._changes.clear()

    def lock(self, path: str) -> SimLock:
        if path in self.locks:
            raise StoreError(f"store directory `{path}` is in use")
        self.locks.add(path)
        return SimLock(self, path)

    def _change(self, path: str, inode: SimInode | None) -> None:
        if inode is None:
            del self.names_now[path]
        else:
            self.names_now[path] = inode
        self._changes.append((path, inode))


def _rename(names: dict[str, SimInode], path: str, inode: SimInode | None) -> None:
    old, _, new = path.partition("\0")
    if inode is None and new:
        for name in [each for each in names if each.startswith(f"{old}/")]:
            names[new + name.removeprefix(old)] = names.pop(name)
        return
    if inode is None or new:
        names.pop(old, None)
    if inode is not None:
        names[new or old] = inode


def _put(content: bytearray, offset: int, data: bytes) -> None:
    content.extend(bytes(max(offset - len(content), 0)))
    content[offset : offset + len(data)] = data


def _cut(content: bytearray, length: int) -> None:
    del content[length:]
    content.extend(bytes(length - len(content)))


def _replay(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        _cut(content, offset)
    else:
        _put(content, offset, data)


def _persist_some(inode: SimInode, chance: random.Random) -> None:
    """Let some sectors of what was not synced reach the disk, and lose the others."""
    keep = chance.choice((0.0, 0.5, 0.9, 1.0))
    for offset, data in inode.unsynced:
        if data is None:
            if chance.random() < keep:
                _cut(inode.durable, offset)
            continue
        start = 0
        while start < len(data):
            end = min(len(data), start + SECTOR_BYTES - (offset + start) % SECTOR_BYTES)
            if chance.random() < keep:
                _put(inode.durable, offset + start, data[start:end])
            start = end
    inode.unsynced.clear()
