"""
Where in a range of sequences how many messages are.

Sequences are cheap to divide, but tasks read messages, and a stream may have few of
them where it has many sequences: single ones were deleted, older ones replaced by
newer ones of their subject, or only some subjects are read. Messages can be counted,
which costs the server something. So it is asked for a few times only, there where a
bound is looked for, and between two places that are known messages are taken to lie
evenly.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from penstock.spark.source.position import Range, between

QUESTIONS_MAX = 16
"""How often it may be asked where a micro-batch ends."""
PART_QUESTIONS_MAX = 4
"""How often more it may be asked for each part of a split."""
TOLERANCE = 8
"""A bound may be off by the eighth part of what lies between two bounds."""


class Census:
    """Counts the messages of a range. It asks nothing before it is asked itself."""

    def __init__(
        self,
        whole: Range,
        count: Callable[[Range], int] | None = None,
        known: dict[int, int] | None = None,
    ) -> None:
        """Take a function that counts; without one there is a message for every sequence."""
        self.whole = whole
        self._count = count
        self._questions_left = QUESTIONS_MAX
        self._places = known or {}
        """How many messages are before some sequences."""
        if count is None:
            self._places = {whole.first: 0, self._end: whole.size}

    @property
    def messages(self) -> int:
        """How many messages the range holds."""
        return self._known[self._end] if self.whole.size else 0

    def take(self, messages_max: int) -> Census:
        """Return the beginning that holds no more messages than that, and not much less."""
        if messages_max >= self.whole.size or messages_max >= self.messages:
            return self
        enough = messages_max - messages_max // TOLERANCE
        low, high = self._narrow(messages_max, lambda low, _: self._known[low] >= enough)
        if self._is_dense(low, high):
            low += messages_max - self._known[low]
            self._places[low] = messages_max
        elif (least := self.whole.first + messages_max) > low:
            # However few messages these sequences hold, they are not too many.
            low = least
            self._learn(low)
        known = {place: before for place, before in self._known.items() if place <= low}
        return Census(Range(self.whole.first, low - 1), self._count, known)

    def split(self, parts: int) -> list[Range]:
        """Return ranges that hold nearly as many messages each, in order."""
        if not self.whole.size:
            return []
        if parts <= 1:
            return [self.whole]
        parts = max(1, min(parts, self.messages))
        self._questions_left = QUESTIONS_MAX
        bounds = [self._bound(self.messages * part // parts, parts) for part in range(1, parts)]
        return between(sorted({self.whole.first, *bounds}), self.whole.last)

    @property
    def _end(self) -> int:
        return self.whole.last + 1

    @property
    def _known(self) -> dict[int, int]:
        if not self._places:
            # A replica that has not caught up may know of none, but there is one at least.
            self._places = {self.whole.first: 0, self._end: max(1, self._ask(self._end))}
        return self._places

    def _bound(self, target: int, parts: int) -> int:
        """Return a sequence with about `target` messages before it."""
        fine = self.messages // parts // TOLERANCE
        self._questions_left += PART_QUESTIONS_MAX
        low, high = self._narrow(
            target,
            lambda low, high: (
                target - self._known[low] <= fine or self._known[high] - target <= fine
            ),
        )
        if self._is_dense(low, high):
            return low + target - self._known[low]
        return low if target - self._known[low] <= self._known[high] - target else high

    def _narrow(self, target: int, is_enough: Callable[[int, int], bool]) -> tuple[int, int]:
        """Return two neighbours, the first with at most `target` messages before it."""
        is_even = True
        while True:
            low, high = self._around(target, self._known.__getitem__)
            if high - low <= 1 or self._is_dense(low, high) or is_enough(low, high):
                return low, high
            if self._questions_left <= 0:
                return low, high
            # In turns: a guess is good where messages lie evenly, the middle where they do not.
            middle = self._guess(target, low, high) if is_even else (low + high) // 2
            self._learn(min(max(middle, low + 1), high - 1))
            is_even = not is_even

    def _around(self, value: int, key: Callable[[int], int]) -> tuple[int, int]:
        """Return the neighbours between which a value is."""
        places = sorted(self._known)
        index = bisect_right(places, value, lo=1, hi=len(places) - 1, key=key)
        return places[index - 1], places[index]

    def _is_dense(self, low: int, high: int) -> bool:
        return self._known[high] - self._known[low] == high - low

    def _guess(self, target: int, low: int, high: int) -> int:
        messages = max(1, self._known[high] - self._known[low])
        return low + (high - low) * (target - self._known[low]) // messages

    def _learn(self, sequence: int) -> None:
        low, high = self._around(sequence, int)
        # One replica may be behind the other.
        self._known[sequence] = min(max(self._ask(sequence), self._known[low]), self._known[high])

    def _ask(self, sequence: int) -> int:
        """Ask how many messages are before a sequence."""
        assert self._count is not None
        self._questions_left -= 1
        before = Range(self.whole.first, sequence - 1)
        return min(self._count(before), before.size)
