"""
Room reserved for the record of a purge: on a full disk, the purge makes room.

It is a small file in the directory of a stream. When the disk has no room left even for the record
of a purge, the file is removed, and then there is room.

Its first bytes say how far the store is durable and which files of ids there are, so that a last
segment that is cut short, and a missing file, are noticed. They are synced only before a file of
ids is removed: after a power cut they may tell less, never more than was durable.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from threading import Lock
from typing import NamedTuple
from zlib import crc32

from penstock.jetstream.store.file.disk import Disk, read_whole

NAME = "RESERVE"

_NOTED = struct.Struct("<6Q")
_CHECKSUM = struct.Struct("<I")


class Noted(NamedTuple):
    """How far a store was durable. All of it is zero where that is unknown."""

    number: int = 0
    """Of the last segment."""
    end: int = 0
    """Of the durable records in it."""
    last_sequence: int = 0
    messages: int = 0
    """Those of that segment that were not removed."""


class Kept(NamedTuple):
    """The numbers of the files with ids of removed messages; zeros where there is none."""

    first: int = 0
    last: int = 0


def read_noted(disk: Disk, directory: str, salt: int) -> tuple[Noted, Kept]:
    """Return how far the store in a directory was durable, at least, and its files of ids."""
    content = read_whole(disk, f"{directory}/{NAME}") or b""
    if len(content) < _NOTED.size + _CHECKSUM.size:
        return Noted(), Kept()
    (checksum,) = _CHECKSUM.unpack_from(content, _NOTED.size)
    if checksum != crc32(content[: _NOTED.size], salt):
        return Noted(), Kept()
    *noted, first, last = _NOTED.unpack_from(content)
    return Noted(*noted), Kept(first, last)


def _encode(noted: Noted, kept: Kept, salt: int) -> bytes:
    data = _NOTED.pack(*noted, *kept)
    return data + _CHECKSUM.pack(crc32(data, salt))


class Reserve:
    """The room reserved for one stream. Any thread may note something in it."""

    def __init__(self, disk: Disk, directory: str, size_bytes: int, salt: int) -> None:
        self._disk = disk
        self._path = f"{directory}/{NAME}"
        self._size_bytes = size_bytes
        self._salt = salt
        self._is_there = NAME in disk.names(directory)
        self._lock = Lock()
        self.noted = Noted()
        self.kept = Kept()
        """The content of the reserve, if it is there."""

    @property
    def is_missing(self) -> bool:
        """Whether the reserve is wanted but missing."""
        return self._size_bytes > 0 and not self._is_there

    def keep(self) -> None:
        """Reserve the room; raises OSError."""
        with self._lock:
            file = self._disk.create(self._path)
            try:
                file.write(self._content().ljust(self._size_bytes, b"\0"), 0)
            finally:
                file.close()
            self._is_there = True

    def note(self, noted: Noted) -> None:
        """Write how far the store is durable into the reserved room."""
        with self._lock, suppress(OSError):
            self.noted = noted
            self._write(syncs=False)

    def note_kept(self, kept: Kept, *, syncs: bool) -> None:
        """Write which files of ids there are; raises OSError."""
        with self._lock:
            self.kept = kept
            self._write(syncs=syncs)

    def forget_end(self, last_sequence: int) -> None:
        """Keep only the last sequence, durably: the last segment has another end from now on."""
        with self._lock:
            self.noted = Noted(last_sequence=last_sequence)
            self._write(syncs=True)

    def _content(self) -> bytes:
        return _encode(self.noted, self.kept, self._salt)

    def _write(self, *, syncs: bool) -> None:
        if not self._is_there:
            return
        file = self._disk.open(self._path)
        try:
            file.write(self._content(), 0)
            if syncs:
                file.sync()
        finally:
            file.close()

    def give(self) -> bool:
        """Release the room, and return whether there was any."""
        with self._lock:
            if not self._is_there:
                return False
            try:
                self._disk.remove(self._path)
            except OSError:
                return False
            self._is_there = False
            return True
