"""
The subjects of a stream in order, so that those of a pattern are next to each other.

There is no order until the first lookup of a pattern: most streams never have one, and then a new
subject costs nothing here. From then on new subjects are collected, and the next lookup sorts them,
some thousand at a time, into runs of their own. A lookup searches each run for the common prefix of
the pattern's subjects. A removed subject keeps its entry, and gets another if it comes back; once
there are twice as many entries as subjects, the order is dropped, and the next lookup makes it
anew.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from penstock.core.routing.trie import Trie
from penstock.jetstream.store.values import Filters
from penstock.protocol import subjects as patterns

Match = Callable[[bytes], object]
"""Tells whether a subject matches."""

RUN = 8192
"""The number of subjects to sort at a time."""
PORTION = 2048
"""The number of subjects to compare with patterns at a time."""
SCAN_SHARE = 4
"""If at least one in this number of subjects may match, scanning all is faster."""


class SubjectIndex:
    """Finds the keys of a dictionary that match."""

    def __init__(self, live: dict[bytes, Any]) -> None:
        self._live = live
        self._forget()

    def _forget(self) -> None:
        self._is_kept = False
        """Whether new subjects are collected: a pattern was looked up."""
        self._runs: list[list[bytes]] = []
        self._unsorted: list[list[bytes]] = []
        """Lists that will become runs."""
        self._fresh: list[bytes] = []
        """Subjects since the last of these lists was complete."""
        self.entries = 0
        """The number of entries, including those of removed subjects."""

    def add_newest(self, count: int) -> None:
        """Add the newest keys: a dictionary has them at its end."""
        if not self._is_kept:
            return
        self._fresh.extend(islice(reversed(self._live), count))
        self.entries += count
        if self.entries > 2 * len(self._live) + RUN:
            self._forget()
        elif len(self._fresh) >= RUN:
            self._unsorted.append(self._fresh)
            self._fresh = []

    def order(self) -> Iterator[None]:
        """Sort the subjects, a run at a time, giving others their turn in between."""
        if not self._is_kept:
            names = list(self._live)
            self._unsorted = [names[start : start + RUN] for start in range(0, len(names), RUN)]
            self._is_kept = True
            self.entries = len(names)
        while self._unsorted:
            self._runs.append(sorted(self._unsorted.pop()))
            yield
        self._fresh.sort()

    def _ordering(self) -> Iterator[None]:
        """Sort until there is an order: it may be dropped while others have their turn."""
        yield from self.order()
        while not self._is_kept:
            yield from self.order()

    def matching(self, filters: Filters) -> list[bytes]:
        """Return the subjects that match one of the filters; without filters, all."""
        return [name for portion in self.portions(filters) for name in portion]

    def portions(self, filters: Filters) -> Iterator[list[bytes]]:
        """
        Yield the subjects that match, a portion at a time, which may be empty.

        Others have their turn in between. Of the subjects added meanwhile some are found and some
        are not; those of a portion all exist when it is yielded.
        """
        if not filters or b">" in filters:
            yield from self._scan(())
        elif len(filters) * (len(self._live) // RUN + 1) > len(self._live):
            yield from self._scan(filters)
        else:
            literal = {each for each in filters if patterns.is_literal(each)}
            yield [each for each in literal if each in self._live]
            wild = tuple(each for each in filters if each not in literal)
            for _ in self._ordering() if wild else ():
                yield []
            yield from self._look_up(wild, literal)

    def _scan(self, filters: Filters) -> Iterator[list[bytes]]:
        """Look at every subject."""
        match = any_matches(filters) if filters else None
        # One regular expression is fast, and a tree of patterns is not.
        size = PORTION if len(filters) < 2 else PORTION // 4
        return self._chosen(list(self._live), match, size)

    def _chosen(
        self, names: list[bytes], match: Match | None, size: int = PORTION
    ) -> Iterator[list[bytes]]:
        live = self._live
        for start in range(0, len(names), size):
            portion = names[start : start + size]
            found = portion if match is None else filter(match, portion)
            yield [name for name in found if name in live]

    def _look_up(self, filters: Filters, seen: set[bytes]) -> Iterator[list[bytes]]:
        """Look in each run at the place where the subjects of each filter must be."""
        runs = [*self._runs, [*self._fresh]]
        if len(filters) == 1 and not seen and self.entries == len(self._live):
            yield from self._entries(filters, runs)
            return
        # A subject that was removed and came back has several entries, and may match several
        # filters.
        for names in self._entries(filters, runs):
            new = dict.fromkeys(name for name in names if name not in seen)
            seen.update(new)
            yield list(new)

    def _entries(self, filters: Filters, runs: list[list[bytes]]) -> Iterator[list[bytes]]:
        """Yield the entries of existing subjects that match, filter by filter."""
        looked_at = 0
        for index, pattern in enumerate(filters):
            parts = [(run, *_between(run, pattern)) for run in runs]
            inside = sum(stop - start for _, start, stop in parts)
            looked_at += inside
            if SCAN_SHARE * looked_at >= len(self._live):
                is_all = inside == self.entries and is_open(pattern)
                yield from self._scan(() if is_all else filters[index:])
                return
            names = [name for run, start, stop in parts for name in run[start:stop]]
            yield from self._chosen(
                names, None if is_open(pattern) else compiled(pattern).fullmatch
            )


def _between(run: list[bytes], pattern: bytes) -> tuple[int, int]:
    """Return the part of a run with the prefix of a pattern."""
    prefix = patterns.literal_prefix(pattern)
    if not prefix:
        return 0, len(run)
    # The slash is the character after the dot.
    return bisect_left(run, prefix), bisect_left(run, prefix[:-1] + b"/")


def is_open(pattern: bytes) -> bool:
    """Tell whether a pattern matches everything with its prefix: its only wildcard is `>`."""
    return pattern == patterns.literal_prefix(pattern) + b">"


def any_matches(filters: Sequence[bytes]) -> Callable[[bytes], object]:
    """Return a function that tells whether a subject matches one of the filters."""
    if len(filters) == 1:
        return compiled(filters[0]).fullmatch
    trie: Trie[None] = Trie()
    for pattern in filters:
        trie.insert(pattern, None)
    return trie.match


def compiled(pattern: bytes) -> re.Pattern[bytes]:
    """Return a pattern as a regular expression for whole subjects."""
    *tokens, last = pattern.split(b".")
    parts = [b"[^.]*" if token == b"*" else re.escape(token) for token in tokens]
    parts.append({b"*": b"[^.]*", b">": b".*"}.get(last) or re.escape(last))
    return re.compile(rb"\.".join(parts), re.DOTALL)
