"""
Compression of large payloads.

Both formats start with a magic number that no JSON text starts with, so compressed data is
recognised by its first bytes and needs no header.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal, TypeAlias

from penstock.errors import InvalidEnvelope, MissingExtra

Algorithm: TypeAlias = Literal["none", "zstd", "lz4"]
Compressor: TypeAlias = Callable[[bytes], bytes]

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
LZ4_MAGIC = b"\x04\x22\x4d\x18"
MAGIC_BYTES = 4
PACKAGES = {"zstd": "zstandard", "lz4": "lz4.frame"}

DECOMPRESSED_BYTES_MAX = 64 * 1024 * 1024
"""Maximum size of a decompressed message: a few bytes from a stranger must not fill the memory."""
EXPANSION_MAX = 256
"""Maximum growth factor of a message, because many small ones wait at the same time."""
DECOMPRESSED_BYTES_FREE = 256 * 1024
"""Size that a message may grow to regardless of the factor."""
WINDOW_BYTES_MAX = 64 * 1024 * 1024
"""Maximum memory of zstd while it decompresses; a frame of a few bytes can ask for more."""
PIECE_BYTES = 1024
"""Input of zstd per step; it can turn four bytes into 128 KiB."""


def compressor(algorithm: Algorithm, *, bytes_min: int) -> Compressor | None:
    """Return a function that compresses data of `bytes_min` or more; None for `none`."""
    if algorithm == "none":
        return None
    compress = _load(algorithm)
    squeeze: Compressor = (
        compress.ZstdCompressor().compress if algorithm == "zstd" else compress.compress
    )

    def compress_large(data: bytes) -> bytes:
        if len(data) < bytes_min:
            return data
        squeezed = squeeze(data)
        # Nobody would decompress data that compresses better than this.
        return squeezed if len(data) <= decompressed_bytes_max(len(squeezed)) else data

    return compress_large


def decompressed_bytes_max(size: int) -> int:
    """Return the maximum decompressed size of compressed data of this size."""
    return min(max(EXPANSION_MAX * size, DECOMPRESSED_BYTES_FREE), DECOMPRESSED_BYTES_MAX)


def is_compressed(data: bytes) -> bool:
    """Tell whether data is compressed with one of the algorithms."""
    return data[:MAGIC_BYTES] in (ZSTD_MAGIC, LZ4_MAGIC)


def decompress(data: bytes) -> bytes:
    """Return the decompressed data; raise InvalidEnvelope if it is damaged or too large."""
    if data[:MAGIC_BYTES] == ZSTD_MAGIC:
        return _decompress_zstd(data)
    return _decompress_lz4(data)


def _decompress_zstd(data: bytes) -> bytes:
    zstandard = _load("zstd")
    size_max = decompressed_bytes_max(len(data))
    decompressor = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX).decompressobj()
    found = bytearray()
    try:
        for start in range(0, len(data), PIECE_BYTES):
            found += decompressor.decompress(data[start : start + PIECE_BYTES])
            if len(found) > size_max:
                # An error lives on in logs, with everything that its frames hold.
                found.clear()
                raise _too_large(size_max)
    except zstandard.ZstdError as error:
        raise _damaged(error) from error
    if not decompressor.eof:
        raise _damaged("it ends too early")
    return bytes(found)


def _decompress_lz4(data: bytes) -> bytes:
    size_max = decompressed_bytes_max(len(data))
    decompressor = _load("lz4").LZ4FrameDecompressor()
    try:
        found: bytes = decompressor.decompress(data, max_length=size_max + 1)
    except (RuntimeError, EOFError, ValueError) as error:
        raise _damaged(error) from error
    if len(found) > size_max:
        found = b""
        raise _too_large(size_max)
    if not decompressor.eof:
        raise _damaged("it ends too early")
    return found


def _too_large(size_max: int) -> InvalidEnvelope:
    return InvalidEnvelope(f"a decompressed message has more than {size_max} B")


def _damaged(why: object) -> InvalidEnvelope:
    return InvalidEnvelope(f"compressed data is damaged: {why}")


def _load(algorithm: str) -> Any:
    try:
        return import_module(PACKAGES[algorithm])
    except ImportError:
        raise MissingExtra(
            f"`{algorithm}` needs a package; hint: pip install 'penstock[bus]'"
        ) from None
