"""Which stored message a get asks for: by sequence, by time, or by subject."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock import subjects as patterns
from penstock.jetstream.times import parse_time

if TYPE_CHECKING:
    from penstock.jetstream.store import Filters, Message, Store

FIELDS = {
    "seq": "uint64",
    "last_by_subj": "string",
    "next_by_subj": "string",
    "batch": "int",
    "max_bytes": "int",
    "start_time": "string",
    "multi_last": "[]string",
    "up_to_seq": "uint64",
    "up_to_time": "string",
    "no_hdr": "bool",
}
"""What a get may say; `batch` and what follows from it only a direct one."""

READ_BYTES = 1


def is_one_question(options: dict[str, Any]) -> bool:
    """Tell whether a get asks for one message in a way that makes sense."""
    sequence, last, following, time = (
        bool(options.get(name)) for name in ("seq", "last_by_subj", "next_by_subj", "start_time")
    )
    if last:
        return not (sequence or following or time)
    return (sequence or following or time) and not (sequence and time)


def find(store: Store, options: dict[str, Any]) -> Message | None:
    """Return the message that a get asks for; raise ValueError for a time that is none."""
    if options.get("last_by_subj"):
        return store.get(last_sequence(store, options["last_by_subj"].encode()))
    sequence = options.get("seq", 0)
    if options.get("start_time"):
        sequence = store.sequence_at(parse_time(options["start_time"]))
    if options.get("next_by_subj"):
        return following(store, sequence, (options["next_by_subj"].encode(),))
    return store.get(sequence)


def last_sequence(store: Store, subject: bytes) -> int:
    """Return the last sequence of a subject, or of all that a pattern matches; 0 if none."""
    if patterns.is_literal(subject):
        return store.last(subject)[0]
    return max((last for _, last, _ in store.subjects(subject)), default=0)


def following(store: Store, sequence: int, filters: Filters) -> Message | None:
    """Return the first message from a sequence on that matches."""
    sequence = max(sequence, store.first_sequence)
    while sequence <= store.last_sequence:
        messages, sequence = store.read(
            sequence, count_max=1, bytes_max=READ_BYTES, filters=filters
        )
        if messages:
            return messages[0]
    return None
