"""Reading a store: the message that a get asks for, by sequence, by time or by subject; or all."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from penstock.protocol import subjects as patterns
from penstock.protocol.rfc3339 import parse_time

if TYPE_CHECKING:
    from penstock.jetstream.store.store import Store
    from penstock.jetstream.store.values import Filters, Message

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
"""The options of a get; `batch` and those after it are for direct gets only."""

TIMES = ("start_time", "up_to_time")

READ_COUNT = 1000
READ_BYTES = 1024 * 1024
"""The bytes to read at a time when going through a stream."""
SEARCHED_AT_ONCE = 8192
"""The number of messages a search looks at before others have their turn."""


def with_times(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a get with times as numbers; raise ValueError if they are invalid."""
    times = {name: parse_time(options[name]) for name in TIMES if options.get(name)}
    return options | times


def is_one_question(options: dict[str, Any]) -> bool:
    """Tell whether the options ask for exactly one message."""
    sequence, last, following, time = (
        bool(options.get(name)) for name in ("seq", "last_by_subj", "next_by_subj", "start_time")
    )
    if last:
        return not (sequence or following or time)
    return (sequence or following or time) and not (sequence and time)


def finding(store: Store, options: dict[str, Any]) -> Generator[None, None, Message | None]:
    """Return the message that a get asks for, giving others their turn in between."""
    if options.get("next_by_subj"):
        return (
            yield from search(store, start(store, options), (_encoded(options, "next_by_subj"),))
        )
    if not options.get("last_by_subj"):
        return store.get(start(store, options))
    pattern = _encoded(options, "last_by_subj")
    if patterns.is_literal(pattern):
        return store.get(store.last(pattern)[0])
    with store.survey((pattern,)) as steps:
        yield from steps
        return store.get(max(store.last_sequences((pattern,)), default=0))


def _encoded(options: dict[str, Any], name: str) -> bytes:
    subject: str = options[name]
    return subject.encode(errors="surrogateescape")


def start(store: Store, options: dict[str, Any]) -> int:
    """Return the first sequence to look at for a get."""
    if options.get("start_time"):
        return store.sequence_at(options["start_time"])
    sequence: int = options.get("seq", 0)
    return sequence


def last_sequence(store: Store, subject: bytes) -> int:
    """Return the last sequence of a subject, or of all that match a pattern; 0 if there is none."""
    if patterns.is_literal(subject):
        return store.last(subject)[0]
    steps = store.finding_last(subject)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: int = end.value
            return found


def following(
    store: Store, sequence: int, filters: Filters, *, count_max: int = 1
) -> Iterator[Message]:
    """Yield the matching messages from a sequence on; `count_max` are read at a time."""
    bytes_max = 1 if count_max == 1 else READ_BYTES
    sequence = max(sequence, store.first_sequence)
    while sequence <= store.last_sequence:
        messages, sequence = store.read(
            sequence, count_max=count_max, bytes_max=bytes_max, filters=filters
        )
        yield from messages


def reading(
    store: Store, sequence: int, filters: Filters, *, count_max: int
) -> Iterator[list[Message]]:
    """Yield the matching messages from a sequence on, giving others their turn in between."""
    sequence = max(sequence, store.first_sequence)
    while sequence <= store.last_sequence:
        messages, sequence = store.read(
            sequence,
            count_max=count_max,
            bytes_max=READ_BYTES,
            filters=filters,
            last_sequence=sequence + SEARCHED_AT_ONCE - 1,
        )
        yield messages


def search(store: Store, sequence: int, filters: Filters) -> Generator[None, None, Message | None]:
    """Return the first matching message from a sequence on, giving others their turn."""
    sequence = max(sequence, store.first_sequence)
    while sequence <= store.last_sequence:
        messages, sequence = store.read(
            sequence,
            count_max=1,
            bytes_max=1,
            filters=filters,
            last_sequence=sequence + SEARCHED_AT_ONCE - 1,
        )
        if messages:
            return messages[0]
        yield
    return None


def batches(
    store: Store, sequence: int = 0, *, filters: Filters = (), last_sequence: int | None = None
) -> Iterator[list[Message]]:
    """Yield all messages from a sequence on, up to another, one read at a time."""
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


def last_sequences(
    store: Store, filters: Filters, up_to: int, count_max: int
) -> Generator[None, None, list[int]]:
    """
    Return the last sequence of each subject that matches, up to one, in order.

    There may be far more than anybody wants: the search ends after `count_max`.
    """
    found: dict[bytes, int] = {}
    later: set[bytes] = set()
    for rows in _rows(store, filters):
        found.update((subject, last) for subject, last, _ in rows if last <= up_to)
        later.update(subject for subject, last, _ in rows if last > up_to)
        if len(found) > count_max:
            break
        yield
    else:
        for earlier in store.latest(later, up_to + 1) if up_to < store.last_sequence else ():
            found |= earlier
            if len(found) > count_max:
                break
            yield
    return sorted(found.values())


def _rows(store: Store, filters: Filters) -> Iterator[list[tuple[bytes, int, int]]]:
    """Yield subject, last sequence and number of messages of what matches, in portions."""
    if all(map(patterns.is_literal, filters)):
        yield matching(store, filters)
        return
    for _ in store.refreshing():
        yield []
    yield from store.subject_portions(*filters)


def matching(store: Store, filters: Filters) -> list[tuple[bytes, int, int]]:
    """Return (subject, last sequence, messages) of the subjects that match one of the filters."""
    if not all(map(patterns.is_literal, filters)):
        # All of them in one go: a wildcard looks at every subject.
        return store.subjects(*filters)
    found = ((subject, *store.last(subject)) for subject in set(filters))
    return [each for each in found if each[2]]


def every_last(store: Store, filters: Filters) -> list[int]:
    """Return the last sequence of each subject that matches one of the filters."""
    if filters and all(map(patterns.is_literal, filters)):
        return [last for _, last, _ in matching(store, filters)]
    return store.last_sequences(filters)
