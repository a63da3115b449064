"""Documents of the monitoring are written in pieces, and come to the same as in one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.net.monitor.monitor import write
from penstock.net.system.sysrequests import _plain

DOCUMENTS: list[Any] = [
    {},
    {"a": 1, "b": [1, 2], "c": {"d": None}},
    {"empty": [], "list": [{"n": 1}, {"n": 2}]},
    {"accounts": [{"name": "A", "streams": [{"s": 1, "consumers": [{}, {"c": 1}]}, {}]}, {}]},
]


def lazy(value: Any) -> Any:
    """Return a value whose lists are still to be made."""
    if isinstance(value, list):
        return (lazy(each) for each in value)
    if isinstance(value, dict):
        return {name: lazy(each) for name, each in value.items()}
    return value


@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_is_written_in_pieces_is_the_document(document: dict[str, Any]) -> None:
    assert document == json.loads("".join(write(document)))
    assert document == json.loads("".join(write(lazy(document))))
    assert document == _plain(lazy(document))


def test_lists_within_lists_are_made_as_they_are_written() -> None:
    made: list[int] = []

    def consumers() -> Iterator[int]:
        for number in range(3):
            made.append(number)
            yield number

    pieces = write({"streams": iter([{"consumers": consumers()}])})
    while not made:
        next(pieces)

    assert made == [0]
