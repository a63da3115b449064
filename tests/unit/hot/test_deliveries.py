"""`collect_deliveries`: what it gathers, and what it stops at."""

from __future__ import annotations

import itertools
from array import array
from typing import Any

import pytest
from tests.compiled import compiled_twin

from penstock.hot import deliveries
from penstock.hot.deliveries import DATA, HEADERS, SUBJECTS, Columns

ALL = SUBJECTS | DATA | HEADERS
FIRST = b"MSG orders.1 1 $JS.ACK.S.C.1.7.1.1763190000123456789.2 5\r\nhello\r\n"
SECOND = (
    b"HMSG orders.22 1 $JS.ACK.S.C.1.9.2.1763190000123457789.1 23 25\r\n"
    b"NATS/1.0\r\nA: 1\r\nB:2\r\n\r\nhi\r\n"
)
STATUS = b"HMSG _INBOX.x.1 1 16 16\r\nNATS/1.0 404\r\n\r\n\r\n"


@pytest.fixture(params=["python", "compiled"])
def collect(request: pytest.FixtureRequest) -> Any:
    twin = deliveries if request.param == "python" else compiled_twin()
    return lambda *arguments: Columns._make(twin.collect_deliveries(*arguments))


def rows(offsets: bytes, data: bytes) -> list[bytes]:
    bounds = array("i", offsets)
    return [data[start:end] for start, end in itertools.pairwise(bounds)]


def test_deliveries_become_columns(collect: Any) -> None:
    columns = collect(FIRST + SECOND, ALL, 1, 100)

    assert (2, len(FIRST + SECOND), 1) == columns[:3]
    assert [7, 9] == list(array("q", columns.sequences))
    assert [1763190000123456, 1763190000123457] == list(array("q", columns.times))
    assert [b"orders.1", b"orders.22"] == rows(columns.subject_offsets, columns.subjects)
    assert [b"hello", b"hi"] == rows(columns.data_offsets, columns.data)
    assert [0, 0, 2] == list(array("i", columns.header_offsets))
    assert [b"A", b"B"] == rows(columns.key_offsets, columns.keys)
    assert [b"1", b"2"] == rows(columns.value_offsets, columns.values)


def test_what_is_not_wanted_is_left_out(collect: Any) -> None:
    columns = collect(FIRST, 0, 1, 100)

    assert (b"",) * 9 == columns[5:]
    assert [7] == list(array("q", columns.sequences))


@pytest.mark.parametrize("cut", range(len(SECOND)))
def test_half_a_message_is_left_for_later(collect: Any, cut: int) -> None:
    assert (1, len(FIRST)) == collect(FIRST + SECOND[:cut], ALL, 1, 100)[:2]


@pytest.mark.parametrize("other", [STATUS, b"PING\r\n", b"-ERR 'x'\r\n", b"garbage"])
def test_anything_else_stops_it(collect: Any, other: bytes) -> None:
    assert (1, len(FIRST)) == collect(FIRST + other + SECOND, ALL, 1, 100)[:2]


def test_the_end_of_the_range_stops_it(collect: Any) -> None:
    assert 1 == collect(FIRST + SECOND, ALL, 1, 8).row_count


def test_a_gap_stops_it(collect: Any) -> None:
    assert 0 == collect(FIRST + SECOND, ALL, 2, 100).row_count
    assert 1 == collect(SECOND, ALL, 2, 100).row_count


def test_nothing_gives_empty_columns(collect: Any) -> None:
    columns = collect(b"", ALL, 1, 100)

    assert (0, 0, 0) == columns[:3]
    assert [0] == list(array("i", columns.subject_offsets))
