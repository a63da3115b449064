"""Up to where streams were read, as it stands in the checkpoint of a query."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import StoreError

SHOWN_MAX = 200


@dataclass(frozen=True)
class Mark:
    """Up to where one stream was read, known by when it was created."""

    created: str
    sequence: int
    partitions: tuple[int, ...] = ()
    """
    Where the ranges begin that are read up to here, for whoever does it again: with more cores,
    or other options. Nothing that is to be read is before the first of them.
    """
    subjects: tuple[str, ...] = ()
    """The subjects that were read up to here; all of them if it names none."""
    is_gone: bool = False
    """Whether the stream was deleted. Who comes after it under its name is another."""


def write_offset(marks: Mapping[str, Mark]) -> dict[str, Any]:
    """Return it as JSON. Spark compares the text, so the order of keys is part of it."""
    return {"streams": {name: _write(marks[name]) for name in sorted(marks)}}


def _write(mark: Mark) -> dict[str, Any]:
    where: dict[str, Any] = {"created": mark.created, "sequence": mark.sequence}
    if mark.partitions:
        where["partitions"] = list(mark.partitions)
    if mark.subjects:
        where["subjects"] = sorted(mark.subjects)
    return where | ({"gone": True} if mark.is_gone else {})


def read_offset(written: Mapping[str, Any]) -> dict[str, Mark]:
    """Return the mark of each stream; raise if that is not what was written."""
    try:
        return _read(written)
    except (AttributeError, KeyError, TypeError, ValueError):
        shown = json.dumps(written)[:SHOWN_MAX]
        raise StoreError(
            f"the checkpoint is damaged, or of another source: `{shown}` does not say up to where "
            "which streams were read; hint: restore it, or start with a new checkpoint and a new "
            "target"
        ) from None


def _read(written: Mapping[str, Any]) -> dict[str, Mark]:
    return {
        str(name): Mark(
            str(mark["created"]),
            int(mark["sequence"]),
            tuple(map(int, mark.get("partitions", ()))),
            tuple(mark.get("subjects", ())),
            bool(mark.get("gone")),
        )
        for name, mark in written["streams"].items()
    }
