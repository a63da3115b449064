"""
Room reserved for the record of a purge: on a full disk, the purge makes room.

It is a small file in the directory of a stream. When the disk has no room left even for the record
of a purge, the file is removed, and then there is room.

Its first bytes hold the number of the last segment, so that a missing one is noticed. They are
never synced: after a power cut they may name an earlier segment, never a later one.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from zlib import crc32

from penstock.jetstream.store.file.disk import Disk, read_whole

NAME = "RESERVE"

_LAST = struct.Struct("<QI")


def last_segment(disk: Disk, directory: str) -> int:
    """Return the number of the last segment that was made; 0 if it is unknown."""
    content = read_whole(disk, f"{directory}/{NAME}") or b""
    if len(content) < _LAST.size:
        return 0
    number, checksum = _LAST.unpack_from(content)
    return int(number) if checksum == crc32(content[:8]) else 0


class Reserve:
    """The room reserved for one stream."""

    def __init__(self, disk: Disk, directory: str, size_bytes: int) -> None:
        self._disk = disk
        self._path = f"{directory}/{NAME}"
        self._size_bytes = size_bytes
        self._is_kept = NAME in disk.names(directory)
        self._last_segment = 0

    @property
    def is_missing(self) -> bool:
        """Whether the reserve is wanted but missing."""
        return self._size_bytes > 0 and not self._is_kept

    def keep(self) -> None:
        """Reserve the room; raises OSError. Any thread."""
        file = self._disk.create(self._path)
        try:
            file.write(self._first_bytes().ljust(self._size_bytes, b"\0"), 0)
        finally:
            file.close()
        self._is_kept = True

    def note(self, last_segment: int) -> None:
        """Write the number of the last segment into the reserved room."""
        self._last_segment = last_segment
        if not self._is_kept:
            return
        with suppress(OSError):
            file = self._disk.open(self._path)
            try:
                file.write(self._first_bytes(), 0)
            finally:
                file.close()

    def _first_bytes(self) -> bytes:
        number = struct.pack("<Q", self._last_segment)
        return number + struct.pack("<I", crc32(number))

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
