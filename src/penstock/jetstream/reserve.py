"""
Room kept free for the record of a purge: on a full disk that is what makes room.

It is a small file in the directory of a stream. When there is no room left even to
say that everything was purged, it is removed, and there is.
"""

from __future__ import annotations

from penstock.jetstream.disk import Disk

NAME = "RESERVE"


class Reserve:
    """The room kept for one stream."""

    def __init__(self, disk: Disk, directory: str, size_bytes: int) -> None:
        self._disk = disk
        self._path = f"{directory}/{NAME}"
        self._size_bytes = size_bytes
        self._is_kept = NAME in disk.names(directory)

    @property
    def is_missing(self) -> bool:
        """Whether there should be some, and is none."""
        return self._size_bytes > 0 and not self._is_kept

    def keep(self) -> None:
        """Take the room; raises OSError. Any thread."""
        file = self._disk.create(self._path)
        try:
            # Not synced: nothing is to be read from it.
            file.write(bytes(self._size_bytes), 0)
        finally:
            file.close()
        self._is_kept = True

    def give(self) -> bool:
        """Let go of the room, and tell whether there was any."""
        if not self._is_kept:
            return False
        try:
            self._disk.remove(self._path)
        except OSError:
            return False
        self._is_kept = False
        return True
