"""
A directory in which a pipeline keeps a table.

Pipelines write to any that Spark has a file system for (see `files`); those of this machine are
looked into without Spark too.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from penstock.errors import StoreError
from penstock.files import replace_file

T = TypeVar("T")


class Folder(Protocol):
    """The operations a table needs on its directory. Paths are relative, with slashes."""

    def at(self, path: str) -> str:
        """Return where Spark finds a path."""

    def find(self, pattern: str) -> list[str]:
        """Return the paths that match, as `topic=*/date=*` does, sorted."""

    def read(self, path: str) -> str:
        """Return what a file says."""

    def replace(self, path: str, text: str) -> None:
        """Write a file that is there as a whole or not at all, and the directory it is in."""

    def rename(self, path: str, new: str) -> None:
        """Move a directory to where there is none."""

    def remove(self, path: str) -> None:
        """Remove a file or a directory, unless it is gone."""


class LocalFolder:
    """A directory of this machine; what is written there survives a power cut."""

    def __init__(self, root: Path, location: str = "") -> None:
        self._root = root
        self._location = location or str(root)

    def at(self, path: str) -> str:
        """Return where Spark finds a path."""
        return f"{self._location}/{path}"

    def find(self, pattern: str) -> list[str]:
        """Return the paths that match."""
        return sorted(str(path.relative_to(self._root)) for path in self._root.glob(pattern))

    def read(self, path: str) -> str:
        """Return what a file says."""
        return (self._root / path).read_text()

    def replace(self, path: str, text: str) -> None:
        """Write a file."""
        file = self._root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, text, durable=True)

    def rename(self, path: str, new: str) -> None:
        """Move a directory."""
        (self._root / path).rename(self._root / new)

    def remove(self, path: str) -> None:
        """Remove a file or a directory."""
        victim = self._root / path
        with suppress(FileNotFoundError):
            shutil.rmtree(victim) if victim.is_dir() else victim.unlink()


def read_record(folder: Folder, path: str, read: Callable[[Any], T]) -> T:
    """Return what `read` makes of the last line of a file, in JSON; raise if it is damaged."""
    try:
        last_line = folder.read(path).strip().rpartition("\n")[2]
        return decode(last_line, folder.at(path), read)
    except (FileNotFoundError, UnicodeDecodeError):
        raise damaged(folder.at(path)) from None


def decode(text: str, file: str, read: Callable[[Any], T]) -> T:
    """Return what `read` makes of JSON that a file holds; raise if it is damaged."""
    try:
        return read(json.loads(text))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise damaged(file) from None


def damaged(file: str) -> StoreError:
    """Return what to raise of a file that cannot be gone on from."""
    return StoreError(
        f"`{file}` is damaged, or missing; hint: restore it from a copy, or start with a new "
        "`checkpoint` and a new `target`"
    )
