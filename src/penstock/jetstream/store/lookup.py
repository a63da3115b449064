"""
Read a store: which message a get asks for, by sequence, by time or by subject; or all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.protocol import subjects as patterns
from penstock.protocol.rfc3339 import parse_time

if TYPE_CHECKING:
    from penstock.jetstream.store.values import Filters, Message, Store

FIELDS = {
    "seq": "uint64",
    "last_by_subj": "subject",
    "next_by_subj": "subject",
    "batch": "int",
    "max_bytes": "int",
    "start_time": "string",
    "multi_last": "[]subject",
    "up_to_seq": "uint64",
    "up_to_time": "string",
    "no_hdr": "bool",
}
"""What a get may say; `batch` and what follows from it only a direct one."""

TIMES = ("start_time", "up_to_time")

READ_COUNT = 1000
READ_BYTES = 1024 * 1024
"""What is read at a time by those who go through a stream."""
WINDOW = 1024
"""How many messages are looked at first when a subject's last one before a sequence is sought."""


def with_times(options: dict[str, Any]) -> dict[str, Any]:
    """Return what a get says with its times as numbers; raise ValueError if they are none."""
    times = {name: parse_time(options[name]) for name in TIMES if options.get(name)}
    return options | times


def is_one_question(options: dict[str, Any]) -> bool:
    """Tell whether a get asks for one message in a way that makes sense."""
    sequence, last, following, time = (
        bool(options.get(name)) for name in ("seq", "last_by_subj", "next_by_subj", "start_time")
    )
    if last:
        return not (sequence or following or time)
    return (sequence or following or time) and not (sequence and time)


def find(store: Store, options: dict[str, Any]) -> Message | None:
    """Return the message that a get asks for."""
    if options.get("last_by_subj"):
        return store.get(last_sequence(store, options["last_by_subj"].encode()))
    if options.get("next_by_subj"):
        filters = (options["next_by_subj"].encode(),)
        return next(following(store, start(store, options), filters), None)
    return store.get(start(store, options))


def start(store: Store, options: dict[str, Any]) -> int:
    """Return the sequence from which on a get looks."""
    if options.get("start_time"):
        return store.sequence_at(options["start_time"])
    sequence: int = options.get("seq", 0)
    return sequence


def last_sequence(store: Store, subject: bytes) -> int:
    """Return the last sequence of a subject, or of all that a pattern matches; 0 if none."""
    if patterns.is_literal(subject):
        return store.last(subject)[0]
    return max((last for _, last, _ in store.subjects(subject)), default=0)


def following(
    store: Store, sequence: int, filters: Filters, *, count_max: int = 1
) -> Iterator[Message]:
    """Yield the messages from a sequence on that match; `count_max` are read at a time."""
    bytes_max = 1 if count_max == 1 else READ_BYTES
    sequence = max(sequence, store.first_sequence)
    while sequence <= store.last_sequence:
        messages, sequence = store.read(
            sequence, count_max=count_max, bytes_max=bytes_max, filters=filters
        )
        yield from messages


def batches(
    store: Store, sequence: int = 0, *, filters: Filters = (), last_sequence: int | None = None
) -> Iterator[list[Message]]:
    """Yield all messages from a sequence on, up to another, as many at a time as one read gives."""
    sequence = max(sequence, store.first_sequence)
    while sequence <= (store.last_sequence if last_sequence is None else last_sequence):
        messages, sequence = store.read(
            sequence,
            count_max=READ_COUNT,
            bytes_max=READ_BYTES,
            filters=filters,
            last_sequence=last_sequence,
        )
        yield messages


def last_sequences(store: Store, filters: Filters, up_to: int, count_max: int) -> list[int]:
    """
    Return the last sequence of each subject that matches, up to one, in order.

    There may be many more than anybody wants: after `count_max` it is not looked further.
    """
    last = {subject: sequence for subject, sequence, _ in matching(store, filters)}
    found = [sequence for sequence in last.values() if sequence <= up_to]
    later = {subject for subject, sequence in last.items() if sequence > up_to}
    if up_to < store.last_sequence and later and len(found) <= count_max:
        found += _last_before(store, later, up_to, count_max - len(found))
    return sorted(found)


def matching(store: Store, filters: Filters) -> list[tuple[bytes, int, int]]:
    """Return (subject, last sequence, messages) of the subjects that match one of the filters."""
    if not all(map(patterns.is_literal, filters)):
        # All of them in one go: a wildcard looks at every subject there is.
        return store.subjects(*filters)
    found = ((subject, *store.last(subject)) for subject in set(filters))
    return [each for each in found if each[2]]


def _last_before(store: Store, subjects: set[bytes], up_to: int, count_max: int) -> list[int]:
    """Look backwards, further each time, for the last message of each of these subjects."""
    found: dict[bytes, int] = {}
    end, window = up_to, WINDOW
    while subjects and end >= store.first_sequence and len(found) <= count_max:
        sequence, filters = max(end - window + 1, store.first_sequence), tuple(subjects)
        first = sequence
        while sequence <= end:
            messages, sequence = store.read(
                sequence,
                count_max=WINDOW,
                bytes_max=READ_BYTES,
                filters=filters,
                last_sequence=end,
            )
            found.update((message[2], message[0]) for message in messages)
        subjects = subjects - found.keys()
        end, window = first - 1, 2 * window
    return list(found.values())
