"""One `read` of a store: which messages of which blocks it takes, within its bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.jetstream.store.block import Block
from penstock.jetstream.store.catalog import Catalog
from penstock.jetstream.store.columns import Matcher
from penstock.jetstream.store.log import Log
from penstock.jetstream.store.values import Message

PIECE_BYTES = 1024 * 1024
"""The bytes to read at a time when everything is read."""
SEARCH_MAX = 256 * 1024
"""The number of messages one `read` looks at before it gives up for now."""
MATCHED_MAX = 1024
"""The same for a `read` that has to compare their subjects with filters."""


def pieces(block: Block, start: int) -> Iterator[range]:
    """Yield the positions of a block from one on, one read at a time."""
    assert block.places is not None
    size_bytes = 0
    for position in range(start, block.total):
        size_bytes += block.places.lengths[position]
        if size_bytes >= PIECE_BYTES:
            yield range(start, position + 1)
            start, size_bytes = position + 1, 0
    if start < block.total:
        yield range(start, block.total)


class Reading:
    """One `read` under way: its remaining bounds."""

    def __init__(
        self,
        catalog: Catalog,
        log: Log,
        matcher: Matcher | None,
        count_max: int,
        bytes_max: int,
    ) -> None:
        self.messages: list[Message] = []
        self.damaged: list[tuple[Block, int]] = []
        self._catalog = catalog
        self._log = log
        self._matcher = matcher
        self._count_left = count_max
        self._bytes_left = bytes_max
        self._search_left = SEARCH_MAX if matcher is None else MATCHED_MAX

    @property
    def done(self) -> bool:
        """Tell whether one of the bounds is reached."""
        return self._count_left <= 0 or self._bytes_left <= 0 or self._search_left <= 0

    def take(self, block: Block, sequence: int, last_sequence: int) -> int:
        """Take the wanted messages of one block; return the sequence to continue from."""
        if self._matcher is None:
            self._catalog.placed(block)
        else:
            self._catalog.described(block)
        start, stop = block.position(sequence), block.position(last_sequence + 1)
        chosen, ended = block.select(
            self._matcher,
            start,
            stop=min(stop, start + self._search_left),
            count_max=self._count_left,
        )
        self._search_left -= max(ended - start, 0)
        fitting = self._fit(block, chosen)
        if len(fitting) < len(chosen):
            ended = chosen[len(fitting)]
            self._bytes_left = 0
        self._fetch(block, fitting)
        return block.sequence(ended) if ended < block.total else block.last_sequence + 1

    def _fit(self, block: Block, chosen: Sequence[int]) -> Sequence[int]:
        """Return as many positions as the bytes allow; always the very first."""
        assert block.places is not None
        lengths = block.places.lengths
        if isinstance(chosen, range):
            size_bytes = sum(lengths[chosen.start : chosen.stop])
        else:
            size_bytes = sum(map(lengths.__getitem__, chosen))
        if size_bytes <= self._bytes_left:
            self._bytes_left -= size_bytes
            return chosen
        count = 0
        for position in chosen:
            self._bytes_left -= lengths[position]
            if self._bytes_left < 0 and (count or self.messages):
                break
            count += 1
        return chosen[:count]

    def _fetch(self, block: Block, positions: Sequence[int]) -> None:
        found = self._log.fetch(block, positions) if positions else []
        self._count_left -= len(found)
        if None not in found:
            self.messages += found  # type: ignore[arg-type]
            return
        for position, message in zip(positions, found, strict=True):
            if message is None:
                self.damaged.append((block, position))
            else:
                self.messages.append(message)
