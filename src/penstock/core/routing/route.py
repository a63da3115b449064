"""
Where the messages of a subject go.

A route is worked out once per subject and remembered. It sorts subscriptions by
how much care they need: those with the same sid share one encoded buffer, those
with a sid of their own are encoded when their turn to be written comes, and
only those with a rule of their own (a message count, no echo, no headers, a
denied subject) are looked at message by message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Optional, Protocol

from penstock import hot
from penstock.core.routing.trie import Trie
from penstock.hot.wire import Op
from penstock.protocol import subjects

if TYPE_CHECKING:
    from penstock.config.sharing import Relation
    from penstock.core.session import Session

Handler = Callable[[list[Op], Optional["Session"]], None]
Deliver = Callable[[bytes, list[Op]], None]
"""Takes what JetStream delivers to a subject; the messages carry subjects of their own."""

ACK_PREFIX = b"$JS.ACK."
FAMILIES = (ACK_PREFIX, b"$JS.API.DIRECT.GET.")
"""What subjects start with that are new with almost every message: acks, and gets of keys."""
WILDCARDS = (b"*", b">")
CACHE_SIZE_MAX = 65536
"""Subjects that are remembered at most, however many are subscribed to."""
WIDE, WIDE_ROUTES_MAX = 1024, 8
"""Receivers that make a route dear to work out, and how many such routes are kept for longer."""
BRANCH_LOOKED_THROUGH = 64
"""Subjects with the same two first tokens that are compared with a pattern one by one."""


class Subscription(hot.Receiver):
    """One SUB of one session, or a handler inside the server."""

    __slots__ = (
        "deliver",
        "handler",
        "is_internal",
        "messages_max",
        "origin",
        "queue",
        "relation",
        "subject",
    )

    def __init__(
        self,
        subject: bytes,
        session: Session | None,
        *,
        sid: bytes = b"",
        queue: bytes = b"",
        handler: Handler | None = None,
    ) -> None:
        super().__init__(session, sid)
        self.subject = subject
        self.queue = queue
        self.handler = handler
        self.deliver: Deliver | None = None
        """How a handler passes on what the server delivers; None if it only obeys clients."""
        self.messages_max = 0
        self.is_internal = False
        """Whether the server itself listens: then what is imported is none of its business."""
        self.origin: Subscription | None = None
        """Of a shadow, whose it is: a subscription of an account that imports a stream."""
        self.relation: Relation | None = None
        """How that account names the subjects of the stream."""

    @property
    def needs_care(self) -> bool:
        """Whether each message has to be looked at before this subscription gets it."""
        return (
            bool(self.messages_max)
            or self.origin is not None
            or self.session is None
            or self.session.needs_care
        )

    @property
    def is_spent(self) -> bool:
        """Whether it has had as many messages as it asked for."""
        return 0 < self.messages_max <= self.delivered

    def accepts(self, publish: Op, publisher: Session | None) -> bool:
        """Tell whether it takes messages of this run."""
        if self.origin is not None:
            return self.origin.accepts(self.localized(publish), publisher)
        # A route is remembered while a batch goes through it, in which this may have ended.
        if self.is_spent:
            return False
        session = self.session
        return session is None or session.may_receive(publish[1], self.queue, publisher)

    def localized(self, publish: Op) -> Op:
        """Return a run as the account of a shadow's origin names it."""
        assert self.relation is not None, "a shadow has both, an origin and a relation"
        if not subjects.matches(self.relation.foreign, publish[1]):
            # What JetStream delivers keeps its own subject, wherever it is delivered to.
            return publish
        return (publish[0], self.relation.to_local(publish[1]), *publish[2:])


class Follower(Protocol):
    """Somebody who does something for each subscription of an account."""

    def inserted(self, subscription: Subscription) -> None:
        """A subscription was added."""

    def removed(self, subscription: Subscription) -> None:
        """A subscription was taken away."""


class Route:
    """The receivers of one subject, sorted by how they are served. Immutable."""

    __slots__ = (
        "careful",
        "careful_queues",
        "handlers",
        "is_empty",
        "is_plain",
        "queues",
        "shared",
        "single",
        "sole",
        "sole_handler",
        "ways",
    )

    def __init__(self, subscriptions: Iterable[Subscription]) -> None:
        by_sid: dict[bytes, list[Subscription]] = {}
        queues: dict[bytes, list[Subscription]] = {}
        careful: list[Subscription] = []
        handlers: list[Subscription] = []
        for subscription in subscriptions:
            if subscription.queue:
                queues.setdefault(subscription.queue, []).append(subscription)
            elif subscription.handler is not None:
                handlers.append(subscription)
            elif subscription.needs_care:
                careful.append(subscription)
            else:
                by_sid.setdefault(subscription.sid, []).append(subscription)
        groups = by_sid.items()
        self.shared = tuple((sid, tuple(group)) for sid, group in groups if len(group) > 1)
        self.single = tuple(group[0] for _, group in groups if len(group) == 1)
        self.careful = tuple(careful)
        members = [tuple(group) for group in queues.values()]
        self.queues = tuple(group for group in members if not _needs_care(group))
        self.careful_queues = tuple(group for group in members if _needs_care(group))
        self.handlers = tuple(handlers)
        self.is_plain = not (careful or self.careful_queues or handlers)
        is_sole = len(self.single) == 1 and self.is_plain and not (self.shared or members)
        self.sole = self.single[0] if is_sole else None
        """The only receiver, if there is no other and it needs no care."""
        is_ours = len(handlers) == 1 and not (by_sid or careful or queues)
        self.sole_handler = handlers[0].handler if is_ours else None
        """Called with whole batches, if nobody else listens: most of what is for JetStream."""
        self.is_empty = not (by_sid or careful or queues or handlers)
        is_simple = self.is_plain and not self.is_empty
        self.ways = (self.shared, self.single, self.queues) if is_simple else None
        """All receivers, if there are any and none of them needs care."""

    def receivers(self) -> Iterator[Subscription]:
        """Return everybody outside the server, all members of queue groups too."""
        groups = chain(self.queues, self.careful_queues, (group for _, group in self.shared))
        return chain(self.single, self.careful, *groups)


def _needs_care(members: tuple[Subscription, ...]) -> bool:
    return any(member.needs_care for member in members)


class RouteTable:
    """
    The subscriptions of an account, and a bounded memory of the routes they give.

    The memory stays correct: a literal subscription that comes or goes forgets
    its own subject, a wildcard one the remembered subjects that start as it does.
    Nothing is looked through for that, only dropped, and what is dropped was
    remembered before: so who comes and goes costs the same, whatever is remembered.

    Some subjects are new with every message: replies end in a token of their own,
    acks carry their sequence. Where nobody subscribes to one of them alone, they
    are remembered together, by what they have in common.
    """

    def __init__(self, cache_size: int, *, wide: int = WIDE) -> None:
        self.trie: Trie[Subscription] = Trie()
        self.cache: dict[bytes, Route] = {}
        self.inserts = self.removes = self.matches = 0
        self.followers: tuple[Follower, ...] = ()
        self._cache_size = self._room = cache_size
        # First token → second token → remembered subjects: one inbox does not touch the others.
        self._by_tokens: dict[bytes, dict[bytes, set[bytes]]] = {}
        # Subjects with the same receivers share a route, so that their messages batch.
        self._by_receivers: dict[tuple[Subscription, ...], Route] = {}
        self._watches: dict[bytes, list[Callable[[], None]]] = {}
        # Subjects with very many receivers: these are forgotten only if a pattern matches them.
        self._wide: dict[bytes, Route] = {}
        self._wide_from = wide
        # What subjects start with → the route of all of them.
        self._by_prefix: dict[bytes, Route] = {}

    def insert(self, subscription: Subscription) -> None:
        """Add a subscription."""
        self.inserts += 1
        self.trie.insert(subscription.subject, subscription)
        self.forget(subscription.subject)
        for follower in self.followers:
            follower.inserted(subscription)
        if subscription.subject in self._watches:
            self._tell_watchers(subscription.subject)

    def remove(self, subscription: Subscription) -> None:
        """Take a subscription away."""
        self.removes += 1
        self.trie.remove(subscription.subject, subscription)
        self.forget(subscription.subject)
        for follower in self.followers:
            follower.removed(subscription)
        if subscription.subject in self._watches:
            self._tell_watchers(subscription.subject)

    def watch(self, subject: bytes, action: Callable[[], None]) -> None:
        """Call `action` whenever somebody begins or ends to listen to just this subject."""
        self._watches.setdefault(subject, []).append(action)

    def unwatch(self, subject: bytes, action: Callable[[], None]) -> None:
        """Stop to watch."""
        self._watches[subject].remove(action)
        if not self._watches[subject]:
            del self._watches[subject]

    def _tell_watchers(self, subject: bytes) -> None:
        for action in tuple(self._watches[subject]):
            action()

    def find(self, subject: bytes) -> Route:
        """Return the route of a subject that is not in `cache`, and remember it."""
        if subject.startswith(b".") or subject.endswith(b"."):
            # Not a subject at all, so its neighbours say nothing about it.
            return self._match(subject)
        family = family_of(subject) if subject.startswith(FAMILIES) else b""
        prefix = family[:-1] or subject.rpartition(b".")[0]
        route = self._by_prefix.get(prefix) or self._wide.get(subject)
        if route is None:
            route = self._match(subject)
            if self.trie.is_uniform(prefix, any_depth=bool(family)):
                self._remember_prefix(prefix, route)
            elif len(self.cache) >= self._room:
                self._make_room()
        if not family and len(self.cache) < self._room:
            self._remember(subject, route)
        return route

    def _make_room(self) -> None:
        """Remember more if there are so many subscriptions, or start again."""
        self._room = max(self._cache_size, min(2 * len(self.trie), CACHE_SIZE_MAX))
        if len(self.cache) >= self._room:
            self._forget_all()

    def _remember(self, subject: bytes, route: Route) -> None:
        self.cache[subject] = route
        first, second = _leading_tokens(subject)
        branches = self._by_tokens.get(first)
        if branches is None:
            branches = self._by_tokens[first] = {}
        branch = branches.get(second)
        if branch is None:
            branches[second] = {subject}
        else:
            branch.add(subject)

    def family_route(self, publishes: list[Op], family: bytes) -> Route | None:
        """Return the one route of publishes that are all of a family; None if they are not all."""
        if not hot.have_prefix(publishes, family):
            return None
        self.find(publishes[0][1])
        return self._by_prefix.get(family[:-1])

    def shared_route(self, replies: list[bytes]) -> Route | None:
        """
        Return the one route that replies of the same inbox have, or None if they may differ.

        Looks at them all together, at C speed: a batch of replies to one client,
        each new, would otherwise cost more to route than to send.
        """
        parent = replies[0].rpartition(b".")[0]
        if not hot.are_siblings(replies, parent):
            return None
        if parent not in self._by_prefix:
            self.find(replies[0])
        return self._by_prefix.get(parent)

    def _match(self, subject: bytes) -> Route:
        self.matches += 1
        receivers = tuple(self.trie.match(subject))
        route = self._by_receivers.get(receivers)
        if route is None:
            route = self._by_receivers[receivers] = Route(receivers)
        if len(receivers) >= self._wide_from:
            if len(self._wide) >= WIDE_ROUTES_MAX:
                self._wide.clear()
            self._wide[subject] = route
        return route

    def _remember_prefix(self, prefix: bytes, route: Route) -> None:
        if len(self._by_prefix) >= self._cache_size:
            self._by_prefix.clear()
            self._by_receivers.clear()
        self._by_prefix[prefix] = route

    def forget(self, pattern: bytes) -> None:
        """Forget every route that a change to `pattern` may have changed."""
        self._by_receivers.clear()
        self._by_prefix.clear()
        if self._wide:
            for subject in [each for each in self._wide if subjects.matches(pattern, each)]:
                del self._wide[subject]
        if not self.cache:
            return
        if subjects.is_literal(pattern):
            self._drop(pattern)
            return
        first, second = _leading_tokens(pattern)
        if first in WILDCARDS:
            self._forget_all()
        elif second in WILDCARDS:
            for branch in self._by_tokens.pop(first, {}).values():
                self._drop_all(branch)
        elif first in self._by_tokens and second in self._by_tokens[first]:
            self._forget_branch(self._by_tokens[first][second], pattern)

    def _forget_branch(self, branch: set[bytes], pattern: bytes) -> None:
        """Forget what starts as a pattern does, or all where that is too much to look through."""
        if len(branch) > BRANCH_LOOKED_THROUGH:
            first, second = _leading_tokens(pattern)
            del self._by_tokens[first][second]
            self._drop_all(branch)
            return
        prefix = subjects.literal_prefix(pattern)
        for subject in [each for each in branch if each.startswith(prefix)]:
            self._drop(subject)

    def _drop_all(self, branch: set[bytes]) -> None:
        for subject in branch:
            del self.cache[subject]

    def _drop(self, subject: bytes) -> None:
        if self.cache.pop(subject, None) is not None:
            first, second = _leading_tokens(subject)
            branches = self._by_tokens[first]
            branches[second].discard(subject)
            if not branches[second]:
                del branches[second]
                if not branches:
                    del self._by_tokens[first]

    def _forget_all(self) -> None:
        self.cache.clear()
        self._by_tokens.clear()
        self._by_receivers.clear()


def _leading_tokens(subject: bytes) -> tuple[bytes, bytes]:
    """Return the first two tokens; a subject of one has an empty second one."""
    tokens = subject.split(b".", 2)
    return tokens[0], tokens[1] if len(tokens) > 1 else b""


def family_of(subject: bytes) -> bytes:
    """Return what all subjects of the family start with; empty if it has none."""
    return next((family for family in FAMILIES if subject.startswith(family)), b"")
