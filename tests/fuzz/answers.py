"""Answers worth trying, and what a twin of `answers` makes of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import ModuleType

Example = tuple[list[bytes], bytes, bytes, bytes, int]

NUMBERS = [0, 1, 9, 99, 10**18, 2**63 - 9, 2**63 - 1, 2**64, -1]


def examples(seed: int) -> Iterator[Example]:
    """Yield examples without end."""
    rng = random.Random(seed)
    while True:
        replies = [rng.randbytes(rng.randrange(40)) for _ in range(rng.randrange(9))]
        sid, before, after = (rng.randbytes(rng.randrange(12)) for _ in range(3))
        yield replies, sid, before, after, rng.choice(NUMBERS)


def outcomes(twin: ModuleType, example: Example) -> object:
    """Return what a twin says about an example, or its error."""
    replies, sid, before, after, number = example
    siblings = [
        twin.are_siblings(subjects, parent)
        for subjects in (replies, [sid + b"." + reply for reply in replies])
        for parent in (b"", sid, sid[:-1])
    ]
    try:
        message = (number, number, before, after, sid)
        stored = twin.stored_answer(b"".join(replies), sid, message)
        return siblings, twin.numbered_answers(*example), stored
    except ValueError as error:
        return siblings, str(error)
