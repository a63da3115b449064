"""
One stream reading another of the same account: what a mirror and each source is made of.

A follower reads what is safe in its origin, in order, and hands it to its own
stream. It keeps two places: up to where it has read, and up to where its stream
has made that safe. The second is what survives, and what an origin with interest
or work queue retention may let go of.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from penstock import subjects as patterns
from penstock.errors import JetStreamError
from penstock.jetstream import errorcodes
from penstock.jetstream.store import Filters, Message
from penstock.jetstream.times import parse_time
from penstock.times import SECOND_NS
from penstock.transforms import Transform

if TYPE_CHECKING:
    from penstock.jetstream.stream import Stream

log = logging.getLogger("penstock")

READ_COUNT = 1000
READ_BYTES = 1024 * 1024
RETRY_NS = SECOND_NS
HEARTBEAT_NS = SECOND_NS
"""How often nats-server hears from an idle origin, at least."""

Take = Callable[["Follower", list[Message]], None]
"""Stores messages of an origin; raises JetStreamError if it can not, and `read_sequence` stays."""


class Follower:
    """Follows one origin for one stream."""

    def __init__(self, stream: Stream, config: Mapping[str, Any], take: Take) -> None:
        self.config = config
        self.read_sequence = 0
        """The last sequence of the origin that was dealt with; 0 before the first."""
        self.safe_sequence = 0
        """The same of what this stream would not lose."""
        self.identity = ""
        """Which stream of that name it was: one that is created again has another."""
        self._stream = stream
        self._take = take
        self._origin: Stream | None = None
        self._heard_ns = 0
        self._unsafe: deque[tuple[int, int, list[int]]] = deque()
        """Not safe yet: last sequence here, last sequence there, those to settle there."""
        self._is_waiting = False
        self._is_missing = False
        random = stream.engine.random
        self._transforms = [
            Transform(each.get("src", "").encode(), each["dest"].encode(), random)
            for each in config.get("subject_transforms") or ()
            if each.get("dest")
        ]
        self._filters = _filters(config)

    @property
    def name(self) -> str:
        """The name of the origin."""
        name: str = self.config["name"]
        return name

    @property
    def has_unsafe(self) -> bool:
        """Whether something was read that its stream could still lose."""
        return bool(self._unsafe)

    # The origin.

    def seek(self, origin: Stream | None) -> None:
        """Begin to read the origin, or go on where this left off, if it is there."""
        self._is_missing = origin is None
        if origin is None or self._origin is origin or self._stream.is_closed:
            return
        self._origin = origin
        if self.identity and self.identity != origin.identity and not self._stream.config.mirror:
            # A mirror has no other sequences than its origin, so it waits for higher ones.
            self._restart()
        self.identity = origin.identity
        if not self.read_sequence:
            self.read_sequence = self.safe_sequence = self._start(origin) - 1
        origin.followers.append(self)
        origin.consumers_changed()
        self._heard_ns = self._stream.engine.clock_ns()
        self.on_messages()

    def detach(self) -> None:
        """Stop to read."""
        origin, self._origin = self._origin, None
        if origin is not None:
            origin.followers.remove(self)
            if not origin.is_closed:
                origin.consumers_changed()

    def _restart(self) -> None:
        self.read_sequence = self.safe_sequence = 0
        self._unsafe.clear()

    def _start(self, origin: Stream) -> int:
        """Return the first sequence to read of an origin that was never read."""
        if self.config.get("opt_start_seq"):
            return int(self.config["opt_start_seq"])
        if self.config.get("opt_start_time"):
            return origin.store.sequence_at(parse_time(self.config["opt_start_time"]))
        return 1

    # What an origin asks of those who read it.

    def on_messages(self) -> None:
        """Read what is new, or the first piece of it."""
        origin, stream = self._origin, self._stream
        if origin is None or self._is_waiting:
            return
        messages, following = origin.store.read(
            self.read_sequence + 1,
            count_max=READ_COUNT,
            bytes_max=READ_BYTES,
            filters=self._filters,
            last_sequence=origin.visible_sequence,
        )
        try:
            if messages:
                self._take(self, messages)
                self._heard_ns = stream.engine.clock_ns()
        except JetStreamError as error:
            log.warning("Stream '%s' can not store from '%s': %s", stream.name, self.name, error)
            self._wait(RETRY_NS)
            return
        self.read_sequence = max(self.read_sequence, following - 1)
        self._note(messages, origin)
        if following <= origin.visible_sequence:
            self._wait(0)

    def _note(self, messages: list[Message], origin: Stream) -> None:
        if not messages:
            return
        is_settled = origin.config.retention != "limits"
        settled = [message[0] for message in messages] if is_settled else []
        self._unsafe.append((self._stream.store.last_sequence, messages[-1][0], settled))

    def _wait(self, delay_ns: int) -> None:
        engine = self._stream.engine
        self._is_waiting = True
        engine.timers.at(engine.clock_ns() + delay_ns, lambda now_ns: self._go_on())

    def _go_on(self) -> None:
        self._is_waiting = False
        self.on_messages()

    def wants(self, subject: bytes) -> bool:
        """Tell whether its filters let messages of this subject through."""
        return not self._filters or any(patterns.matches(each, subject) for each in self._filters)

    def needs(self, sequence: int, subject: bytes) -> bool:
        """Tell whether it wants this message of the origin and does not have it safe."""
        return sequence > self.safe_sequence and self.wants(subject)

    # What its own stream tells it.

    def on_safe(self, visible_sequence: int) -> None:
        """Note that the stream would not lose what it has up to a sequence."""
        while self._unsafe and self._unsafe[0][0] <= visible_sequence:
            _, self.safe_sequence, settled = self._unsafe.popleft()
            if settled and self._origin is not None:
                self._origin.on_acked(self, settled)

    def target(self, subject: bytes) -> bytes:
        """Return the subject under which a message is stored here."""
        for transform in self._transforms:
            target = transform.apply(subject)
            if target is not None:
                return target
        return subject

    def info(self) -> dict[str, Any]:
        """Return what StreamInfo says of an origin."""
        told: dict[str, Any] = {"name": self.name, "lag": self._lag()}
        if self._stream.config.mirror is None and self.read_sequence:
            told["seq"] = self.read_sequence
        told["active"] = self._active_ns()
        if self._is_missing:
            code, err_code, description = errorcodes.STREAM_NOT_FOUND
            told["error"] = {"code": code, "err_code": err_code, "description": description}
        if self.config.get("filter_subject"):
            told["filter_subject"] = self.config["filter_subject"]
        if self.config.get("subject_transforms"):
            told["subject_transforms"] = [
                {"src": each.get("src", ""), "dest": each.get("dest", "")}
                for each in self.config["subject_transforms"]
            ]
        return told

    def _lag(self) -> int:
        if self._origin is None:
            return 0
        return self._origin.store.count(self.read_sequence + 1, self._filters)

    def _active_ns(self) -> int:
        if not self._heard_ns:
            return -1
        passed_ns = max(self._stream.engine.clock_ns() - self._heard_ns, 0)
        return passed_ns if self._origin is None else passed_ns % HEARTBEAT_NS


def _filters(config: Mapping[str, Any]) -> Filters:
    if config.get("filter_subject"):
        return (config["filter_subject"].encode(),)
    sources = [each.get("src", "") for each in config.get("subject_transforms") or ()]
    if not all(sources):
        return ()
    return tuple(source.encode() for source in sources)
