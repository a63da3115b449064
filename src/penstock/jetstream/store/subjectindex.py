"""
The subjects of a stream in order, so that those of a pattern lie together.

New subjects are collected, and sorted some thousand at a time into a run of their own:
an entry costs 8 bytes, and little more than nothing to make. A pattern is looked up in
each run by what all its subjects begin with. A subject that is gone keeps its entry, and
gets another if it comes back, until there are twice as many entries as subjects.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

from penstock.core.routing.trie import Trie
from penstock.jetstream.store.values import Filters
from penstock.protocol import subjects as patterns

RUN = 8192
"""Subjects that are sorted at a time."""
SCAN_SHARE = 4
"""From this part of all subjects on, looking at each in the order they came is faster."""


class SubjectIndex:
    """Finds which of the keys of a dictionary match."""

    def __init__(self, live: dict[bytes, Any]) -> None:
        self._live = live
        self._runs: list[list[bytes]] = []
        self._fresh: list[bytes] = []
        """What came since the last run was complete."""
        self.entries = 0
        """How many there are, of subjects that are gone too."""

    def add_newest(self, count: int) -> None:
        """Take in the keys that came last: a dictionary has them at its end."""
        self._fresh.extend(islice(reversed(self._live), count))
        self.entries += count
        if len(self._fresh) >= RUN:
            self._complete()

    def _complete(self) -> None:
        self._put([*self._runs], self._fresh)
        if self.entries > 2 * len(self._live) + RUN:
            self._tidy()

    def _put(self, runs: list[list[bytes]], fresh: Iterable[bytes]) -> None:
        """Begin anew with these runs, and go on to collect what makes no run of its own yet."""
        names = sorted(set(fresh))
        if len(names) > RUN // 2:
            runs.append(names)
            names = []
        self._runs, self._fresh = runs, names
        self.entries = sum(map(len, runs)) + len(names)

    def _tidy(self) -> None:
        """Let go of entries whose subject is gone or has another one."""
        seen: set[bytes] = set()
        runs: list[list[bytes]] = []
        rest: list[bytes] = []
        for run in [*self._runs, self._fresh]:
            rest += [name for name in run if name in self._live and name not in seen]
            seen.update(rest)
            if len(rest) > RUN // 2:
                rest.sort()
                runs.append(rest)
                rest = []
        self._put(runs, rest)

    def matching(self, filters: Filters) -> list[bytes]:
        """Return the subjects that match one of the filters, or all of them without any."""
        if not filters or b">" in filters:
            return list(self._live)
        if len(filters) * (len(self._runs) + 1) > len(self._live):
            return list(filter(any_matches(filters), self._live))
        self._fresh.sort()
        if len(filters) == 1 and self.entries == len(self._live):
            return list(self._entries(filters[0]))
        found = dict.fromkeys(name for pattern in filters for name in self._entries(pattern))
        return [name for name in found if name in self._live]

    def _entries(self, pattern: bytes) -> Iterable[bytes]:
        """Return the entries that match a pattern, also of subjects that are gone."""
        if patterns.is_literal(pattern):
            return (pattern,) if pattern in self._live else ()
        prefix = patterns.literal_prefix(pattern)
        parts = [(run, *_between(run, prefix)) for run in (*self._runs, self._fresh)]
        inside = sum(stop - start for _, start, stop in parts)
        if inside == self.entries and pattern == prefix + b">":
            return self._live
        names: Iterable[bytes] = self._live
        if SCAN_SHARE * inside < len(self._live):
            names = [name for run, start, stop in parts for name in run[start:stop]]
        return filter(compiled(pattern).fullmatch, names) if names else ()


def _between(run: list[bytes], prefix: bytes) -> tuple[int, int]:
    """Return where in a run those are that begin with some tokens, a dot behind each; or all."""
    if not prefix:
        return 0, len(run)
    # What follows upon the dot is the slash.
    return bisect_left(run, prefix), bisect_left(run, prefix[:-1] + b"/")


def any_matches(filters: Sequence[bytes]) -> Callable[[bytes], object]:
    """Return what tells whether a subject matches one of the filters."""
    if len(filters) == 1:
        return compiled(filters[0]).fullmatch
    trie: Trie[None] = Trie()
    for pattern in filters:
        trie.insert(pattern, None)
    return trie.match


def compiled(pattern: bytes) -> re.Pattern[bytes]:
    """Return a pattern as a regular expression, to match a whole subject with."""
    *tokens, last = pattern.split(b".")
    parts = [b"[^.]*" if token == b"*" else re.escape(token) for token in tokens]
    parts.append({b"*": b"[^.]*", b">": b".*"}.get(last) or re.escape(last))
    return re.compile(rb"\.".join(parts), re.DOTALL)
