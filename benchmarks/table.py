"""Tables in Markdown that are also readable as text."""

from collections.abc import Sequence


def markdown(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table with aligned columns; a line may be short."""
    whole = [[*line, *[""] * (len(titles) - len(line))] for line in lines]
    widths = [max(map(len, column)) for column in zip(titles, *whole, strict=True)]
    rule = ["-" * width for width in widths]
    return "\n".join(
        "| " + " | ".join(map(str.ljust, cells, widths)) + " |" for cells in (titles, rule, *whole)
    )
