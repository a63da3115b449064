"""
The messages of one stream: a catalog says which ones exist, and a log holds their bytes.

Both kinds of storage are the class `Store` over another `Log`: segments on disk (`file/log.py`) or
lists in memory (`memory.py`).

A store numbers messages, finds them again, removes them, and reports when they are safe. It has no
clock, no thread and no event loop; the server drives it in ticks:

    store.append(entries)          any number of times: buffered, cheap
    work = store.flush()           once a tick: one write to the operating system
    work.run()                     in a thread: returns when a power cut changes nothing
    work.finish(error)             back on the loop: `durable_sequence` moves up

PubAcks may leave up to `durable_sequence`. When the disk fails, `failure` says why, appends raise
StoreError, and each call of `flush` tries again. A store that `takes_back` first goes back to its
durable state then, see `retreat`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain, islice

from penstock.errors import StoreError
from penstock.jetstream.store import ahead, tabling, walk
from penstock.jetstream.store.block import Block
from penstock.jetstream.store.columns import Matcher
from penstock.jetstream.store.file.keptids import ids_of
from penstock.jetstream.store.lastmatches import LastMatches
from penstock.jetstream.store.log import Log, LogOptions
from penstock.jetstream.store.reading import Reading, pieces
from penstock.jetstream.store.retreat import Probe, Retreat
from penstock.jetstream.store.survey import Survey
from penstock.jetstream.store.values import (
    SEQUENCE_MAX,
    Entry,
    Filters,
    Known,
    Message,
    StoreLimits,
    StoreState,
    Work,
    check_room,
)
from penstock.protocol import subjects as patterns

LITERALS_MAX = 16
"""Up to this number of filters without wildcards are looked up one by one."""
TRIMMED_AT_ONCE = 2048
"""The number of messages to remove before others have their turn."""
VOID = b""
"""The subject of a record without a message in its place: nobody can publish to it."""


def _ignore(fault: str) -> None:
    """Nobody asked for faults."""


class Store:
    """
    The messages of one stream.

    Sequences are given in order, without gaps, and never given again: not after
    a purge, not after a restart. `size_bytes` counts as nats-server does.
    """

    def __init__(
        self, log: Log, limits: StoreLimits, size_of: Callable[[bytes, bytes, bytes], int]
    ) -> None:
        """Open a log; `size_of` returns the bytes that a subject, headers and payload take."""
        self._limits = limits
        self.size_of = size_of
        self._catalog = log.catalog
        self._last_matches = LastMatches(log.catalog)
        self._log = log
        self._configure_log()
        self._first_time: tuple[int, int] = (0, 0)
        self.retreats = 0
        self._is_back = False
        """Whether the store is back at exactly its durable state, after a failure."""
        self._purges = False
        """Whether there was a purge since."""
        self._on_fault: Callable[[str], None] = _ignore

    @property
    def options(self) -> LogOptions:
        """How the log keeps messages; to be changed at any time."""
        return self._log.options

    @property
    def is_settled(self) -> bool:
        """Whether everything stored and removed so far would survive a power cut."""
        if self._is_back and self.failure is not None:
            return not self._purges
        return self._log.progress.is_settled

    @property
    def limits(self) -> StoreLimits:
        """
        The limits of the store. May be replaced at any time; call `enforce` afterwards.

        A new limit per subject takes effect immediately, and at little cost while it is `prepared`.
        """
        return self._limits

    @limits.setter
    def limits(self, limits: StoreLimits) -> None:
        self._limits = limits
        self._configure_log()
        # Appends need a subject table for this limit.
        if limits.messages_per_subject_max != self._catalog.subjects.per_subject_max:
            tabling.retable(self._catalog, limits.messages_per_subject_max)

    def _configure_log(self) -> None:
        self.options.compresses = self._limits.compresses
        self.options.ids_ns_max = self._limits.ids_ns_max

    def ids_since(self, time_ns: int) -> list[Known]:
        """Return the ids of messages stored since a time, in order, including removed messages."""
        found: list[Known] = []
        damaged = 0
        for block in self._catalog.blocks:
            if block.total and block.last_time_ns >= time_ns:
                start = self._position_at(self._catalog.placed(block), time_ns, 0)
                for positions in pieces(block, start):
                    some = self._log.fetch(block, positions)
                    found += ids_of(message for message in some if message is not None)
                    damaged += some.count(None)
        if damaged:
            self._on_fault(f"the ids of {damaged} damaged messages are not known any more")
        # Last: messages removed meanwhile are known there by now.
        return sorted({*found, *self._log.gone_ids()})

    def stored_since(self, sequence: int) -> Iterator[Message]:
        """Yield messages from a sequence on, and removed ones still on disk, in any order."""
        for block in self._catalog.blocks:
            if block.total and block.last_sequence >= sequence:
                start = self._catalog.placed(block).position(sequence)
                for positions in pieces(block, start):
                    some = self._log.fetch(block, positions)
                    yield from (message for message in some if message is not None)
        yield from (each for each in self._log.gone_messages() if each[0] >= sequence)

    def watch_damage(self, on_lost: Callable[[int], None], on_fault: Callable[[str], None]) -> None:
        """Call back with the sequence of each message found damaged, and with other damage."""
        self._catalog.on_lost = on_lost
        self._on_fault = on_fault

    @property
    def lost(self) -> int:
        """Return the number of messages that were damaged on disk and could not be read back."""
        return self._catalog.lost

    @property
    def first_sequence(self) -> int:
        """Return the first message's sequence, or `last_sequence + 1` when empty."""
        return self._catalog.first_sequence

    @property
    def last_sequence(self) -> int:
        """Return the last sequence ever given, 0 before the first."""
        return self._catalog.last_sequence

    @property
    def durable_sequence(self) -> int:
        """Return the last sequence that would survive a power cut."""
        return self._log.progress.durable_sequence

    @property
    def messages(self) -> int:
        """Return the number of messages."""
        return self._catalog.messages

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all messages."""
        return self._catalog.size_bytes

    @property
    def removals(self) -> int:
        """Return a number that changes whenever a message is removed, for any reason."""
        return self._catalog.removals

    @property
    def position(self) -> int:
        """Return the number of bytes appended since it was opened, with records of removals."""
        return self._log.progress.position

    @property
    def durable_position(self) -> int:
        """Return the position up to which everything would survive a power cut."""
        return self._log.progress.durable_position

    def mark(self) -> int:
        """Return the position that has to be durable before nothing so far can be undone."""
        return self._log.mark()

    @property
    def dirty_bytes(self) -> int:
        """
        Return the bytes appended but not yet durable.

        They are also in memory: a server that syncs at intervals should sync early when this
        exceeds some megabytes.
        """
        return self.position - self.durable_position

    @property
    def failure(self) -> str | None:
        """Return why appends are refused, or None while the disk works."""
        return self._log.progress.failure

    def append(
        self, entries: Sequence[Entry], *, is_atomic: bool = False, replaces: bool = False
    ) -> int:
        """
        Add messages, drop those over the limits, return the first new sequence.

        If it is atomic, a power cut takes all of them or none. If it `replaces` others, everything
        removed before the next append or flush belongs to it: after a crash both happened or
        neither. Nothing is durable yet. After a failure, raises StoreError and adds nothing.
        """
        catalog, limits = self._catalog, self._limits
        first = catalog.last_sequence + 1
        if entries:
            check_room(first + len(entries))
            self._log.append(first, entries, is_atomic=is_atomic, replaces=replaces)
            catalog.last_time_ns = entries[-1][3]
            if limits.messages_max or limits.bytes_max:
                self._drop_surplus()
        return first

    def _drop_surplus(self) -> None:
        sequence = self._catalog.surplus_sequence(self.limits)
        if sequence > self._catalog.first_sequence:
            self._catalog.remove_before(sequence)

    def get(self, sequence: int) -> Message | None:
        """Return one message, or None if it does not exist."""
        found = self._catalog.locate(sequence)
        if found is None:
            return None
        block, position = found
        message = self._log.fetch_one(self._catalog.placed(block), position)
        if message is None:
            self._catalog.lose(block, position)
        return message

    def missing(self, sequences: list[int]) -> list[int]:
        """Return those of some sequences, in order, that have no message; nothing is read."""
        return walk.missing(self._catalog, sequences)

    def read(
        self,
        first_sequence: int,
        *,
        count_max: int,
        bytes_max: int,
        filters: Filters = (),
        last_sequence: int | None = None,
    ) -> tuple[list[Message], int]:
        """
        Return the next messages in order, and the sequence to continue from.

        The first match is returned whatever its size. An empty list does not mean the end: a sparse
        filter stops after a bounded search. The end is reached when the returned sequence is above
        `last_sequence`.
        """
        catalog = self._catalog
        last = catalog.last_sequence
        if last_sequence is not None:
            last = min(last, last_sequence)
        sequence = max(first_sequence, catalog.first_sequence)
        sequence, stop = self._span(filters, sequence, last)
        matcher = catalog.matcher(filters)
        if sequence == stop and matcher is not None:
            return self._look_at(stop, matcher), last + 1
        reading = Reading(catalog, self._log, matcher, count_max, bytes_max)
        for index in range(max(catalog.block_at(sequence), 0), len(catalog.blocks)):
            block = catalog.blocks[index]
            if sequence > stop or reading.done:
                break
            if block.count and block.last_sequence >= sequence:
                sequence = reading.take(block, sequence, stop)
        if not reading.done:
            sequence = max(sequence, last + 1)
        for block, position in reading.damaged:
            catalog.lose(block, position)
        return reading.messages, sequence

    def _look_at(self, sequence: int, matcher: Matcher) -> list[Message]:
        """Return a message if it matches, without loading the subjects of its whole block."""
        message = self.get(sequence)
        return [message] if message is not None and matcher[message[2]] else []

    def _span(self, filters: Filters, sequence: int, last: int) -> tuple[int, int]:
        """Return the sequences between which a search makes sense, known for a few subjects."""
        if not 0 < len(filters) <= LITERALS_MAX or not all(map(patterns.is_literal, filters)):
            return sequence, last
        found = [pair for pair in map(self._catalog.last, filters) if pair[1]]
        stop = min(max((each for each, _ in found), default=0), last)
        if all(count == 1 for _, count in found):
            sequence = min((each for each, _ in found if each >= sequence), default=stop + 1)
        return sequence, stop

    def last(self, subject: bytes) -> tuple[int, int]:
        """Return a subject's last sequence and its number of messages; (0, 0) without any."""
        return self._catalog.last(subject)

    def subjects(self, *filters: bytes) -> list[tuple[bytes, int, int]]:
        """Return (subject, last sequence, messages) of every matching subject; no filter is all."""
        return self._catalog.matching_subjects(filters)

    def subject_portions(self, *filters: bytes) -> Iterator[list[tuple[bytes, int, int]]]:
        """Yield the same a portion at a time, possibly empty, giving others their turn."""
        return self._catalog.subject_portions(filters)

    def count_portions(self, *filters: bytes) -> Iterator[dict[bytes, int]]:
        """Yield the number of messages of every matching subject, a portion at a time as well."""
        return self._catalog.count_portions(filters)

    def refreshing(self) -> Iterator[None]:
        """Bring the last sequences of all subjects up to date, giving others their turn."""
        return walk.refreshing(self._catalog)

    def latest(self, subjects: set[bytes], before: int) -> Iterator[dict[bytes, int]]:
        """Yield the last sequences of some subjects below another, a stretch at a time."""
        return walk.latest(self._catalog, subjects, before)

    def counting(self, sequence: int, filters: Filters) -> Generator[None, None, int]:
        """Return how many messages match from a sequence on, giving others their turn."""
        return walk.counting(self._catalog, sequence, filters)

    def count_ahead(self, sequence: int, filters: Filters) -> Iterator[None]:
        """Give others their turn while counting what `count` is about to be asked for."""
        catalog = self._catalog
        for _ in ahead.count(catalog, sequence, filters):
            yield
            if catalog is not self._catalog:
                return

    def survey(self, filters: Filters) -> Survey:
        """
        Count the messages of some filters; each step of iterating gives others their turn.

        Within the `with` block, `count` and `last_sequences` have the answer.
        """
        return Survey(self._catalog, filters)

    def last_sequences(self, filters: Filters) -> list[int]:
        """Return the last sequence of each matching subject, unordered."""
        return self._catalog.last_sequences(filters)

    def finding_last(self, pattern: bytes) -> Generator[None, None, int]:
        """Return the last sequence that matches now, 0 if none does, giving others their turn."""
        while True:
            catalog, steps = self._catalog, self._last_matches.find(pattern)
            while catalog is self._catalog:
                try:
                    next(steps)
                except StopIteration as end:
                    found: int = end.value
                    return found
                yield

    def sequence_at(self, time_ns: int) -> int:
        """Return the first sequence stored at or after a time, else `last_sequence + 1`."""
        catalog = self._catalog
        for block in catalog.blocks:
            if block.count and block.last_time_ns >= time_ns:
                position = self._position_at(catalog.placed(block), time_ns, block.start)
                position = block.next_held(position)
                if position < block.total:
                    return block.sequence(position)
        return catalog.last_sequence + 1

    def _position_at(self, block: Block, time_ns: int, low: int) -> int:
        """Search a block for the first position at or after a time, starting at position `low`."""
        high = block.total
        while low < high:
            middle = (low + high) // 2
            message = self._log.fetch_one(block, middle)
            if message is not None and message[1] < time_ns:
                low = middle + 1
            else:
                high = middle
        return low

    def count(self, first_sequence: int, filters: Filters = ()) -> int:
        """Return how many messages match from a sequence on."""
        return self._catalog.count(first_sequence, filters)

    def count_stretch(self, first_sequence: int, filters: Filters) -> tuple[int, int]:
        """Count some thousands of messages; return the matches, and the sequence that follows."""
        return walk.count_stretch(self._catalog, first_sequence, filters)

    def count_removed(self, before: int, first: int, last: int, filters: Filters) -> int | None:
        """Return how many messages between two sequences went since; None: only known from now."""
        return walk.count_removed(self._catalog, before, first, last, filters)

    def deleted(self, count_max: int) -> list[int]:
        """Return the removed sequences between the first and the last."""
        return list(islice(walk.deleted(self._catalog), count_max))

    def remove(self, sequences: Iterable[int], *, erase: bool = False) -> int:
        """
        Remove single messages, return how many existed.

        With `erase` their bytes are overwritten or dropped by the next `maintain`. Raises
        StoreError after a failure if the store takes back.
        """
        self._check_doubt(self.failure is not None)
        return self._catalog.remove(sequences, erase=erase)

    def skip(self, count: int) -> None:
        """Leave this number of sequences without messages."""
        catalog = self._catalog
        check_room(catalog.last_sequence + 1 + count)
        if count > 1:
            catalog.skip(count - 1)
        # One record at the end tells where the gap ended.
        first = catalog.last_sequence + 1
        self._log.append(first, [(VOID, b"", b"", catalog.last_time_ns)])
        catalog.remove_range(first, first)
        catalog.settle()

    def _begin_purge(self) -> None:
        """Check that a purge is allowed; after a failure it is written first."""
        self._check_doubt(self.failure is not None and not self._is_back)
        self._purges = self._is_back and self.failure is not None

    def _check_doubt(self, is_in_doubt: bool) -> None:
        """Check that this change will not be taken back silently."""
        if is_in_doubt and self.options.takes_back:
            raise StoreError(self.failure or "")

    def keeping(self, pattern: bytes, keep: int) -> Generator[None, None, int]:
        """
        Return the sequence below which a purge leaves this number of messages that match.

        It is 0 if there are no more than that. Others have their turn meanwhile.
        """
        catalog = self._catalog
        matcher = catalog.matcher((pattern,))
        if matcher is None:
            surplus = catalog.messages - keep
            return catalog.sequence_after(surplus) if surplus > 0 else 0
        steps = walk.nth_last(catalog, matcher, keep)
        while catalog is self._catalog:
            try:
                next(steps)
            except StopIteration as end:
                found: int = end.value
                return found
            yield
        raise StoreError("what is to be purged was taken back")

    def purge(self, pattern: bytes = b">", *, before: int = 0) -> int:
        """
        Remove the messages that match; return how many.

        Only those below sequence `before` if that is not 0. It may be above the last sequence when
        the pattern is `>`: the next message then gets that sequence, if there is one for it. Raises
        StoreError after a failure if the store takes back and has not done so yet.
        """
        self._begin_purge()
        return self._catalog.remove_matching(pattern, before=min(before, SEQUENCE_MAX))

    def purge_in_portions(self, pattern: bytes, *, before: int = 0) -> Iterator[int]:
        """
        Remove the messages that match and exist now, below a sequence if there is one.

        Yields the number of removed messages after each portion, giving others their turn.
        """
        retreats = self.retreats
        self._begin_purge()
        for purged in self._catalog.remove_in_portions(pattern, before=before):
            yield purged
            if self.retreats != retreats:
                raise StoreError("what was purged was taken back")
            self._begin_purge()

    def enforce(self, now_ns: int, *, aged_max: int = 0) -> int:
        """Remove messages over the limits, and old ones, at most `aged_max`; return how many."""
        catalog, limits = self._catalog, self.limits
        if self.failure is not None and self.options.takes_back:
            return 0
        before = catalog.messages
        if limits.age_ns_max and catalog.messages:
            young_sequence = self.sequence_at(now_ns - limits.age_ns_max)
            if aged_max:
                young_sequence = min(young_sequence, catalog.sequence_after(aged_max))
            catalog.remove_before(young_sequence)
        self._drop_surplus()
        return before - catalog.messages

    @contextmanager
    def prepared(self, limits: StoreLimits) -> Iterator[Iterator[None]]:
        """
        Prepare for new limits, to be set within the `with` block, by iterating over what it gives.

        Each step gives others their turn. Raises StoreError if the disk fails.
        """
        table = tabling.needed(self._catalog, limits.messages_per_subject_max)
        with table or nullcontext():
            yield chain(self._trim(limits), self._retable(table) if table else ())

    def _retable(self, table: tabling.Tabling) -> Iterator[None]:
        self._check_doubt(self.failure is not None)
        for _ in table:
            yield
            self._check_doubt(self.failure is not None)

    def _trim(self, limits: StoreLimits) -> Iterator[None]:
        """Remove messages over some limits for number and bytes, giving others their turn."""
        surplus_sequence = self._catalog.surplus_sequence(limits)
        while self._catalog.first_sequence < surplus_sequence:
            if self.failure is not None and self.options.takes_back:
                return
            stop = self._catalog.sequence_after(TRIMMED_AT_ONCE)
            self._catalog.remove_before(min(stop, surplus_sequence))
            yield

    def state(self) -> StoreState:
        """Return the figures of the store."""
        catalog = self._catalog
        gone = catalog.last_sequence - catalog.first_sequence + 1 - catalog.messages
        return StoreState(
            messages=catalog.messages,
            size_bytes=catalog.size_bytes,
            first_sequence=catalog.first_sequence,
            first_time_ns=self._first_time_ns(),
            last_sequence=catalog.last_sequence,
            last_time_ns=catalog.last_time_ns,
            subjects=len(catalog.subjects),
            deleted=gone,
            lost=catalog.lost,
        )

    def _first_time_ns(self) -> int:
        while self._catalog.messages and self._first_time[0] != self._catalog.first_sequence:
            # Looking at a damaged first message loses it; the next one is then first.
            message = self.get(self._catalog.first_sequence)
            if message is not None:
                self._first_time = message[:2]
        return self._first_time[1] if self._catalog.messages else 0

    def flush(self) -> Work | None:
        """
        Hand the buffer to the operating system; return the work that makes it durable.

        The work covers everything written before it began to run. Until it is finished, `flush`
        writes but returns None. Call it again while there are `dirty_bytes`: at the end of a
        segment it syncs only that segment, and the rest the next time.
        """
        log = self._log
        if log.progress.failure is None or not log.options.takes_back:
            self._is_back = False
            return log.flush()
        if not self._is_back:
            return None if log.progress.is_syncing else Retreat(log, self._go_back)
        if not self._purges:
            return Probe(log)
        self._is_back = self._purges = False
        return log.flush()

    def _go_back(self, left: Log) -> None:
        """Continue with the remaining log after a failure."""
        left.catalog.on_lost = self._catalog.on_lost
        left.catalog.removals += self._catalog.removals + 1
        self._log.close(saves=False)
        self._catalog, self._log = left.catalog, left
        self._last_matches = LastMatches(left.catalog)
        self._first_time = (0, 0)
        # They may have been changed meanwhile.
        self.limits = self._limits
        self.retreats += 1
        self._is_back, self._purges = True, False

    def maintain(self) -> Work | None:
        """
        Return the next piece of housekeeping (sealing, compaction, erasure), if there is one.

        Independent of `flush`; may run beside its work. Needs a turn now and then even under load.
        """
        return self._log.maintain()

    def discard(self) -> None:
        """Close the files as they are: they are about to be removed."""
        self._log.close(saves=False)

    def close(self) -> None:
        """Make everything durable and close the files. Blocks."""
        self._log.close()
