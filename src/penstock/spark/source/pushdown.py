"""Bounds of sequence, time and subject, from the conditions of a batch query."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from penstock.protocol.subjects import is_valid_literal
from penstock.spark.connection import Connection
from penstock.spark.options import SourceOptions
from penstock.spark.source.position import Position
from penstock.spark.source.stream import StreamState, first_at

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

SEQUENCE_MAX = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Narrowed:
    """Bounds that a query puts on sequence and time, included in what is read."""

    sequence_min: int = 1
    sequence_max: int = SEQUENCE_MAX
    time_min: datetime | None = None

    def first(self, connection: Connection, state: StreamState) -> int:
        """Return the first sequence within the bounds."""
        if self.time_min is None:
            return self.sequence_min
        since = first_at(connection, state, Position("time", time=self.time_min))
        return max(self.sequence_min, since)


def narrow(source: SourceOptions, filters: Iterable[Filter]) -> tuple[Narrowed, SourceOptions]:
    """Return the bounds, and the source with subjects that the filters leave over."""
    from pyspark.sql import datasource as ds

    narrowed = Narrowed()
    for each in filters:
        column = getattr(each, "attribute", ())
        value = getattr(each, "value", None)
        if column == ("sequence",) and isinstance(value, int):
            narrowed = _by_sequence(narrowed, type(each), value)
        elif column == ("time",) and isinstance(value, datetime):
            narrowed = _by_time(narrowed, type(each), value)
        elif column == ("subject",) and not source.subjects:
            source = replace(source, subjects=_subjects(each, ds))
    return narrowed, source


def _by_sequence(narrowed: Narrowed, kind: type, value: int) -> Narrowed:
    low, high = narrowed.sequence_min, narrowed.sequence_max
    match kind.__name__:
        case "EqualTo":
            low, high = max(low, value), min(high, value)
        case "GreaterThan":
            low = max(low, value + 1)
        case "GreaterThanOrEqual":
            low = max(low, value)
        case "LessThan":
            high = min(high, value - 1)
        case "LessThanOrEqual":
            high = min(high, value)
    return replace(narrowed, sequence_min=low, sequence_max=high)


def _by_time(narrowed: Narrowed, kind: type, value: datetime) -> Narrowed:
    """Take bounds on time generously: Spark looks at every row again."""
    time = value if value.tzinfo else value.astimezone(UTC)
    if kind.__name__ in ("GreaterThan", "GreaterThanOrEqual", "EqualTo"):
        return replace(narrowed, time_min=max(narrowed.time_min or time, time))
    return narrowed


def _subjects(each: Filter, ds: Any) -> tuple[str, ...]:
    """Return subjects to filter by: all that match are among them."""
    if isinstance(each, ds.EqualTo) and is_plain(each.value):
        return (each.value,)
    if isinstance(each, ds.In) and all(is_plain(value) for value in each.value):
        return tuple(dict.fromkeys(each.value))
    if isinstance(each, ds.StringStartsWith):
        # `a.b%` says nothing of the token `b…`, only of the whole tokens before it.
        tokens = each.value.split(".")[:-1]
        if tokens and is_plain(".".join(tokens)):
            return (".".join([*tokens, ">"]),)
    return ()


def is_plain(subject: Any) -> bool:
    """Tell whether a value can be a subject without wildcards."""
    return isinstance(subject, str) and is_valid_literal(subject.encode())
