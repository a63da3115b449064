"""How many messages a range holds: consumers are told how many wait for them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from penstock.errors import ClientError, JetStreamError
from penstock.spark.connection import Connection
from penstock.spark.options import SourceOptions
from penstock.spark.patience import is_transient
from penstock.spark.source.census import Census
from penstock.spark.source.position import Range
from penstock.spark.source.stream import (
    StreamState,
    creation,
    delete_consumers,
    refused,
    subject_filter,
)

log = logging.getLogger(__name__)

FEW_HOLES = 8
"""Where not even an eighth of a range can be missing, sequences are as good as messages."""


def new_census(
    connection: Connection, state: StreamState, source: SourceOptions, whole: Range
) -> Census:
    """Return what knows where in a range messages are."""
    is_sparse = source.subjects or state.holes * FEW_HOLES > whole.size
    # A consumer would be one of the workers of a queue, and of those whom interest is about.
    if not is_sparse or state.retention != "limits":
        return Census(whole)
    return Census(whole, partial(_count, connection, state, source))


def _count(
    connection: Connection, state: StreamState, source: SourceOptions, counted: Range
) -> int:
    """Count messages, or where there can be no more consumers, sequences."""
    try:
        return count_messages(connection, state, source.subjects, counted)
    except ClientError as error:
        if is_transient(error):
            raise
        log.warning("messages cannot be counted, so that tasks may differ in size: %s", error)
        return counted.size


def count_messages(
    connection: Connection, state: StreamState, subjects: tuple[str, ...], counted: Range
) -> int:
    """Return how many messages of a range are on these subjects."""
    # In this order, what the stream gets meanwhile is counted too often rather than not at all.
    behind, all_of_them = _pending(connection, state, subjects, (counted.last + 1, counted.first))
    return max(0, all_of_them - behind)


def _pending(
    connection: Connection, state: StreamState, subjects: tuple[str, ...], starts: Sequence[int]
) -> list[int]:
    """Return how many messages wait for consumers that start at these sequences."""
    only = subject_filter(subjects)
    answers = connection.call_all(
        [
            creation(state, {"deliver_policy": "by_start_sequence", "opt_start_seq": start} | only)
            for start in starts
        ]
    )
    found = [answer for answer in answers if not isinstance(answer, JetStreamError)]
    delete_consumers(connection, state.name, [each["name"] for each in found])
    for answer in answers:
        if isinstance(answer, JetStreamError):
            raise refused(state, answer)
    return [int(each["num_pending"]) for each in found]
