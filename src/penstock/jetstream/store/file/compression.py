"""
Complete segments, compressed: `compression: s2`.

A segment that takes no more records is written again as frames, each a stretch of 64 KiB compressed
by itself, between two copies of an index of them. A `transparent` disk opens such a file so that it
reads as the original segment: no other module needs to know.

What nats-server calls s2 is its own dialect of Snappy. Our bytes on disk are private, so a frame is
Snappy if `cramjam` is installed, and otherwise zlib at its fastest, which is always available. A
frame that does not shrink stays uncompressed. docs/internals/file-format.md has it byte by byte.
"""

from __future__ import annotations

import errno
import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple

from penstock.core import snappy
from penstock.core.snappy import Codec
from penstock.jetstream.store.file.disk import Disk, File, read_whole
from penstock.jetstream.store.file.layereddisk import LayeredDisk
from penstock.jetstream.store.file.segment import SEGMENT_MAGIC

if TYPE_CHECKING:
    from penstock.jetstream.store.block import Block

MAGIC = b"PENSTPCK"
VERSION = 1
ZLIB, SNAPPY = 1, 2
FRAME_BYTES = 64 * 1024
ZLIB_LEVEL = 1
HEADER = struct.Struct("<8sHHIQII")
"""Magic, version, method, bytes a frame, size of the segment, frames, checksum of it all."""
CHECKED_BYTES = HEADER.size - 4
FRAME = struct.Struct("<II")
"""Length and checksum of a stored frame."""
CACHED_FRAMES = 4


def compressed(data: bytes) -> bytes:
    """Return a segment as frames between two copies of their index."""
    method, squeeze = _compressor()
    frames = []
    for start in range(0, len(data), FRAME_BYTES):
        plain = data[start : start + FRAME_BYTES]
        frame = squeeze(plain)
        frames.append(frame if len(frame) < len(plain) else plain)
    index = b"".join(FRAME.pack(len(frame), zlib.crc32(frame)) for frame in frames)
    fields = (MAGIC, VERSION, method, FRAME_BYTES, len(data), len(frames))
    checksum = zlib.crc32(index, zlib.crc32(HEADER.pack(*fields, 0)[:CHECKED_BYTES]))
    head = HEADER.pack(*fields, checksum)
    return b"".join((head, index, *frames, index, head))


def _compressor() -> tuple[int, Codec]:
    compress = snappy.compressor()
    if compress is not None:
        return SNAPPY, compress
    return ZLIB, lambda plain: zlib.compress(plain, ZLIB_LEVEL)


def _decompressor(method: int) -> Codec:
    if method == ZLIB:
        return zlib.decompress
    package = snappy.package()
    if package is None:
        text = "a segment is compressed as Snappy; hint: pip install 'penstock[s2]'"
        raise OSError(errno.ENOTSUP, text)
    return lambda frame: bytes(package.decompress_raw(frame))


class Index(NamedTuple):
    """The places of the frames of a compressed segment, and how to read them."""

    method: int
    frame_bytes: int
    size: int
    """Of the segment."""
    frames: list[tuple[int, int, int]]
    """Offset, length and checksum of each."""


class CompressedFile:
    """A compressed segment that reads as if it were uncompressed. A read-only `File`."""

    def __init__(self, file: File, index: Index) -> None:
        self._file = file
        self._frame_bytes, self._size = index.frame_bytes, index.size
        self._frames = index.frames
        self._decompress = _decompressor(index.method)
        self._cache: dict[int, bytes] = {}

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes from an offset; zeros where the file is damaged."""
        end = min(offset + length, self._size)
        if offset >= end:
            return b""
        first = offset // self._frame_bytes
        last = (end - 1) // self._frame_bytes
        data = b"".join([self._frame(number) for number in range(first, last + 1)])
        start = offset - first * self._frame_bytes
        return data[start : start + end - offset]

    def _frame(self, number: int) -> bytes:
        plain = self._cache.get(number)
        if plain is None:
            plain = self._read_frame(number)
            if len(self._cache) >= CACHED_FRAMES:
                del self._cache[next(iter(self._cache))]
            self._cache[number] = plain
        return plain

    def _read_frame(self, number: int) -> bytes:
        size = min(self._frame_bytes, self._size - number * self._frame_bytes)
        offset, length, checksum = self._frames[number]
        frame = self._file.read(offset, length)
        if len(frame) == length and zlib.crc32(frame) == checksum:
            return frame if length == size else self._decompress(frame)
        # No valid records.
        return bytes(size)

    def size(self) -> int:
        """Return the length of the uncompressed segment."""
        return self._size

    def write(self, data: bytes, offset: int) -> None:
        """Refuse: the segment is complete."""
        raise OSError(errno.EROFS, "a compressed segment is not written to")

    def truncate(self, length: int) -> None:
        """Refuse: the segment is complete."""
        raise OSError(errno.EROFS, "a compressed segment is not cut off")

    def sync(self) -> None:
        """Do nothing: it was synced before it got its name."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _index(file: File) -> Index | None:
    """Return the index of a compressed segment; None for other files, and if both are damaged."""
    first = file.read(0, HEADER.size)
    if first.startswith(SEGMENT_MAGIC):
        return None
    size = file.size()
    index = _checked_index(file, first, HEADER.size)
    if index is None and size >= HEADER.size:
        head = file.read(size - HEADER.size, HEADER.size)
        index = _checked_index(file, head, size - HEADER.size - _index_bytes(head))
    return index


def _index_bytes(head: bytes) -> int:
    return FRAME.size * int(HEADER.unpack(head)[5])


def _checked_index(file: File, head: bytes, offset: int) -> Index | None:
    """Return what a header and the index at an offset say, if they check out."""
    if len(head) < HEADER.size or offset < 0:
        return None
    magic, version, method, frame_bytes, size, _, checksum = HEADER.unpack(head)
    length = _index_bytes(head)
    if (magic, version) != (MAGIC, VERSION) or length > file.size():
        return None
    index = file.read(offset, length)
    if zlib.crc32(index, zlib.crc32(head[:CHECKED_BYTES])) != checksum:
        return None
    frames = []
    place = HEADER.size + length
    for frame_length, frame_checksum in FRAME.iter_unpack(index):
        frames.append((place, frame_length, frame_checksum))
        place += frame_length
    return Index(method, frame_bytes, size, frames)


def is_compressed(file: File) -> bool:
    """Tell whether a file is a compressed segment of a known version."""
    return isinstance(file, CompressedFile) or _index(file) is not None


def transparent(disk: Disk) -> Disk:
    """Return a disk on which compressed segments read as if they were uncompressed."""
    return LayeredDisk(disk, opened=_opened)


def _opened(file: File) -> File:
    index = _index(file)
    return file if index is None else CompressedFile(file, index)


class Press:
    """Compresses one complete segment into a draft beside it. Any thread."""

    def __init__(self, disk: Disk, block: Block, path: str, draft: str) -> None:
        self.block = block
        self.path = path
        self.draft = draft
        self._disk = disk

    def run(self) -> bool:
        """Write the draft, and sync it; return False if the segment is compressed already."""
        file = self._disk.open(self.path)
        try:
            if is_compressed(file):
                return False
        finally:
            file.close()
        draft = self._disk.create(self.draft)
        try:
            draft.write(compressed(read_whole(self._disk, self.path) or b""), 0)
            draft.sync()
        finally:
            draft.close()
        return True
