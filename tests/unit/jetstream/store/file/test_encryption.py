"""Encrypted files read as what was written to them, and as zeros where they are damaged."""

import random

import pytest
from tests.simdisk import SimDisk

from penstock.jetstream.store.file.disk import read_whole, write_whole
from penstock.jetstream.store.file.encryption import (
    FRAME_BYTES,
    HEADER_BYTES,
    OVERHEAD_BYTES,
    WINDOW_BYTES,
    Keys,
    encrypted,
    frames_in,
)
from penstock.jetstream.store.file.layereddisk import LayeredDisk

SECRET = bytes(range(32))
KEYS = Keys("chacha", SECRET)


@pytest.fixture
def bare():
    return SimDisk()


@pytest.fixture(params=["chacha", "aes"])
def disk(bare, request):
    return encrypted(bare, Keys(request.param, SECRET))


def content(bare, path="/file"):
    return bare.names_now[path].content


def reading(bare, secret=SECRET):
    """Return the file as one reads it who just opened it."""
    return encrypted(bare, Keys("chacha", secret)).open("/file")


@pytest.mark.parametrize("length", [0, 1, FRAME_BYTES, FRAME_BYTES + 1, 5 * WINDOW_BYTES])
def test_a_file_reads_as_it_was_written(disk, length):
    data = random.Random(length).randbytes(length)
    write_whole(disk, "/file", data)

    assert data == read_whole(disk, "/file")


def test_nothing_that_was_written_lies_on_the_disk(disk, bare):
    secret = b"orders.created and its payload " * 100
    write_whole(disk, "/file", secret)

    assert secret[:8] not in content(bare)


def test_the_same_bytes_are_never_the_same_on_the_disk(disk, bare):
    file = disk.create("/file")
    for _ in range(3):
        file.write(bytes(64), file.size())
    file.truncate(64)
    file.write(bytes(64), 64)
    write_whole(disk, "/other", bytes(64))

    ciphertexts = [
        bytes(each[frame.place + HEADER_BYTES : frame.place_end])
        for each in (content(bare), content(bare, "/other"))
        for frame in frames_in(bytes(each), 0)
    ]
    assert 3 == len(set(ciphertexts)) == len(ciphertexts)


def test_no_nonce_is_used_again_after_a_failed_write(disk, bare):
    file = disk.create("/file")
    file.write(b"one", 0)
    used = set()
    for _ in range(20):
        bare.fault_rate = 0.7
        try:
            file.write(b"two", 3)
        except OSError:
            pass
        else:
            file.truncate(3) if bare.fault_rate == 0 else None
            break
        finally:
            frames = list(frames_in(bytes(content(bare)), 0))
            used.add((frames[-1].salt, frames[-1].counter, len(content(bare))))
        bare.fault_rate = 0
    bare.fault_rate = 0

    frames = list(frames_in(bytes(content(bare)), 0))
    nonces = [(frame.salt, frame.counter) for frame in frames]
    assert len(set(nonces)) == len(nonces)
    assert b"onetwo" == reading(bare).read(0, 100)


@pytest.mark.parametrize("seed", range(40))
def test_any_writes_and_cuts_read_as_those_of_a_plain_file(disk, bare, seed):
    chance = random.Random(seed)
    plain = bytearray()
    file = disk.create("/file")
    sizes = (1, 30, 200, FRAME_BYTES, 3 * FRAME_BYTES, 2 * WINDOW_BYTES)
    for _ in range(60):
        match chance.choice(("write", "write", "write", "cut", "again", "over")):
            case "write":
                data = chance.randbytes(chance.randint(1, chance.choice(sizes)))
                file.write(data, len(plain))
                plain += data
            case "cut":
                length = chance.randint(max(len(plain) - chance.choice(sizes), 0), len(plain))
                file.truncate(length)
                del plain[length:]
            case "again":
                file.close()
                file = disk.open("/file")
            case "over" if plain:
                at = chance.randrange(len(plain))
                data = chance.randbytes(chance.randint(1, min(len(plain) - at, 100)))
                try:
                    file.write(data, at)
                except OSError:
                    # Where a cut went through a frame nothing is written over.
                    continue
                plain[at : at + len(data)] = data
        start = chance.randint(0, len(plain))
        stop = chance.randint(start, len(plain))
        assert plain[start:stop] == file.read(start, stop - start)
        assert len(plain) == file.size()
    other = disk.open("/file")
    for _ in range(20):
        start = chance.randint(0, len(plain))
        assert plain[start : start + 300] == other.read(start, 300)
    assert plain == disk.open("/file").read(0, len(plain) + 1)


@pytest.mark.parametrize("seed", range(40))
def test_who_has_a_file_open_reads_what_another_cuts_and_writes(disk, seed):
    chance = random.Random(seed)
    plain = bytearray()
    file, reader = disk.create("/file"), disk.open("/file")
    for _ in range(60):
        if chance.random() < 0.3:
            length = chance.randint(max(len(plain) - 3 * FRAME_BYTES, 0), len(plain))
            file.truncate(length)
            del plain[length:]
        data = chance.randbytes(chance.randint(1, chance.choice((30, 200, 2 * FRAME_BYTES))))
        file.write(data, len(plain))
        plain += data
        for _ in range(10):
            start = chance.randrange(len(plain))
            stop = start + chance.choice((1, 100, 2 * FRAME_BYTES))
            assert plain[start:stop] == reader.read(start, stop - start)


@pytest.mark.parametrize("seed", range(30))
def test_one_flipped_bit_costs_one_frame(disk, bare, seed):
    chance = random.Random(seed)
    file = disk.create("/file")
    pieces = [chance.randbytes(chance.randint(1, FRAME_BYTES)) for _ in range(40)]
    plain = bytearray()
    for piece in pieces:
        file.write(piece, len(plain))
        plain += piece
    frames = list(frames_in(bytes(content(bare)), 0))
    place = chance.randrange(frames[-1].place)
    content(bare)[place] ^= 1 << chance.randrange(8)
    hit = next(frame for frame in frames if place < frame.place_end)

    expected = plain[:]
    expected[hit.start : hit.end] = bytes(hit.length)
    assert expected == reading(bare).read(0, len(plain))
    for _ in range(20):
        at = chance.randrange(len(plain))
        assert expected[at : at + 50] == reading(bare).read(at, 50)


def test_the_end_of_a_torn_write_reads_as_zeros(disk, bare):
    file = disk.create("/file")
    file.write(b"kept", 0)
    file.write(b"torn" * 10, 4)
    del content(bare)[-1:]

    torn = reading(bare)
    assert b"kept" + bytes(OVERHEAD_BYTES + 39) == torn.read(0, 1000)


def test_a_torn_end_is_cut_off_and_written_again(disk, bare):
    file = disk.create("/file")
    file.write(b"kept", 0)
    file.write(b"torn" * 10, 4)
    del content(bare)[-1:]
    mended = disk.open("/file")
    mended.truncate(4)
    mended.write(b" and more", 4)

    assert b"kept and more" == reading(bare).read(0, 1000)


def test_a_cut_keeps_every_synced_byte_on_the_disk(disk, bare):
    file = disk.create("/file")
    file.write(b"kept and gone", 0)
    file.sync()
    before = bytes(content(bare))
    file.truncate(4)

    assert content(bare).startswith(before)
    assert b"kept" == reading(bare).read(0, 1000)


def test_a_handle_sees_what_another_one_appended(disk, bare):
    first = disk.create("/file")
    first.write(b"one", 0)
    second = disk.open("/file")
    second.write(b"two", 3)

    assert b"onetwo" == first.read(0, 100)


def test_with_another_key_everything_reads_as_zeros(disk, bare):
    write_whole(disk, "/file", b"secret")

    assert bytes(6) == reading(bare, bytes(32)).read(0, 100)


def test_a_frame_is_not_taken_for_one_of_another_place(disk, bare):
    file = disk.create("/file")
    file.write(b"one", 0)
    file.write(b"two", 3)
    size = OVERHEAD_BYTES + 3
    whole = content(bare)
    whole[:size], whole[size:] = whole[size:], whole[:size]

    assert b"onetwo" != reading(bare).read(0, 6)


def test_reading_on_looks_at_little_more_than_what_is_wanted(disk, bare):
    length = 16 * FRAME_BYTES
    data = random.Random(1).randbytes(64 * length)
    write_whole(disk, "/file", data)
    seen = []

    class Watched:
        def __init__(self, file):
            self.size = file.size
            self._file = file

        def read(self, offset, length):
            found = self._file.read(offset, length)
            seen.append(len(found))
            return found

    file = encrypted(LayeredDisk(bare, opened=Watched, created=Watched), KEYS).open("/file")
    assert file.size() == len(data)
    seen.clear()

    for offset in range(0, len(data), length):
        assert data[offset : offset + length] == file.read(offset, length)

    assert len(seen) == 64
    assert sum(seen) < 1.5 * len(data)


def test_there_is_no_hole_in_an_encrypted_file(disk):
    file = disk.create("/file")

    with pytest.raises(OSError, match="at its end"):
        file.write(b"far", 10)


@pytest.mark.parametrize("length", [64, FRAME_BYTES, FRAME_BYTES + 10, 3 * FRAME_BYTES])
def test_the_front_of_a_file_is_written_again_where_it_was_damaged(disk, bare, length):
    file = disk.create("/file")
    file.write(bytes(range(256)) * 64, 0)
    second = list(frames_in(bytes(content(bare)), 0))[1]
    content(bare)[: second.place] = bytes(second.place)
    mended = disk.open("/file")
    mended.truncate(length)
    mended.write(b"header", 0)

    assert mended.read(0, 100) == b"header".ljust(min(length, 100), b"\0")
    assert length == reading(bare).size()


def test_the_same_bytes_are_written_again_as_they_lie_on_the_disk(disk, bare):
    file = disk.create("/file")
    file.write(b"some synced records", 0)
    file.truncate(11)
    file.write(b" and more", 11)
    before = bytes(content(bare))
    disk.open("/file").write(b"synced and more", 5)

    assert before == content(bare)
    assert bare.names_now["/file"].unsynced[-1][1] in before
