"""Sides that take turns at the same work, so that other load on the machine affects all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from penstock.bench.report.ratios import Figures, RatioRow
from penstock.errors import PenstockError


class Side(Protocol):
    """Something that takes turns: a program, a server, a client."""

    @property
    def name(self) -> str:
        """Its name in the table."""


AnySide = TypeVar("AnySide", bound=Side)


def in_turns(sides: Iterable[AnySide], rounds: int) -> Iterator[AnySide]:
    """Yield each side once a round."""
    for _ in range(rounds):
        yield from sides


def take_turns(
    rows: Sequence[RatioRow],
    sides: Sequence[AnySide],
    rounds: int,
    measure: Callable[[AnySide], Figures],
) -> None:
    """Measure each side in each round; every row notes the figures, or why there are none."""
    for side in in_turns(sides, rounds):
        # A side that lost messages once has failed: more rounds cannot change that.
        if side.name in rows[0].failures:
            continue
        try:
            figures = measure(side)
        except PenstockError as error:
            note_failure(rows, side.name, error)
            continue
        for row in rows:
            row.rounds.setdefault(side.name, []).append(figures)
        say(f"    {side.name}: {_spelt(rows, figures)}")


def note_failure(rows: Sequence[RatioRow], side: str, error: Exception) -> None:
    """Note why a side has no figures."""
    say(f"    {side}: {error}")
    for row in rows:
        row.failures[side] = str(error)


def say(text: str) -> None:
    """Report progress, beside the table on standard output."""
    print(text, file=sys.stderr, flush=True)


def _spelt(rows: Sequence[RatioRow], figures: Figures) -> str:
    values = ", ".join(row.goal.spell(figures[row.goal.figure]) for row in rows)
    more = f", {figures['cpu_us']:.1f} µs CPU each" if "cpu_us" in figures else ""
    return f"{values}{more} (others {figures.get('others', 0.0):.0%})"
