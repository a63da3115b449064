"""
Back to the durable state, after the disk has failed.

Nobody was promised anything that was not synced, and a waiting client is better served by a refusal
than by silence until the disk recovers. So the failed file is cut off at its last good sync,
durably, and the store is read again as after a restart: everything stored, removed and pushed out
since then is undone. If even that fails, the state is unknown, and nobody gets an answer until it
is known.

After that the store takes no messages until a file can be written again, which is tried now and
then. The exception is a purge, because it makes room.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.jetstream.store.file.disk import Disk
from penstock.jetstream.store.file.segmentfile import DRAFT, segment_path
from penstock.jetstream.store.file.tail import Tail

if TYPE_CHECKING:
    from penstock.jetstream.store.log import Log


class Retreat:
    """Cuts off everything that is not durable, and reads the rest. A `Work`."""

    def __init__(self, log: Log, go_back: Callable[[Log], None]) -> None:
        """`go_back` takes the remaining log."""
        self._log = log
        self._go_back = go_back
        self._left: Log | None = None

    def run(self) -> None:
        """Return once the disk has exactly the durable data."""
        self._left = self._log.retreat()

    def finish(self, error: Exception | None = None) -> None:
        """Continue with the remaining log; if there is none, try again later."""
        if error is None:
            assert self._left is not None
            self._go_back(self._left)


class Probe:
    """Tests whether files can be written again. A `Work`."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def run(self) -> None:
        """Write as much as could not be written before."""
        self._log.probe()

    def finish(self, error: Exception | None = None) -> None:
        """Take messages again, if the write worked."""
        if error is None:
            self._log.progress.failure = None


def cut(disk: Disk, directory: str, tail: Tail) -> None:
    """Take from the file of a segment what is not durable, durably. Any thread; raises OSError."""
    if tail.file is not None and tail.durable_end:
        tail.file.truncate(tail.durable_end)
        tail.file.sync()
        return
    if not tail.block.number:
        return
    # Also if it is not open: it may have been written, and could not be made again.
    disk.remove(segment_path(directory, tail.block.number))
    disk.sync_directory(directory)


def probe(disk: Disk, directory: str, size_bytes: int) -> None:
    """Write this number of bytes, and remove them again. Any thread; raises OSError."""
    path = f"{directory}/PROBE{DRAFT}"
    file = disk.create(path)
    try:
        file.write(bytes(size_bytes), 0)
        file.sync()
    finally:
        file.close()
        disk.remove(path)
