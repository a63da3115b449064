"""
Keep freed memory while the server is busy, return it when it is quiet.

glibc returns the top of the heap to the kernel as soon as 128 KiB of it are free. A busy
server takes them back at once, page fault by page fault: that was half of all time spent in
the kernel. A process that is only a server tells glibc to wait. A process that merely
embeds a server keeps its own settings.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 64 * 1024 * 1024
"""Freed memory at the top of the heap beyond this is returned at once."""
MAPPED_BYTES = 4 * 1024 * 1024
"""Blocks from this size on are mapped separately, and always returned at once."""


class Allocator:
    """The glibc settings of this process; does nothing without glibc."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._tune: Callable[[int, int], int] | None = getattr(library, "mallopt", None)
        self._trim: Callable[[int], int] | None = getattr(library, "malloc_trim", None)
        self._seen = 0
        self._is_trimmed = True

    def keep_freed(self) -> None:
        """Keep freed memory, because it will be needed again."""
        if self._tune is not None:
            self._tune(M_TRIM_THRESHOLD, KEPT_BYTES)
            self._tune(M_MMAP_THRESHOLD, MAPPED_BYTES)

    def give_back_if_quiet(self, traffic: int) -> None:
        """Return free memory to the system once `traffic`, a running count, stands still."""
        if traffic != self._seen:
            self._seen, self._is_trimmed = traffic, False
        elif not self._is_trimmed and self._trim is not None:
            self._trim(0)
            self._is_trimmed = True
