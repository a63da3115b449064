"""What atomic and fast batches have in common: they are open until a commit, or until too late."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Generic, TypeVar

from penstock.errors import JetStreamError
from penstock.jetstream import errorcodes
from penstock.jetstream.timers import Timer
from penstock.times import SECOND_NS

if TYPE_CHECKING:
    from penstock.jetstream.engine import Engine
    from penstock.jetstream.model import StreamConfig

ID_BYTES_MAX = 64
IDLE_NS = 10 * SECOND_NS
"""A batch nothing is added to for so long is given up."""

Batch = TypeVar("Batch")


class OpenBatches(Generic[Batch]):
    """The batches of one stream that are not committed yet, by their ids."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._batches: dict[bytes, Batch] = {}
        self._timers: dict[bytes, Timer] = {}

    def __len__(self) -> int:
        return len(self._batches)

    def values(self) -> Iterable[Batch]:
        """Return all of them."""
        return self._batches.values()

    def get(self, batch_id: bytes) -> Batch | None:
        """Return a batch that is open."""
        return self._batches.get(batch_id)

    def add(self, batch_id: bytes, batch: Batch) -> Batch:
        """Open a batch."""
        self._batches[batch_id] = batch
        return batch

    def keep(self, batch_id: bytes, give_up: Callable[[], None]) -> None:
        """Wait for more of a batch, and call `give_up` if nothing comes in time."""
        if batch_id in self._timers:
            self._timers[batch_id].cancel()
        deadline_ns = self._engine.clock_ns() + IDLE_NS
        self._timers[batch_id] = self._engine.timers.at(deadline_ns, lambda now_ns: give_up())

    def drop(self, batch_id: bytes) -> None:
        """Let go of a batch."""
        del self._batches[batch_id]
        timer = self._timers.pop(batch_id, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        """Let go of all batches."""
        for batch_id in tuple(self._batches):
            self.drop(batch_id)


def check_message(config: StreamConfig, header: bytes, payload: bytes) -> None:
    """See that a stream would take a message, whatever its batch is like."""
    if config.sealed:
        raise JetStreamError(errorcodes.STREAM_SEALED)
    if 0 <= config.max_msg_size < len(header) + len(payload):
        raise JetStreamError(errorcodes.STREAM_MESSAGE_EXCEEDS_MAXIMUM)
