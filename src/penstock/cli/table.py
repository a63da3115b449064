"""Tables for people: aligned columns, numbers on the right, no lines."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

GAP = "  "
RIGHT = frozenset("0123456789-+.")
"""A column holds numbers if every cell begins with one of these."""


def render(header: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """Return a table; numbers are aligned to the right, except in the first `left` columns."""
    body = [tuple(map(printable, row)) for row in rows]
    columns = list(zip(header, *body, strict=True))
    lines = zip(*(_column(cells, index < left) for index, cells in enumerate(columns)), strict=True)
    return "\n".join(GAP.join(line).rstrip() for line in lines)


def details(rows: Iterable[tuple[str, str]], *, indent: int = 2) -> str:
    """Return names and values, one pair per line."""
    pairs = [(name, printable(value)) for name, value in rows]
    width = max((_width(name) for name, _ in pairs), default=0)
    margin = " " * indent
    return "\n".join(f"{margin}{_pad(name, width)}{GAP}{value}".rstrip() for name, value in pairs)


def printable(text: str) -> str:
    """Return text that cannot move the cursor or ring the bell: control characters are escaped."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def _column(cells: Sequence[str], is_left: bool) -> list[str]:
    width = max(map(_width, cells))
    is_numeric = all(cell[:1] in RIGHT for cell in cells[1:] if cell)
    if is_left or not is_numeric:
        return [_pad(cell, width) for cell in cells]
    return [" " * (width - _width(cell)) + cell for cell in cells]


def _pad(text: str, width: int) -> str:
    return text + " " * (width - _width(text))


def _width(text: str) -> int:
    """Return the width of a text in columns: wide characters take two, accents none."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(bool(unicodedata.combining(character)) for character in text)
