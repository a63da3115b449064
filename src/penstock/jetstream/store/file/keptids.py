"""
The ids of messages whose bytes are gone, for as long as a retry of them may come.

A removed message stays in its segment for a while, together with its publisher's id. Before the
file of a segment goes, or is written again without removed messages, the ids that are still inside
the duplicate window are saved here:

    <number>.ids = checksum, newest time, and for each: sequence, time, length, id

A file goes once the newest of its ids has left the window. On a full disk the segment
goes before its ids are kept: room is what it goes for. After any other error it stays
until they are.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Sequence
from zlib import crc32

from penstock.hot import decode_messages
from penstock.jetstream.store.file.disk import Disk, read_whole, write_whole
from penstock.jetstream.store.file.segment import scan
from penstock.jetstream.store.values import Known, Message
from penstock.protocol import headers

SUFFIX = ".ids"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
DECODE_COUNT = 256
"""Messages to decode at once: the server's own thread has to wait meanwhile."""

_START = struct.Struct("<IQ")
_ID = struct.Struct("<QQH")


def id_of(header: bytes) -> bytes | None:
    """Return the publisher's id of a message, if it has one."""
    return headers.get(header, b"Nats-Msg-Id") if header else None


class KeptIds:
    """The id files of one stream. Any thread."""

    def __init__(self, disk: Disk, directory: str, salt: int) -> None:
        self._disk = disk
        self._directory = directory
        self._salt = salt

    def keep(self, ids: Iterable[Known], since_ns: int) -> None:
        """Save ids, durably; remove those older than a time. Raises OSError."""
        fresh = [each for each in ids if each[1] > since_ns]
        numbers = self._numbers()
        if fresh:
            number = max(numbers, default=0) + 1
            write_whole(self._disk, self._path(number), encode(fresh, self._salt))
        for each in numbers:
            if self._newest_ns(each) <= since_ns:
                self._disk.remove(self._path(each))

    def read(self) -> list[Known]:
        """Return the saved ids."""
        paths = map(self._path, self._numbers())
        contents = [read_whole(self._disk, path) or b"" for path in paths]
        return [known for content in contents for known in decode(content, self._salt)]

    def read_segment(self, path: str) -> list[Known]:
        """Return the ids of a segment's messages, removed or not; none if it does not exist."""
        data = read_whole(self._disk, path) or b""
        offsets = scan(data, self._salt, synced_end=len(data)).offsets
        found: list[Known] = []
        for start in range(0, len(offsets), DECODE_COUNT):
            some = decode_messages(data, offsets[start : start + DECODE_COUNT], 0, self._salt)
            found += ids_of(message for message in some if message is not None)
        return found

    def _newest_ns(self, number: int) -> int:
        """Return the time of the newest id in a file; 0 if it has none."""
        file = self._disk.open(self._path(number))
        try:
            start = file.read(0, _START.size)
        finally:
            file.close()
        return int(_START.unpack(start)[1]) if len(start) == _START.size else 0

    def _numbers(self) -> list[int]:
        names = [name for name in self._disk.names(self._directory) if name.endswith(SUFFIX)]
        return [int(name.removesuffix(SUFFIX)) for name in names]

    def _path(self, number: int) -> str:
        return f"{self._directory}/{number:016d}{SUFFIX}"


class Rescue:
    """Saves the ids of segments that are about to go. Any thread."""

    def __init__(self, kept: KeptIds, since_ns: int, known: list[Known], paths: list[str]) -> None:
        self._kept = kept
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
    newest = max(time_ns for _, time_ns, _ in ids)
    body = struct.pack("<Q", newest) + b"".join(rows)
    return struct.pack("<I", crc32(body, salt)) + body


def decode(content: bytes, salt: int) -> list[Known]:
    """Return the ids in a file; none if it is damaged."""
    if len(content) < _START.size or _START.unpack_from(content)[0] != crc32(content[4:], salt):
        return []
    found: list[Known] = []
    offset = _START.size
    while offset < len(content):
        sequence, time_ns, length = _ID.unpack_from(content, offset)
        offset += _ID.size + length
        found.append((sequence, time_ns, content[offset - length : offset]))
    return found
