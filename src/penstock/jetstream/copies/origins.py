"""
The origins of a stream, besides its own subjects: its mirror or its sources.

A mirror stores the messages of its origin under their own sequences and times, so after a restart
it continues after its last sequence. Messages from sources get new sequences; each names its
original in `Nats-Stream-Source`. The position in each source is saved to a file now and then, and
messages stored after that are scanned at the start, removed ones too: their bytes stay on disk for
a while, and before they go the positions are saved. So no message is missed and none comes twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any

from penstock.errors import cause, reason
from penstock.jetstream.commit import Change
from penstock.jetstream.config.originrules import source_key
from penstock.jetstream.copies.follower import StreamFollower
from penstock.jetstream.copies.origin import Follower, Origin, Take
from penstock.jetstream.copies.remotefollower import RemoteFollower
from penstock.jetstream.store.store import VOID
from penstock.jetstream.store.values import Entry, Message
from penstock.protocol import headers
from penstock.protocol.times import SECOND_NS

if TYPE_CHECKING:
    from penstock.jetstream.copies.originlookup import OriginLookup
    from penstock.jetstream.copies.streams import Copied, Copying

log = logging.getLogger("penstock")

SOURCE_HEADER = b"Nats-Stream-Source"
SAVE_NS = 5 * SECOND_NS
UNWANTED_PREFIXES = (b"Nats-Expected-", b"Nats-Batch-")
"""Conditions for the origin are not repeated to the streams that copy from it."""


class Origins:
    """The followers of one stream."""

    def __init__(self, stream: Copying, origin_lookup: OriginLookup) -> None:
        self._stream = stream
        self._origin_lookup = origin_lookup
        self._mirror: Follower | None = None
        self._sources: dict[tuple[str, ...], Follower] = {}
        self._is_changed = False
        self._is_kept = False
        """Whether there is a file with the positions in sources."""
        self._saved_ns = self._saved_sequence = 0
        self._writing = Lock()
        self._drawn = self._written = 0
        """The number of documents to be saved so far, and the newest one that was."""
        stream.store.options.secure = self._secure

    def configure(self) -> None:
        """Follow exactly the origins in the configuration."""
        stream, config = self._stream, self._stream.config
        if self._mirror is not None and config.mirror is None:
            self._mirror.close(for_good=True)
            self._mirror = None
        if self._mirror is None and config.mirror is not None:
            self._mirror = self._follow(config.mirror, self._take_mirrored)
            self._mirror.origin.read_sequence = stream.store.last_sequence
            # A power cut may have come between a skip and the record of its removal.
            stream.store.purge(VOID)
        wanted = {source_key(source): source for source in config.sources}
        for key in self._sources.keys() - wanted.keys():
            self._sources.pop(key).close(for_good=True)
        fresh = {key: source for key, source in wanted.items() if key not in self._sources}
        for key, source in fresh.items():
            self._sources[key] = self._follow(source, self._take_sourced)
        self._sources = {key: self._sources[key] for key in wanted}
        if fresh:
            self._recover({key: self._sources[key].origin for key in fresh})

    def _follow(self, config: Mapping[str, Any], take: Take) -> Follower:
        stream = self._stream
        origin = Origin(config, stream.context.random)
        remote = self._origin_lookup.remote_of(config)
        if remote is None:
            return StreamFollower(stream, origin, take, find=self._origin_lookup.find)
        return RemoteFollower(stream, origin, take, remote, skip_to=self._skip_to)

    @property
    def _followers(self) -> list[Follower]:
        mirror = [self._mirror] if self._mirror is not None else []
        return mirror + list(self._sources.values())

    def open(self) -> None:
        """Begin to read; soon, so that the stream's creator gets the answer first."""
        if self._mirror is not None or self._sources:
            context = self._stream.context
            context.timers.at(context.clock_ns(), lambda now_ns: self._open_followers())
        if self._sources and not self._is_kept:
            self._is_kept = True
            self._save(0)

    def _open_followers(self) -> None:
        if not self._stream.is_closed:
            for follower in self._followers:
                try:
                    follower.open()
                except Exception as error:
                    name, origin = self._stream.name, follower.origin.name
                    log.error("Stream '%s' cannot follow '%s': %s", name, origin, cause(error))

    def on_stream(self, created: Copied) -> None:
        """React to a new stream: it may be an awaited origin."""
        for follower in self._followers:
            follower.on_stream(created)

    def on_safe(self, visible_sequence: int) -> None:
        """Note that the stream cannot lose its messages up to a sequence any more."""
        for follower in self._followers:
            try:
                follower.on_safe(visible_sequence)
            except Exception as error:
                log.error("Stream '%s' cannot go on: %s", self._stream.name, cause(error))
        if self._is_changed and self._stream.context.clock_ns() - self._saved_ns >= SAVE_NS:
            self._save(visible_sequence)

    def _secure(self, last_sequence: int) -> Callable[[], None] | None:
        """Have the positions saved that the removed messages up to a sequence tell. A `Secure`."""
        if not self._sources or last_sequence <= self._saved_sequence:
            return None
        return self._writer(self._stream.visible_sequence)

    def close(self, *, for_good: bool = False) -> None:
        """Stop reading; save the positions, unless it is for good. Idempotent."""
        for follower in self._followers:
            follower.close(for_good=for_good)
        self._is_changed = self._is_changed and not for_good
        if self._is_changed and self._stream.config.storage != "memory":
            self._is_changed = False
            write = self._writer(self._stream.visible_sequence)
            try:
                write()
            except OSError as error:
                self._complain(error)

    def info(self) -> dict[str, Any]:
        """Return the origins for StreamInfo."""
        if self._mirror is not None:
            return {"mirror": self._mirror.info()}
        if self._sources:
            return {"sources": [follower.info() for follower in self._sources.values()]}
        return {}

    # Mirrors.

    def _take_mirrored(self, origin: Origin, messages: list[Message]) -> None:
        """Store messages under the sequences they have."""
        intake, store = self._stream.intake, self._stream.store
        entries: list[Entry] = []
        for sequence, time_ns, subject, header, payload in messages:
            if sequence <= store.last_sequence:
                continue
            gap = sequence - store.last_sequence - len(entries) - 1
            is_special = intake.is_careful or b"\r\nNats-" in header
            if entries and (gap or is_special):
                intake.append_internal(entries)
                entries = []
            if gap:
                self._skip(sequence, gap)
            if header:
                header = headers.without_prefixes(header, UNWANTED_PREFIXES)
            subject = origin.target(subject)
            if is_special:
                intake.take_internal(subject, header, payload, time_ns=time_ns)
            else:
                entries.append((subject, header, payload, time_ns))
            origin.read_sequence = store.last_sequence
        if entries:
            intake.append_internal(entries)
        assert store.last_sequence >= messages[-1][0], "a mirror has the sequences of its origin"

    def _skip_to(self, sequence: int) -> None:
        """Advance past sequences whose messages the origin has already dropped."""
        store = self._stream.store
        gap = sequence - store.last_sequence
        if self._mirror is not None and gap > 0:
            self._skip(sequence + 1, gap)
            self._stream.touch()

    def _skip(self, sequence: int, gap: int) -> None:
        store = self._stream.store
        if store.last_sequence:
            store.skip(gap)
        else:
            store.purge(b">", before=sequence)

    # Sources.

    def _take_sourced(self, origin: Origin, messages: list[Message]) -> None:
        """Store messages under new sequences; each names its original."""
        intake = self._stream.intake
        self._is_changed = True
        entries: list[Entry] = []
        now_ns = intake.time_ns()
        for sequence, _, subject, header, payload in messages:
            is_special = intake.is_careful or b"\r\nNats-" in header
            if header:
                header = headers.remove(header, SOURCE_HEADER)
                header = headers.without_prefixes(header, UNWANTED_PREFIXES)
            header = headers.add(header, SOURCE_HEADER, _source(origin, sequence, subject))
            entry = (origin.target(subject), header, payload, now_ns)
            if not is_special:
                entries.append(entry)
                continue
            if entries:
                intake.append_internal(entries)
                entries = []
            origin.read_sequence = sequence - 1
            intake.take_internal(*entry[:3])
            origin.read_sequence = sequence
        if entries:
            intake.append_internal(entries)

    def _recover(self, origins: dict[tuple[str, ...], Origin]) -> None:
        """Find the positions up to which sources were read before."""
        store = self._stream.store
        is_kept = self._stream.config.storage != "memory"
        files = self._stream.context.files
        found = files.read_sources(self._stream.name) if is_kept else None
        self._is_kept, saved = found is not None, found or {}
        for key, origin in origins.items():
            sequence, identity = saved.get("positions", {}).get("\n".join(key), (0, ""))
            origin.read_sequence, origin.identity = sequence, identity
        by_label = {origin.label: origin for origin in origins.values()}
        self._saved_sequence = saved.get("last_sequence", 0)
        marks: list[tuple[int, bytes]] = []
        for number, _, _, header, _ in store.stored_since(self._saved_sequence + 1):
            value = headers.get(header, SOURCE_HEADER) if header else None
            if value is not None:
                marks.append((number, value))
        for _, value in sorted(marks):
            _restore(by_label, value)
        for origin in origins.values():
            origin.safe_sequence = origin.read_sequence

    def _save(self, visible_sequence: int) -> None:
        """Save the positions in sources with the next commit."""
        context = self._stream.context
        self._is_changed = any(each.has_unsafe for each in self._sources.values())
        self._saved_ns = context.clock_ns()
        if self._stream.config.storage != "memory":
            context.touch(Change(self._writer(visible_sequence), self._saved, can_wait=False))

    def _saved(self, error: Exception | None) -> None:
        if error is not None and not self._stream.is_closed:
            self._is_changed = True
            self._complain(error)

    def _complain(self, error: Exception) -> None:
        log.error("Stream '%s' cannot keep its sources: %s", self._stream.name, reason(error))

    def _writer(self, visible_sequence: int) -> Callable[[], None]:
        """Return a function that saves the current positions in sources. Any thread."""
        stream = self._stream
        positions = {
            "\n".join(key): (follower.origin.safe_sequence, follower.origin.identity)
            for key, follower in self._sources.items()
        }
        document = {"last_sequence": visible_sequence, "positions": positions}
        self._drawn += 1
        number = self._drawn

        def write() -> None:
            with self._writing:
                # A stream that was deleted meanwhile may have a successor of the same name.
                if not stream.is_dropped and number > self._written:
                    stream.context.files.write_sources(stream.name, document)
                    self._written, self._saved_sequence = number, visible_sequence

        return write


def _source(origin: Origin, sequence: int, subject: bytes) -> bytes:
    name, filters, targets = origin.label
    value = b"%b %d %b %b %b" % (name, sequence, filters, targets, subject)
    return b"%b %b" % (value, origin.identity.encode()) if origin.identity else value


def _restore(origins: Mapping[tuple[bytes, bytes, bytes], Origin], value: bytes) -> None:
    """Restore the position in a source from a stored message."""
    fields = value.split(b" ")
    sequence = headers.number(fields[1]) if len(fields) >= 5 else None
    if sequence is None:
        return
    origin = origins.get((fields[0], fields[2], fields[3]))
    identity = fields[5].decode(errors="replace") if len(fields) > 5 else ""
    # What was saved may know of later messages that are gone.
    if origin is not None and (identity != origin.identity or sequence > origin.read_sequence):
        origin.read_sequence, origin.identity = sequence, identity
