"""
One account: a space of subjects of its own, and the way of a message through it.

Everything here runs for every message, so it works on batches: consecutive
messages with the same receivers are encoded together, once, and what a
subscriber is sent differs from its neighbour's only in the sid.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from penstock import hot
from penstock.config import accounts
from penstock.core.routing.route import (
    FAMILIES,
    Deliver,
    Handler,
    Route,
    RouteTable,
    Subscription,
    family_of,
)
from penstock.errors import cause
from penstock.hot.wire import CRLF, PUB, Buffer, Op, delivery_line

if TYPE_CHECKING:
    from penstock.core.session import Session
    from penstock.core.sharing.mappings import Mappings
    from penstock.core.sharing.services import Replies

log = logging.getLogger("penstock")

Figures: TypeAlias = tuple[int, int, int, int]
"""Messages and bytes in, messages and bytes out."""

Way: TypeAlias = Callable[[Route, list[Op], "Session | None"], None]

MATCHES = 4
"""Routes that are worked out before the clock is looked at: wildcards can make one take long."""
LARGE_BYTES = 2048
"""From this size on, each payload of a batch is a buffer of its own, and copied for nobody."""


class Account:
    """Subscriptions, and delivery to them."""

    def __init__(self, name: str, *, route_cache_size: int, random: Callable[[], float]) -> None:
        self.name = name
        self.config = accounts.Account(name=name)
        self.mappings: Mappings | None = None
        self.replies: Replies
        """Made for requests that come from other accounts."""
        self.connections = 0
        self.asked: Op | None = None
        """A request of another account: none of those that import streams from here may hear it."""
        self.slow_consumers = 0
        self.closed_figures: Figures = (0, 0, 0, 0)
        """Those of connections that are gone."""
        self.routes = RouteTable(route_cache_size)
        self.random = random

    @property
    def is_full(self) -> bool:
        """Whether it may have no more connections."""
        return 0 <= self.config.limits.connections_max <= self.connections

    def listen(
        self,
        subject: bytes,
        handler: Handler,
        *,
        is_internal: bool = True,
        deliver: Deliver | None = None,
    ) -> Subscription:
        """
        Call `handler` with each batch published to `subject`: how the server itself listens.

        It hears clients, and the server where it speaks for itself. Deliveries and
        answers go wherever a client has said, with what a client has stored, so they
        reach only those that hand messages on: `deliver` is called for a delivery.
        """
        subscription = Subscription(subject, None, handler=handler)
        subscription.is_internal = is_internal
        subscription.deliver = deliver
        self.routes.insert(subscription)
        return subscription

    def send(
        self, subject: bytes, payload: bytes, *, reply: bytes = b"", header: bytes = b""
    ) -> None:
        """Send one answer, or word of something, from inside the server."""
        self.respond([new_message(subject, payload, reply=reply, header=header)], None)

    def unlisten(self, subscription: Subscription) -> None:
        """Stop to listen."""
        self.routes.remove(subscription)

    def deliver_as(self, subject: bytes, publishes: list[Op]) -> None:
        """
        Deliver messages to whoever listens on `subject`, under the subjects they carry.

        This is how JetStream delivers: a stored message keeps its own subject and
        goes to an inbox.
        """
        route = self.routes.cache.get(subject) or self.routes.find(subject)
        if not route.handlers:
            self._deliver(route, publishes, None)
            return
        self._deliver_outside(route, publishes, None)
        for subscription in route.handlers:
            if subscription.deliver is not None:
                subscription.deliver(subject, publishes)

    def sole_receiver(self, subject: bytes) -> Subscription | None:
        """Return the one subscription that gets messages on `subject`, if it is just one."""
        route = self.routes.cache.get(subject) or self.routes.find(subject)
        return route.sole

    def answer_all(
        self, replies: list[bytes], around: tuple[bytes, bytes], first_number: int
    ) -> None:
        """
        Answer each reply subject with a number, the next one each time, and what is around it.

        A client with many publishes in flight waits for that many answers. To one
        subscription they are encoded in one go.
        """
        route = self.routes.shared_route(replies)
        before, after = around
        subscription = route.sole if route is not None else None
        if subscription is None:
            numbered = enumerate(replies, first_number)
            answers = [new_message(reply, b"%b%d%b" % (before, n, after)) for n, reply in numbered]
            self.respond(answers, None)
            return
        encoded, payload_bytes = hot.numbered_answers(
            replies, subscription.sid, before, after, first_number
        )
        hand_over(subscription, encoded, len(replies), payload_bytes)

    def answer(self, answers: list[Op]) -> None:
        """Publish answers, all of which mostly go to one client, from inside the server."""
        route = self.routes.shared_route([answer[1] for answer in answers])
        if route is not None and route.sole is not None:
            self._deliver(route, answers, None)
        else:
            self.respond(answers, None)

    def respond(self, answers: Sequence[Op], responder: Session | None) -> None:
        """Send answers to the subjects that those who asked have named: these obey nobody."""
        self._publish(answers, responder, self._deliver_answers)

    def has_interest(self, subject: bytes) -> bool:
        """Tell whether anybody would get a message on `subject`."""
        route = self.routes.cache.get(subject) or self.routes.find(subject)
        return not route.is_empty

    def is_congested(self, subject: bytes) -> bool:
        """Tell whether somebody who listens on `subject` has too much waiting already."""
        route = self.routes.cache.get(subject) or self.routes.find(subject)
        return any(
            each.session is not None and each.session.outbox_bytes > each.session.congested_bytes
            for each in route.receivers()
        )

    def publish_in_turn(self, publishes: Sequence[Op], publisher: Session) -> None:
        """Publish what there is time for in the publisher's turn, and the rest in its next."""
        rest = self.publish(publishes, publisher, in_turn=True)
        if rest:
            publisher.do_later(partial(self.publish_in_turn, rest, publisher))

    def publish(
        self, publishes: Sequence[Op], publisher: Session | None, *, in_turn: bool = False
    ) -> Sequence[Op]:
        """
        Route publishes in order, those with the same receivers together.

        With `in_turn`, return those for which the publisher has no time left in its turn.
        """
        if publishes and publishes[len(publishes) // 2][1].startswith(FAMILIES):
            # A client sends acks together, and often its next pull request with them.
            family = family_of(publishes[len(publishes) // 2][1])
            first = 0 if publishes[0][1].startswith(family) else 1
            stop = len(publishes) - (0 if publishes[-1][1].startswith(family) else 1)
            members = list(publishes[first:stop])
            route = self.routes.family_route(members, family)
            if route is not None:
                self._publish(publishes[:first], publisher)
                self._deliver(route, members, publisher)
                return self._publish(publishes[stop:], publisher)
        return self._publish(publishes, publisher, self._deliver, in_turn)

    def _publish(
        self,
        publishes: Sequence[Op],
        publisher: Session | None,
        deliver: Way | None = None,
        in_turn: bool = False,
    ) -> Sequence[Op]:
        deliver = deliver or self._deliver
        cache, find = self.routes.cache, self.routes.find
        delivered = hot.fan_out_each(publishes, cache, self.random)
        if delivered:
            if delivered == len(publishes):
                return ()
            publishes = publishes[delivered:]
        if len(publishes) == 1:
            subject = publishes[0][1]
            deliver(cache.get(subject) or find(subject), list(publishes), publisher)
            return ()
        batch: list[Op] = []
        batch_route: Route | None = None
        rest: Sequence[Op] = ()
        matches_max = self.routes.matches + MATCHES if in_turn else sys.maxsize
        for index, publish in enumerate(publishes):
            subject = publish[1]
            route = cache.get(subject)
            if route is None:
                if self.routes.matches >= matches_max:
                    if publisher is not None and publisher.is_turn_over:
                        rest = publishes[index:]
                        break
                    matches_max = self.routes.matches + MATCHES
                route = find(subject)
            if route is not batch_route or publish[4] >= LARGE_BYTES:
                if batch_route is not None:
                    deliver(batch_route, batch, publisher)
                batch_route = route
                batch = []
            batch.append(publish)
        if batch_route is not None:
            deliver(batch_route, batch, publisher)
        return rest

    def _deliver(self, route: Route, batch: list[Op], publisher: Session | None) -> None:
        if route.sole_handler is not None:
            try:
                route.sole_handler(batch, publisher)
            except Exception as error:
                self._on_failure(error, batch, publisher)
            return
        if route.is_empty:
            self.answer_no_responders(batch, publisher)
            return
        self._deliver_outside(route, batch, publisher)
        for subscription in route.handlers:
            self._handle(subscription, batch, publisher)

    def _deliver_answers(self, route: Route, batch: list[Op], publisher: Session | None) -> None:
        if not route.handlers:
            self._deliver(route, batch, publisher)
            return
        self._deliver_outside(route, batch, publisher)
        for subscription in route.handlers:
            if subscription.deliver is not None:
                self._handle(subscription, batch, publisher)

    def _deliver_outside(self, route: Route, batch: list[Op], publisher: Session | None) -> None:
        """Deliver to everybody but the server's own handlers."""
        if len(batch) == 1 or route.queues:
            for publish in batch:
                if len(publish[5]) == publish[4] + 2:
                    hot.fan_out(route.shared, route.single, route.queues, publish, self.random)
                else:
                    self._deliver_many(route, [publish], publisher)
        else:
            self._deliver_many(route, batch, publisher)
        if route.careful or route.careful_queues:
            self._deliver_carefully(route, batch, publisher)

    def _deliver_many(self, route: Route, batch: list[Op], publisher: Session | None) -> None:
        if route.shared or route.single:
            self._deliver_encoded(route, batch)
        for members in route.queues:
            for publish in batch:
                self._deliver_queue(members, publish, publisher)

    def _deliver_carefully(self, route: Route, batch: list[Op], publisher: Session | None) -> None:
        is_heard = bool(route.shared or route.single or route.queues or route.handlers)
        for publish in batch:
            taken = [self.offer(each, publish, publisher) for each in route.careful]
            queues = route.careful_queues
            taken += [self._deliver_queue(each, publish, publisher) for each in queues]
            missed = message_count(publish) - max(taken)
            if missed and not is_heard:
                self.answer_no_responders([last_messages(publish, missed)], publisher)

    def _handle(
        self, subscription: Subscription, batch: list[Op], publisher: Session | None
    ) -> None:
        assert subscription.handler is not None
        try:
            subscription.handler(batch, publisher)
        except Exception as error:
            self._on_failure(error, batch, publisher)

    def _on_failure(self, error: Exception, batch: list[Op], publisher: Session | None) -> None:
        """Let a publisher answer for what it sent; what the server sends by itself goes on."""
        if publisher is not None:
            raise error
        subject = batch[0][1].decode(errors="replace")
        log.error("! account '%s': a message to `%s` failed: %s", self.name, subject, cause(error))

    def _deliver_encoded(self, route: Route, batch: list[Op]) -> None:
        if batch[0][4] >= LARGE_BYTES:
            self._deliver_large(route, batch[0])
            batch = batch[1:]
            if not batch:
                return
        pieces = hot.message_pieces(batch)
        count = len(pieces) - 1
        payload_bytes = sum([len(publish[5]) for publish in batch]) - 2 * count
        encoded_bytes = sum(map(len, pieces))
        for sid, subscriptions in route.shared:
            encoded = sid.join(pieces)
            for subscription in subscriptions:
                subscription.delivered += count
                subscription.session.enqueue(encoded, len(encoded), count, payload_bytes)
        for subscription in route.single:
            subscription.delivered += count
            sid = subscription.sid
            size = encoded_bytes + count * len(sid)
            subscription.session.enqueue((sid, pieces), size, count, payload_bytes)

    def _deliver_large(self, route: Route, publish: Op) -> None:
        """Hand every receiver the same payloads, each behind a control line of its own."""
        count = message_count(publish)
        payload_bytes = count * publish[4]
        for sid, subscriptions in route.shared:
            buffers, size = large_buffers(sid, publish)
            for subscription in subscriptions:
                subscription.delivered += count
                subscription.session.enqueue_all(buffers, size, count, payload_bytes)
        for subscription in route.single:
            subscription.delivered += count
            buffers, size = large_buffers(subscription.sid, publish)
            subscription.session.enqueue_all(buffers, size, count, payload_bytes)

    def offer(self, subscription: Subscription, publish: Op, publisher: Session | None) -> int:
        """Give a run to one subscription as far as its rules allow; return how many it took."""
        while subscription.origin is not None:
            if publish is self.asked:
                return 0
            publish, subscription = subscription.localized(publish), subscription.origin
        if not subscription.accepts(publish, publisher):
            return 0
        session, count = subscription.session, message_count(publish)
        if session is None:
            self._handle(subscription, [publish], publisher)
            return count
        if subscription.messages_max:
            left = subscription.messages_max - subscription.delivered
            if count > left:
                publish, count = first_messages(publish, left), left
        if publish[3] and not session.headers:
            publish = without_headers(publish)
        subscription.delivered += count
        if publish[4] >= LARGE_BYTES:
            buffers, size = large_buffers(subscription.sid, publish)
            session.enqueue_all(buffers, size, count, count * publish[4])
        else:
            encoded = subscription.sid.join(hot.message_pieces([publish]))
            session.enqueue(encoded, len(encoded), count, count * publish[4])
        if publish[2] and session.permissions is not None:
            for _ in range(count):
                session.permissions.expect_reply(publish[2])
        if subscription.is_spent:
            session.remove_subscription(subscription)
        return count

    def _deliver_queue(
        self, members: tuple[Subscription, ...], publish: Op, publisher: Session | None
    ) -> int:
        """Give each message of a run to one member of a queue group; return how many were taken."""
        count = message_count(publish)
        start = int(self.random() * len(members))
        if count == 1:
            for index in range(start, start + len(members)):
                if self.offer(members[index % len(members)], publish, publisher):
                    return 1
            return 0
        willing = [member for member in members if member.accepts(publish, publisher)]
        if any(member.messages_max for member in willing):
            singles = single_messages(publish)
            return sum(self._deliver_queue(members, single, publisher) for single in singles)
        # Dealt like cards, so that each member gets its share in the order of sending.
        for index, share in enumerate(share_out(publish, min(len(willing), count))):
            self.offer(willing[(start + index) % len(willing)], share, publisher)
        return count if willing else 0

    def answer_no_responders(self, batch: list[Op], publisher: Session | None) -> None:
        """Tell a publisher that asked to know: nobody is there to reply."""
        if publisher is None or not publisher.no_responders:
            return
        for publish in batch:
            inbox = self._inbox(publish[2], publisher) if publish[2] else None
            if inbox is not None:
                header = b"NATS/1.0 503\r\nNats-Subject: %b\r\n\r\n" % publish[1]
                size = len(header)
                line = b"HMSG %b %b %d %d\r\n" % (publish[2], inbox.sid, size, size)
                publisher.write((line + header + CRLF) * message_count(publish))

    def _inbox(self, reply: bytes, publisher: Session) -> Subscription | None:
        """Return a subscription of the publisher's own that hears what is sent to `reply`."""
        for subscription in self.routes.trie.match(reply):
            if subscription.session is publisher and not subscription.queue:
                return subscription
        return None


def hand_over(receiver: Subscription, encoded: bytes, count: int, payload_bytes: int) -> None:
    """Deliver messages that were encoded for one subscription."""
    receiver.delivered += count
    assert receiver.session is not None
    receiver.session.enqueue(encoded, len(encoded), count, payload_bytes)


def large_buffers(sid: bytes, publish: Op) -> tuple[list[Buffer], int]:
    """Return a run as control lines and shared slices of its data, and their size."""
    _, subject, reply, header_bytes, size, data = publish
    before, after = delivery_line(subject, reply, header_bytes, size)
    line = before + sid + after
    stride = size + 2
    if len(data) == stride:
        return [line, data], len(line) + stride
    view = memoryview(data)
    buffers: list[Buffer] = []
    for offset in range(0, len(data), stride):
        buffers += (line, view[offset : offset + stride])
    return buffers, len(data) + len(buffers) // 2 * len(line)


def new_message(subject: bytes, payload: bytes, *, reply: bytes = b"", header: bytes = b"") -> Op:
    """Return a message as `publish` and `deliver_as` take it."""
    size = len(header) + len(payload)
    return (PUB, subject, reply, len(header), size, header + payload + CRLF)


def sum_figures(figures: Iterable[Figures]) -> Figures:
    """Return what several have together."""
    in_messages, in_bytes, out_messages, out_bytes = map(sum, zip(*figures, strict=True))
    return in_messages, in_bytes, out_messages, out_bytes


def message_count(publish: Op) -> int:
    """Return how many messages a run holds."""
    return len(publish[5]) // (publish[4] + 2)  # type: ignore[no-any-return]


def payloads(publish: Op) -> list[bytes]:
    """Return the payloads of a run, each with its header block and CRLF."""
    stride, data = publish[4] + 2, publish[5]
    return [data[offset : offset + stride] for offset in range(0, len(data), stride)]


def single_messages(publish: Op) -> list[Op]:
    """Return the messages of a run as runs of one."""
    return [(*publish[:5], payload) for payload in payloads(publish)]


def first_messages(publish: Op, count: int) -> Op:
    """Return the run cut down to its first messages."""
    return (*publish[:5], publish[5][: count * (publish[4] + 2)])


def last_messages(publish: Op, count: int) -> Op:
    """Return the run cut down to its last messages."""
    return (*publish[:5], publish[5][-count * (publish[4] + 2) :])


def share_out(publish: Op, shares: int) -> list[Op]:
    """Deal the messages of a run into as many runs, one after another like cards."""
    messages = payloads(publish)
    return [(*publish[:5], b"".join(messages[index::shares])) for index in range(shares)]


def without_headers(publish: Op) -> Op:
    """Return the run with its header blocks taken out, for a client that knows none."""
    kind, subject, reply, header_bytes, size, _ = publish
    data = b"".join([message[header_bytes:] for message in payloads(publish)])
    return (kind, subject, reply, 0, size - header_bytes, data)
