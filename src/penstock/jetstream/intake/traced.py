"""
The trace of a message at a stream: its subject there, or why it is refused.

For some refusals nats-server's traces have words of their own, unlike its PubAcks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import JetStreamError
from penstock.jetstream.intake.checks import Duplicate
from penstock.jetstream.store import lookup
from penstock.protocol import errorcodes, headers, subjects

if TYPE_CHECKING:
    from penstock.jetstream.store.store import Store

DUPLICATE = "msgid is duplicate"
WORDS = {
    errorcodes.STREAM_NOT_MATCH.err_code: "expected stream does not match",
    errorcodes.MESSAGE_TTL_DISABLED.err_code: "message TTL disabled",
    errorcodes.STREAM_MESSAGE_EXCEEDS_MAXIMUM.err_code: "maximum payload exceeded",
    errorcodes.STREAM_HEADER_EXCEEDS_MAXIMUM.err_code: "maximum payload exceeded",
}
AS_THEY_ARE = (errorcodes.STREAM_STORE_FAILED.err_code, errorcodes.STREAM_ROLLUP_FAILED.err_code)
"""Errors whose own text is the whole message."""
BY_SUBJECT = b"Nats-Expected-Last-Subject-Sequence"
NO_NUMBER = 2**64 - 1
"""The value that nats-server reads in place of an invalid number."""

Objection = Duplicate | JetStreamError


def is_full(objection: Objection | None) -> bool:
    """Tell whether the only objection is that the stream has no room."""
    full = errorcodes.STREAM_STORE_FAILED.err_code
    return isinstance(objection, JetStreamError) and objection.err_code == full


def words_of(
    objection: Objection, store: Store, last_message_id: bytes, subject: bytes, header: bytes
) -> str:
    """Return the words of a trace for a refused message."""
    if isinstance(objection, Duplicate):
        return DUPLICATE
    code = objection.err_code
    if code == errorcodes.STREAM_WRONG_LAST_SEQUENCE.err_code:
        return _wrong_sequence(store, subject, header)
    if code == errorcodes.STREAM_WRONG_LAST_MESSAGE_ID.err_code:
        expected = headers.get(header, b"Nats-Expected-Last-Msg-Id") or b""
        last = subjects.quoted(last_message_id)
        return f"last msgid mismatch: {subjects.quoted(expected)} vs {last}"
    if code in AS_THEY_ARE:
        return objection.description
    return WORDS.get(code) or f"{objection.description} ({code})"


def _wrong_sequence(store: Store, subject: bytes, header: bytes) -> str:
    other = headers.get(header, BY_SUBJECT + b"-Subject")
    expected = _number(header, BY_SUBJECT)
    last_sequence = lookup.last_sequence(store, other or subject)
    if expected is not None and expected != last_sequence:
        return f"last sequence by subject mismatch: {expected} vs {last_sequence}"
    expected = _number(header, b"Nats-Expected-Last-Sequence")
    return f"last sequence mismatch: {expected} vs {store.last_sequence}"


def _number(header: bytes, name: bytes) -> int | None:
    value = headers.get(header, name)
    if not value:
        return None
    number = headers.number(value)
    return NO_NUMBER if number is None else number
