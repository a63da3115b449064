"""
`$JS.API.DIRECT.GET`: the stored message itself as the answer, not wrapped in JSON.

This is what key-value reads are made of. ADR-31: the answer carries the message's
own headers and, behind them, where it came from; what went wrong is a status.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock import headers
from penstock.core.account import payloads
from penstock.jetstream import lookup, strictjson
from penstock.jetstream.model import is_api_level_known
from penstock.jetstream.times import format_time
from penstock.wire import CRLF, PUB, Op

if TYPE_CHECKING:
    from penstock.jetstream.store import Message
    from penstock.jetstream.stream import Stream

BATCH = ("batch", "max_bytes", "multi_last", "up_to_seq", "up_to_time")


class _Status(Exception):
    """What is answered in place of a message."""


def answers(stream: Stream, publish: Op, subject: bytes) -> list[Op]:
    """Return the answers to requests; `subject` is what follows the stream's name, or empty."""
    _, _, reply, header_bytes, _, _ = publish
    found: list[Op] = []
    for request in payloads(publish):
        try:
            if subject and len(request) == len(CRLF):
                block, payload = _last(stream, subject)
            else:
                options = _options(request[:header_bytes], request[header_bytes:-2], subject)
                block, payload = _message(stream, options)
        except _Status as status:
            block, payload = headers.encode((), status=str(status)), b""
        data = block + payload + CRLF
        found.append((PUB, reply, b"", len(block), len(data) - 2, data))
    return found


def _options(header: bytes, body: bytes, subject: bytes) -> dict[str, Any]:
    """Return what is asked for."""
    if header and not is_api_level_known(header):
        raise _Status("412 Required Api Level")
    if not body and not subject:
        raise _Status("408 Empty Request")
    try:
        options = strictjson.decode(body, lookup.FIELDS, "JSApiMsgGetRequest", strict=False)
    except strictjson.InvalidJson:
        raise _Status("408 Malformed Request") from None
    if subject:
        if any(options.get(name) for name in lookup.FIELDS if name != "no_hdr"):
            raise _Status("408 Bad Request")
        return options | {"last_by_subj": subject.decode(errors="surrogateescape")}
    for name in BATCH:
        if options.get(name):
            raise _Status(f"408 Bad Request - {name} is not supported yet")
    if not any(options.get(name) for name in lookup.FIELDS):
        raise _Status("408 Empty Request")
    if not lookup.is_one_question(options):
        raise _Status("408 Bad Request")
    return options


def _last(stream: Stream, subject: bytes) -> tuple[bytes, bytes]:
    """Return the answer to the plainest question, which is also the most frequent one."""
    message = stream.store.get(lookup.last_sequence(stream.store, subject))
    if message is None:
        raise _Status("404 Message Not Found")
    return _with_origin(stream.name, message), message[4]


def _message(stream: Stream, options: dict[str, Any]) -> tuple[bytes, bytes]:
    """Return the header block and the payload of the answer."""
    try:
        message = lookup.find(stream.store, options)
    except ValueError:
        raise _Status("408 Malformed Request") from None
    if message is None:
        raise _Status("404 Message Not Found")
    if options.get("no_hdr"):
        return b"", message[4]
    return _with_origin(stream.name, message), message[4]


def _with_origin(stream: str, message: Message) -> bytes:
    sequence, time_ns, subject, header, _ = message
    own = header.removesuffix(CRLF) if header else headers.VERSION + CRLF
    return (
        b"%bNats-Stream: %b\r\nNats-Subject: %b\r\nNats-Sequence: %d\r\nNats-Time-Stamp: %b\r\n\r\n"
        % (
            own,
            stream.encode(),
            subject,
            sequence,
            format_time(time_ns).encode(),
        )
    )
