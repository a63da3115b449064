"""The NATS protocol cut into whole operations, as bytes, for those who only pass them on."""

from __future__ import annotations

from typing import NamedTuple

CRLF = b"\r\n"
WITH_PAYLOAD = frozenset((b"PUB", b"HPUB", b"MSG", b"HMSG"))


class ProxiedFrame(NamedTuple):
    """One operation, with its payload."""

    verb: bytes
    subject: str
    """Of a message; empty for everything else."""
    data: bytes


def split(buffer: bytes) -> tuple[list[ProxiedFrame], bytes]:
    """Return the operations that are complete, and what is left."""
    frames, start = [], 0
    while (line_end := buffer.find(CRLF, start)) != -1:
        line = buffer[start:line_end]
        words = line.split()
        verb = words[0].upper() if words else b""
        end = line_end + len(CRLF)
        if verb in WITH_PAYLOAD:
            end += int(words[-1]) + len(CRLF)
        if end > len(buffer):
            break
        subject = words[1].decode(errors="replace") if verb in WITH_PAYLOAD else ""
        frames.append(ProxiedFrame(verb, subject, buffer[start:end]))
        start = end
    return frames, buffer[start:]
