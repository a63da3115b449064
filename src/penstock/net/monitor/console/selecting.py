"""
Select rows of a table: filter, sort and page, a portion at a time.

Of a hundred thousand rows only those of the page are described. The others are only looked at,
with a turn for the clients after each portion.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappushpop
from typing import Any, Generic, NamedTuple, TypeVar

from penstock.net.monitor import query
from penstock.net.monitor.query import Query, QueryError

Item = TypeVar("Item")
Row = dict[str, Any]

ROWS_MAX = 1000
ROWS = 100
PORTION = 256


@dataclass(frozen=True, kw_only=True)
class Table(Generic[Item]):
    """A table of the console."""

    items: Iterable[Item]
    key: Callable[[Item], str]
    account: Callable[[Item], str]
    text: Callable[[Item], str]
    """Returns the text that a search looks at."""
    sorts: Mapping[str, Callable[[Item], Any]]
    """By column; the first is the default."""
    describe: Callable[[Item], Row]


class Page(NamedTuple):
    """The selected rows."""

    rows: dict[str, Row]
    """In order, each by its key."""
    matched: int
    total: int


class Asked(NamedTuple):
    """The options of a selection."""

    search: str
    account: str
    sort: str
    is_descending: bool
    limit: int


def read(asked: Query, sorts: Iterable[str]) -> Asked:
    """Read the options of a selection; refuse a column that cannot be sorted by."""
    known = list(sorts)
    sort = asked.get("sort") or known[0]
    is_descending = sort.startswith("-")
    sort = sort.removeprefix("-")
    if sort not in known:
        raise QueryError(f"invalid sorting option: {sort}")
    limit = query.integer(asked, "limit") or ROWS
    return Asked(
        search=asked.get("search", "").strip().lower(),
        account=asked.get("account", ""),
        sort=sort,
        is_descending=is_descending,
        limit=min(max(limit, 1), ROWS_MAX),
    )


def select(table: Table[Item], asked: Query) -> Generator[None, None, Page]:
    """Return the page of a table that is asked for."""
    options = read(asked, table.sorts)
    rank = table.sorts[options.sort]
    best: list[_Ranked[Item]] = []
    total = matched = 0
    for item in table.items:
        total += 1
        if total % PORTION == 0:
            yield
        if options.account and table.account(item) != options.account:
            continue
        if options.search and options.search not in table.text(item).lower():
            continue
        matched += 1
        one = _Ranked(rank(item), -matched, options.is_descending, item)
        if len(best) < options.limit:
            best.append(one)
            if len(best) == options.limit:
                heapify(best)
        else:
            heappushpop(best, one)
    yield
    best.sort(reverse=True)
    return Page({table.key(each.item): table.describe(each.item) for each in best}, matched, total)


class _Ranked(Generic[Item]):
    """An item by its rank: the greater one is shown first, and of equals the earlier one."""

    __slots__ = ("_is_descending", "_order", "_rank", "item")

    def __init__(self, rank: Any, order: int, is_descending: bool, item: Item) -> None:
        self._rank, self._order, self._is_descending, self.item = rank, order, is_descending, item

    def __lt__(self, other: _Ranked[Item]) -> bool:
        if self._rank == other._rank:
            return self._order < other._order
        return bool(self._rank < other._rank) == self._is_descending
