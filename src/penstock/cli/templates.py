"""
Templates in subjects, headers and payloads: `{{Count}}`, `{{ID}}`, `{{Random 10 20}}`, times.

The names are those of the `nats` command, in any case. Other text in braces stays as it is.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable
from datetime import UTC, datetime

from penstock.client.inbox import unique_token
from penstock.protocol.times import SECOND_NS

TEMPLATE = re.compile(rb"\{\{\s*([A-Za-z]+)((?:\s+\d+)*)\s*\}\}")
RANDOM_MAX = 1024 * 1024
LETTERS = string.ascii_letters + string.digits
NAMES = "`{{Count}}`, `{{ID}}`, `{{Random MIN MAX}}`, `{{Time}}`, `{{TimeStamp}}`, `{{UnixNano}}`"


class Filler:
    """Fills templates, for one message after the other."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.number = 0
        self._enabled = enabled

    def next(self) -> None:
        """Go on to the next message."""
        self.number += 1

    def fill(self, data: bytes, **values: bytes) -> bytes:
        """Return bytes with their templates filled; `values` are further templates."""
        if not self._enabled or b"{{" not in data:
            return data
        known = {name.lower(): value for name, value in values.items()}

        def filled(match: re.Match[bytes]) -> bytes:
            name = match[1].decode().lower()
            if name in known:
                return known[name]
            function = FUNCTIONS.get(name)
            numbers = [int(number) for number in match[2].split()]
            return match[0] if function is None else function(self.number, *numbers[:2]).encode()

        return TEMPLATE.sub(filled, data)

    def text(self, text: str) -> str:
        """Return a text with its templates filled."""
        return self.fill(text.encode()).decode()


def _random(number: int, least: int = 16, most: int = 0) -> str:
    size = random.randint(min(least, RANDOM_MAX), min(max(least, most), RANDOM_MAX))
    return "".join(random.choices(LETTERS, k=size))


def _now() -> datetime:
    return datetime.now(UTC)


FUNCTIONS: dict[str, Callable[..., str]] = {
    "count": lambda number, *_: str(number),
    "id": lambda *_: unique_token(),
    "random": _random,
    "time": lambda *_: _now().strftime("%H:%M:%S"),
    "timestamp": lambda *_: _now().isoformat().replace("+00:00", "Z"),
    "unix": lambda *_: str(int(_now().timestamp())),
    "unixnano": lambda *_: str(round(_now().timestamp() * SECOND_NS)),
}
