"""
Patterns of many: which of them overlap, found without comparing each with each.

Subjects of streams and filters of consumers come in lists that a client wrote, so
the work has a bound: what takes more steps than any sensible list is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from penstock.core.routing.trie import Steps, TooManySteps, Trie

STEPS_MAX = 40_000
"""Tokens that are looked at to compare the patterns of one request with others."""

__all__ = ["STEPS_MAX", "PatternIndex", "Steps", "TooManySteps", "contained", "first_overlap"]


def first_overlap(patterns: Sequence[bytes]) -> tuple[int, int] | None:
    """Return which two of the patterns have a subject in common, the first ones; or None."""
    trie, steps = _trie(patterns), Steps(STEPS_MAX)
    for index, pattern in enumerate(patterns):
        others = [each for each in trie.overlapping(pattern, steps) if each > index]
        if others:
            return index, min(others)
    return None


def contained(patterns: Sequence[bytes]) -> bool:
    """Tell whether one of the patterns has only subjects that another one has too."""
    trie, steps = _trie(patterns), Steps(STEPS_MAX)
    return any(
        other != index
        for index, pattern in enumerate(patterns)
        for other in trie.containing(pattern, steps)
    )


def _trie(patterns: Sequence[bytes]) -> Trie[int]:
    trie: Trie[int] = Trie()
    for index, pattern in enumerate(patterns):
        trie.insert(pattern, index)
    return trie


class PatternIndex:
    """Whose patterns overlap with one: streams by their subjects, consumers by their filters."""

    def __init__(self) -> None:
        self._trie: Trie[str] = Trie()
        self._known: dict[str, tuple[str, ...] | tuple[bytes, ...]] = {}

    def refresh(self, patterns: Mapping[str, tuple[str, ...] | tuple[bytes, ...]]) -> None:
        """Take note of who has which patterns now; who has the same as before costs little."""
        for name, known in tuple(self._known.items()):
            if patterns.get(name) != known:
                for pattern in self._known.pop(name):
                    self._trie.remove(_encoded(pattern), name)
        for name, given in patterns.items():
            if name not in self._known:
                self._known[name] = given
                for pattern in given:
                    self._trie.insert(_encoded(pattern), name)

    def overlapping(self, pattern: str | bytes, steps: Steps) -> Iterator[str]:
        """Yield who has a pattern that overlaps with this one."""
        return self._trie.overlapping(_encoded(pattern), steps)


def _encoded(pattern: str | bytes) -> bytes:
    return pattern if isinstance(pattern, bytes) else pattern.encode()
