"""
A stream that reads another one of the same account, as most mirrors and sources do.

A follower reads the safe messages of its origin, in order, and hands them to its own stream. It
keeps two positions: the last message it has read, and the last one that its stream has made safe.
The second survives a crash, and up to there an origin with interest or work queue retention may
drop messages.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.errors import JetStreamError
from penstock.jetstream.copies.origin import Origin, Take
from penstock.jetstream.store.certain import CertainReader
from penstock.jetstream.store.values import Message
from penstock.protocol import errorcodes
from penstock.protocol.rfc3339 import parse_time
from penstock.protocol.times import SECOND_NS

if TYPE_CHECKING:
    from penstock.jetstream.copies.streams import Copied, Copying

log = logging.getLogger("penstock")

READ_COUNT = 1000
READ_BYTES = 1024 * 1024
RETRY_NS = SECOND_NS
HEARTBEAT_NS = SECOND_NS
"""How often nats-server hears from an idle origin, at least."""


class StreamFollower:
    """Follows one origin in the same account."""

    def __init__(
        self,
        stream: Copying,
        origin: Origin,
        take: Take,
        *,
        find: Callable[[str], Copied | None],
    ) -> None:
        """Begin; `find` returns a stream of the same account by its name."""
        self.origin = origin
        self._stream = stream
        self._take = take
        self._find = find
        self._followed: Copied | None = None
        self._reader = CertainReader(stream.touch, waits=False)
        self._heard_ns = 0
        self._unsafe: deque[tuple[int, int, list[int]]] = deque()
        """Not safe yet: last sequence here, last sequence there, sequences to settle there."""
        self._is_waiting = False
        self._is_missing = False

    @property
    def has_unsafe(self) -> bool:
        """Whether the stream could still lose a message that was read."""
        return bool(self._unsafe)

    # The origin.

    def open(self) -> None:
        """Begin to read the origin if it exists, or continue where this left off."""
        found = self._find(self.origin.name)
        self._is_missing = found is None
        if found is not None:
            self.on_stream(found)

    def on_stream(self, stream: Copied) -> None:
        """Read a stream if it is the origin."""
        origin = self.origin
        if stream.name != origin.name or self._followed is stream or self._stream.is_closed:
            return
        self._followed, self._is_missing = stream, False
        self._reader = CertainReader(stream.touch, waits=stream.context.waits_for_sync)
        if origin.identity not in ("", stream.identity) and not self._stream.config.mirror:
            # A mirror has the sequences of its origin, so it waits for higher ones.
            origin.begin_again()
            self._unsafe.clear()
        origin.identity = stream.identity
        if not origin.read_sequence:
            origin.read_sequence = origin.safe_sequence = self._start(stream) - 1
        stream.add_copier(self)
        self._heard_ns = self._stream.context.clock_ns()
        self.on_messages()

    def close(self, *, for_good: bool) -> None:
        """Stop reading."""
        self.detach()

    def detach(self) -> None:
        """Stop reading this origin: it may be gone."""
        followed, self._followed = self._followed, None
        if followed is not None:
            followed.remove_copier(self)

    def _start(self, stream: Copied) -> int:
        """Return the first sequence to read of an origin that was never read."""
        config = self.origin.config
        if config.get("opt_start_seq"):
            return int(config["opt_start_seq"])
        if config.get("opt_start_time"):
            return stream.store.sequence_at(parse_time(config["opt_start_time"]))
        return 1

    # Called by the origin.

    def on_messages(self) -> None:
        """Read new messages, or the first piece of them."""
        followed, stream, origin = self._followed, self._stream, self.origin
        if followed is None or self._is_waiting:
            return
        messages, following = self._reader.read(
            followed.store,
            origin.read_sequence + 1,
            count_max=READ_COUNT,
            bytes_max=READ_BYTES,
            filters=origin.filters,
            last_sequence=followed.visible_sequence,
        )
        try:
            if messages:
                self._take(origin, messages)
                self._heard_ns = stream.context.clock_ns()
        except JetStreamError as error:
            log.warning("Stream '%s' cannot store from '%s': %s", stream.name, origin.name, error)
            self._wait(RETRY_NS)
            return
        origin.read_sequence = max(origin.read_sequence, following - 1)
        self._note(messages, followed)
        if following <= followed.visible_sequence and not self._reader.is_waiting:
            self._wait(0)

    def _note(self, messages: list[Message], followed: Copied) -> None:
        if not messages:
            return
        is_settled = followed.config.retention != "limits"
        settled = [message[0] for message in messages] if is_settled else []
        self._unsafe.append((self._stream.store.last_sequence, messages[-1][0], settled))

    def _wait(self, delay_ns: int) -> None:
        context = self._stream.context
        self._is_waiting = True
        context.timers.at(context.clock_ns() + delay_ns, lambda now_ns: self._go_on())

    def _go_on(self) -> None:
        self._is_waiting = False
        self.on_messages()

    def wants(self, subject: bytes) -> bool:
        """Tell whether its filters let messages of this subject through."""
        return self.origin.wants(subject)

    def needs(self, sequence: int, subject: bytes) -> bool:
        """Tell whether it wants this message of the origin and does not have it safe."""
        return sequence > self.origin.safe_sequence and self.wants(subject)

    # Called by its own stream.

    def on_safe(self, visible_sequence: int) -> None:
        """Note that the stream cannot lose its messages up to a sequence any more."""
        while self._unsafe and self._unsafe[0][0] <= visible_sequence:
            _, self.origin.safe_sequence, settled = self._unsafe.popleft()
            if settled and self._followed is not None:
                self._followed.on_acked(self, settled)

    def info(self) -> dict[str, Any]:
        """Return the origin for StreamInfo."""
        return self.origin.info(
            lag=self._lag(),
            active_ns=self._active_ns(),
            is_mirror=self._stream.config.mirror is not None,
            error=JetStreamError(errorcodes.STREAM_NOT_FOUND) if self._is_missing else None,
        )

    def _lag(self) -> int:
        if self._followed is None:
            return 0
        return self._followed.store.count(self.origin.read_sequence + 1, self.origin.filters)

    def _active_ns(self) -> int:
        if not self._heard_ns:
            return -1
        passed_ns = max(self._stream.context.clock_ns() - self._heard_ns, 0)
        return passed_ns if self._followed is None else passed_ns % HEARTBEAT_NS
