"""
Priority groups: which of the waiting pull requests is served next. ADR-42.

    overflow        a request may set how much must be waiting before it takes part
    pinned_client   one client gets everything, and the others take over when it fails
    prioritized     requests with a smaller number go first

A client is pinned when it gets its first message, which carries the pin. It names the pin in its
requests, and loses it when it stops asking for a while.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.hot.wire import CRLF, Op
from penstock.jetstream.consumers.pullrequest import RefusedPull
from penstock.protocol.rfc3339 import format_time

if TYPE_CHECKING:
    from penstock.jetstream.config.consumer import ConsumerConfig
    from penstock.jetstream.consumers.pullrequest import PullRequest, Wish
    from penstock.jetstream.store.values import Message


class Standing(NamedTuple):
    """The number of messages a consumer has to deliver."""

    pending: int
    ack_pending: int
    step: int
    """How much one delivery changes that: 1, or 0 for redeliveries."""


class PriorityGroup:
    """Chooses among the requests of a consumer that has a priority policy."""

    def __init__(
        self,
        config: ConsumerConfig,
        *,
        standing: Callable[[], Standing],
        new_id: Callable[[], str],
        announce: Callable[..., None],
    ) -> None:
        self.config = config
        self.pin_id = ""
        """The pin that the pinned client has to name; empty if no client is pinned."""
        self._pinned_ns = 0
        self._deadline_ns = 0
        self._standing = standing
        self._new_id = new_id
        self._announce = announce

    @property
    def _is_pinning(self) -> bool:
        return self.config.priority_policy == "pinned_client"

    def check(self, wish: Wish, now_ns: int) -> None:
        """Refuse a request that names no group, a wrong group, or an outdated pin."""
        if wish.group is None:
            return
        if not wish.group:
            raise RefusedPull("400 Bad Request - Priority Group missing")
        if wish.group not in self.config.priority_groups:
            raise RefusedPull("400 Bad Request - Invalid Priority Group")
        if self.pin_id and wish.pin_id:
            if wish.pin_id != self.pin_id:
                raise RefusedPull("423 Nats-Pin-Id mismatch")
            self._deadline_ns = now_ns + self.config.priority_timeout

    def place(self, waiting: deque[PullRequest], request: PullRequest) -> None:
        """Queue a request at its place."""
        if self.config.priority_policy == "prioritized":
            priority = request.wish.priority
            behind = [index for index, each in enumerate(waiting) if each.wish.priority > priority]
            if behind:
                waiting.insert(behind[0], request)
                return
        waiting.append(request)

    # Choosing.

    def room(self, waiting: deque[PullRequest], room_max: int) -> int:
        """Return how many messages the eligible requests ask for."""
        standing = self._standing()
        wanted = [max(each.batch, 1) for each in waiting if self.is_served(each, standing, 0)]
        return min(sum(wanted), room_max)

    def standing(self) -> Standing:
        """Return the figures that decide about the next deliveries."""
        return self._standing()

    def is_served(self, request: PullRequest, standing: Standing, taken: int) -> bool:
        """Tell whether a request may have the next message, after `taken` others."""
        wish = request.wish
        if self._is_pinning:
            return not self.pin_id or bool(wish.pin_id)
        if self.config.priority_policy == "overflow" and (wish.min_pending or wish.min_ack_pending):
            pending = standing.pending - taken * standing.step + (1 - standing.step)
            ack_pending = standing.ack_pending + taken * standing.step
            return 0 < wish.min_pending <= pending or 0 < wish.min_ack_pending <= ack_pending
        return True

    def is_misled(self, request: PullRequest) -> bool:
        """Tell whether a request names a pin that is not the current one."""
        return self._is_pinning and bool(request.wish.pin_id) and request.wish.pin_id != self.pin_id

    def dress(self, operation: Op) -> Op:
        """Return a message as this policy delivers it: with the pin, if there is one."""
        if not self._is_pinning:
            return operation
        kind, subject, reply, header_bytes, _, data = operation
        header = data[: header_bytes - len(CRLF)] if header_bytes else b"NATS/1.0\r\n"
        header += b"Nats-Pin-Id: %b\r\n\r\n" % self.pin_id.encode()
        data = header + data[header_bytes:]
        return (kind, subject, reply, len(header), len(data) - len(CRLF), data)

    def is_pinned(self, request: PullRequest) -> bool:
        """Tell whether a request comes from the pinned client."""
        return bool(self.pin_id) and request.wish.pin_id == self.pin_id

    def dress_stored(self, messages: list[Message]) -> list[Message]:
        """Return stored messages with the pin in their headers."""
        line = b"Nats-Pin-Id: %b\r\n\r\n" % self.pin_id.encode()
        bare = b"NATS/1.0\r\n" + line
        return [
            (sequence, time_ns, subject, header[:-2] + line if header else bare, payload)
            for sequence, time_ns, subject, header, payload in messages
        ]

    # The pin.

    def pin(self, request: PullRequest, now_ns: int) -> bool:
        """Pin the client of the first message; tell whether it is newly pinned."""
        if not self._is_pinning or self.pin_id or not request.wish.group:
            return False
        self.pin_id, self._pinned_ns = self._new_id(), now_ns
        self._deadline_ns = now_ns + self.config.priority_timeout
        request.wish = request.wish._replace(pin_id=self.pin_id)
        self._announce("PINNED", group=request.wish.group, pinned_id=self.pin_id)
        return True

    def unpin(self) -> None:
        """Let any client be pinned next."""
        self.pin_id, self._pinned_ns, self._deadline_ns = "", 0, 0

    def release(self, group: str, reason: str) -> None:
        """Take the pin away from its client, and say why."""
        self.unpin()
        self._announce("UNPINNED", group=group, reason=reason)

    def expire(self, now_ns: int) -> int:
        """Unpin a client that was silent for too long; return when to check again, 0 is never."""
        if 0 < self._deadline_ns <= now_ns:
            self.release(self.config.priority_groups[0], "timeout")
        return self._deadline_ns

    def info(self) -> list[dict[str, Any]]:
        """Return the state of the group for ConsumerInfo."""
        pin = {"pinned_client_id": self.pin_id} if self.pin_id else {}
        group = {"group": self.config.priority_groups[0]}
        return [group | pin | {"pinned_ts": format_time(self._pinned_ns)}]
