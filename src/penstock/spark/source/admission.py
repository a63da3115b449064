"""
When a micro-batch begins, how much of each stream it takes, and how many tasks read it.

Limits are shared out among streams in proportion to what waits in them, so that none is
starved. The words are those of Spark's Kafka connector, and so is their meaning: a
micro-batch waits until there is enough for it, but not for ever, and the first does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from penstock.spark.options import SourceOptions
from penstock.spark.source.census import Census
from penstock.spark.source.position import Range

PARTITION_MESSAGES_MIN = 20_000
"""A task costs some milliseconds, so that fewer messages than this are not split further."""


class Patient:
    """Puts a micro-batch off until enough messages wait."""

    def __init__(self, source: SourceOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._messages_min = source.min_messages_per_trigger or 1
        self._delay_s = source.max_trigger_delay
        self._clock = clock
        self._began_s: float | None = None
        self._enough_at = 0
        """How many sequences have to wait before it is worthwhile to count messages again."""

    def is_due(self, waiting: Sequence[Census]) -> bool:
        """Tell whether a micro-batch is to begin with what waits."""
        now_s = self._clock()
        is_late = self._began_s is None or now_s - self._began_s >= self._delay_s
        if not is_late and not self._is_enough(waiting):
            return False
        self._began_s, self._enough_at = now_s, 0
        return True

    def _is_enough(self, waiting: Sequence[Census]) -> bool:
        sequences = sum(each.whole.size for each in waiting)
        if sequences < max(self._messages_min, self._enough_at):
            return False
        messages = sum(each.messages for each in waiting)
        self._enough_at = sequences + self._messages_min - messages
        return messages >= self._messages_min


def take(waiting: Sequence[Census], messages_max: int | None) -> list[Census]:
    """Return what a micro-batch may hold: in all no more than that, but something of each."""
    if messages_max is None or sum(each.whole.size for each in waiting) <= messages_max:
        return list(waiting)
    total = sum(each.messages for each in waiting)
    return [each.take(max(1, messages_max * each.messages // total)) for each in waiting]


def split(taken: Sequence[Census], source: SourceOptions, cores: int) -> list[list[Range]]:
    """Return the ranges of each stream, as many as tasks are worthwhile, at least one of each."""
    sizes = [each.whole.size for each in taken]
    if max(_parts(sizes, source, cores), default=0) > 1:
        sizes = [each.messages for each in taken]
    parts = _parts(sizes, source, cores)
    return [each.split(count) for each, count in zip(taken, parts, strict=True)]


def _parts(sizes: Sequence[int], source: SourceOptions, cores: int) -> list[int]:
    """Return into how many ranges each is split."""
    total = sum(sizes)
    worthwhile = -(-total // PARTITION_MESSAGES_MIN)
    wanted = source.min_partitions or min(cores, worthwhile)
    parts = [max(1, round(wanted * size / total)) if total else 0 for size in sizes]
    if (messages_max := source.max_messages_per_partition) is not None:
        parts = [
            max(part, -(-size // messages_max)) for part, size in zip(parts, sizes, strict=True)
        ]
    return parts
