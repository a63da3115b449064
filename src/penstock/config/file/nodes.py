"""The values of a configuration, and where each was written."""

from __future__ import annotations

Block = dict[str, "Node"]
Value = str | bool | int | float | list["Node"] | Block


class Node:
    """One value, the place of its key, and its original text."""

    __slots__ = ("at", "text", "used", "value")

    def __init__(self, value: Value, at: str, text: str = "") -> None:
        self.value = value
        self.at = at
        self.text = text
        self.used = False
        """Whether a `$NAME` referred to it, which excuses an unknown key."""
