"""
Routes from subjects to subscriptions.

A route is computed once per subject and cached. It sorts subscriptions by their needs.
Those with the same sid share one encoded buffer. Those with their own sid are encoded when
they are written. Only those with their own rule (a message count, no echo, no headers, a
denied subject) are checked message by message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Optional, Protocol

from penstock import hot
from penstock.core.routing.trie import Trie
from penstock.hot.wire import KIND, REPLY, SUBJECT, Op
from penstock.protocol import subjects, wellknown

if TYPE_CHECKING:
    from penstock.config.sharing import Relation
    from penstock.core.reports.messagetrace import MessageTrace
    from penstock.core.session import Session

Handler = Callable[[list[Op], Optional["Session"]], None]
Deliver = Callable[[bytes, list[Op]], None]
"""Takes JetStream deliveries to a subject; the messages carry their own subjects."""
Traced = Callable[[Op, "Session", "MessageTrace"], None]
"""Takes one traced message, and notes its fate."""

ACK_PREFIX = wellknown.ACK.encode()
FAMILIES = (ACK_PREFIX, f"{wellknown.API}.DIRECT.GET.".encode())
"""Prefixes of subjects that are new with almost every message: acks, and gets of keys."""
WILDCARDS = (b"*", b">")
CACHE_SIZE_MAX = 65536
"""The maximum number of cached subjects, whatever the number of subscriptions."""
WIDE, WIDE_ROUTES_MAX = 1024, 8
"""The number of receivers that makes a route expensive, and how many such routes to keep."""
WITHDRAWN_AT_ONCE = 4096
"""The number of subscriptions removed for a closed session before others have their turn."""
BRANCH_LOOKED_THROUGH = 64
"""The largest branch (subjects with the same first two tokens) that is searched one by one."""


class Subscription(hot.Receiver):
    """One SUB of one session, or a handler inside the server."""

    __slots__ = (
        "deliver",
        "handler",
        "is_internal",
        "messages_max",
        "origin",
        "queue",
        "stream_import",
        "subject",
        "traced",
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
        """Takes deliveries for a handler; None if the handler only takes what clients publish."""
        self.messages_max = 0
        self.is_internal = False
        """Whether the server itself listens. Such a subscription gets no imported streams."""
        self.origin: Subscription | None = None
        """Of a shadow: the subscription in the importing account that it stands for."""
        self.stream_import: ImportShadows | None = None
        """Of a shadow: its import, which translates the subjects."""
        self.traced: Traced | None = None
        """Takes traced messages for a handler; None if the handler adds nothing to a trace."""

    @property
    def needs_care(self) -> bool:
        """Whether each message must be checked before this subscription gets it."""
        return (
            bool(self.messages_max)
            or self.origin is not None
            or self.session is None
            or self.session.needs_care
        )

    @property
    def is_spent(self) -> bool:
        """Whether it has received its maximum number of messages."""
        return 0 < self.messages_max <= self.delivered

    def accepts(self, publish: Op, publisher: Session | None) -> bool:
        """Tell whether it takes the messages of this run."""
        if self.origin is not None:
            return self.origin.accepts(self.localized(publish), publisher)
        # A batch uses one route throughout, and this subscription may end within the batch.
        if self.is_spent:
            return False
        session = self.session
        return session is None or session.may_receive(publish[SUBJECT], self.queue, publisher)

    def localized(self, publish: Op) -> Op:
        """Return a run under the subject it has in the importing account."""
        assert self.stream_import is not None, "a shadow has both, an origin and an import"
        relation = self.stream_import.relation
        if not subjects.matches(relation.foreign, publish[SUBJECT]):
            # A JetStream delivery keeps its own subject, wherever it goes.
            return publish
        return (publish[KIND], relation.to_local(publish[SUBJECT]), *publish[REPLY:])


class ImportShadows(Protocol):
    """A stream import as its shadows see it."""

    relation: Relation
    """The relation of local and foreign subjects."""
    allow_trace: bool
    """Whether the exporter's traces show the receivers here."""

    @property
    def importer_name(self) -> str:
        """The name of the account that imports it."""


class InterestFollower(Protocol):
    """Follows the subscriptions of an account."""

    def inserted(self, subscription: Subscription) -> None:
        """A subscription was added."""

    def removed(self, subscription: Subscription) -> None:
        """A subscription was removed."""


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
        """The receiver, if there is only one and it needs no care."""
        is_ours = len(handlers) == 1 and not (by_sid or careful or queues)
        self.sole_handler = handlers[0].handler if is_ours else None
        """The handler, if nothing else listens: it gets whole batches, as JetStream mostly does."""
        self.is_empty = not (by_sid or careful or queues or handlers)
        is_simple = self.is_plain and not self.is_empty
        self.ways = (self.shared, self.single, self.queues) if is_simple else None
        """All receivers, if there are any and none of them needs care."""

    def receivers(self) -> Iterator[Subscription]:
        """Return all receivers outside the server, including all members of queue groups."""
        groups = chain(self.queues, self.careful_queues, (group for _, group in self.shared))
        return chain(self.single, self.careful, *groups)


def _needs_care(members: tuple[Subscription, ...]) -> bool:
    return any(member.needs_care for member in members)


class RouteTable:
    """
    The subscriptions of an account, and a bounded cache of their routes.

    A new or removed literal subscription drops its own subject from the cache. A wildcard
    subscription drops the cached subjects with the same start. Nothing is searched for
    that: subjects are only dropped, and each was added before. So the cost of a change does
    not depend on the size of the cache.

    Some subjects are new with every message: replies end in a token of their own, acks
    carry their sequence. If no subscription singles one of them out, they share one cache
    entry under their common prefix.
    """

    def __init__(self, cache_size: int, *, wide: int = WIDE) -> None:
        self.trie: Trie[Subscription] = Trie()
        self.cache: dict[bytes, Route] = {}
        self.inserts = self.removes = self.matches = 0
        self.followers: tuple[InterestFollower, ...] = ()
        self._cache_size = self._room = cache_size
        # First token → second token → remembered subjects: one inbox does not touch the others.
        self._by_tokens: dict[bytes, dict[bytes, set[bytes]]] = {}
        # Subjects with the same receivers share a route, so that their messages batch.
        self._by_receivers: dict[tuple[Subscription, ...], Route] = {}
        self._leaving: set[Session] = set()
        """Sessions that are gone, while their subscriptions are still being taken away."""
        self._watches: dict[bytes, list[Callable[[], None]]] = {}
        # Subjects with very many receivers: only forgotten if a changed pattern matches them.
        self._wide: dict[bytes, Route] = {}
        self._wide_from = wide
        # Common prefix → the route of all subjects with it.
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
        """Remove a subscription."""
        self.removes += 1
        self.trie.remove(subscription.subject, subscription)
        self.forget(subscription.subject)
        for follower in self.followers:
            follower.removed(subscription)
        if subscription.subject in self._watches:
            self._tell_watchers(subscription.subject)

    def withdraw(self, session: Session) -> Iterator[None]:
        """
        Route nothing more to a session from now on, and take its subscriptions away.

        To take away very many lasts longer than others should wait: there is time for
        them in between, and only what is left to do later is left to the caller.
        """
        subscriptions = list(session.subscriptions.values())
        if len(subscriptions) > WITHDRAWN_AT_ONCE:
            self._leaving.add(session)
            self._forget_all()
            self._by_prefix.clear()
            self._wide.clear()
        while subscriptions:
            for subscription in subscriptions[-WITHDRAWN_AT_ONCE:]:
                self.remove(subscription)
            del subscriptions[-WITHDRAWN_AT_ONCE:]
            if subscriptions:
                yield
        self._leaving.discard(session)

    def watch(self, subject: bytes, action: Callable[[], None]) -> None:
        """Call `action` whenever a subscription to exactly this subject comes or goes."""
        self._watches.setdefault(subject, []).append(action)

    def unwatch(self, subject: bytes, action: Callable[[], None]) -> None:
        """Stop watching."""
        self._watches[subject].remove(action)
        if not self._watches[subject]:
            del self._watches[subject]

    def _tell_watchers(self, subject: bytes) -> None:
        for action in tuple(self._watches[subject]):
            action()

    def find(self, subject: bytes) -> Route:
        """Return the route of a subject that is not in `cache`, and cache it."""
        if subject.startswith(b".") or subject.endswith(b"."):
            # An invalid subject: neighbours say nothing about its route.
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
        """Enlarge the cache if there are enough subscriptions to justify it, or clear it."""
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
        """Return the common route of publishes if all belong to the family; else None."""
        if not hot.have_prefix(publishes, family):
            return None
        self.find(publishes[0][SUBJECT])
        return self._by_prefix.get(family[:-1])

    def shared_route(self, replies: list[bytes]) -> Route | None:
        """
        Return the common route of replies to one inbox, or None if routes may differ.

        Checks all replies together, at C speed. A batch of replies to one client, each with
        a new subject, would otherwise cost more to route than to send.
        """
        parent = replies[0].rpartition(b".")[0]
        if not hot.are_siblings(replies, parent):
            return None
        route = self._by_prefix.get(parent)
        if route is None:
            self.find(replies[0])
            route = self._by_prefix.get(parent)
        return route

    def receivers(self, subject: bytes) -> tuple[Subscription, ...]:
        """Return all that listen to a subject, those of one pattern in the order they came."""
        found = self.trie.match(subject)
        if self._leaving:
            return tuple(each for each in found if each.session not in self._leaving)
        return tuple(found)

    def _match(self, subject: bytes) -> Route:
        self.matches += 1
        receivers = self.receivers(subject)
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
        """Forget subjects that start like a pattern; all of them if the branch is too large."""
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
    """Return the first two tokens; the second is empty if there is only one."""
    tokens = subject.split(b".", 2)
    return tokens[0], tokens[1] if len(tokens) > 1 else b""


def family_of(subject: bytes) -> bytes:
    """Return the common prefix of the subject's family; empty if it has none."""
    return next((family for family in FAMILIES if subject.startswith(family)), b"")
