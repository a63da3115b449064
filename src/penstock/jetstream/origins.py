"""
Where a stream takes its messages from, beside its own subjects: its mirror or its sources.

A mirror has the messages of its origin under their own sequences and times, so
where it goes on after a restart is its last sequence. What comes from sources is
numbered again; each message says in `Nats-Stream-Source` which it was. Up to where
each source was read is kept in a file now and then, and what was stored after that
is looked through at the start: nothing is missed and nothing comes twice, not even
when the messages are gone by then.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock import headers
from penstock.jetstream.follower import Follower
from penstock.jetstream.messagestore import VOID
from penstock.jetstream.originrules import source_key
from penstock.jetstream.store import Entry, Message
from penstock.times import SECOND_NS

if TYPE_CHECKING:
    from penstock.jetstream.stream import Stream

log = logging.getLogger("penstock")

SOURCE_HEADER = b"Nats-Stream-Source"
SAVE_NS = 5 * SECOND_NS
READ_COUNT = 1000
READ_BYTES = 1024 * 1024
UNWANTED_PREFIXES = (b"Nats-Expected-", b"Nats-Batch-")
"""What was asked of the origin is not asked again of those who copy from it."""


class Origins:
    """The followers of one stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._mirror: Follower | None = None
        self._sources: dict[tuple[str, ...], Follower] = {}
        self._is_changed = False
        self._saved_ns = 0

    def configure(self) -> None:
        """Follow what the configuration says, and nothing else."""
        stream, config = self._stream, self._stream.config
        if self._mirror is not None and config.mirror is None:
            self._mirror.detach()
            self._mirror = None
        if self._mirror is None and config.mirror is not None:
            self._mirror = Follower(stream, config.mirror, self._take_mirrored)
            self._mirror.read_sequence = stream.store.last_sequence
            # A power cut may have come between a skip and the record of what it removed.
            stream.store.purge(VOID)
        wanted = {source_key(source): source for source in config.sources}
        for key in self._sources.keys() - wanted.keys():
            self._sources.pop(key).detach()
        fresh = {key: source for key, source in wanted.items() if key not in self._sources}
        for key, source in fresh.items():
            self._sources[key] = Follower(stream, source, self._take_sourced)
        self._sources = {key: self._sources[key] for key in wanted}
        if fresh:
            self._recover({key: self._sources[key] for key in fresh})

    @property
    def _followers(self) -> list[Follower]:
        mirror = [self._mirror] if self._mirror is not None else []
        return mirror + list(self._sources.values())

    def open(self) -> None:
        """Begin to read; soon, so that whoever created the stream hears of that first."""
        if self._mirror is not None or self._sources:
            engine = self._stream.engine
            engine.timers.at(engine.clock_ns(), lambda now_ns: self._attach())

    def _attach(self) -> None:
        for follower in self._followers:
            follower.seek(self._stream.engine.streams.get(follower.name))

    def on_stream(self, origin: Stream) -> None:
        """A stream was created: it may be the one that is waited for."""
        for follower in self._followers:
            if follower.name == origin.name:
                follower.seek(origin)

    def on_safe(self, visible_sequence: int) -> None:
        """What the stream has up to a sequence would not be lost any more."""
        if self._mirror is None and not self._sources:
            return
        for follower in self._followers:
            follower.on_safe(visible_sequence)
        if self._is_changed and self._stream.engine.clock_ns() - self._saved_ns >= SAVE_NS:
            self._save(visible_sequence)

    def on_purged(self) -> None:
        """Messages are gone that say how far sources were read: keep that at the next commit."""
        self._saved_ns = 0

    def close(self) -> None:
        """Stop to read; keep how far that came."""
        for follower in self._followers:
            follower.detach()
        if self._is_changed:
            self._save(self._stream.visible_sequence)

    def info(self) -> dict[str, Any]:
        """Return what StreamInfo says of the origins."""
        if self._mirror is not None:
            return {"mirror": self._mirror.info()}
        if self._sources:
            return {"sources": [follower.info() for follower in self._sources.values()]}
        return {}

    # Mirrors.

    def _take_mirrored(self, follower: Follower, messages: list[Message]) -> None:
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
            header = headers.without_prefixes(header, UNWANTED_PREFIXES)
            subject = follower.target(subject)
            if is_special:
                intake.take_internal(subject, header, payload, time_ns=time_ns)
            else:
                entries.append((subject, header, payload, time_ns))
            follower.read_sequence = store.last_sequence
        if entries:
            intake.append_internal(entries)
        assert store.last_sequence >= messages[-1][0], "a mirror has the sequences of its origin"

    def _skip(self, sequence: int, gap: int) -> None:
        store = self._stream.store
        if store.last_sequence:
            store.skip(gap)
        else:
            store.purge(b">", before=sequence)

    # Sources.

    def _take_sourced(self, follower: Follower, messages: list[Message]) -> None:
        """Store messages under sequences of their own; each says where it is from."""
        intake = self._stream.intake
        self._is_changed = True
        entries: list[Entry] = []
        now_ns = intake.time_ns()
        for sequence, _, subject, header, payload in messages:
            is_special = intake.is_careful or b"\r\nNats-" in header
            header = headers.remove(header, SOURCE_HEADER)
            header = headers.without_prefixes(header, UNWANTED_PREFIXES)
            header = headers.add(header, SOURCE_HEADER, _source(follower, sequence, subject))
            entry = (follower.target(subject), header, payload, now_ns)
            if not is_special:
                entries.append(entry)
                continue
            if entries:
                intake.append_internal(entries)
                entries = []
            follower.read_sequence = sequence - 1
            intake.take_internal(*entry[:3])
        if entries:
            intake.append_internal(entries)

    def _recover(self, followers: dict[tuple[str, ...], Follower]) -> None:
        """Find out up to where sources were read before."""
        store = self._stream.store
        is_kept = self._stream.config.storage != "memory"
        files = self._stream.engine.files
        saved = (files.read_sources(self._stream.name) if is_kept else None) or {}
        by_header: dict[bytes, Follower] = {}
        for key, follower in followers.items():
            by_header[_source_name(follower)] = follower
            sequence, identity = saved.get("positions", {}).get("\n".join(key), (0, ""))
            follower.read_sequence, follower.identity = sequence, identity
        sequence = saved.get("last_sequence", 0) + 1
        while sequence <= store.last_sequence:
            messages, sequence = store.read(sequence, count_max=READ_COUNT, bytes_max=READ_BYTES)
            for message in messages:
                value = headers.get(message[3], SOURCE_HEADER) if message[3] else None
                if value is not None:
                    _restore(by_header, value)
        for follower in followers.values():
            follower.safe_sequence = follower.read_sequence

    def _save(self, visible_sequence: int) -> None:
        """Keep up to where sources were read."""
        stream = self._stream
        self._is_changed = any(each.has_unsafe for each in self._sources.values())
        self._saved_ns = stream.engine.clock_ns()
        if stream.config.storage == "memory":
            return
        positions = {
            "\n".join(key): (follower.safe_sequence, follower.identity)
            for key, follower in self._sources.items()
        }
        document = {"last_sequence": visible_sequence, "positions": positions}
        try:
            stream.engine.files.write_sources(stream.name, document)
        except OSError as error:
            self._is_changed = True
            log.error("Stream '%s' can not keep its sources: %s", stream.name, error)


def _source_name(follower: Follower) -> bytes:
    """Return what a source is called in headers, around the sequence: name, filters, targets."""
    config: Mapping[str, Any] = follower.config
    changes = config.get("subject_transforms") or ()
    filters = "\f".join(each.get("src") or ">" for each in changes)
    targets = "\f".join(each.get("dest") or ">" for each in changes)
    filters = filters or config.get("filter_subject") or ">"
    return f"{follower.name} {filters} {targets or '>'}".encode()


def _source(follower: Follower, sequence: int, subject: bytes) -> bytes:
    name, filters, targets = _source_name(follower).split(b" ", 2)
    identity = follower.identity.encode()
    return b"%b %d %b %b %b %b" % (name, sequence, filters, targets, subject, identity)


def _restore(followers: Mapping[bytes, Follower], value: bytes) -> None:
    """Take from a stored message up to where its source was read."""
    fields = value.split(b" ")
    if len(fields) < 5 or not fields[1].isdigit():
        return
    follower = followers.get(b" ".join((fields[0], fields[2], fields[3])))
    if follower is not None:
        follower.read_sequence = int(fields[1])
        follower.identity = fields[5].decode() if len(fields) > 5 else ""
