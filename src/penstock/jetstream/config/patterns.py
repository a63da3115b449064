"""
Many patterns: which of them overlap, found without comparing each with each.

Clients write the lists of stream subjects and consumer filters, so the work has a bound: a list
that takes more steps than any sensible one is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from penstock.core.routing.trie import Steps, TooManySteps, Trie

STEPS_MAX = 40_000
"""The tokens to look at when the patterns of one request are compared with others."""

Patterns = tuple[str, ...] | tuple[bytes, ...]

__all__ = ["STEPS_MAX", "PatternIndex", "Steps", "TooManySteps", "contained", "first_overlap"]


def first_overlap(patterns: Sequence[bytes]) -> tuple[int, int] | None:
    """Return the first two patterns that have a subject in common; or None."""
    trie, steps = _trie(patterns), Steps(STEPS_MAX)
    for index, pattern in enumerate(patterns):
        others = [each for each in trie.overlapping(pattern, steps) if each > index]
        if others:
            return index, min(others)
    return None


def contained(patterns: Sequence[bytes]) -> bool:
    """Tell whether all subjects of one pattern also match another one."""
    if len(patterns) < 2:
        return False
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
    """Finds the owners of overlapping patterns: streams by subjects, consumers by filters."""

    def __init__(self) -> None:
        self._trie: Trie[str] = Trie()
        self._known: dict[str, Patterns] = {}

    def put(self, name: str, patterns: Patterns) -> None:
        """Set the patterns of an owner."""
        if self._known.get(name) != patterns:
            self.remove(name)
            self._known[name] = patterns
            for pattern in patterns:
                self._trie.insert(_encoded(pattern), name)

    def remove(self, name: str) -> None:
        """Forget an owner."""
        for pattern in self._known.pop(name, ()):
            self._trie.remove(_encoded(pattern), name)

    def refresh(self, patterns: Mapping[str, Patterns]) -> None:
        """Set all owners and their patterns; an unchanged owner costs little."""
        for name in self._known.keys() - patterns.keys():
            self.remove(name)
        for name, given in patterns.items():
            self.put(name, given)

    def overlapping(self, pattern: str | bytes, steps: Steps) -> Iterator[str]:
        """Yield the owners of patterns that overlap with this one."""
        return self._trie.overlapping(_encoded(pattern), steps)


def _encoded(pattern: str | bytes) -> bytes:
    return pattern if isinstance(pattern, bytes) else pattern.encode()
