"""Selecting rows: filter, sort and page, in portions."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest

from penstock.net.monitor.console.selecting import PORTION, ROWS_MAX, Page, Table, select
from penstock.net.monitor.query import QueryError

Item = tuple[str, str, int]


def table(items: list[Item]) -> Table[Item]:
    return Table(
        items=items,
        key=lambda one: one[0],
        account=lambda one: one[1],
        text=lambda one: one[0],
        sorts={"name": lambda one: one[0], "size": lambda one: one[2]},
        describe=lambda one: {"name": one[0], "size": one[2]},
    )


def ask(items: list[Item], **asked: str) -> tuple[Page, int]:
    work, portions = select(table(items), asked), 0
    while True:
        try:
            next(work)
            portions += 1
        except StopIteration as end:
            return end.value, portions


ITEMS: list[Item] = [("b", "X", 2), ("a", "X", 2), ("d", "Y", 9), ("c", "Y", 1)]


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ({}, "abcd"),
        ({"sort": "-name"}, "dcba"),
        ({"sort": "size"}, "cbad"),
        ({"sort": "-size"}, "dbac"),
        ({"sort": "-size", "limit": "2"}, "db"),
        ({"limit": "3"}, "abc"),
        ({"account": "Y"}, "cd"),
        ({"search": " A "}, "a"),
        ({"search": "nobody"}, ""),
    ],
)
def test_rows_are_chosen_and_in_order(asked: Mapping[str, str], names: str) -> None:
    page, _ = ask(ITEMS, **asked)

    assert list(names) == list(page.rows)


def test_a_page_says_how_many_there_are() -> None:
    page, _ = ask(ITEMS, account="X", limit="1")

    assert (1, 2, 4) == (len(page.rows), page.matched, page.total)


@pytest.mark.parametrize("asked", [{"sort": "weight"}, {"limit": "many"}])
def test_what_makes_no_sense_is_refused(asked: Mapping[str, str]) -> None:
    with pytest.raises(QueryError):
        ask(ITEMS, **asked)


@pytest.mark.parametrize("sort", ["size", "-size"])
def test_a_long_table_is_looked_at_in_portions(sort: str) -> None:
    items = [(f"{n:06}", "X", n * 7919 % 10_007) for n in range(20 * PORTION)]
    page, portions = ask(items, sort=sort, limit="5000")
    sizes = [row["size"] for row in page.rows.values()]

    assert portions > 20
    assert ROWS_MAX == len(sizes)
    assert all(a <= b if sort == "size" else a >= b for a, b in pairwise(sizes))
    assert {0, 10_006} & set(sizes[:1])
