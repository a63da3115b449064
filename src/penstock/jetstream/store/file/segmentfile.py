"""Segments as files: their names, and how to read a header or a part of a trailer."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from penstock.jetstream.store.file.disk import Disk, File
from penstock.jetstream.store.file.segment import HEADER_BYTES, Header, decode_header
from penstock.jetstream.store.file.trailer import FOOTER_BYTES, Footer, decode_footer

SUFFIX = ".seg"
DRAFT = ".tmp"
SUMMARY, PLACES, TOPICS = 0, 1, 2
READ_GAP_BYTES = 16 * 1024
"""Gaps between two messages up to this size are read, which is cheaper than skipping them."""


def segment_path(directory: str, number: int) -> str:
    """Return the path of a segment."""
    return f"{directory}/{number:016d}{SUFFIX}"


def segment_number(name: str) -> int | None:
    """Return the number in the name of a segment's file; None for other files."""
    stem = name.removesuffix(SUFFIX)
    return int(stem) if stem != name and stem.isascii() and stem.isdecimal() else None


def read_header(disk: Disk, path: str) -> Header | None:
    """Return the header of a segment; None if it does not check out."""
    file = disk.open(path)
    try:
        return decode_header(file.read(0, HEADER_BYTES))
    finally:
        file.close()


def read_header_copy(disk: Disk, path: str) -> Header | None:
    """Return the copy of a complete segment's header; None without one that checks out."""
    file = disk.open(path)
    try:
        offset = file.size() - FOOTER_BYTES - HEADER_BYTES
        return decode_header(file.read(offset, HEADER_BYTES)) if offset > 0 else None
    finally:
        file.close()


def read_footer(file: File, salt: int) -> Footer | None:
    """Return the footer of a segment; None without one that checks out."""
    size = file.size()
    return decode_footer(file.read(max(size - FOOTER_BYTES, 0), FOOTER_BYTES), size, salt)


def read_part(file: File, salt: int, part: int) -> bytes | None:
    """Return one part of a segment's trailer; None if it does not check out."""
    footer = read_footer(file, salt)
    if footer is None:
        return None
    data = file.read(footer.offsets[part], footer.lengths[part])
    return data if crc32(data, salt) == footer.checksums[part] else None


def stretches(offsets: Sequence[int], lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Return which messages to read in one go: those with small gaps between them."""
    if not offsets:
        return []
    span = offsets[-1] + lengths[-1] - offsets[0]
    if span - sum(lengths) <= READ_GAP_BYTES:
        return [(0, len(offsets))]
    found: list[tuple[int, int]] = []
    first = 0
    for index in range(1, len(offsets)):
        if offsets[index] - offsets[index - 1] - lengths[index - 1] > READ_GAP_BYTES:
            found.append((first, index))
            first = index
    return [*found, (first, len(offsets))]
