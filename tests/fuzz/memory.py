"""Whether what was used is given back."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

KEPT_BLOCKS_MAX = 50
"""One lost object for each of some hundred inputs is more; a cache of Python's own is less."""


def keeps_memory(use: Callable[[], None]) -> bool:
    """Tell whether each use leaves something behind; what only the first one does is no leak."""
    use()
    before = _blocks_after(use)
    return min(_blocks_after(use) for _ in range(5)) - before >= KEPT_BLOCKS_MAX


def _blocks_after(use: Callable[[], None]) -> int:
    use()
    gc.collect()
    return sys.getallocatedblocks()
