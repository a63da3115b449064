"""Tables of text with aligned columns."""

from __future__ import annotations

from collections.abc import Sequence


def render(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Return a Markdown table; the first `left` columns are aligned to the left."""
    widths = [
        max(3, *(len(row[column]) for row in (header, *rows))) for column in range(len(header))
    ]
    rule = [
        "-" * width if column < left else "-" * (width - 1) + ":"
        for column, width in enumerate(widths)
    ]
    return "\n".join(_line(row, widths, left) for row in (header, rule, *rows))


def _line(row: Sequence[str], widths: Sequence[int], left: int) -> str:
    cells = [
        cell.ljust(width) if column < left else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return f"| {' | '.join(cells)} |"
