"""Segments that are compressed: smaller on disk, and the same to read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.unit.jetstream.world import World

from penstock.errors import StoreError
from penstock.jetstream.files.storecheck import check, repair
from penstock.jetstream.store.file import compression
from penstock.jetstream.store.file.compression import (
    FRAME,
    HEADER,
    CompressedFile,
    compressed,
    transparent,
)
from penstock.jetstream.store.file.disk import RealDisk
from penstock.jetstream.store.file.log import FileSettings, open_file_store
from penstock.jetstream.store.store import Store
from penstock.jetstream.store.values import StoreLimits, complete

DATA = b"".join(b"the message %d of many that look alike\n" % n for n in range(20_000))
SETTINGS = FileSettings(segment_bytes_max=256 * 1024)
COMPRESSED = StoreLimits(compresses=True)


@pytest.fixture(params=["snappy", "zlib"])
def method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each way to compress in turn; without its package, Snappy is not there."""
    if request.param == "zlib":
        monkeypatch.setitem(sys.modules, "cramjam", None)
    return str(request.param)


def settle(store: Store) -> None:
    while (work := store.flush() or store.maintain()) is not None:
        complete(work)


def fill(store: Store, count: int = 20_000) -> None:
    for first in range(0, count, 1000):
        numbers = range(first, first + 1000)
        store.append([(b"s.a", b"", b"message %d, as the others" % n, n + 1) for n in numbers])
        settle(store)


def opened(directory: Path, limits: StoreLimits = COMPRESSED) -> tuple[Store, list[str]]:
    return open_file_store(RealDisk(), str(directory), limits=limits, settings=SETTINGS)


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.seg"))


def packed(directory: Path) -> list[Path]:
    return [path for path in segments(directory) if path.read_bytes()[:8] == compression.MAGIC]


@pytest.mark.usefixtures("method")
@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, len(DATA)])
def test_a_compressed_file_reads_as_what_it_was_made_of(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(compressed(DATA[:size]))
    file = transparent(RealDisk()).open(str(path))

    assert isinstance(file, CompressedFile)
    assert size == file.size()
    assert DATA[:size] == file.read(0, size + 10)
    for offset in (0, 1, 65_530, 65_536, 700_000):
        assert DATA[:size][offset : offset + 20] == file.read(offset, 20)
    file.close()


def test_what_does_not_shrink_stays_as_it_is(tmp_path: Path) -> None:
    noise = bytes(range(256))
    path = tmp_path / "file"
    path.write_bytes(compressed(noise))
    file = transparent(RealDisk()).open(str(path))

    assert noise in path.read_bytes()
    assert noise == file.read(0, 256)
    file.close()


def test_a_compressed_file_is_not_written_to(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(compressed(DATA))
    file = transparent(RealDisk()).open(str(path))

    with pytest.raises(OSError, match="not written to"):
        file.write(b"x", 0)
    with pytest.raises(OSError, match="not cut off"):
        file.truncate(0)
    file.sync()
    file.close()


@pytest.mark.parametrize("place", [200, 3000])
def test_what_is_damaged_reads_as_nothing(tmp_path: Path, place: int) -> None:
    path = tmp_path / "file"
    data = bytearray(compressed(DATA))
    data[place] ^= 1
    path.write_bytes(bytes(data))
    file = transparent(RealDisk()).open(str(path))
    found = file.read(0, len(DATA))
    file.close()

    assert len(DATA) == len(found)
    assert DATA != found
    assert {0} == {
        found[index] for index in range(0, len(found), 997) if found[index] != DATA[index]
    }


def index_bytes(data: bytes) -> int:
    return HEADER.size + FRAME.size * HEADER.unpack_from(data)[5]


@pytest.mark.usefixtures("method")
def test_a_flipped_bit_in_the_index_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    original = compressed(DATA)
    length = index_bytes(original)
    for place in (*range(length), *range(-length, 0)):
        data = bytearray(original)
        data[place] ^= 1 << place % 8
        path.write_bytes(data)
        file = transparent(RealDisk()).open(str(path))
        assert DATA == file.read(0, len(DATA)), place
        file.close()


def test_a_file_with_both_indexes_damaged_reads_as_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "file"
    data = bytearray(compressed(DATA))
    # Too large to be true: nobody may ask for as much memory.
    data[20:24] = data[-12:-8] = b"\xff" * 4
    path.write_bytes(data)
    file = transparent(RealDisk()).open(str(path))

    assert data == file.read(0, file.size())
    file.close()


def test_a_store_takes_less_room_and_finds_everything_again(tmp_path: Path, method: str) -> None:
    store, _ = opened(tmp_path)
    fill(store)
    assert len(packed(tmp_path)) >= 3
    assert sum(path.stat().st_size for path in packed(tmp_path)) < store.size_bytes / 2
    store.close()

    again, found = opened(tmp_path)

    assert ([], []) == found
    messages, _ = again.read(1, count_max=20_000, bytes_max=1 << 30)
    assert [b"message %d, as the others" % n for n in range(20_000)] == [m[4] for m in messages]
    assert (20_000, 0) == (again.messages, again.state().lost)
    fill(again, 1000)
    assert 21_000 == again.last_sequence
    again.close()


def test_what_is_gone_leaves_compressed_segments_too(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    fill(store)
    before = sum(path.stat().st_size for path in segments(tmp_path))
    store.remove(range(1, 20_000, 2))
    store.remove(range(4, 20_000, 4))
    settle(store)

    assert sum(path.stat().st_size for path in segments(tmp_path)) < before
    assert packed(tmp_path)
    assert [2, 6, 10] == [m[0] for m in store.read(1, count_max=3, bytes_max=1 << 20)[0]]
    store.close()


def test_compression_can_be_turned_on_and_off(tmp_path: Path) -> None:
    store, _ = opened(tmp_path, StoreLimits())
    fill(store)
    assert [] == packed(tmp_path)
    store.limits = COMPRESSED
    settle(store)
    count = len(packed(tmp_path))
    assert count
    store.limits = StoreLimits()
    fill(store)

    assert count == len(packed(tmp_path))
    assert 40_000 == store.messages
    store.close()


@pytest.mark.parametrize("place", [100, -100])
def test_a_damaged_segment_loses_only_what_is_damaged(tmp_path: Path, place: int) -> None:
    store, _ = opened(tmp_path)
    fill(store)
    store.close()
    path = packed(tmp_path)[1]
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(bytes(data))
    assert check(RealDisk(), str(tmp_path)).problems

    repair(RealDisk(), str(tmp_path))
    again, _ = opened(tmp_path)
    settle(again)

    found, _ = again.read(1, count_max=20_000, bytes_max=1 << 30)
    assert 16_000 < len(found) <= 20_000
    assert all(m[4] == b"message %d, as the others" % (m[0] - 1) for m in found)
    fill(again, 1000)
    again.close()


def test_without_the_package_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = opened(tmp_path)
    fill(store)
    store.close()
    monkeypatch.setitem(sys.modules, "cramjam", None)

    with pytest.raises((OSError, StoreError), match="penstock\\[s2\\]"):
        opened(tmp_path)


def test_a_stream_may_ask_for_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("S", storage="file", compression="s2")
    changed = world.call("STREAM.UPDATE.S", name="S", compression="none")

    assert "none" == changed["config"]["compression"]
