"""
Complete segments: their open files, and as many of their columns as a bound allows.

A stream may be far larger than memory. The columns that find a message in a segment are read from
its trailer on the first access, and dropped when other segments were used more recently.
"""

from __future__ import annotations

from collections import OrderedDict

from penstock.errors import StoreError
from penstock.jetstream.store.block import Block
from penstock.jetstream.store.columns import SubjectColumn, columns_of
from penstock.jetstream.store.file.disk import Disk, File
from penstock.jetstream.store.file.segment import scan
from penstock.jetstream.store.file.segmentfile import (
    PLACES,
    SUMMARY,
    TOPICS,
    read_part,
    segment_path,
)
from penstock.jetstream.store.file.trailer import decode_ids, decode_places, decode_summary


class SegmentCache:
    """Reads complete segments, and caches the most recent ones."""

    def __init__(
        self, disk: Disk, directory: str, *, salt: int, memory_bytes_max: int, files_max: int
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._salt = salt
        self._memory_bytes_max = memory_bytes_max
        self._files_max = files_max
        self._files: OrderedDict[int, File] = OrderedDict()
        self._loaded: OrderedDict[int, Block] = OrderedDict()
        self._memory_bytes: dict[int, int] = {}

    def file(self, block: Block) -> File:
        """Return the open file of a segment."""
        file = self._files.get(block.number)
        if file is None:
            file = self._disk.open(segment_path(self._directory, block.number))
            self.adopt_file(block, file)
        else:
            self._files.move_to_end(block.number)
        return file

    def adopt_file(self, block: Block, file: File) -> None:
        """Take over an open file."""
        self._files[block.number] = file
        while len(self._files) > self._files_max:
            _, oldest = self._files.popitem(last=False)
            oldest.close()

    def adopt_columns(self, block: Block) -> None:
        """Count loaded columns against the bound."""
        self._account(block)

    def disown(self, block: Block) -> None:
        """Stop managing the columns of a segment: they stay in memory."""
        self._loaded.pop(block.number, None)
        self._memory_bytes.pop(block.number, None)

    def forget(self, block: Block) -> None:
        """Drop everything of a segment."""
        self.forget_file(block)
        self.disown(block)

    def forget_file(self, block: Block) -> None:
        """Close the file of a segment: another file has its name by now."""
        file = self._files.pop(block.number, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        """Close all files."""
        while self._files:
            self._files.popitem()[1].close()

    def load_places(self, block: Block) -> None:
        """Read the places of a segment's messages."""
        data = read_part(self.file(block), self._salt, PLACES)
        if data is None:
            self._walk(block)
        else:
            block.places = decode_places(data, block.total, dense=block.dense)
        self._account(block)

    def load_topics(self, block: Block) -> None:
        """Read the subjects of a segment's messages."""
        summary = read_part(self.file(block), self._salt, SUMMARY)
        ids = read_part(self.file(block), self._salt, TOPICS)
        if summary is None or ids is None:
            self._walk(block)
        else:
            block.topics = SubjectColumn(
                decode_summary(summary).subjects, decode_ids(ids, block.total)
            )
        self._account(block)

    def touch(self, block: Block) -> None:
        """Note that a segment was used."""
        if block.number in self._loaded:
            self._loaded.move_to_end(block.number)

    def _walk(self, block: Block) -> None:
        """Find the messages again by walking the records: the trailer is damaged."""
        file = self.file(block)
        size = file.size()
        found = scan(file.read(0, size), self._salt, synced_end=size)
        if len(found.sequences) != block.total:
            raise StoreError(
                f"segment {block.number} of `{self._directory}` is damaged: "
                f"{len(found.sequences)} of {block.total} messages found; "
                "hint: stop the server and run `penstock store repair`"
            )
        block.places, block.topics = columns_of(found)
        assert (block.places.deltas is None) == block.dense

    def _account(self, block: Block) -> None:
        self._loaded[block.number] = block
        self._loaded.move_to_end(block.number)
        held = (column for column in (block.places, block.topics) if column is not None)
        self._memory_bytes[block.number] = sum(column.memory_bytes for column in held)
        total = sum(self._memory_bytes.values())
        while total > self._memory_bytes_max and len(self._loaded) > 1:
            number, oldest = self._loaded.popitem(last=False)
            total -= self._memory_bytes.pop(number)
            oldest.places = oldest.topics = None
