"""
Encrypted files: `jetstream { key: … }`.

An encrypted file is a row of frames, each a stretch of at most 4 KiB of the file as the store sees
it. A frame says where its stretch starts, and how it is encrypted; nothing outside of it is needed
to read it:

    magic, cipher · length · start · salt · counter · checksum | ciphertext · tag

So a frame is what a flipped bit costs: its stretch reads as zeros, which are no valid records, and
the store tells of the damage as of any other. Bytes that belong to no complete frame read as zeros
too. An `encrypted` disk hides all this: no other module needs to know.

No nonce is used twice with one key, whatever crashes, fails or is cut off: each opened file
encrypts with a key of its own, derived from the key of the store and 16 random bytes (the salt),
and the nonce is a counter that only goes up, also after a write that failed. Nothing about it has
to be remembered on disk.

Where a file is cut off inside a frame, the frame stays: its bytes may be synced, and a frame in
their place would not be until the next sync. An empty frame that starts at the cut says that what
the one before it has from there on is gone.

docs/internals/file-format.md has it byte by byte.
"""

from __future__ import annotations

import errno
import os
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple, Protocol
from zlib import crc32

from penstock.jetstream.store.file.disk import Disk, File
from penstock.jetstream.store.file.layereddisk import LayeredDisk

MAGIC = b"\xa5PS"
FRAME_BYTES = 4096
"""The longest stretch in a frame: what a disk usually loses at once."""
CHACHA, AES = 1, 2
CIPHERS = {"chacha": CHACHA, "aes": AES}
KEY_BYTES = 32
SALT_BYTES = 16
TAG_BYTES = 16
NONCE_BYTES = 12
WINDOW_BYTES = FRAME_BYTES
"""A search ends where the frames up to the wanted one are few enough to be read one by one."""
QUICK_BYTES = 4 * FRAME_BYTES
"""Up to this length, a read first takes what was found before for true."""
CHUNK_BYTES = 1024 * 1024

_HEADER = struct.Struct("<3sBIQ16sI")
CHECKSUM_BYTES = 4
HEADER_BYTES = _HEADER.size + CHECKSUM_BYTES
OVERHEAD_BYTES = HEADER_BYTES + TAG_BYTES


class Aead(Protocol):
    """Encrypts and authenticates. The nonce must be a new one each time."""

    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None, /) -> bytes:
        """Return the ciphertext and its tag."""

    def decrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None, /) -> bytes:
        """Return the data again; raise InvalidTag if anything is not as it was."""


def aead(cipher: int, key: bytes) -> Aead:
    """Return the cipher of a number with a key."""
    # Most servers encrypt nothing, and start faster without this import.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

    return ChaCha20Poly1305(key) if cipher == CHACHA else AESGCM(key)


def opened(cipher: Aead, nonce: bytes, data: bytes, associated_data: bytes) -> bytes | None:
    """Return decrypted data; None if it was encrypted with another key, or is damaged."""
    try:
        return cipher.decrypt(nonce, data, associated_data)
    except _invalid_tag():
        return None


def _invalid_tag() -> type[Exception]:
    # An import for each frame would be a sixth of the time that reading takes.
    from cryptography.exceptions import InvalidTag

    return InvalidTag


class Keys:
    """The key of a store, and the cipher for what is written from now on."""

    def __init__(self, cipher: str = "chacha", secret: bytes = b"") -> None:
        self.cipher = CIPHERS[cipher]
        self.secret = secret
        """Known only when the store is open, see `storekey`."""

    def of_file(self, cipher: int, salt: bytes) -> Aead:
        """Return the cipher of one opened file."""
        assert self.secret, "the store is open"
        return aead(cipher, blake2b(salt, key=self.secret, digest_size=KEY_BYTES).digest())


class Frame(NamedTuple):
    """The header of a frame, and its place in the file."""

    place: int
    start: int
    length: int
    cipher: int
    salt: bytes
    counter: int
    header: bytes
    """Without its checksum: what is authenticated with the ciphertext."""

    @property
    def end(self) -> int:
        """Return where its stretch ends."""
        return self.start + self.length

    @property
    def place_end(self) -> int:
        """Return the place after it."""
        return self.place + OVERHEAD_BYTES + self.length


def frames_in(data: bytes, place: int) -> Iterator[Frame]:
    """Yield the frames that begin in some bytes of a file, which were read from a place."""
    at = 0
    while (at := data.find(MAGIC, at)) >= 0:
        frame = _frame(data, at, place)
        if frame is None:
            at += 1
        else:
            yield frame
            at = frame.place_end - place


def _frame(data: bytes, at: int, place: int) -> Frame | None:
    middle = at + _HEADER.size
    header = data[at:middle]
    if data[middle : middle + CHECKSUM_BYTES] != _checksum(header):
        return None
    magic, cipher, length, start, salt, counter = _HEADER.unpack(header)
    if magic != MAGIC or length > FRAME_BYTES:
        return None
    return Frame(place + at, start, length, cipher, salt, counter, header)


def _checksum(header: bytes) -> bytes:
    return crc32(header).to_bytes(CHECKSUM_BYTES, "little")


def is_encrypted(file: File) -> bool:
    """Tell whether a file begins with a frame."""
    return _frame(file.read(0, HEADER_BYTES), 0, 0) is not None


class _Writer:
    """Encrypts what one opened file writes."""

    def __init__(self, keys: Keys) -> None:
        self._salt = os.urandom(SALT_BYTES)
        self._cipher = keys.cipher
        self._aead = keys.of_file(self._cipher, self._salt)
        self._counter = 0

    def frames(self, data: bytes, start: int) -> bytes:
        """Return data as frames; no data as one that is empty."""
        parts: list[bytes] = []
        for at in range(0, len(data) or 1, FRAME_BYTES):
            stretch = data[at : at + FRAME_BYTES]
            counter, self._counter = self._counter, self._counter + 1
            header = _HEADER.pack(
                MAGIC, self._cipher, len(stretch), start + at, self._salt, counter
            )
            sealed = self._aead.encrypt(_nonce(counter), stretch, header)
            parts += (header, _checksum(header), sealed)
        return b"".join(parts)


def _nonce(counter: int) -> bytes:
    # `pack` refuses a counter above 32 bits in the header, so this never wraps.
    return counter.to_bytes(NONCE_BYTES, "little")


class EncryptedFile:
    """
    A file of frames that reads as what they were made from. A `File`.

    Several may be open on one file, as long as only one of them writes.
    """

    def __init__(self, file: File, keys: Keys) -> None:
        self._file = file
        self._keys = keys
        self._readers: dict[tuple[int, bytes], Aead] = {}
        self._writer: _Writer | None = None
        self._is_torn = False
        """Whether a write failed: what lies behind the last good one is of no use."""
        self._file_bytes = -1
        """The length of the file when its end was looked for."""
        self._end = self._place_end = 0
        """The end of the last frame: as it reads, and in the file."""
        self._starts = array("Q")
        self._places = array("Q")
        """Some frames that were found, in order: where a search begins."""

    def size(self) -> int:
        """Return the length; bytes behind the last frame count, and read as zeros."""
        self._find_end()
        return self._end + self._file_bytes - self._place_end

    def _find_end(self) -> None:
        """Look for the last frame, unless the file has the length it had then."""
        file_bytes = self._place_end if self._is_torn else self._file.size()
        if file_bytes == self._file_bytes:
            return
        last = self._last_frame(file_bytes)
        self._forget(file_bytes)
        if last is not None:
            self._end, self._place_end = last.end, last.place_end

    def _forget(self, file_bytes: int) -> None:
        """Forget what was found in the file: it is another now, of this length."""
        self._file_bytes = file_bytes
        self._end = self._place_end = 0
        self._starts, self._places = array("Q", [0]), array("Q", [0])

    def _last_frame(self, file_bytes: int) -> Frame | None:
        """Return the last complete frame."""
        stop = file_bytes
        while stop > 0:
            place = max(stop - WINDOW_BYTES, 0)
            data = self._file.read(place, min(stop + HEADER_BYTES, file_bytes) - place)
            at = len(data)
            while (at := data.rfind(MAGIC, 0, at)) >= 0:
                frame = _frame(data, at, place)
                if frame is not None and frame.place_end <= file_bytes:
                    return frame
                at += len(MAGIC) - 1
            stop = place
        return None

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes from an offset; zeros where the file is damaged."""
        if 0 < length <= QUICK_BYTES and offset + length <= self._end:
            found = self._quick_read(offset, offset + length)
            if found is not None:
                return found
        size = self.size()
        stop = min(offset + length, size)
        if offset >= stop:
            return b""
        pieces: list[bytes] = []
        covered = offset
        for frame, sealed in self._frames_from(offset, stop):
            start, end = frame.start, frame.end
            if start >= stop:
                break
            if start < covered and pieces:
                # It was cut off there, and is written again from there on.
                covered = max(start, offset)
                pieces = [b"".join(pieces)[: covered - offset]]
            if end <= offset:
                continue
            if start > covered:
                pieces.append(bytes(start - covered))
            plain = self._plain(frame, sealed) or bytes(frame.length)
            pieces.append(plain[max(offset - start, 0) : stop - start])
            covered = min(end, stop)
        pieces.append(bytes(stop - covered))
        return b"".join(pieces)

    def _quick_read(self, offset: int, stop: int) -> bytes | None:
        """
        Return the bytes of a range if its frames are where such frames were found before.

        They must be whole and follow each other, also the one behind them, which may say that the
        last of them was cut off. All else is for a read that searches. The checksums of headers
        are not needed: a header is authenticated, or says no more than where its frame starts.
        """
        index = bisect_right(self._starts, offset) - 1
        first, place = self._starts[index], self._places[index]
        after = bisect_left(self._starts, stop, index + 1)
        place_end = self._places[after] if after < len(self._places) else self._place_end
        if place_end - place > QUICK_BYTES + 2 * WINDOW_BYTES:
            return None
        data = self._file.read(place, place_end - place + HEADER_BYTES)
        header_end = len(data) - HEADER_BYTES
        pieces: list[bytes] = []
        end, at = first, 0
        while at <= header_end:
            _, cipher, length, start, salt, counter = _HEADER.unpack_from(data, at)
            if start != end:
                return None
            if end >= stop:
                break
            begin, at = at, at + OVERHEAD_BYTES + length
            end += length
            if end <= offset:
                first = end
                continue
            reader = self._reader(cipher, salt)
            sealed = data[begin + HEADER_BYTES : at]
            header = data[begin : begin + _HEADER.size]
            plain = opened(reader, _nonce(counter), sealed, header) if reader is not None else None
            if plain is None:
                return None
            pieces.append(plain)
        if end < stop or header_end < at < len(data):
            return None
        whole = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return whole[offset - first : stop - first]

    def _plain(self, frame: Frame, sealed: bytes) -> bytes | None:
        reader = self._reader(frame.cipher, frame.salt)
        if reader is None:
            return None
        return opened(reader, _nonce(frame.counter), sealed, frame.header)

    def _reader(self, cipher: int, salt: bytes) -> Aead | None:
        """Return what decrypts frames with this salt; None for an unknown cipher."""
        reader = self._readers.get((cipher, salt))
        if reader is None and cipher in CIPHERS.values():
            reader = self._readers[cipher, salt] = self._keys.of_file(cipher, salt)
        return reader

    def _frames_from(self, offset: int, stop: int) -> Iterator[tuple[Frame, bytes]]:
        """Yield frames with their ciphertext, from the one at an offset or from one before it."""
        place = known = self._place_before(offset)
        # Full frames, and what lies before the wanted one; small ones take another round.
        frames = (stop - offset) // FRAME_BYTES + 2
        chunk = min(stop - offset + frames * OVERHEAD_BYTES + WINDOW_BYTES, CHUNK_BYTES)
        while place < self._place_end:
            data = self._file.read(place, min(chunk, self._place_end - place))
            if not data:
                return
            after = place + len(data)
            for frame in frames_in(data, place):
                if frame.place_end > place + len(data):
                    after = frame.place
                    break
                if frame.place - known >= WINDOW_BYTES:
                    # The next read often begins where this one ends.
                    known = frame.place
                    self._remember(frame.start, known)
                at = frame.place - place
                yield frame, data[at + HEADER_BYTES : frame.place_end - place]
            if after == place:
                # A frame that claims to be longer than the file.
                after += 1
            elif after == place + len(data) < self._place_end:
                # A header may begin in the last bytes.
                after = max(after - HEADER_BYTES + 1, place + 1)
            place = after

    def _place_before(self, offset: int) -> int:
        """Return the place of a frame that starts at an offset or a little before it."""
        index = bisect_right(self._starts, offset) - 1
        place, start = self._places[index], self._starts[index]
        stop = self._places[index + 1] if index + 1 < len(self._places) else self._place_end
        while min(stop - place, offset - start) > WINDOW_BYTES:
            middle = (place + stop) // 2
            data = self._file.read(middle, FRAME_BYTES + OVERHEAD_BYTES + HEADER_BYTES)
            frame = next(frames_in(data, middle), None)
            if frame is None or frame.place >= stop:
                stop = middle
                continue
            self._remember(frame.start, frame.place)
            if frame.start <= offset:
                place, start = frame.place, frame.start
            else:
                stop = middle
        return place

    def _remember(self, start: int, place: int) -> None:
        index = bisect_right(self._places, place)
        if self._places[index - 1] != place:
            self._places.insert(index, place)
            self._starts.insert(index, start)

    def write(self, data: bytes, offset: int) -> None:
        """Write all of `data` at the end, or over what is there."""
        if self._writer is None:
            self._find_end()
            self._writer = _Writer(self._keys)
        if self._is_torn or self._file_bytes > self._place_end:
            self._cut(self._place_end)
        if offset == self._end:
            self._append(self._writer.frames(data, offset), len(data))
        elif offset + len(data) <= self._end and data == self.read(offset, len(data)):
            self._write_again(offset)
        elif offset + len(data) <= self._end:
            self._replace(data, offset)
        else:
            raise OSError(errno.EINVAL, "an encrypted file is written to at its end")

    def _append(self, frames: bytes, length: int) -> None:
        # Until it is written, nobody knows how much of it is.
        self._is_torn = True
        self._file.write(frames, self._place_end)
        places = range(self._place_end, self._place_end + len(frames), FRAME_BYTES + OVERHEAD_BYTES)
        for number, place in enumerate(places):
            if place - self._places[-1] >= WINDOW_BYTES:
                self._starts.append(self._end + number * FRAME_BYTES)
                self._places.append(place)
        self._place_end += len(frames)
        self._file_bytes = self._place_end
        self._end += length
        self._is_torn = False

    def _write_again(self, offset: int) -> None:
        """Write the same frames again, byte by byte: torn, they are still what they were."""
        place = self._place_before(offset)
        self._file.write(self._file.read(place, self._place_end - place), place)

    def _replace(self, data: bytes, offset: int) -> None:
        """Write frames again in their places, with other content in a part of them."""
        assert self._writer is not None
        stop = offset + len(data)
        for place, start, end in self._slots(offset, stop):
            plain = bytearray(self.read(start, end - start).ljust(end - start, b"\0"))
            first, last = max(offset, start), min(stop, end)
            plain[first - start : last - start] = data[first - offset : last - offset]
            self._file.write(self._writer.frames(bytes(plain), start), place)

    def _slots(self, offset: int, stop: int) -> list[tuple[int, int, int]]:
        """Return place, start and end of frames for a range: those there, and in their gaps."""
        slots = []
        place = start = 0
        for frame, _ in self._frames_from(0, self._end):
            if start >= stop and frame.start >= stop:
                break
            fits = min(frame.start - start, frame.place - place - OVERHEAD_BYTES, FRAME_BYTES)
            if fits > 0:
                # Damaged frames lie there: whatever is left of them reads as zeros.
                slots.append((place, start, start + fits))
            slots.append((frame.place, frame.start, frame.end))
            place, start = frame.place_end, frame.end
        slots = [slot for slot in slots if slot[1] < stop and slot[2] > offset]
        edges = [offset, *(end for _, _, end in slots)]
        starts = [max(start, offset) for _, start, _ in slots]
        if starts != edges[:-1] or edges[-1] < stop:
            raise OSError(errno.EIO, "a damaged file is not written to")
        return slots

    def truncate(self, length: int) -> None:
        """Cut the file off, with all that follows the last frame."""
        self._find_end()
        if length >= self._end:
            self._cut(self._place_end)
            return
        last = None
        for frame, _ in self._frames_from(max(length - 1, 0), length):
            if frame.start >= length:
                break
            last = frame
        self._forget(0)
        if last is not None:
            self._end, self._place_end = last.end, last.place_end
        self._cut(self._place_end)
        if self._end != length:
            # Where frames are damaged, zeros take the place of what they held.
            start = self._end = min(self._end, length)
            self._writer = self._writer or _Writer(self._keys)
            self._append(self._writer.frames(bytes(length - start), start), length - start)

    def _cut(self, file_bytes: int) -> None:
        self._file.truncate(file_bytes)
        self._file_bytes = file_bytes
        self._is_torn = False

    def sync(self) -> None:
        """Return once everything written before would survive a power cut."""
        self._file.sync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def encrypted(disk: Disk, keys: Keys) -> Disk:
    """Return a disk whose files are encrypted on the one below."""

    def wrap(file: File) -> File:
        return EncryptedFile(file, keys)

    return LayeredDisk(disk, opened=wrap, created=wrap)
