"""
What a file store does beside storing: seal segments, compact, compress and remove them.

One piece of work at a time, asked for with `next`. Nothing here is needed for an
acknowledgement, so an error only means that it is tried again later.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from penstock.jetstream.store.block import Block
from penstock.jetstream.store.file.compaction import (
    Compacted,
    Compactor,
    Older,
    Sealer,
    Source,
    choose,
)
from penstock.jetstream.store.file.compression import Press
from penstock.jetstream.store.file.reserve import Reserve
from penstock.jetstream.store.file.segment import Removal
from penstock.jetstream.store.file.segmentfile import DRAFT, segment_path
from penstock.jetstream.store.values import Work, complete

if TYPE_CHECKING:
    from penstock.jetstream.store.file.log import FileLog

RETRY_BYTES = 1024 * 1024
"""After an error, work is not tried again before so much was appended."""


MAX = 1 << 64
BACKLOG_MAX = 2
"""Segments that may wait for a quiet moment to be sealed or removed."""


class Task:
    """A piece of work: what to do in a thread, and what to do with the result."""

    def __init__(
        self,
        upkeep: Upkeep,
        work: Callable[[], Any],
        *,
        done: Callable[[Any], None],
        failed: Callable[[], None],
    ) -> None:
        self._upkeep = upkeep
        self._work = work
        self._done = done
        self._failed = failed
        self._result: Any = None

    def run(self) -> None:
        """Do the slow part."""
        self._result = self._work()

    def finish(self, error: Exception | None = None) -> None:
        """Make the result count, or try again some other time."""
        self._upkeep.finished(error)
        if error is None:
            self._done(self._result)
        else:
            self._failed()


class Upkeep:
    """The housekeeping of one file store."""

    def __init__(self, log: FileLog) -> None:
        self._log = log
        self._unsealed: dict[int, tuple[Block, Sealer]] = {}
        self._doomed: list[tuple[int, Block]] = []
        """Segments to remove, oldest first, with the position that must be durable before."""
        self._merged: list[Block] = []
        """Segments to remove because what they held is in another."""
        self._waiting: tuple[int, Callable[[], None]] | None = None
        """A compaction to put in place, with the position that must be durable before."""
        self.reserve = Reserve(log.disk, log.directory, log.settings.reserve_bytes)
        self._busy = False
        self._retry_position = 0
        self._compressed: set[int] = set()
        """Numbers of the segments that are known to be compressed."""

    def doom(self, blocks: list[Block]) -> None:
        """Have segments of which nothing is left removed, as soon as that is safe."""
        log = self._log
        if not blocks and not self._doomed:
            return
        self._doomed += [(log.position, block) for block in blocks]
        self._doomed.sort(key=lambda pair: pair[1].number or MAX)
        if not blocks or log.failure is None:
            return
        # Rule 4: while the disk fails, a purge is what makes room, of all that it left behind.
        # But some durable file must stay to know which sequences were given.
        growing = [tail.block for tail in log.tails]
        last = max((block.number for block in blocks if block not in growing), default=0)
        if not self._has_durable_file():
            last -= 1
        self._doomed = [
            (0 if block.number <= last and block not in growing else position, block)
            for position, block in self._doomed
        ]

    def spare(self, blocks: list[Block]) -> None:
        """Remove nothing for the sake of these: the next segment takes their place."""
        self._doomed = [pair for pair in self._doomed if pair[1] not in blocks]

    def _has_durable_file(self) -> bool:
        log = self._log
        growing = [tail.block for tail in log.tails]
        return any(tail.durable_end for tail in log.tails) or any(
            block not in growing for block in log.catalog.blocks
        )

    def seal_later(self, block: Block, records_end: int, removals: list[Removal]) -> None:
        """Have a segment's trailer written; until then its columns stay in memory."""
        log = self._log
        sealer = Sealer(
            log.disk,
            log.directory,
            block,
            records_end=records_end,
            removals=removals,
            salt=log.salt,
        )
        self._unsealed[block.number] = (block, sealer)

    def seal_all(self) -> None:
        """Write all trailers here and now, as far as the disk lets us."""
        for block, sealer in list(self._unsealed.values()):
            try:
                sealer.run()
            except Exception:
                return
            self._sealed(block)

    def finished(self, error: Exception | None) -> None:
        """Be ready for the next piece of work."""
        self._busy = False
        if error is not None:
            self._retry_position = self._log.position + RETRY_BYTES

    def advance(self) -> None:
        """Do what had to wait until something was durable."""
        if self._waiting is not None and self._waiting[0] <= self._log.durable_position:
            _, install = self._waiting
            self._waiting = None
            install()

    def overdue(self) -> Work | None:
        """Return work that must not wait for a quiet moment: memory or disk would fill up."""
        if self._busy or self._waiting is not None:
            return None
        work = None
        if len(self._doomed) > BACKLOG_MAX:
            work = self._remove_files()
        if work is None and len(self._unsealed) > BACKLOG_MAX:
            work = self._seal() if self._log.position >= self._retry_position else None
        self._busy = work is not None
        return work

    def make_room(self) -> None:
        """Remove files here and now, after a failure: the disk may be full."""
        if not self._busy:
            work = self._remove_files()
            self._busy = work is not None
            complete(work)

    def next(self) -> Work | None:
        """Return the next piece of work, if there is one."""
        if self._busy or self._waiting is not None:
            return None
        work = self._remove_files()
        if work is None and self._log.position >= self._retry_position:
            self._close_scrubbed_tail()
            work = self._seal() or self._compact() or self._compress() or self._keep_reserve()
        self._busy = work is not None
        return work

    def _close_scrubbed_tail(self) -> None:
        """Take no more records into a segment with something to erase: only then can it be."""
        tails = self._log.tails
        if tails and tails[-1].block.scrub:
            tails[-1].full = True
        self._log.retire()

    def _remove_files(self) -> Work | None:
        log = self._log
        # Older ones first: a newer one may hold the removals of what is in them.
        ready = list(takewhile(lambda pair: pair[0] <= log.durable_position, self._doomed))
        if not ready and not self._merged:
            return None
        self._doomed = self._doomed[len(ready) :]
        ready += [(0, block) for block in self._merged]
        self._merged = []
        for _, block in ready:
            log.cache.forget(block)
            self._unsealed.pop(block.number, None)
        paths = [segment_path(log.directory, block.number) for _, block in ready]
        return Task(
            self,
            partial(_remove_all, log.disk.remove, paths),
            done=lambda _: None,
            failed=partial(self._put_back, ready),
        )

    def _put_back(self, blocks: list[tuple[int, Block]]) -> None:
        self._doomed = blocks + self._doomed

    def _seal(self) -> Work | None:
        for block, sealer in self._unsealed.values():
            return Task(self, sealer.run, done=partial(self._sealed, block), failed=lambda: None)
        return None

    def _sealed(self, block: Block, _: None = None) -> None:
        if self._unsealed.pop(block.number, None) is not None:
            # From now on they can be read again, should somebody look for a message in here.
            block.places = block.topics = None

    def _compact(self) -> Work | None:
        log = self._log
        blocks = log.catalog.blocks[: len(log.catalog.blocks) - len(log.tails)]
        found = choose(blocks, log.segment_bytes_max, log.settings.segment_messages_max)
        if found is None:
            return None
        first, stop = found
        sources = [self._source(block) for block in blocks[first:stop]]
        compactor = Compactor(
            log.disk,
            log.directory,
            sources,
            [_older(block) for block in blocks[:first]],
            floor_sequence=log.catalog.first_sequence,
            salt=log.salt,
        )
        return Task(
            self,
            compactor.run,
            done=partial(self._compacted, compactor, sources, log.position),
            failed=partial(self._abandon, compactor, sources),
        )

    def _source(self, block: Block) -> Source:
        self._log.catalog.described(block)
        assert block.places is not None
        assert block.topics is not None
        scrub, block.scrub = block.scrub, False
        return Source(block, block.places, block.topics, block.marks(), scrub)

    def _abandon(self, compactor: Compactor, sources: list[Source]) -> None:
        for source in sources:
            source.block.scrub = source.block.scrub or source.scrub
        self._discard(compactor.draft)

    def _compacted(
        self, compactor: Compactor, sources: list[Source], position: int, out: Compacted
    ) -> None:
        """Put a compaction in place, once what replaced its messages is durable (rule 4)."""
        self._waiting = position, partial(self._install, compactor, sources, out)
        self.advance()

    def _install(self, compactor: Compactor, sources: list[Source], out: Compacted) -> None:
        log = self._log
        old = [source.block for source in sources]
        for block, place in out.damaged:
            if block.holds(place):
                log.catalog.lose(block, place)
        if not all(block in log.catalog.blocks for block in old):
            self._abandon(compactor, sources)
            return
        try:
            log.disk.rename(compactor.draft, compactor.path)
        except OSError as error:
            self.finished(error)
            self._abandon(compactor, sources)
            return
        self._catch_up(sources, out.block)
        log.catalog.replace_blocks(old, out.block)
        for block in old:
            log.cache.forget(block)
            self._compressed.discard(block.number)
        log.cache.adopt_columns(out.block)
        self._remove_merged(old[1:])

    def _catch_up(self, sources: list[Source], new: Block) -> None:
        """Mark in the new block what was removed while it was written."""
        for source in sources:
            block = self._log.catalog.placed(source.block)
            new.scrub = new.scrub or block.scrub
            if block.marks() == source.mask:
                continue
            for position in range(block.total):
                if source.mask[position] and not block.holds(position):
                    place = new.position(block.sequence(position))
                    new.clear(place, place + 1)
        new.recount()
        assert new.count == sum(source.block.count for source in sources)

    def _compress(self) -> Work | None:
        """Compress one complete segment, if that is wanted."""
        log = self._log
        if not log.compresses:
            return None
        for block in log.catalog.blocks[: len(log.catalog.blocks) - len(log.tails)]:
            if block.number not in self._compressed:
                path = segment_path(log.directory, block.number)
                press = Press(log.disk, block, path, path + DRAFT)
                done = partial(self._pressed, press)
                return Task(self, press.run, done=done, failed=partial(self._discard, press.draft))
        return None

    def _pressed(self, press: Press, is_new: bool) -> None:
        """Put a compressed segment in place of itself."""
        log = self._log
        if not is_new:
            self._compressed.add(press.block.number)
            return
        if press.block not in log.catalog.blocks:
            self._discard(press.draft)
            return
        try:
            log.disk.rename(press.draft, press.path)
        except OSError as error:
            self.finished(error)
            self._discard(press.draft)
            return
        log.cache.forget_file(press.block)
        self._compressed.add(press.block.number)

    def _keep_reserve(self) -> Work | None:
        if not self.reserve.is_missing or self._log.failure is not None:
            return None
        return Task(self, self.reserve.keep, done=lambda _: None, failed=lambda: None)

    def _discard(self, draft: str) -> None:
        with suppress(OSError):
            self._log.disk.remove(draft)

    def _remove_merged(self, merged: list[Block]) -> None:
        """Remove the files of segments that are now in another, if that one is there to stay."""
        try:
            self._log.disk.sync_directory(self._log.directory)
        except OSError as error:
            # They stay: the next start finds them merged, or still needs them.
            self.finished(error)
            return
        self._merged += merged


def _older(block: Block) -> Older:
    return Older(block.number, block.first_sequence, block.last_sequence, block.total, block.dense)


def _remove_all(remove: Callable[[str], None], paths: list[str]) -> None:
    for path in paths:
        remove(path)
