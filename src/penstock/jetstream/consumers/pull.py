"""
The pull requests of a consumer: the queue, the next one served, and the end of each.

A request waits until its batch is full, its time is over, or nobody listens on its inbox any more.
Messages are dealt to the waiting requests like cards, the oldest request first.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

from penstock import hot
from penstock.core.account import LARGE_BYTES, hand_over
from penstock.hot.wire import REPLY, SIZE, SUBJECT, Op
from penstock.jetstream.consumers.encoding import Deliveries
from penstock.jetstream.consumers.priority import PriorityGroup
from penstock.jetstream.consumers.pullrequest import (
    PRIORITY_MAX,
    PullRequest,
    RefusedPull,
    Wish,
    encode_status,
    parse_wish,
    pending_status,
)
from penstock.protocol.times import duration

if TYPE_CHECKING:
    from penstock.core.account import Account
    from penstock.jetstream.config.consumer import ConsumerConfig

BATCH_MAX = 256
"""The messages of one batch: the client reads them while the next ones are prepared."""


class WaitingPulls:
    """The requests of one consumer that wait for messages, oldest first."""

    def __init__(
        self,
        account: Account,
        config: ConsumerConfig,
        heartbeat: Callable[[], bytes],
        new_group: Callable[[ConsumerConfig], PriorityGroup],
    ) -> None:
        """`new_group` makes the priority group of a configuration that has a policy."""
        self._new_group = new_group
        self.group: PriorityGroup | None = None
        """Chooses among the requests; None if they are served in turn."""
        self.set_config(config)
        self.deadline_ns = 0
        """When to check the requests; 0 is never."""
        self.last_active_ns = 0
        self._account = account
        self._heartbeat = heartbeat
        self._waiting: deque[PullRequest] = deque()
        self._shares: defaultdict[bytes, list[Op]] = defaultdict(list)
        """Messages dealt to an inbox but not sent yet: in order, whichever request they are for."""
        self._one_shots = 0
        self._seen_removes = -1
        """The number of subscriptions that had ended at the last check of the requests."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_bound(self) -> bool:
        """Never: requests come and go."""
        return False

    @property
    def wants_look(self) -> bool:
        """Never: without requests there is nothing to do."""
        return False

    def bind(self) -> None:
        """Do nothing: each request names its inbox."""

    def unbind(self) -> None:
        """Do nothing."""

    def set_config(self, config: ConsumerConfig) -> None:
        """Serve requests as this configuration says from now on."""
        self.config = config
        if config.priority_policy == "none":
            self.group = None
        elif self.group is None or self.group.config.priority_policy != config.priority_policy:
            self.group = self._new_group(config)
        else:
            self.group.config = config

    def unpin(self, group: str) -> None:
        """Let another client of a priority group be pinned."""
        assert self.group is not None, "the API lets only consumers with a policy be unpinned"
        self.group.release(group, "admin")

    def groups(self) -> list[dict[str, Any]]:
        """Return the priority groups for ConsumerInfo; empty without any."""
        return self.group.info() if self.group is not None else []

    def take_flow_answer(self, subject: bytes) -> bool:
        """Never: pull consumers have no flow control."""
        return False

    def is_abandoned(self, now_ns: int, acks_due_ns: int) -> bool:
        """Tell whether no request waits, and no client can still be working on a message."""
        self.look(now_ns, is_at_end=True)
        if self._waiting or acks_due_ns + self.config.inactive_threshold > now_ns:
            self.last_active_ns = now_ns if self._waiting else acks_due_ns
            return False
        return True

    # Requests.

    def request(self, inbox: bytes, payload: bytes, *, available: int, now_ns: int) -> bool:
        """
        Queue a request, or refuse it with a status; tell whether messages may flow now.

        `available` is the number of messages that could be delivered immediately.
        """
        self._add(inbox, payload, available=available, now_ns=now_ns)
        return True

    def _add(self, inbox: bytes, payload: bytes, *, available: int, now_ns: int) -> None:
        try:
            wish = parse_wish(payload)
            self._check(wish)
            if self.group is not None:
                self.group.check(wish, now_ns)
                self._watch(self.group.expire(now_ns))
            self._check_available(wish, available, now_ns)
            self._check_waiting(wish, now_ns)
        except RefusedPull as refused:
            if refused.args:
                self._status(inbox, refused.args[0])
            return
        request = PullRequest(inbox, wish, now_ns)
        self._seen_removes = -1
        if self.group is None:
            self._waiting.append(request)
        else:
            self.group.place(self._waiting, request)
        self._one_shots += wish.no_wait
        self.last_active_ns = now_ns
        self._watch(request.deadline_ns)

    def _check(self, wish: Wish) -> None:
        config = self.config
        if 0 < config.max_batch < wish.batch:
            raise RefusedPull(f"409 Exceeded MaxRequestBatch of {config.max_batch}")
        if 0 < config.max_expires < wish.expires_ns:
            raise RefusedPull(f"409 Exceeded MaxRequestExpires of {duration(config.max_expires)}")
        if 0 < config.max_bytes < wish.max_bytes:
            raise RefusedPull(f"409 Exceeded MaxRequestMaxBytes of {config.max_bytes}")
        if (wish.min_pending or wish.min_ack_pending) and config.priority_policy != "overflow":
            raise RefusedPull("400 Bad Request - Not a Overflow Priority consumer")
        if wish.pin_id and config.priority_policy != "pinned_client":
            raise RefusedPull("400 Bad Request - Not a Pinned Client Priority consumer")
        if wish.group is not None and not 0 <= wish.priority <= PRIORITY_MAX:
            raise RefusedPull(f"400 Bad Request - Priority must be between 0 and {PRIORITY_MAX}")

    def _check_available(self, wish: Wish, available: int, now_ns: int) -> None:
        """Refuse a request that does not want to wait if it would have to."""
        if not wish.no_wait:
            return
        if not available and not wish.expires_ns:
            self.last_active_ns = now_ns
            raise RefusedPull("404 No Messages")
        if available:
            self._end_those_over(now_ns)
            if available < sum(request.batch for request in self._waiting):
                self.last_active_ns = now_ns
                raise RefusedPull("408 Requests Pending")

    def _check_waiting(self, wish: Wish, now_ns: int) -> None:
        if len(self._waiting) < self.config.max_waiting:
            return
        self._end_those_over(now_ns)
        if len(self._waiting) >= self.config.max_waiting:
            # A client that waits for heartbeats notices by itself, and then asks less often.
            raise RefusedPull(*() if wish.heartbeat_ns else ("409 Exceeded MaxWaiting",))

    # Sending.

    def room(self) -> int:
        """Return how many messages are requested, at most one batch."""
        if self.group is not None:
            return self.group.room(self._waiting, BATCH_MAX)
        room = 0
        for request in self._waiting:
            room += max(request.batch, 1)
            if room >= BATCH_MAX:
                return BATCH_MAX
        return room

    def send_new(self, deliveries: Deliveries, now_ns: int) -> int:
        """Send first deliveries; return how many were requested."""
        plain = self._plain(deliveries) if self._waiting else None
        if plain is not None and self._send_together(plain, now_ns):
            return len(deliveries.messages)
        return self.send(hot.first_deliveries(*deliveries), now_ns)

    def _plain(self, deliveries: Deliveries) -> Deliveries | None:
        """Return messages in the form for all waiting requests; None if a group has to choose."""
        if self.group is None:
            return deliveries
        if not all([self.group.is_pinned(each) for each in self._waiting]):
            return None
        return deliveries._replace(messages=self.group.dress_stored(deliveries.messages))

    def _send_together(self, deliveries: Deliveries, now_ns: int) -> bool:
        """Send all in one go, if they are for one subscriber and every request takes its share."""
        waiting, inbox = self._waiting, self._waiting[0].inbox
        count, turns = len(deliveries.messages), len(waiting)
        receiver = self._account.sole_receiver(inbox)
        # The other way avoids copying a large payload.
        if receiver is None or len(deliveries.messages[0][4]) >= LARGE_BYTES:
            return False
        shares = [len(range(index, count, turns)) for index in range(turns)]
        if any(
            [
                each.inbox != inbox or each.batch < share or 0 < each.expires_at_ns <= now_ns
                for each, share in zip(waiting, shares, strict=True)
            ]
        ):
            return False
        encoded, payload_bytes, sizes = hot.encode_deliveries(*deliveries, receiver.sid, turns)
        dealt = list(zip(waiting, shares, sizes, strict=True))
        if any([0 < request.bytes_left <= size for request, _, size in dealt]):
            return False
        hand_over(receiver, encoded, count, payload_bytes)
        for request, share, size in dealt[:count]:
            self._count(request, share, now_ns)
            request.bytes_left -= size if request.bytes_left else 0
        waiting.rotate(-count)
        self._send_shares()
        self.last_active_ns = now_ns
        return True

    def send(self, operations: list[Op], now_ns: int) -> int:
        """Send messages to the waiting requests; return how many were requested."""
        if self.group is not None:
            taken = self._deal_by_priority(self.group, operations, now_ns)
        elif len(self._waiting) == 1 and not self._waiting[0].bytes_left:
            request = self._waiting[0]
            if not self._is_live(request, now_ns):
                self._drop(request)
                return 0
            share = self._shares[request.inbox] = operations[: max(request.batch, 1)]
            taken = len(share)
            self._count(request, taken, now_ns)
        else:
            taken = self._deal(operations, now_ns)
        self._send_shares()
        self.last_active_ns = now_ns
        return taken

    def _deal(self, operations: list[Op], now_ns: int) -> int:
        """Deal messages to the requests in turn; return how many were placed."""
        self._drop_dead(now_ns)
        waiting = self._waiting
        if self._deal_evenly(operations, now_ns):
            return len(operations)
        full: list[PullRequest] = []
        taken = 0
        for operation in operations:
            while waiting and waiting[0].bytes_left and not self._fits(waiting[0], operation):
                self._exceed(waiting[0])
            if not waiting:
                break
            request = waiting.popleft()
            self._shares[request.inbox].append(operation)
            self._count(request, 1, now_ns)
            taken += 1
            (waiting if request.batch > 0 else full).append(request)
        waiting.extend(full)
        return taken

    def _deal_by_priority(self, group: PriorityGroup, operations: list[Op], now_ns: int) -> int:
        """Deal messages to the requests that the group chooses; return how many were placed."""
        self._drop_dead(now_ns)
        full: list[PullRequest] = []
        taken = 0
        for operation in operations:
            request = self._choose(group, operation, taken, now_ns)
            if request is None:
                break
            self._shares[request.inbox].append(group.dress(operation))
            self._count(request, 1, now_ns)
            taken += 1
            if request.batch > 0:
                group.place(self._waiting, request)
            else:
                full.append(request)
        self._waiting.extend(full)
        return taken

    def _choose(
        self, group: PriorityGroup, operation: Op, taken: int, now_ns: int
    ) -> PullRequest | None:
        """Remove and return the waiting request that gets the next message."""
        waiting, standing = self._waiting, group.standing()
        for _ in range(len(waiting)):
            request = waiting[0]
            if group.is_misled(request):
                self._send(request.inbox, pending_status("423 Nats-Wrong-Pin-Id", request))
                self._drop(request)
            elif not group.is_served(request, standing, taken):
                waiting.rotate(-1)
            else:
                is_pinned = group.pin(request, now_ns)
                self._watch(group.expire(now_ns))
                if not request.bytes_left or self._fits(request, operation):
                    return waiting.popleft()
                self._exceed(request)
                if is_pinned:
                    group.unpin()
        return None

    def _drop_dead(self, now_ns: int) -> None:
        for request in [each for each in self._waiting if not self._is_live(each, now_ns)]:
            self._drop(request)

    def _deal_evenly(self, operations: list[Op], now_ns: int) -> bool:
        """Deal all messages at once, if every request has room for more than its share."""
        if not self._waiting:
            return False
        waiting, inboxes = self._waiting, {request.inbox for request in self._waiting}
        count, sizes = len(waiting), [_size_bytes(operation) for operation in operations]
        turns, total_bytes = len(operations) // count + 1, sum(sizes)
        # This keeps the order only for requests that share no inbox.
        if len(inboxes) != count or any(
            [each.batch <= turns or 0 < each.bytes_left <= total_bytes for each in waiting]
        ):
            return False
        for index, request in enumerate(islice(waiting, len(operations))):
            share = operations[index::count]
            self._shares[request.inbox] = share
            self._count(request, len(share), now_ns)
            if request.bytes_left:
                request.bytes_left -= sum(sizes[index::count])
        waiting.rotate(-len(operations))
        return True

    def _fits(self, request: PullRequest, operation: Op) -> bool:
        """Count the bytes of a message, if there is room for them."""
        left = request.bytes_left - _size_bytes(operation)
        if left < 0:
            return False
        request.bytes_left = left
        if not left:
            # This message is the last one.
            request.batch = 1
        return True

    def _exceed(self, request: PullRequest) -> None:
        """End a request because the next message is too large for it."""
        self._send_shares()
        self._send(request.inbox, pending_status("409 Message Size Exceeds MaxBytes", request))
        self._drop(request)

    def _count(self, request: PullRequest, dealt: int, now_ns: int) -> None:
        request.batch -= dealt
        request.delivered += dealt
        if request.heartbeat_at_ns:
            request.heartbeat_at_ns = now_ns + request.wish.heartbeat_ns

    def _send_shares(self) -> None:
        """Send the dealt messages, and remove the requests that are complete."""
        shares, self._shares = self._shares, defaultdict(list)
        for inbox, share in shares.items():
            self._account.deliver_as(inbox, share)
        for request in [each for each in self._waiting if each.delivered and each.batch <= 0]:
            self._drop(request)
            if request.bytes_left:
                self._send(request.inbox, pending_status("409 Batch Completed", request))

    def _is_live(self, request: PullRequest, now_ns: int) -> bool:
        """Tell whether a request is still to be served; end it if its time is over."""
        if request.expires_at_ns and request.expires_at_ns <= now_ns:
            self._send(request.inbox, pending_status("408 Request Timeout", request))
            return False
        return self._account.has_interest(request.inbox)

    def _drop(self, request: PullRequest) -> None:
        self._waiting.remove(request)
        self._one_shots -= request.wish.no_wait

    # Idle.

    def idle(self, now_ns: int, *, is_at_end: bool) -> None:
        """Send heartbeats and statuses to waiting requests while there are no messages for them."""
        if self.group is not None and not self.room():
            # For the remaining requests there is nothing to send for now.
            is_at_end = True
        is_due = 0 < self.deadline_ns <= now_ns
        if is_due or (is_at_end and self._one_shots):
            self.look(now_ns, is_at_end=is_at_end)

    def _end_those_over(self, now_ns: int) -> None:
        """
        End the requests that are over, if there can be any.

        A client may ask again and again while nothing changes: then the others are not checked.
        """
        removes = self._account.routes.removes
        if removes != self._seen_removes or 0 < self.deadline_ns <= now_ns:
            self.look(now_ns, is_at_end=False)
            self._seen_removes = removes

    def look(self, now_ns: int, *, is_at_end: bool) -> None:
        """Check the requests: end those that are over, send heartbeats to the others."""
        self.deadline_ns = 0
        if self.group is not None:
            self._watch(self.group.expire(now_ns))
        for request in tuple(self._waiting):
            if not self._is_live(request, now_ns):
                self._drop(request)
            elif is_at_end and self._is_served(request):
                self._drop(request)
                self._status(request.inbox, "404 No Messages")
            else:
                if 0 < request.heartbeat_at_ns <= now_ns:
                    self._send(request.inbox, self._heartbeat())
                    request.heartbeat_at_ns = now_ns + request.wish.heartbeat_ns
                self._watch(request.deadline_ns)

    def _is_served(self, request: PullRequest) -> bool:
        """Tell whether a request that does not want to wait got all available messages."""
        return request.wish.no_wait and (not request.expires_at_ns or request.delivered > 0)

    def _watch(self, deadline_ns: int) -> None:
        if deadline_ns and (not self.deadline_ns or deadline_ns < self.deadline_ns):
            self.deadline_ns = deadline_ns

    def end(self, status: str, *, with_pending: bool = False) -> None:
        """End every waiting request with a status."""
        for request in self._waiting:
            header = pending_status(status, request) if with_pending else encode_status(status)
            self._send(request.inbox, header)
        self._waiting.clear()
        self._one_shots = 0

    def _status(self, inbox: bytes, status: str) -> None:
        self._send(inbox, encode_status(status))

    def _send(self, inbox: bytes, header: bytes) -> None:
        self._account.send(inbox, b"", header=header)


def _size_bytes(operation: Op) -> int:
    """Return the size of a message as `max_bytes` counts it."""
    size: int = operation[SIZE]
    return len(operation[SUBJECT]) + len(operation[REPLY]) + size
