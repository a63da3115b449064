"""
Going through the messages of a catalog, a stretch at a time, without reading any.

What yields gives others their turn: messages may come and go meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.jetstream.store.block import Block
    from penstock.jetstream.store.catalog import Catalog
    from penstock.jetstream.store.columns import Matcher
    from penstock.jetstream.store.values import Filters

LOOKED_AT_AT_ONCE = 8192
"""The number of messages to look at before others have their turn."""
PICKED_AT_ONCE = 4096
"""The same where the matches are not only counted."""
LOOKED_AT_FIRST = 64
"""The number of messages to look at first where the last one is probably near."""


def refreshing(catalog: Catalog) -> Iterator[None]:
    """
    Find the last message of every stale subject, giving others their turn in between.

    All of them in one walk: after another removal the next walk has only that one to find.
    """
    table = catalog.subjects
    removed = {subject: table.last(subject)[0] for subject in table.stale}
    for found in latest(catalog, set(removed), max(removed.values(), default=0)):
        if catalog.subjects is not table:
            return
        for subject, sequence in found.items():
            # Unless its messages have changed meanwhile: then it is the next walk's.
            if subject in table.stale and table.last(subject)[0] == removed[subject]:
                table.correct(subject, sequence)
        if catalog.surveys:
            catalog.tell(found)
        yield


def latest(catalog: Catalog, wanted: set[bytes], before: int) -> Iterator[dict[bytes, int]]:
    """
    Yield the last sequences of some subjects below another, walking back a stretch at a time.

    Others have their turn in between. What is found is no longer `wanted`.
    """
    while wanted and (block := _beginning_below(catalog, before)):
        catalog.described(block)
        assert block.topics is not None
        stop = block.position(before)
        start = max(stop - LOOKED_AT_AT_ONCE, 0)
        names = enumerate(block.topics.slice(start, stop), start)
        places = {name: place for place, name in names if name in wanted and block.holds(place)}
        wanted.difference_update(places)
        before = block.sequence(start) if start else block.first_sequence
        yield {name: block.sequence(place) for name, place in places.items()}


def _beginning_below(catalog: Catalog, sequence: int) -> Block | None:
    """Return the last block with messages that begins below a sequence."""
    last = catalog.block_at(sequence - 1)
    return next((catalog.blocks[i] for i in range(last, -1, -1) if catalog.blocks[i].count), None)


def newest(catalog: Catalog, matcher: Matcher, first: int, last: int) -> Generator[None, None, int]:
    """Return the last sequence between two that matches, 0 if none does, with time for others."""
    before, size = last + 1, LOOKED_AT_FIRST
    while before > first and (block := _beginning_below(catalog, before)):
        catalog.described(block)
        stop = block.position(before)
        start = max(stop - size, 0)
        place = block.last_matching(matcher, start, stop)
        if place >= 0:
            found = block.sequence(place)
            return found if found >= first else 0
        before = block.sequence(start) if start else block.first_sequence
        if before > first:
            yield
        size = min(2 * size, LOOKED_AT_AT_ONCE)
    return 0


def nth_last(catalog: Catalog, matcher: Matcher, count: int) -> Generator[None, None, int]:
    """Return the sequence of the match that has `count - 1` after it; 0 if there are fewer."""
    before = catalog.last_sequence + 1
    while block := _beginning_below(catalog, before):
        catalog.described(block)
        stop = block.position(before)
        start = max(stop - PICKED_AT_ONCE, 0)
        positions, _ = block.select(matcher, start, stop=stop, count_max=stop - start)
        if len(positions) >= count:
            return block.sequence(positions[-count])
        count -= len(positions)
        before = block.sequence(start) if start else block.first_sequence
        yield
    return 0


def count_stretch(catalog: Catalog, sequence: int, filters: Filters) -> tuple[int, int]:
    """Return how many messages of a stretch match, and the sequence that follows the stretch."""
    matcher, total, left = catalog.matcher(filters), 0, LOOKED_AT_AT_ONCE
    if matcher is None:
        return catalog.count(sequence, filters), catalog.last_sequence + 1
    while left > 0:
        block = catalog.reaching(sequence)
        if block is None:
            return total, max(sequence, catalog.last_sequence + 1)
        catalog.described(block)
        start = block.position(sequence)
        stop = min(start + left, block.total)
        total += block.count_matching(matcher, start, stop)
        sequence = block.sequence(stop) if stop < block.total else block.last_sequence + 1
        left -= stop - start
    return total, sequence


def counting(catalog: Catalog, first: int, filters: Filters) -> Generator[None, None, int]:
    """Return how many messages match from a sequence on, giving others their turn."""
    if catalog.matcher(filters) is None:
        return catalog.count(first, filters)
    total, sequence, removals = 0, first, catalog.removals
    while sequence <= catalog.last_sequence:
        found, sequence = count_stretch(catalog, sequence, filters)
        total += found
        yield
        gone = count_removed(catalog, removals, first, sequence - 1, filters)
        if gone is None:
            total, sequence, gone = 0, first, 0
        total, removals = total - gone, catalog.removals
    return total


def count_removed(
    catalog: Catalog, before: int, first: int, last: int, filters: Filters
) -> int | None:
    """Return how many matches between two sequences went since; None: only known from now on."""
    matcher = catalog.matcher(filters)
    found = catalog.trail.between(before, catalog.removals) if matcher is not None else None
    if found is None or matcher is None:
        return None
    return sum(first <= each <= last and matcher.test(name) for each, name in found)


def missing(catalog: Catalog, sequences: list[int]) -> list[int]:
    """Return those of some sequences, in order, that have no message; nothing is read."""
    found: list[int] = []
    start = 0
    while start < len(sequences):
        index = catalog.block_at(sequences[start])
        if index + 1 < len(catalog.blocks):
            stop = bisect_left(sequences, catalog.blocks[index + 1].first_sequence, start)
        else:
            stop = len(sequences)
        some = sequences[start:stop]
        found += catalog.positioned(catalog.blocks[index]).missing(some) if index >= 0 else some
        start = stop
    return found


def deleted(catalog: Catalog) -> Iterator[int]:
    """Yield the removed sequences between the first and the last."""
    expected = catalog.first_sequence
    for block in catalog.blocks:
        if block.count:
            catalog.positioned(block)
            first, last = block.bounds()
            yield from range(expected, first)
            yield from block.gone()
            expected = last + 1
    yield from range(expected, catalog.last_sequence + 1)
