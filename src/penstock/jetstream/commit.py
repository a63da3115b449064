"""
Group commit: what was changed since the last time becomes durable together.

Streams and consumers change at once in memory, and say so with `engine.touch`.
The server then begins a commit, which hands everything to the operating system,
runs its slow part in a thread, and finishes it on the loop. Answers that
promise durability leave when the commit that covers them is finished; whatever
arrives meanwhile collects for the next one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from penstock.jetstream.store import Work


class Durable(Protocol):
    """Something with changes that are to survive a power cut: a stream, a consumer."""

    def begin_commit(self) -> Work | None:
        """Hand the changes made so far to the operating system; return what makes them safe."""

    def end_commit(self) -> None:
        """Let go of the answers that waited for it. The work's `finish` was called before."""


def release(items: Iterable[Durable]) -> list[Work]:
    """Write changes, let the answers go before the sync, and return that: it is made later."""
    works: list[Work] = []
    for item in items:
        work = item.begin_commit()
        if work is not None:
            works.append(work)
        item.end_commit()
    return works


class Commit:
    """One sync under way. `run` belongs in a thread, everything else on the loop."""

    def __init__(self, items: Iterable[Durable]) -> None:
        self._items = [(item, item.begin_commit()) for item in items]
        self._errors: dict[int, OSError] = {}

    @property
    def is_slow(self) -> bool:
        """Whether there is anything to wait for; memory streams have nothing."""
        return any(work is not None for _, work in self._items)

    def run(self) -> None:
        """Wait for the disk. An error is kept for the stream it belongs to."""
        for index, (_, work) in enumerate(self._items):
            if work is not None:
                try:
                    work.run()
                except OSError as error:
                    self._errors[index] = error

    def finish(self) -> None:
        """Tell everybody how it went."""
        for index, (_, work) in enumerate(self._items):
            if work is not None:
                work.finish(self._errors.get(index))
        for item, _ in self._items:
            item.end_commit()
