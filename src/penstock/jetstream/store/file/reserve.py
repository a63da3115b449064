"""
Room reserved for the record of a purge: on a full disk, the purge makes room.

It is a small file in the directory of a stream. When the disk has no room left even for the record
of a purge, the file is removed, and then there is room.

Its first bytes say how far the store is durable, so that a last segment that is missing or cut
short is noticed. They are never synced: after a power cut they may tell less, never more than was
durable.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import NamedTuple
from zlib import crc32

from penstock.jetstream.store.file.disk import Disk, read_whole

NAME = "RESERVE"

_NOTED = struct.Struct("<4Q")
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


def read_noted(disk: Disk, directory: str) -> Noted:
    """Return how far the store in a directory was durable, at least."""
    content = read_whole(disk, f"{directory}/{NAME}") or b""
    if len(content) < _NOTED.size + _CHECKSUM.size:
        return Noted()
    (checksum,) = _CHECKSUM.unpack_from(content, _NOTED.size)
    is_good = checksum == crc32(content[: _NOTED.size])
    return Noted(*_NOTED.unpack_from(content)) if is_good else Noted()


def forget_end(disk: Disk, directory: str, noted: Noted) -> None:
    """Keep only the last sequence, durably: the last segment has another end from now on."""
    file = disk.open(f"{directory}/{NAME}")
    try:
        file.write(_encode(Noted(last_sequence=noted.last_sequence)), 0)
        file.sync()
    finally:
        file.close()


def _encode(noted: Noted) -> bytes:
    data = _NOTED.pack(*noted)
    return data + _CHECKSUM.pack(crc32(data))


class Reserve:
    """The room reserved for one stream."""

    def __init__(self, disk: Disk, directory: str, size_bytes: int) -> None:
        self._disk = disk
        self._path = f"{directory}/{NAME}"
        self._size_bytes = size_bytes
        self._is_kept = NAME in disk.names(directory)
        self.noted = Noted()
        """The content of the reserve, if it is kept."""

    @property
    def is_missing(self) -> bool:
        """Whether the reserve is wanted but missing."""
        return self._size_bytes > 0 and not self._is_kept

    def keep(self) -> None:
        """Reserve the room; raises OSError. Any thread."""
        file = self._disk.create(self._path)
        try:
            file.write(_encode(self.noted).ljust(self._size_bytes, b"\0"), 0)
        finally:
            file.close()
        self._is_kept = True

    def note(self, noted: Noted) -> None:
        """Write how far the store is durable into the reserved room. Any thread."""
        self.noted = noted
        if not self._is_kept:
            return
        with suppress(OSError):
            file = self._disk.open(self._path)
            try:
                file.write(_encode(noted), 0)
            finally:
                file.close()

    def give(self) -> bool:
        """Release the room, and return whether there was any."""
        if not self._is_kept:
            return False
        try:
            self._disk.remove(self._path)
        except OSError:
            return False
        self._is_kept = False
        return True
