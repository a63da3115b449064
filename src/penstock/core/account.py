"""
One account: its own subject space, and the delivery of messages within it.

This code runs for every message, so it works on batches. It encodes consecutive messages
with the same receivers together, once; the copies for two subscribers differ only in the
sid.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
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
    Traced,
    family_of,
)
from penstock.core.runs import (
    first_messages,
    large_buffers,
    last_messages,
    message_count,
    new_message,
    share_out,
    single_messages,
    without_headers,
)
from penstock.errors import cause
from penstock.hot.wire import CRLF, DATA, HEADER_BYTES, REPLY, SIZE, SUBJECT, Op

if TYPE_CHECKING:
    from penstock.core.session import Session
    from penstock.core.sharing.mappings import Mappings

log = logging.getLogger("penstock")

Figures: TypeAlias = tuple[int, int, int, int]
"""Messages and bytes in, messages and bytes out."""

Way: TypeAlias = Callable[[Route, list[Op], "Session | None"], None]

MATCHES = 4
"""Routes to compute before looking at the clock: wildcards can make a single one slow."""
LARGE_BYTES = 2048
"""From this size on, each payload of a batch is its own buffer, and is never copied."""

_subject, _size = itemgetter(SUBJECT), itemgetter(SIZE)


class Account:
    """Subscriptions, and delivery to them."""

    def __init__(self, name: str, *, route_cache_size: int, random: Callable[[], float]) -> None:
        self.name = name
        self.config = accounts.Account(name=name)
        self.mappings: Mappings | None = None
        self.spellings: Mappings | None = None
        """Subjects of the server that have two names, each mapped to the one that rules name."""
        self.connections = 0
        self.asked: Op | None = None
        """The request of another account in delivery. Importers of streams must not hear it."""
        self.slow_consumers = 0
        self.closed_figures: Figures = (0, 0, 0, 0)
        """The figures of closed connections."""
        self.routes = RouteTable(route_cache_size)
        self.random = random

    @property
    def is_full(self) -> bool:
        """Whether the account has reached its maximum number of connections."""
        return 0 <= self.config.limits.max_connections <= self.connections

    def mapped(self, publishes: list[Op]) -> list[Op]:
        """Return what a client publishes under the subjects that permissions judge."""
        for mappings in (self.mappings, self.spellings):
            if mappings is not None:
                publishes = mappings.apply(publishes)
        return publishes

    def listen(
        self,
        subject: bytes,
        handler: Handler,
        *,
        is_internal: bool = True,
        deliver: Deliver | None = None,
        traced: Traced | None = None,
    ) -> Subscription:
        """
        Call `handler` with each batch published to `subject`. The server listens like this.

        The handler hears clients, and the server's own messages. Deliveries and answers
        carry stored content to a subject that a client chose, so they only reach handlers
        that forward messages: those with `deliver`, which is called for a delivery.
        `traced` is called instead of `handler` for a traced message.
        """
        subscription = Subscription(subject, None, handler=handler)
        subscription.is_internal = is_internal
        subscription.deliver = deliver
        subscription.traced = traced
        self.routes.insert(subscription)
        return subscription

    def send(
        self, subject: bytes, payload: bytes, *, reply: bytes = b"", header: bytes = b""
    ) -> None:
        """Send one answer or notice from inside the server."""
        self.respond([new_message(subject, payload, reply=reply, header=header)], None)

    def unlisten(self, subscription: Subscription) -> None:
        """Stop listening."""
        self.routes.remove(subscription)

    def deliver_as(self, subject: bytes, publishes: list[Op]) -> None:
        """
        Deliver messages to the listeners on `subject`, under the subjects they carry.

        JetStream delivers like this: a stored message keeps its own subject and goes to an
        inbox.
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
        """Return the subscription that gets messages on `subject`, if there is exactly one."""
        route = self.routes.cache.get(subject) or self.routes.find(subject)
        return route.sole

    def answer_all(
        self, replies: list[bytes], around: tuple[bytes, bytes], first_number: int
    ) -> None:
        """
        Answer each reply subject with the next number, between the two texts in `around`.

        A client with many publishes in flight waits for that many answers. If they all go
        to one subscription, they are encoded in one go.
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
        """Publish answers from inside the server. Most batches go to a single client."""
        route = self.routes.shared_route([answer[SUBJECT] for answer in answers])
        if route is not None and route.sole is not None:
            self._deliver(route, answers, None)
        else:
            self.respond(answers, None)

    def respond(self, answers: Sequence[Op], responder: Session | None) -> None:
        """Send answers to reply subjects. An answer never triggers a command of the server."""
        self._publish(answers, responder, self._deliver_answers)

    def has_interest(self, subject: bytes) -> bool:
        """Tell whether anybody would get a message on `subject`."""
        route = self.routes.cache.get(subject) or self.routes.find(subject)
        return not route.is_empty

    def is_congested(self, subject: bytes) -> bool:
        """Tell whether a listener on `subject` already has too much waiting."""
        route = self.routes.cache.get(subject) or self.routes.find(subject)
        return any(
            each.session is not None and each.session.outbox_bytes > each.session.congested_bytes
            for each in route.receivers()
        )

    def publish_in_turn(self, publishes: Sequence[Op], publisher: Session) -> None:
        """Publish what fits into the publisher's turn, and the rest in its next turn."""
        rest = self.publish(publishes, publisher, in_turn=True)
        if rest:
            publisher.do_later(partial(self.publish_in_turn, rest, publisher))

    def publish(
        self, publishes: Sequence[Op], publisher: Session | None, *, in_turn: bool = False
    ) -> Sequence[Op]:
        """
        Route publishes in order, and deliver those with the same receivers together.

        With `in_turn`, stop when the publisher's turn ends and return the remaining
        publishes.
        """
        if publishes and publishes[len(publishes) // 2][SUBJECT].startswith(FAMILIES):
            # A client sends acks together, and often its next pull request with them.
            family = family_of(publishes[len(publishes) // 2][SUBJECT])
            first = 0 if publishes[0][SUBJECT].startswith(family) else 1
            stop = len(publishes) - (0 if publishes[-1][SUBJECT].startswith(family) else 1)
            members = list(publishes[first:stop])
            route = self.routes.family_route(members, family)
            if route is not None:
                self._publish(publishes[:first], publisher)
                self._deliver(route, members, publisher)
                return self._publish(publishes[stop:], publisher)
        return self._publish(publishes, publisher, None, in_turn)

    def _publish(
        self,
        publishes: Sequence[Op],
        publisher: Session | None,
        deliver: Way | None = None,
        in_turn: bool = False,
    ) -> Sequence[Op]:
        deliver, routes = deliver or self._deliver, self.routes
        cache, find = routes.cache, routes.find
        delivered = hot.fan_out_each(publishes, cache, self.random)
        if delivered == len(publishes):
            return ()
        publishes = publishes[delivered:] if delivered else publishes
        if len(publishes) == 1:
            subject = publishes[0][SUBJECT]
            deliver(cache.get(subject) or find(subject), list(publishes), publisher)
            return ()
        route = cache.get(publishes[0][SUBJECT])
        if route is not None and _is_for_all(route, publishes, cache):
            deliver(route, list(publishes), publisher)
            return ()
        batch: list[Op] = []
        batch_route: Route | None = None
        rest: Sequence[Op] = ()
        matches_max = routes.matches + MATCHES if in_turn else sys.maxsize
        for index, publish in enumerate(publishes):
            subject = publish[SUBJECT]
            route = cache.get(subject) or find(subject)
            if routes.matches >= matches_max:
                if publisher is not None and publisher.is_turn_over:
                    rest = publishes[index:]
                    break
                matches_max = routes.matches + MATCHES
            if route is not batch_route or publish[SIZE] >= LARGE_BYTES:
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
                self._on_failure(error, batch)
            return
        if route.is_empty:
            self.answer_no_responders(batch, publisher)
            return
        self._deliver_outside(route, batch, publisher)
        for subscription in route.handlers:
            self.handle(subscription, batch, publisher)

    def _deliver_answers(self, route: Route, batch: list[Op], publisher: Session | None) -> None:
        if not route.handlers:
            self._deliver(route, batch, publisher)
            return
        self._deliver_outside(route, batch, publisher)
        for subscription in route.handlers:
            if subscription.deliver is not None:
                self.handle(subscription, batch, publisher)

    def _deliver_outside(self, route: Route, batch: list[Op], publisher: Session | None) -> None:
        """Deliver to all receivers except the server's own handlers."""
        if len(batch) == 1 or route.queues:
            for publish in batch:
                if len(publish[DATA]) == publish[SIZE] + 2:
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

    def handle(
        self, subscription: Subscription, batch: list[Op], publisher: Session | None
    ) -> None:
        """Give a batch to one of the server's own handlers."""
        assert subscription.handler is not None
        try:
            subscription.handler(batch, publisher)
        except Exception as error:
            self._on_failure(error, batch)

    def _on_failure(self, error: Exception, batch: list[Op]) -> None:
        """Log it and carry on: neither who published nor who else listens is to blame."""
        subject = batch[0][SUBJECT].decode(errors="replace")
        log.error("! account '%s': a message to `%s` failed: %s", self.name, subject, cause(error))

    def _deliver_encoded(self, route: Route, batch: list[Op]) -> None:
        if batch[0][SIZE] >= LARGE_BYTES:
            self._deliver_large(route, batch[0])
            batch = batch[1:]
            if not batch:
                return
        pieces = hot.message_pieces(batch)
        count = len(pieces) - 1
        payload_bytes = sum([len(publish[DATA]) for publish in batch]) - 2 * count
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
        """Give all receivers the same payload buffers, each after its own control line."""
        count = message_count(publish)
        payload_bytes = count * publish[SIZE]
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
        """Give a run to one subscription as far as its rules allow; return the number taken."""
        while subscription.origin is not None:
            if publish is self.asked:
                return 0
            publish, subscription = subscription.localized(publish), subscription.origin
        if not subscription.accepts(publish, publisher):
            return 0
        session, count = subscription.session, message_count(publish)
        if session is None:
            self.handle(subscription, [publish], publisher)
            return count
        if subscription.messages_max:
            left = subscription.messages_max - subscription.delivered
            if count > left:
                publish, count = first_messages(publish, left), left
        if publish[HEADER_BYTES] and not session.headers:
            publish = without_headers(publish)
        subscription.delivered += count
        if publish[SIZE] >= LARGE_BYTES:
            buffers, size = large_buffers(subscription.sid, publish)
            session.enqueue_all(buffers, size, count, count * publish[SIZE])
        else:
            encoded = subscription.sid.join(hot.message_pieces([publish]))
            session.enqueue(encoded, len(encoded), count, count * publish[SIZE])
        if publish[REPLY] and session.permissions is not None:
            for _ in range(count):
                session.permissions.expect_reply(publish[REPLY])
        if subscription.is_spent:
            session.remove_subscription(subscription)
        return count

    def _deliver_queue(
        self, members: tuple[Subscription, ...], publish: Op, publisher: Session | None
    ) -> int:
        """Give each message of a run to one member of a queue group; return the number taken."""
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
        # Deal the messages like cards: each member gets its share in the order of sending.
        for index, share in enumerate(share_out(publish, min(len(willing), count))):
            self.offer(willing[(start + index) % len(willing)], share, publisher)
        return count if willing else 0

    def answer_no_responders(self, batch: list[Op], publisher: Session | None) -> None:
        """Send a 503 to a publisher that set `no_responders`."""
        if publisher is None or not publisher.no_responders:
            return
        for publish in batch:
            inbox = self._inbox(publish[REPLY], publisher) if publish[REPLY] else None
            if inbox is not None:
                header = b"NATS/1.0 503\r\nNats-Subject: %b\r\n\r\n" % publish[SUBJECT]
                size = len(header)
                line = b"HMSG %b %b %d %d\r\n" % (publish[REPLY], inbox.sid, size, size)
                publisher.write((line + header + CRLF) * message_count(publish))

    def _inbox(self, reply: bytes, publisher: Session) -> Subscription | None:
        """Return a subscription of the publisher itself that listens on `reply`."""
        for subscription in self.routes.trie.match(reply):
            if subscription.session is publisher and not subscription.queue:
                return subscription
        return None


def _is_for_all(route: Route, publishes: Sequence[Op], cache: Mapping[bytes, Route]) -> bool:
    """Tell whether publishes that are all small are known to have the same route."""
    routes = list(map(cache.get, map(_subject, publishes)))
    return routes.count(route) == len(routes) and max(map(_size, publishes)) < LARGE_BYTES


def hand_over(receiver: Subscription, encoded: bytes, count: int, payload_bytes: int) -> None:
    """Deliver messages that are already encoded for one subscription."""
    session = receiver.session
    assert session is not None
    receiver.delivered += count
    session.enqueue(encoded, len(encoded), count, payload_bytes)


def sum_figures(figures: Iterable[Figures]) -> Figures:
    """Add up figures."""
    in_messages, in_bytes, out_messages, out_bytes = map(sum, zip(*figures, strict=True))
    return in_messages, in_bytes, out_messages, out_bytes
