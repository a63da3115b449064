"""
The number of messages that make up a number of bytes.

A server cannot report the bytes of a range, and the average of the stream misleads when
its messages have grown over time. So a sample of the range is read. Each message of the
sample stands for those up to the next one; the range is cut to what fits by that
estimate, and sampled again more closely.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.errors import JetStreamError
from penstock.spark.connection import Connection
from penstock.spark.source.census import Census
from penstock.spark.source.stream import StreamState

SAMPLES = 8
ROUNDS = 2
AMPLE = 4
"""The sample covers this many times what the average allows: messages may be smaller here."""


def take_bytes(
    connection: Connection,
    state: StreamState,
    subjects: tuple[str, ...],
    waiting: Census,
    bytes_max: int,
) -> Census:
    """Return the start of the unread messages with about `bytes_max` bytes, or less."""
    average = max(1, state.bytes // max(1, state.messages))
    taken = waiting.take(max(1, AMPLE * bytes_max // average))
    for _ in range(ROUNDS):
        sizes = _sample(connection, state.name, subjects, taken) or [average]
        taken = taken.take(fitting(sizes, taken.messages, bytes_max))
    return taken


def fitting(sizes: Sequence[int], messages: int, bytes_max: int) -> int:
    """Return how many of the messages fit, of which these are some, as far from each other."""
    share, fit, left = messages / len(sizes), 0.0, float(bytes_max)
    for size in sizes:
        count = min(share, left / max(1, size))
        fit += count
        left -= count * size
        if count < share:
            break
    return max(1, int(fit))


def _sample(
    connection: Connection, stream: str, subjects: tuple[str, ...], taken: Census
) -> list[int]:
    """Return the sizes of some messages, in their order."""
    first, count = taken.whole.first, min(SAMPLES, taken.whole.size)
    patterns = subjects or (">",)
    requests: list[tuple[str, dict[str, Any] | None]] = [
        (
            f"STREAM.MSG.GET.{stream}",
            {
                "seq": first + taken.whole.size * number // count,
                "next_by_subj": patterns[number % len(patterns)],
            },
        )
        for number in range(count)
    ]
    return [
        _size(answer["message"])
        for answer in connection.call_all(requests)
        if not isinstance(answer, JetStreamError)
    ]


def _size(message: dict[str, Any]) -> int:
    """Return what a message takes; payload and headers come as base64."""
    encoded = len(message.get("data", "")) + len(message.get("hdrs", ""))
    return len(message["subject"]) + encoded * 3 // 4
