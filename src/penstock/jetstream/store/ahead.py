"""Counting in turns, before `Catalog.count` is asked: it then has the answer."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from penstock.jetstream.store import walk
from penstock.jetstream.store.survey import Survey

if TYPE_CHECKING:
    from penstock.jetstream.store.catalog import Catalog
    from penstock.jetstream.store.values import Filters


def count(catalog: Catalog, sequence: int, filters: Filters) -> Iterator[None]:
    """Count what matches from a sequence on, giving others their turn."""
    if catalog.matcher(filters) is None:
        return
    last, removals = catalog.last_sequence, catalog.removals
    if catalog.counted.find(sequence, last, filters, removals) is not None:
        return
    if sequence <= catalog.first_sequence:
        total = yield from _surveyed(catalog, filters)
    else:
        total = yield from walk.counting(catalog, sequence, filters)
    found = total, catalog.removals
    catalog.counted.remember(sequence, catalog.last_sequence, filters, found)


def _surveyed(catalog: Catalog, filters: Filters) -> Generator[None, None, int]:
    """Return the number of all matches; a survey starts again if the subjects are tabled anew."""
    while True:
        with Survey(catalog, filters) as survey:
            yield from survey
            if survey.is_complete:
                return survey.messages
