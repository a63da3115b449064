"""
Runs: consecutive messages of one publisher with the same control line, as one operation.

    (PUB, subject, reply, header_bytes, size, data)

`data` holds the messages one after another, each with `size` bytes and a CRLF. The first
`header_bytes` of each message are its header block. A single message is a run of one.
"""

from __future__ import annotations

from penstock.hot.wire import CRLF, DATA, PUB, SIZE, Buffer, Op, delivery_line


def large_buffers(sid: bytes, publish: Op) -> tuple[list[Buffer], int]:
    """Return a run as control lines and shared slices of its data, and their size."""
    _, subject, reply, header_bytes, size, data = publish
    before, after = delivery_line(subject, reply, header_bytes, size)
    line = before + sid + after
    stride = size + 2
    if len(data) == stride:
        return [line, data], len(line) + stride
    view = memoryview(data)
    buffers: list[Buffer] = []
    for offset in range(0, len(data), stride):
        buffers += (line, view[offset : offset + stride])
    return buffers, len(data) + len(buffers) // 2 * len(line)


def new_message(subject: bytes, payload: bytes, *, reply: bytes = b"", header: bytes = b"") -> Op:
    """Return a message as `publish` and `deliver_as` take it."""
    size = len(header) + len(payload)
    return (PUB, subject, reply, len(header), size, header + payload + CRLF)


def message_count(publish: Op) -> int:
    """Return the number of messages in a run."""
    return len(publish[DATA]) // (publish[SIZE] + 2)  # type: ignore[no-any-return]


def payloads(publish: Op) -> list[bytes]:
    """Return the payloads of a run, each with its header block and CRLF."""
    stride, data = publish[SIZE] + 2, publish[DATA]
    return [data[offset : offset + stride] for offset in range(0, len(data), stride)]


def single_messages(publish: Op) -> list[Op]:
    """Return the messages of a run as runs of one."""
    return [(*publish[:DATA], payload) for payload in payloads(publish)]


def first_messages(publish: Op, count: int) -> Op:
    """Return the run cut down to its first messages."""
    return (*publish[:DATA], publish[DATA][: count * (publish[SIZE] + 2)])


def last_messages(publish: Op, count: int) -> Op:
    """Return the run cut down to its last messages."""
    return (*publish[:DATA], publish[DATA][-count * (publish[SIZE] + 2) :])


def share_out(publish: Op, shares: int) -> list[Op]:
    """Deal the messages of a run into `shares` runs, one after another like cards."""
    messages = payloads(publish)
    return [(*publish[:DATA], b"".join(messages[index::shares])) for index in range(shares)]


def without_headers(publish: Op) -> Op:
    """Return the run without header blocks, for a client that does not support them."""
    kind, subject, reply, header_bytes, size, _ = publish
    data = b"".join([message[header_bytes:] for message in payloads(publish)])
    return (kind, subject, reply, 0, size - header_bytes, data)
