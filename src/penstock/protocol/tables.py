"""Tables of text: aligned columns for people, as plain text or as Markdown."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from itertools import zip_longest

GAP = "  "
RULE_MIN = 3
"""A rule of Markdown has three characters at least."""
RIGHT = frozenset("0123456789-+.")
"""A column holds numbers if every cell begins with one of these."""


def render(header: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """Return plain text; numbers are aligned to the right, except in the first `left` columns."""
    columns = _columns(header, rows)
    rights = [index >= left and _is_numeric(cells) for index, cells in enumerate(columns)]
    aligned = [_align(cells, right) for cells, right in zip(columns, rights, strict=True)]
    return "\n".join(GAP.join(line).rstrip() for line in zip(*aligned, strict=True))


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """Return Markdown; only the first `left` columns are aligned to the left."""
    columns = _columns(header, rows)
    aligned = []
    for index, cells in enumerate(columns):
        width, right = max(RULE_MIN, *map(_width, cells)), index >= left
        rule = "-" * (width - 1) + (":" if right else "-")
        aligned.append(_align((cells[0], rule, *cells[1:]), right))
    return "\n".join(f"| {' | '.join(line)} |" for line in zip(*aligned, strict=True))


def details(rows: Iterable[tuple[str, str]], *, indent: int = 2) -> str:
    """Return names and values, one pair per line."""
    pairs = [(name, printable(value)) for name, value in rows]
    names = _align([name for name, _ in pairs], False) if pairs else []
    lines = (f"{name}{GAP}{value}" for name, (_, value) in zip(names, pairs, strict=True))
    return "\n".join(f"{' ' * indent}{line}".rstrip() for line in lines)


def printable(text: str) -> str:
    """Return text that cannot move the cursor or ring the bell: control characters are escaped."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def _columns(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[Sequence[str]]:
    """Return the cells by column, the header first; a row may be short."""
    body = [tuple(map(printable, row)) for row in rows]
    return list(zip_longest(header, *body, fillvalue=""))


def _is_numeric(cells: Sequence[str]) -> bool:
    return all(cell[:1] in RIGHT for cell in cells[1:] if cell)


def _align(cells: Sequence[str], right: bool) -> list[str]:
    width = max(map(_width, cells))
    pads = [" " * (width - _width(cell)) for cell in cells]
    return [pad + cell if right else cell + pad for pad, cell in zip(pads, cells, strict=True)]


def _width(text: str) -> int:
    """Return the width of a text in columns: wide characters take two, accents none."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(bool(unicodedata.combining(character)) for character in text)
