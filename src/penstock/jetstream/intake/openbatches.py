"""The common part of atomic and fast batches: they are open until a commit or a timeout."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Generic, TypeVar

from penstock.errors import JetStreamError
from penstock.jetstream.timers import Timer
from penstock.protocol import errorcodes
from penstock.protocol.times import SECOND_NS

if TYPE_CHECKING:
    from penstock.jetstream.config.stream import StreamConfig
    from penstock.jetstream.context import Context

ID_BYTES_MAX = 64
IDLE_NS = 10 * SECOND_NS
"""A batch without a new message for this long is abandoned."""

Batch = TypeVar("Batch")


class OpenBatches(Generic[Batch]):
    """The batches of one stream that are not committed yet, by their ids."""

    def __init__(self, context: Context, give_up: Callable[[bytes], None]) -> None:
        """Begin empty; `give_up` is called with the id of an idle batch."""
        self._context = context
        self._give_up = give_up
        self._batches: dict[bytes, Batch] = {}
        self._heard_ns: dict[bytes, int] = {}
        """When each batch last got a message."""
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
        self.keep(batch_id)
        self._watch(batch_id)
        return batch

    def keep(self, batch_id: bytes) -> None:
        """Restart the wait for more of a batch."""
        # The timer stays as it is: one for each message would be a hundred thousand a second.
        self._heard_ns[batch_id] = self._context.clock_ns()

    def _watch(self, batch_id: bytes) -> None:
        deadline_ns = self._heard_ns[batch_id] + IDLE_NS
        self._timers[batch_id] = self._context.timers.at(
            deadline_ns, lambda now_ns: self._look(batch_id, now_ns)
        )

    def _look(self, batch_id: bytes, now_ns: int) -> None:
        if now_ns < self._heard_ns[batch_id] + IDLE_NS:
            self._watch(batch_id)
        else:
            self._give_up(batch_id)

    def drop(self, batch_id: bytes) -> None:
        """Forget a batch."""
        del self._batches[batch_id], self._heard_ns[batch_id]
        self._timers.pop(batch_id).cancel()

    def close(self) -> None:
        """Forget all batches."""
        for batch_id in tuple(self._batches):
            self.drop(batch_id)


def check_message(config: StreamConfig, header: bytes, payload: bytes) -> None:
    """Check that a stream would take a message, regardless of its batch."""
    if config.sealed:
        raise JetStreamError(errorcodes.STREAM_SEALED)
    if 0 <= config.max_msg_size < len(header) + len(payload):
        raise JetStreamError(errorcodes.STREAM_MESSAGE_EXCEEDS_MAXIMUM)
