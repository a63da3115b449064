"""
Reading for copies, which must not pass by a message that a power cut brings back.

A removal is in effect before it is durable. Whoever reads then finds a gap, and if the power goes,
the message is there again and the copy has gone on without it. So what was read behind a gap is
held until everything done by then is durable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.jetstream.store.store import Store
from penstock.jetstream.store.values import Filters, Message


class _Held(NamedTuple):
    first_sequence: int
    messages: list[Message]
    following: int
    mark: int
    """Once the store is durable up to this position, the gaps are for good."""
    retreats: int


class CertainReader:
    """Reads messages in order, for one copy."""

    def __init__(self, commit: Callable[[], None], *, waits: bool) -> None:
        """
        Begin; `commit` asks for a commit of the stream, after which somebody has to read again.

        Without `waits`, nothing is promised for a power cut, and nothing is held.
        """
        self._commit = commit
        self._waits = waits
        self._held: _Held | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether something was read that is not certain yet."""
        return self._held is not None

    def read(
        self,
        store: Store,
        first_sequence: int,
        *,
        count_max: int,
        bytes_max: int,
        filters: Filters,
        last_sequence: int,
    ) -> tuple[list[Message], int]:
        """Do as `Store.read`; return no messages and the same sequence while it has to wait."""
        held, self._held = self._held, None
        if held is None or held[0] != first_sequence or held.retreats != store.retreats:
            messages, following = store.read(
                first_sequence,
                count_max=count_max,
                bytes_max=bytes_max,
                filters=filters,
                last_sequence=last_sequence,
            )
            is_gapless = len(messages) == following - first_sequence
            if is_gapless or store.is_settled or not self._waits:
                return messages, following
            held = _Held(first_sequence, messages, following, store.mark(), store.retreats)
        if store.durable_position < held.mark:
            self._held = held
            self._commit()
            return [], first_sequence
        if len(held.messages) > count_max:
            return held.messages[:count_max], held.messages[count_max][0]
        return held.messages, held.following
