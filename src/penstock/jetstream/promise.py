"""Messages that a stream owes: they leave once they are true, or are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.errors import JetStreamError
from penstock.hot.wire import Op

NO_END = 1 << 64
"""Above every sequence."""


class Promise(NamedTuple):
    """Messages that leave once everything before them is safe."""

    publishes: list[Op]
    is_kept: Callable[[], bool]
    """Tells whether they became true although the disk has failed."""
    refuse: Callable[[JetStreamError], None]
    """Reports that they never will be true."""
    is_answer: bool = True
    is_view: bool = False
    """Whether it changes nothing: it can be refused even while nobody knows what is stored."""


def never() -> bool:
    """Return False: a failure of the disk makes the answer wrong."""
    return False
