"""
The ids of messages whose bytes are gone, for as long as a retry of them may come.

A removed message stays in its segment for a while, together with its publisher's id. Before the
file of a segment goes, or is written again without removed messages, the ids that are still inside
the duplicate window are saved here, twice in case one copy is damaged:

    <number>.ids = twice: newest time, length, checksums; for each: sequence, time, length, id

The oldest file goes once the newest of its ids has left the window. The reserve has the numbers of
the files there should be, so that a missing one is noticed. On a full disk the segment goes before
its ids are kept: room is what it goes for. After any other error it stays until they are.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from zlib import crc32

from penstock.hot import decode_messages
from penstock.jetstream.store.file.disk import Disk, read_whole, write_whole
from penstock.jetstream.store.file.reserve import Kept, Reserve
from penstock.jetstream.store.file.segment import scan
from penstock.jetstream.store.values import Known, Message
from penstock.protocol import headers

SUFFIX = ".ids"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
DECODE_COUNT = 256
"""Messages to decode at once: the server's own thread has to wait meanwhile."""

_HEAD = struct.Struct("<QQII")
"""Time of the newest id, length of the rest, its checksum, and that of the 20 bytes before."""
_ID = struct.Struct("<QQH")


def id_of(header: bytes) -> bytes | None:
    """Return the publisher's id of a message, if it has one."""
    return headers.get(header, b"Nats-Msg-Id") if header else None


class KeptIds:
    """The id files of one stream. Any thread."""

    def __init__(self, disk: Disk, directory: str, salt: int, reserve: Reserve) -> None:
        self._disk = disk
        self._directory = directory
        self._salt = salt
        self._reserve = reserve

    @property
    def numbers(self) -> Kept:
        """The numbers of the files."""
        numbers = file_numbers(self._disk, self._directory)
        return Kept(numbers[0], numbers[-1]) if numbers else Kept()

    def keep(self, ids: Iterable[Known], since_ns: int) -> None:
        """Save ids, durably; remove those older than a time. Raises OSError."""
        fresh = [each for each in ids if each[1] > since_ns]
        numbers = file_numbers(self._disk, self._directory)
        if fresh:
            numbers.append(max(numbers, default=0) + 1)
            path = ids_path(self._directory, numbers[-1])
            write_whole(self._disk, path, encode(fresh, self._salt))
        old = list(takewhile(lambda each: self._newest_ns(each) <= since_ns, numbers))
        left = numbers[len(old) :]
        kept = Kept(left[0], left[-1]) if left else Kept()
        if kept != self._reserve.kept:
            # Durably before a file goes, so that nobody misses it.
            self._reserve.note_kept(kept, syncs=bool(old))
        for each in old:
            self._disk.remove(ids_path(self._directory, each))

    def read(self) -> list[Known]:
        """Return the saved ids."""
        numbers = file_numbers(self._disk, self._directory)
        return [known for each in numbers for known in self._read(each) or ()]

    def _read(self, number: int) -> list[Known] | None:
        return read_ids(self._disk, ids_path(self._directory, number), self._salt)

    def read_segment(self, path: str) -> list[Known]:
        """Return the ids of a segment's messages, removed or not; none if it does not exist."""
        return ids_of(segment_messages(self._disk, path, self._salt))

    def _newest_ns(self, number: int) -> int:
        """Return the time of the newest id in a file; 0 if there is none that can be read."""
        file = self._disk.open(ids_path(self._directory, number))
        try:
            head = _decode_head(file.read(0, _HEAD.size), self._salt)
        finally:
            file.close()
        if head is not None:
            return head[0]
        return max([time_ns for _, time_ns, _ in self._read(number) or ()], default=0)


def segment_messages(disk: Disk, path: str, salt: int) -> Iterator[Message]:
    """Yield the messages in a segment, removed or not; none if it does not exist. Any thread."""
    data = read_whole(disk, path) or b""
    offsets = scan(data, salt, synced_end=len(data)).offsets
    for start in range(0, len(offsets), DECODE_COUNT):
        some = decode_messages(data, offsets[start : start + DECODE_COUNT], 0, salt)
        yield from (message for message in some if message is not None)


def ids_path(directory: str, number: int) -> str:
    """Return the path of a file."""
    return f"{directory}/{number:016d}{SUFFIX}"


def file_numbers(disk: Disk, directory: str) -> list[int]:
    """Return the numbers of the files in a directory, in order."""
    stems = [name.removesuffix(SUFFIX) for name in disk.names(directory) if name.endswith(SUFFIX)]
    return sorted(int(stem) for stem in stems if stem.isascii() and stem.isdecimal())


def read_ids(disk: Disk, path: str, salt: int) -> list[Known] | None:
    """Return the ids in a file; None if neither copy in it checks out."""
    content = read_whole(disk, path) or b""
    found = decode(content, salt)
    return decode(content[len(content) // 2 :], salt) if found is None else found


def id_faults(disk: Disk, directory: str, salt: int, kept: Kept) -> list[str]:
    """Return the damage of the files in a directory, in words."""
    numbers = file_numbers(disk, directory)
    paths = [ids_path(directory, each) for each in numbers]
    faults = [
        f"`{path}` is damaged: the messages with its ids can be stored again"
        for path in paths
        if read_ids(disk, path, salt) is None
    ]
    missing = {*range(kept.first, kept.last + 1)}.difference(numbers, (0,))
    return faults + [
        f"`{ids_path(directory, each)}` is missing: the messages with its ids can be stored again"
        for each in sorted(missing)
    ]


class Rescue:
    """Saves what is still needed of segments that are about to go. Any thread."""

    def __init__(
        self,
        kept: KeptIds,
        since_ns: int,
        known: list[Known],
        paths: list[str],
        secure: Callable[[], None] | None,
    ) -> None:
        self._kept = kept
        self._secure = secure
        """Saves what somebody else still needs of them."""
        self._since_ns = since_ns
        self._known = known
        self._paths = paths
        """Segments whose ids are not known, and have to be read first."""

    def run(self) -> bool:
        """Keep them, and tell whether there was room. Any other error is raised."""
        try:
            while self._paths:
                self._known += self._kept.read_segment(self._paths[-1])
                self._paths.pop()
            self._kept.keep(self._known, self._since_ns)
            if self._secure is not None:
                self._secure()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            return False
        return True


def ids_of(messages: Iterable[Message]) -> list[Known]:
    """Return the ids of the messages that have one."""
    found = [(sequence, time_ns, id_of(header)) for sequence, time_ns, _, header, _ in messages]
    return [(sequence, time_ns, known) for sequence, time_ns, known in found if known]


def encode(ids: Sequence[Known], salt: int) -> bytes:
    """Return the content of a file."""
    rows = [_ID.pack(sequence, time_ns, len(known)) + known for sequence, time_ns, known in ids]
    body = b"".join(rows)
    head = _HEAD.pack(max(time_ns for _, time_ns, _ in ids), len(body), crc32(body, salt), 0)[:-4]
    return 2 * (head + struct.pack("<I", crc32(head, salt)) + body)


def _decode_head(content: bytes, salt: int) -> tuple[int, int, int] | None:
    """Return the newest time, and length and checksum of what follows; None if it is damaged."""
    if len(content) < _HEAD.size:
        return None
    newest_ns, length, of_body, of_head = _HEAD.unpack_from(content)
    return (newest_ns, length, of_body) if of_head == crc32(content[:20], salt) else None


def decode(content: bytes, salt: int) -> list[Known] | None:
    """Return the ids in the copy that some bytes begin with; None if it is damaged."""
    head = _decode_head(content, salt)
    if head is None:
        return None
    _, length, checksum = head
    rows = content[_HEAD.size : _HEAD.size + length]
    if len(rows) != length or crc32(rows, salt) != checksum:
        return None
    found: list[Known] = []
    offset = 0
    while offset < len(rows):
        sequence, time_ns, size = _ID.unpack_from(rows, offset)
        offset += _ID.size + size
        found.append((sequence, time_ns, rows[offset - size : offset]))
    return found
