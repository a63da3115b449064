"""A stream in memory: the same store over lists instead of segments. Nothing survives."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from penstock.jetstream.store.block import Block
from penstock.jetstream.store.catalog import Catalog
from penstock.jetstream.store.columns import Places, SubjectColumn
from penstock.jetstream.store.log import LogOptions
from penstock.jetstream.store.store import Store
from penstock.jetstream.store.values import Entry, Known, Message, StoreLimits, Work

BLOCK_MESSAGES_MAX = 4096
OVERHEAD_BYTES = 16
"""Bytes nats-server counts for a message in memory, besides subject, headers and payload."""


def open_memory_store(*, limits: StoreLimits | None = None) -> Store:
    """Return an empty store."""
    limits = limits or StoreLimits()
    log = MemoryLog(limits.messages_per_subject_max)
    return Store(log, limits, size_of)


def size_of(subject: bytes, header: bytes, payload: bytes) -> int:
    """Return the size of a message in bytes."""
    return OVERHEAD_BYTES + len(subject) + len(header) + len(payload)


class MemoryProgress:
    """Messages in memory are immediately as safe as they get. A `Progress`."""

    failure: str | None = None
    position = durable_position = 0
    is_settled = True
    is_syncing = False

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    @property
    def durable_sequence(self) -> int:
        """The last sequence: as safe as it gets."""
        return self._catalog.last_sequence


class MemoryLog:
    """Holds the messages of a stream in lists, one a block."""

    def __init__(self, per_subject_max: int) -> None:
        self.catalog = Catalog(self, per_subject_max=per_subject_max, journal=False)
        self.options = LogOptions()
        self.progress = MemoryProgress(self.catalog)
        self._messages: dict[int, list[Message]] = {}

    def append(
        self,
        first_sequence: int,
        entries: Sequence[Entry],
        *,
        is_atomic: bool = False,
        replaces: bool = False,
    ) -> None:
        """Keep messages and tell the catalog."""
        block = self._block_from(first_sequence)
        block.last_time_ns = entries[-1][3]
        self._messages[block.number] += [
            (sequence, time_ns, subject, headers, payload)
            for sequence, (subject, headers, payload, time_ns) in enumerate(entries, first_sequence)
        ]
        lengths = [OVERHEAD_BYTES + len(e[0]) + len(e[1]) + len(e[2]) for e in entries]
        self.catalog.append(block, 0, [entry[0] for entry in entries], lengths)
        self._forget_emptied()

    def _block_from(self, sequence: int) -> Block:
        """Return the block that takes the message with this sequence."""
        blocks = self.catalog.blocks
        last = blocks[-1] if blocks else None
        if last is not None and last.total < BLOCK_MESSAGES_MAX:
            if last.last_sequence + 1 == sequence:
                return last
            if last.count:
                last.leave_gap(sequence)
                return last
        block = Block(last.number + 1 if last else 1, sequence)
        block.places = Places(array("I"), array("I"))
        block.topics = SubjectColumn([])
        self._messages[block.number] = []
        self.catalog.add_block(block)
        self.catalog.settle()
        return block

    def _forget_emptied(self) -> None:
        for block in self.catalog.take_emptied():
            del self._messages[block.number]

    def fetch(self, block: Block, positions: Sequence[int]) -> list[Message | None]:
        """Return messages of one block."""
        messages = self._messages[block.number]
        if isinstance(positions, range):
            return list(messages[positions.start : positions.stop])
        return [messages[position] for position in positions]

    def fetch_one(self, block: Block, position: int) -> Message | None:
        """Return one message."""
        return self._messages[block.number][position]

    def gone_messages(self) -> list[Message]:
        """Return an empty list: there is no disk."""
        return []

    def gone_ids(self) -> list[Known]:
        """Return an empty list: nothing survives a restart, and until then all ids are known."""
        return []

    def load_places(self, block: Block) -> None:
        """Never needed: everything is in memory."""
        raise AssertionError(f"block {block.number} of a memory store has no places")

    def load_topics(self, block: Block) -> None:
        """Never needed: everything is in memory."""
        raise AssertionError(f"block {block.number} of a memory store has no topics")

    def mark(self) -> int:
        """Return 0: nothing has to be durable."""
        return 0

    def retreat(self) -> MemoryLog:
        """Never needed: nothing fails."""
        raise AssertionError("memory does not fail")

    def probe(self) -> None:
        """Never needed: nothing fails."""
        raise AssertionError("memory does not fail")

    def flush(self) -> Work | None:
        """Free emptied blocks: there is nothing to make durable."""
        self._forget_emptied()
        return None

    def maintain(self) -> Work | None:
        """Free messages that were removed from between others."""
        group: list[Block] = []
        for block in self.catalog.blocks[:-1]:
            if group and sum(b.count for b in group) + block.count > BLOCK_MESSAGES_MAX:
                self._merge(group)
                group = []
            group.append(block)
        self._merge(group)
        return None

    def _merge(self, group: list[Block]) -> None:
        """Merge neighbours if more than half of their messages are gone."""
        if 2 * sum(block.count for block in group) >= sum(block.total for block in group):
            return
        kept = [(b, position) for b in group for position in b.held(0, b.total)]
        messages = [self._messages[b.number][position] for b, position in kept]
        merged = Block(group[0].number, messages[0][0] if messages else group[0].first_sequence)
        _describe(merged, messages, array("I", [_length_at(*place) for place in kept]))
        for block in group:
            del self._messages[block.number]
        self._messages[merged.number] = messages
        self.catalog.replace_blocks(group, merged)

    def close(self, *, saves: bool = True) -> None:
        """Free everything."""
        self._messages.clear()


def _length_at(block: Block, position: int) -> int:
    assert block.places is not None
    return block.places.lengths[position]


def _describe(block: Block, messages: list[Message], lengths: array[int]) -> None:
    """Fill in a block from its messages."""
    first = block.first_sequence
    block.total = block.count = len(messages)
    block.last_sequence = messages[-1][0] if messages else first - 1
    block.first_time_ns = messages[0][1] if messages else 0
    block.last_time_ns = messages[-1][1] if messages else 0
    block.dense = block.last_sequence - first + 1 == block.total
    deltas = None if block.dense else array("Q", [message[0] - first for message in messages])
    block.places = Places(array("I", bytes(4 * block.total)), lengths, deltas)
    block.topics = SubjectColumn([message[2] for message in messages])
    block.size_bytes = block.stored_bytes = sum(lengths)
