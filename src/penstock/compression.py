"""
Compression of large payloads.

Both formats start with a magic number that no JSON text starts with, so what was
compressed is recognised by its first bytes and needs no header.
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
"""What a message may grow to: a few bytes from a stranger must not fill the memory."""


def compressor(algorithm: Algorithm, *, bytes_min: int) -> Compressor | None:
    """Return a function that compresses what has `bytes_min` or more; None for `none`."""
    if algorithm == "none":
        return None
    compress = _load(algorithm)
    squeeze: Compressor = (
        compress.ZstdCompressor().compress if algorithm == "zstd" else compress.compress
    )

    def compress_large(data: bytes) -> bytes:
        return squeeze(data) if len(data) >= bytes_min else data

    return compress_large


def is_compressed(data: bytes) -> bool:
    """Tell whether bytes are compressed by one of the algorithms."""
    return data[:MAGIC_BYTES] in (ZSTD_MAGIC, LZ4_MAGIC)


def decompress(data: bytes) -> bytes:
    """Return what was compressed."""
    try:
        if data[:MAGIC_BYTES] == ZSTD_MAGIC:
            return _decompress_zstd(data)
        return _decompress_lz4(data)
    except (RuntimeError, EOFError, ValueError) as error:
        raise InvalidEnvelope(f"compressed data is damaged: {error}") from error
    except Exception as error:
        # zstandard's own error is known only once it is imported.
        if type(error).__name__ == "ZstdError":
            raise InvalidEnvelope(f"compressed data is damaged: {error}") from error
        raise


def _decompress_zstd(data: bytes) -> bytes:
    decompressor = _load("zstd").ZstdDecompressor().decompressobj()
    return _bounded(decompressor.decompress(data))


def _decompress_lz4(data: bytes) -> bytes:
    decompressor = _load("lz4").LZ4FrameDecompressor()
    found = decompressor.decompress(data, max_length=DECOMPRESSED_BYTES_MAX + 1)
    if not decompressor.eof and len(found) <= DECOMPRESSED_BYTES_MAX:
        raise InvalidEnvelope("compressed data is damaged: it ends too early")
    return _bounded(found)


def _bounded(data: bytes) -> bytes:
    if len(data) > DECOMPRESSED_BYTES_MAX:
        raise InvalidEnvelope(f"decompressed, a message has more than {DECOMPRESSED_BYTES_MAX} B")
    return data


def _load(algorithm: str) -> Any:
    try:
        return import_module(PACKAGES[algorithm])
    except ImportError:
        raise MissingExtra(
            f"`{algorithm}` needs a package; hint: pip install 'penstock[bus]'"
        ) from None
