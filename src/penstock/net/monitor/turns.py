"""
Turns: the work of the monitoring, a portion at a time.

Whatever is asked for, one portion is done between two turns of the clients, whoever asks. Work
that was asked for together takes turns too, so that a short page does not wait for long ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator
from time import monotonic_ns
from typing import TypeVar

from penstock.core.broker import TURN_NS

Piece = TypeVar("Piece")
Result = TypeVar("Result")


class Turns:
    """The turns of one server's monitoring."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        """Held by the one piece of work that is being done."""

    async def at_once(self, work: Callable[[], Result]) -> Result:
        """Do a short piece of work in a turn of its own."""
        async with self._turn:
            # Between any two turns, clients have theirs.
            await asyncio.sleep(0)
            return work()

    async def go_on(self, pieces: Iterator[Piece], made: list[Piece]) -> bool:
        """Make more pieces for one turn; return whether some are left."""
        async with self._turn:
            await asyncio.sleep(0)
            until_ns = monotonic_ns() + TURN_NS
            for piece in pieces:
                made.append(piece)
                if monotonic_ns() >= until_ns:
                    return True
        return False

    async def whole(self, work: Generator[None, None, Result]) -> Result:
        """Do a piece of work to its end, however many turns it takes; return its result."""
        results: list[Result] = []

        def portions() -> Iterator[None]:
            results.append((yield from work))

        pieces = portions()
        while await self.go_on(pieces, []):
            pass
        return results[0]
