"""
Where a pattern goes on that is new, and within one that was read before.

The wider consumer has handled events behind its ack floor, too: one key that waits
holds the floor, while the others go on. Which events those are only its server knows,
and tells by sending again all the others. So these are asked for; the rest of what it
was sent is done. Once the new pattern has its consumer, the wider one owes nothing of it:
it would be counted as if nobody handled it. The others are given back.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.bus.engine import Delivery
from penstock.bus.engines.nats.source import Source
from penstock.protocol import subjects


class Done(NamedTuple):
    """The part of a pattern a wider consumer has handled: all it was sent, except these."""

    last: int
    left: frozenset[int]

    @property
    def start(self) -> int:
        """The sequence that the narrower begins with."""
        return min(self.left, default=self.last + 1)

    def covers(self, sequence: int) -> bool:
        """Tell whether a message was handled."""
        return sequence <= self.last and sequence not in self.left


async def survey(wider: Source, pattern: str) -> Done | None:
    """Return what a consumer that nobody else reads has done of a pattern; None if unsure."""
    before = await wider.state()
    await wider.recover()
    after = await wider.state()
    newer = sum(sequence > before.last for sequence in wider.held)
    # An ack that comes just now, of a process that was taken over, makes the sum wrong.
    is_exact = after.pending == len(wider.held) == before.pending + newer
    left = frozenset(one.sequence for one in _of(pattern, wider))
    return Done(after.last, left) if is_exact else None


def leave(wider: Source, pattern: str) -> None:
    """Settle what a consumer has left of a pattern: it is up to the pattern's own by now."""
    wider.settle(_of(pattern, wider))


def _of(pattern: str, source: Source) -> list[Delivery]:
    encoded = pattern.encode()
    held = source.held.values()
    return [one for one in held if subjects.matches(encoded, one.topic.encode())]
