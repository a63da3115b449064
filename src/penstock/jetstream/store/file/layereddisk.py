"""A disk whose files read as something else than what lies on the disk below."""

from __future__ import annotations

from collections.abc import Callable

from penstock.jetstream.store.file.disk import Disk, File, Lock


class LayeredDisk:
    """A disk on another one. Everything but the content of files is the other's. See `Disk`."""

    def __init__(
        self,
        disk: Disk,
        *,
        opened: Callable[[File], File],
        created: Callable[[File], File] = lambda file: file,
    ) -> None:
        """`opened` and `created` take a file of the disk below, and return it as it reads here."""
        self._disk = disk
        self._opened = opened
        self._created = created

    def make_directory(self, path: str) -> None:
        """Make a directory and those above it, durably."""
        self._disk.make_directory(path)

    def add_directory(self, path: str) -> None:
        """Make one directory, in an existing one."""
        self._disk.add_directory(path)

    def remove_directory(self, path: str) -> None:
        """Remove a directory and everything in it."""
        self._disk.remove_directory(path)

    def remove_some(self, path: str, count_max: int) -> int:
        """Remove at most `count_max` files and directories of a directory, itself last."""
        return self._disk.remove_some(path, count_max)

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, in order."""
        return self._disk.names(path)

    def create(self, path: str) -> File:
        """Open a new, empty file."""
        return self._created(self._disk.create(path))

    def open(self, path: str) -> File:
        """Open an existing file."""
        file = self._disk.open(path)
        try:
            return self._opened(file)
        except OSError:
            file.close()
            raise

    def rename(self, path: str, new_path: str) -> None:
        """Rename a file, replacing any file of that name."""
        self._disk.rename(path, new_path)

    def remove(self, path: str) -> None:
        """Remove a file."""
        self._disk.remove(path)

    def sync_directory(self, path: str) -> None:
        """Return once the names in a directory would survive a power cut."""
        self._disk.sync_directory(path)

    def lock(self, path: str) -> Lock:
        """Lock a directory for this process."""
        return self._disk.lock(path)
