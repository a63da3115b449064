"""
`$JS.API.DIRECT.GET`: the answer is the stored message itself, not JSON around it.

Key-value reads use this. ADR-31: an answer carries the message's own headers, followed by headers
that say where it is stored; an error is a status. `batch` asks for consecutive messages,
`multi_last` for the last one of many subjects. Each of their answers gives the number still to
come, and a `204 EOB` ends them.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock import hot
from penstock.core.runs import payloads
from penstock.hot.wire import CRLF, DATA, PUB, REPLY, Op
from penstock.jetstream.config.stream import is_api_level_known
from penstock.jetstream.store import lookup
from penstock.protocol import headers, strictjson
from penstock.protocol.subjects import is_literal

if TYPE_CHECKING:
    from penstock.jetstream.store.store import Store
    from penstock.jetstream.store.values import Message
    from penstock.jetstream.stream import Stream

BATCH_BYTES_MAX = 16 * 1024 * 1024
"""The most bytes that answer one request: its client has to take them in one piece."""
BATCH_MAX = 8192
"""The most messages that answer one request; as with bytes, a client asks again for the rest."""
MULTI_LAST_MAX = 1024
READ_COUNT = 256
NOT_FOR_SUBJECT = (
    *("seq", "last_by_subj", "next_by_subj", "batch"),
    *("start_time", "multi_last", "up_to_seq", "up_to_time"),
)
"""Options that are refused when the subject of the request already names the key."""
QUESTIONS = ("seq", "last_by_subj", "next_by_subj", "multi_last", "start_time")
CONFLICTS = (
    ("seq", "last_by_subj"),
    ("seq", "start_time"),
    ("start_time", "last_by_subj"),
    ("last_by_subj", "next_by_subj"),
    ("last_by_subj", "batch"),
    ("last_by_subj", "multi_last"),
    ("next_by_subj", "multi_last"),
    ("up_to_seq", "up_to_time"),
)

Answer: TypeAlias = tuple[bytes, bytes]
"""The header block and the payload of an answer."""
Parts: TypeAlias = Generator[None, None, list[Answer]]


class _Status(Exception):
    """A status that is sent in place of a message."""


def quick_answer(stream: Stream, publish: Op, subject: bytes) -> tuple[Op, int] | None:
    """Return the message of one key, and its sequence: the plainest request, the most frequent."""
    if publish[DATA] != CRLF or not is_literal(subject):
        return None
    message = stream.store.get(stream.store.last(subject)[0])
    if message is None:
        return None
    return hot.stored_answer(publish[REPLY], stream.name_bytes, message), message[0]


def answers(stream: Stream, publish: Op, subject: bytes) -> Generator[None, None, list[Op]]:
    """
    Return the answers to requests; `subject` is the part after the stream's name, or empty.

    Others have their turn in between.
    """
    _, _, reply, header_bytes, _, _ = publish
    found: list[Op] = []
    for request in payloads(publish):
        try:
            options = _options(request[:header_bytes], request[header_bytes:-2], subject)
            parts = yield from _parts(stream, options)
        except _Status as status:
            parts = [(headers.encode((), status=str(status)), b"")]
        for block, payload in parts:
            data = block + payload + CRLF
            found.append((PUB, reply, b"", len(block), len(data) - 2, data))
        yield
    return found


def failure(publish: Op) -> list[Op]:
    """Return the answers to requests while it is unknown which messages are stored."""
    block = headers.encode((), status="500 Store Failed")
    count = len(payloads(publish))
    return [(PUB, publish[REPLY], b"", len(block), len(block), block + CRLF)] * count


def _options(header: bytes, body: bytes, subject: bytes) -> dict[str, Any]:
    """Return the options of a request."""
    if header and not is_api_level_known(header):
        raise _Status("412 Required Api Level")
    if not body and not subject:
        raise _Status("408 Empty Request")
    try:
        options = strictjson.decode(body, lookup.FIELDS, "JSApiMsgGetRequest", strict=False)
        options = lookup.with_times(options)
    except ValueError:
        raise _Status("408 Malformed Request") from None
    if subject:
        if any(options.get(name) for name in NOT_FOR_SUBJECT):
            raise _Status("408 Bad Request")
        return options | {"last_by_subj": subject.decode(errors="surrogateescape")}
    if not any(options.get(name) for name in QUESTIONS):
        raise _Status("408 Empty Request")
    if any(options.get(one) and options.get(other) for one, other in CONFLICTS):
        raise _Status("408 Bad Request")
    return options


def _parts(stream: Stream, options: dict[str, Any]) -> Parts:
    if options.get("multi_last"):
        return (yield from _last_of_many(stream, options))
    if options.get("batch"):
        return (yield from _in_a_row(stream, options))
    message = yield from lookup.finding(stream.store, options)
    return [_message(stream, options, message)]


# One message.


def _message(stream: Stream, options: dict[str, Any], message: Message | None) -> Answer:
    if message is None:
        raise _Status("404 Message Not Found")
    if options.get("no_hdr"):
        return b"", message[4]
    return _with_origin(stream, message), message[4]


# Many messages.


def _in_a_row(stream: Stream, options: dict[str, Any]) -> Parts:
    """Return consecutive messages from a sequence or a time on, as many as requested."""
    store, following = stream.store, options.get("next_by_subj", "").encode()
    start, filters = lookup.start(store, options), (following,) if following else ()
    left = yield from store.counting(start, filters)
    count_max, bytes_max = min(options["batch"], BATCH_MAX), _bytes_max(options)
    sequence, size_bytes = 0, 0
    found: list[Answer] = []
    reading = lookup.reading(store, start, filters, count_max=READ_COUNT)
    while len(found) < count_max and size_bytes < bytes_max:
        messages = next(reading, None)
        if messages is None:
            break
        for message in messages:
            if options.get("no_hdr"):
                found.append((b"", message[4]))
            else:
                left = max(left - 1, 0)
                found.append((_with_progress(stream, message, left, sequence), message[4]))
            sequence, size_bytes = message[0], size_bytes + _size(message)
            if len(found) == count_max or size_bytes >= bytes_max:
                break
        yield
    if not found and options["batch"] > 0:
        raise _Status("404 Message Not Found")
    return [*found, (_end(left, sequence), b"")]


def _last_of_many(stream: Stream, options: dict[str, Any]) -> Parts:
    """Return the last message of each subject, as of a sequence or a time."""
    store = stream.store
    up_to = _up_to(store, options)
    if up_to > store.last_sequence and stream.config.storage == "file":
        # nats-server's file store finds no block there; its memory store answers.
        raise _Status("404 No Results")
    patterns = tuple({each.encode(): None for each in options["multi_last"]})
    if len(patterns) > MULTI_LAST_MAX:
        raise _Status("413 Too Many Results")
    sequences = yield from lookup.last_sequences(store, patterns, up_to, MULTI_LAST_MAX)
    if len(sequences) > MULTI_LAST_MAX:
        raise _Status("413 Too Many Results")
    if not sequences:
        raise _Status("404 No Results")
    last, count, size_bytes, left = 0, 0, 0, len(sequences)
    found: list[Answer] = []
    for sequence in sequences:
        left -= 1
        message = store.get(sequence) if sequence >= options.get("seq", 0) else None
        if message is None:
            continue
        found.append((_with_progress(stream, message, left, last), message[4]))
        last, count, size_bytes = sequence, count + 1, size_bytes + _size(message)
        if count == options.get("batch", 0) or size_bytes >= _bytes_max(options):
            break
        if not count % READ_COUNT:
            yield
    return [*found, (_end(left, last, up_to), b"")]


def _up_to(store: Store, options: dict[str, Any]) -> int:
    """Return the last sequence to consider."""
    if not options.get("up_to_time"):
        return options.get("up_to_seq", 0) or store.last_sequence
    up_to = store.sequence_at(options["up_to_time"])
    if up_to <= store.first_sequence:
        raise _Status("404 No Results")
    return up_to - 1


def _bytes_max(options: dict[str, Any]) -> int:
    return min(options.get("max_bytes", 0) or BATCH_BYTES_MAX, BATCH_BYTES_MAX)


def _size(message: Message) -> int:
    return len(message[2]) + len(message[3]) + len(message[4])


# Header blocks.


def _with_origin(stream: Stream, message: Message) -> bytes:
    _, _, _, header_bytes, _, data = hot.stored_answer(b"", stream.name_bytes, message)
    block: bytes = data[:header_bytes]
    return block


def _with_progress(stream: Stream, message: Message, left: int, last_sequence: int) -> bytes:
    block = _with_origin(stream, message).removesuffix(CRLF)
    return block + _progress(left, last_sequence) + CRLF


def _end(left: int, last_sequence: int, up_to: int = 0) -> bytes:
    """Return the header that ends the answers."""
    limit = b"Nats-UpTo-Sequence: %d\r\n" % up_to if up_to else b""
    return b"NATS/1.0 204 EOB\r\n" + _progress(left, last_sequence) + limit + CRLF


def _progress(left: int, last_sequence: int) -> bytes:
    return b"Nats-Num-Pending: %d\r\nNats-Last-Sequence: %d\r\n" % (left, last_sequence)
