"""
The other work of a file store: seal segments, compact, compress and remove them.

One piece of work at a time, requested with `next`. No acknowledgement needs it, so after an error
it is just tried again later.
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
    CompactedSegment,
    Compactor,
    Older,
    Sealer,
    choose,
)
from penstock.jetstream.store.file.compression import Press
from penstock.jetstream.store.file.keptids import Rescue
from penstock.jetstream.store.file.reserve import Noted
from penstock.jetstream.store.file.segment import HEADER_BYTES, Removal
from penstock.jetstream.store.file.segmentfile import DRAFT, segment_path
from penstock.jetstream.store.values import Known, Work, complete

if TYPE_CHECKING:
    from penstock.jetstream.store.file.log import FileLog

RETRY_BYTES = 1024 * 1024
"""After an error, work is tried again once this many bytes were appended."""


MAX = 1 << 64
BACKLOG_MAX = 2
"""Segments that may wait for a quiet moment to be sealed or removed."""


class UpkeepTask:
    """A piece of work: the part for a thread, and the use of its result."""

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
        """Apply the result, or try again some other time."""
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
        """Segments to remove because another one has their messages."""
        self._waiting: tuple[int, Callable[[], None]] | None = None
        """A compaction to put in place, with the position that must be durable before."""
        self._removing: list[Block] = []
        """Segments whose files are being removed."""
        self._busy = False
        self._retry_position = 0
        self._compressed: set[int] = set()
        """Numbers of the segments that are known to be compressed."""

    def doom(self, blocks: list[Block]) -> None:
        """Remove empty segments, as soon as that is safe."""
        log = self._log
        if not blocks and not self._doomed:
            return
        self._doomed += [(log.progress.position, block) for block in blocks]
        self._doomed.sort(key=lambda pair: pair[1].number or MAX)
        if not blocks or log.progress.failure is None or log.options.takes_back:
            return
        # Rule 4: while the disk fails, a purge makes room, and all the segments it emptied may go.
        # But some durable file must stay to tell which sequences were given.
        growing = [tail.block for tail in log.tails]
        last = max((block.number for block in blocks if block not in growing), default=0)
        if not self._has_durable_file():
            last -= 1
        self._doomed = [
            (0 if block.number <= last and block not in growing else position, block)
            for position, block in self._doomed
        ]

    @property
    def going(self) -> list[Block]:
        """Empty segments whose files may still exist."""
        return [block for _, block in self._doomed] + self._removing

    def _rescue(self, blocks: list[Block]) -> Rescue:
        """Return the work that saves what is still of use in segments before they go."""
        log = self._log
        since_ns = log.catalog.last_time_ns - log.options.ids_ns_max
        known: list[Known] = []
        unread: list[str] = []
        for block in blocks:
            if not block.total or block.last_time_ns <= since_ns or not log.options.ids_ns_max:
                continue
            recalled = log.options.recall(block.first_sequence, block.last_sequence)
            if recalled is not None:
                known += recalled
            elif block.first_sequence <= log.found_sequence:
                unread.append(segment_path(log.directory, block.number))
        secure = log.options.secure(max((block.last_sequence for block in blocks), default=0))
        return Rescue(log.kept, since_ns, known, unread, secure)

    def spare(self, blocks: list[Block]) -> None:
        """Do not remove these segments: the next one takes their place."""
        self._doomed = [pair for pair in self._doomed if pair[1] not in blocks]

    def _has_durable_file(self) -> bool:
        log = self._log
        growing = [tail.block for tail in log.tails]
        return any(tail.durable_end for tail in log.tails) or any(
            block not in growing for block in log.catalog.blocks
        )

    def seal_later(self, block: Block, records_end: int, removals: list[Removal]) -> None:
        """Schedule the trailer of a segment; until it is written, the columns stay in memory."""
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
        """Write all trailers here and now, as far as the disk allows."""
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
            self._retry_position = self._log.progress.position + RETRY_BYTES

    def advance(self) -> None:
        """Do the work that had to wait until something was durable."""
        if self._waiting is not None and self._waiting[0] <= self._log.progress.durable_position:
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
            work = self._seal() if self._log.progress.position >= self._retry_position else None
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
        if work is None and self._log.progress.position >= self._retry_position:
            self._close_scrubbed_tail()
            work = self._seal() or self._compact() or self._compress() or self._keep_reserve()
            work = work or self._note_end()
        self._busy = work is not None
        return work

    def _close_scrubbed_tail(self) -> None:
        """Close a segment with messages to erase: only a complete segment can be rewritten."""
        tails = self._log.tails
        if tails and tails[-1].block.scrub:
            tails[-1].full = True
        self._log.retire()

    def _remove_files(self) -> Work | None:
        log = self._log
        # Older ones first: a newer one may hold the removals of messages in them.
        ready = list(takewhile(lambda pair: pair[0] <= log.progress.durable_position, self._doomed))
        if not ready and not self._merged:
            return None
        self._doomed = self._doomed[len(ready) :]
        rescue = self._rescue([block for _, block in ready])
        ready += [(0, block) for block in self._merged]
        self._merged = []
        for _, block in ready:
            log.cache.forget(block)
            self._unsealed.pop(block.number, None)
        self._removing = [block for _, block in ready]
        paths = [segment_path(log.directory, block.number) for block in self._removing]
        return UpkeepTask(
            self,
            partial(_remove_all, log.disk.remove, paths, rescue),
            done=lambda _: self._removing.clear(),
            failed=partial(self._put_back, ready),
        )

    def _put_back(self, blocks: list[tuple[int, Block]]) -> None:
        self._removing.clear()
        self._doomed = blocks + self._doomed

    def _seal(self) -> Work | None:
        for block, sealer in self._unsealed.values():
            return UpkeepTask(
                self, sealer.run, done=partial(self._sealed, block), failed=lambda: None
            )
        return None

    def _sealed(self, block: Block, _: None = None) -> None:
        if self._unsealed.pop(block.number, None) is not None:
            # From now on they can be read again when a message in here is looked for.
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
        wasteful = [each.block for each in sources if each.block.count < each.block.total]
        return UpkeepTask(
            self,
            partial(_compact, compactor, self._rescue(wasteful)),
            done=partial(self._compacted, compactor, sources, log.progress.position),
            failed=partial(self._abandon, compactor, sources),
        )

    def _source(self, block: Block) -> CompactedSegment:
        self._log.catalog.described(block)
        assert block.places is not None
        assert block.topics is not None
        scrub, block.scrub = block.scrub, False
        return CompactedSegment(block, block.places, block.topics, block.marks(), scrub)

    def _abandon(self, compactor: Compactor, sources: list[CompactedSegment]) -> None:
        for source in sources:
            source.block.scrub = source.block.scrub or source.scrub
        self._discard(compactor.draft)

    def _compacted(
        self, compactor: Compactor, sources: list[CompactedSegment], position: int, out: Compacted
    ) -> None:
        """Put a compaction in place, once the replacements of its messages are durable (rule 4)."""
        self._waiting = position, partial(self._install, compactor, sources, out)
        self.advance()

    def _install(
        self, compactor: Compactor, sources: list[CompactedSegment], out: Compacted
    ) -> None:
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

    def _catch_up(self, sources: list[CompactedSegment], new: Block) -> None:
        """Mark in the new block the messages that were removed while it was written."""
        for source in sources:
            block = source.block
            # Not read again: the new file has that name by now.
            block.places = source.places
            block.resolve()
            new.scrub = new.scrub or block.scrub
            if block.marks() == source.mask:
                continue
            for position in range(block.total):
                if source.mask[position] and not block.holds(position):
                    place = new.find(block.sequence(position))
                    # A damaged message was not copied: the next message is in its place.
                    if place >= 0:
                        new.clear(place, place + 1)
        new.recount()
        assert new.count == sum(source.block.count for source in sources)

    def _compress(self) -> Work | None:
        """Return the compression of one complete segment, if that is wanted."""
        log = self._log
        if not log.options.compresses:
            return None
        for block in log.catalog.blocks[: len(log.catalog.blocks) - len(log.tails)]:
            if block.number not in self._compressed:
                path = segment_path(log.directory, block.number)
                press = Press(log.disk, block, path, path + DRAFT)
                done = partial(self._pressed, press)
                return UpkeepTask(
                    self, press.run, done=done, failed=partial(self._discard, press.draft)
                )
        return None

    def _pressed(self, press: Press, is_new: bool) -> None:
        """Put a compressed segment in place of the original."""
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
        reserve = self._log.reserve
        if not reserve.is_missing or self._log.progress.failure is not None:
            return None
        return UpkeepTask(self, reserve.keep, done=lambda _: None, failed=lambda: None)

    def _note_end(self) -> Work | None:
        noted = self.noted()
        if noted is None or noted == self._log.reserve.noted:
            return None
        note = partial(self._log.reserve.note, noted)
        return UpkeepTask(self, note, done=lambda _: None, failed=lambda: None)

    def noted(self) -> Noted | None:
        """Return how far the last segment is durable, at least, if there is one."""
        log = self._log
        if log.progress.failure is not None:
            return None
        sequence = log.progress.durable_sequence
        if log.tails:
            block, end = log.tails[0].block, log.tails[0].durable_end
            return Noted(block.number, end, sequence, block.count) if end else None
        if not log.catalog.blocks:
            return None
        # It may have been written again, and is shorter now.
        block = log.catalog.blocks[-1]
        return Noted(block.number, HEADER_BYTES + block.stored_bytes, sequence, block.count)

    def note_end(self) -> None:
        """Note it here and now."""
        noted = self.noted()
        if noted is not None and noted != self._log.reserve.noted:
            self._log.reserve.note(noted)

    def _discard(self, draft: str) -> None:
        with suppress(OSError):
            self._log.disk.remove(draft)

    def _remove_merged(self, merged: list[Block]) -> None:
        """Remove the files of segments that are merged into another, if that one is durable."""
        try:
            self._log.disk.sync_directory(self._log.directory)
        except OSError as error:
            # They stay: the next start finds them merged, or still needs them.
            self.finished(error)
            return
        self._merged += merged


def _older(block: Block) -> Older:
    return Older(block.number, block.first_sequence, block.last_sequence, block.total, block.dense)


def _compact(compactor: Compactor, rescue: Rescue) -> Compacted:
    if not rescue.run():
        raise OSError("there is no room for the ids of what would go")
    return compactor.run()


def _remove_all(remove: Callable[[str], None], paths: list[str], rescue: Rescue) -> None:
    is_rescued = rescue.run()
    for path in paths:
        remove(path)
    if not is_rescued:
        # There may be room for it now.
        rescue.run()
