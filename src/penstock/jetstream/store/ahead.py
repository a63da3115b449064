"""
Counting in turns, before `Catalog.count` is asked: it then has the answer.

A removal meanwhile makes the count wrong. It is then done again, and after some attempts left to
`count`, which gives nobody a turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.jetstream.store import walk
from penstock.jetstream.store.survey import Survey

if TYPE_CHECKING:
    from penstock.jetstream.store.catalog import Catalog
    from penstock.jetstream.store.values import Filters

ATTEMPTS = 3


def count(catalog: Catalog, sequence: int, filters: Filters) -> Iterator[None]:
    """Count what matches from a sequence on, giving others their turn."""
    if catalog.matcher(filters) is None:
        return
    for _ in range(ATTEMPTS):
        removals, last = catalog.removals, catalog.last_sequence
        if catalog.counted.find(sequence, last, filters, removals) is not None:
            return
        if sequence <= catalog.first_sequence:
            with Survey(catalog, filters) as survey:
                yield from survey
                total, is_right = survey.messages, survey.is_complete
        else:
            total = yield from walk.counting(catalog, sequence, filters)
            is_right = catalog.removals == removals
        if is_right:
            found = total, catalog.removals
            catalog.counted.remember(sequence, catalog.last_sequence, filters, found)
