"""Compressed payloads: what was squeezed comes back, and nothing else is made of it."""

from __future__ import annotations

import re
import sys
import tracemalloc
from collections.abc import Iterator

import pytest
import zstandard

from penstock.errors import InvalidEnvelope, MissingExtra
from penstock.protocol.compression import (
    DECOMPRESSED_BYTES_FREE,
    DECOMPRESSED_BYTES_MAX,
    Algorithm,
    Compressor,
    compressor,
    decompress,
    decompressed_bytes_max,
    is_compressed,
)

MIB = 1024 * 1024
DATA = b"".join(b"%d " % number for number in range(2000))


@pytest.fixture(params=["zstd", "lz4"])
def squeeze(request: pytest.FixtureRequest) -> Compressor:
    algorithm: Algorithm = request.param
    found = compressor(algorithm, bytes_min=1)
    assert found is not None
    return found


def test_what_was_compressed_comes_back(squeeze: Compressor) -> None:
    assert DATA == decompress(squeeze(DATA))


def test_what_ends_too_early_is_damaged(squeeze: Compressor) -> None:
    data = squeeze(DATA)
    for end in range(4, len(data), 37):
        with pytest.raises(InvalidEnvelope, match="damaged"):
            decompress(data[:end])


def test_what_makes_no_sense_is_damaged(squeeze: Compressor) -> None:
    with pytest.raises(InvalidEnvelope, match="damaged"):
        decompress(squeeze(DATA)[:4] + b"\xff" * 100)


def test_a_message_may_be_as_large_as_the_bound(
    squeeze: Compressor, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, more = squeeze(bytes(1000)), squeeze(bytes(1001))
    monkeypatch.setattr("penstock.protocol.compression.DECOMPRESSED_BYTES_MAX", 1000)

    assert bytes(1000) == decompress(whole)
    with pytest.raises(InvalidEnvelope, match="more than 1000 B"):
        decompress(more)


def test_a_small_message_may_grow_to_so_many_times_its_size(squeeze: Compressor) -> None:
    """Thousands of small ones wait at the same time, and each would be as large as the bound."""
    for size in (1000, DECOMPRESSED_BYTES_FREE, DECOMPRESSED_BYTES_FREE + 1, 8 * MIB):
        squeezed = squeeze(bytes(size))
        assert size <= decompressed_bytes_max(len(squeezed))
        assert bytes(size) == (decompress(squeezed) if is_compressed(squeezed) else squeezed)


def test_a_few_bytes_from_a_stranger_do_not_fill_the_memory() -> None:
    bomb = b"".join(_squeezed_zeros(1024))
    assert len(bomb) < MIB

    tracemalloc.start()
    with pytest.raises(InvalidEnvelope, match="more than"):
        decompress(bomb)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak_bytes < 4 * DECOMPRESSED_BYTES_MAX


def _squeezed_zeros(mebibytes: int) -> Iterator[bytes]:
    stream = zstandard.ZstdCompressor().compressobj()
    for _ in range(mebibytes):
        yield stream.compress(bytes(MIB))
    yield stream.flush()


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)

    with pytest.raises(MissingExtra, match=re.escape("penstock[bus]")):
        compressor("zstd", bytes_min=1)
