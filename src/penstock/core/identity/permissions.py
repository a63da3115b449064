"""
The publish and subscribe permissions of a connection.

Deny wins over allow. A wildcard subscription that overlaps a denied subject is accepted,
and the denied messages are held back when they come (as nats-server does). With
`allow_responses` a connection may also publish to the reply subjects of messages it
received, a limited number of times and for a limited time.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.config import accounts
from penstock.protocol import subjects, times, wellknown

DECISIONS_MAX = 4096
RESERVED_REPLIES = (b"_R_.", b"_GR_.", wellknown.ACK.encode())
"""Reply subjects that only the server itself makes."""


class Permissions:
    """The rules of one user, with a bounded memory of decisions on published subjects."""

    def __init__(self, rules: accounts.Permissions, clock_ns: Callable[[], int]) -> None:
        self._publish_allow = _patterns(rules.publish.allow)
        self._publish_deny = _patterns(rules.publish.deny) or []
        self._subscribe_allow = _patterns(rules.subscribe.allow)
        self._subscribe_deny = _patterns(rules.subscribe.deny) or []
        self._responses = rules.allow_responses
        # As in nats-server: `allow_responses` without an allow list permits nothing but
        # answers.
        if self._responses is not None and self._publish_allow is None:
            self._publish_allow = []
        self._decisions: dict[bytes, bool] = {}
        self._replies: dict[bytes, tuple[int, int]] = {}
        self._clock_ns = clock_ns

    @property
    def watches_delivery(self) -> bool:
        """Whether the rules must see each delivery, which excludes the fast path."""
        return bool(self._subscribe_deny) or self._responses is not None

    def allows(self, subject: bytes) -> bool:
        """Tell whether the publish rules allow `subject`."""
        decision = self._decisions.get(subject)
        if decision is None:
            if len(self._decisions) >= DECISIONS_MAX:
                self._decisions.clear()
            decision = self._decisions[subject] = self._decide(subject)
        return decision

    def may_publish(self, subject: bytes) -> bool:
        """Tell whether a message may be published to `subject`; may use up a permitted answer."""
        return self.allows(subject) or self._is_expected_reply(subject)

    def may_subscribe(self, subject: bytes, queue: bytes) -> bool:
        """Tell whether `subject` may be subscribed to, with `queue` or b"" for none."""
        allow = self._subscribe_allow
        if allow is not None and not _grants(allow, subject, queue):
            return False
        return self.may_receive(subject, queue)

    def may_receive(self, subject: bytes, queue: bytes) -> bool:
        """Tell whether a message on `subject` may be delivered to a subscription with `queue`."""
        return not any(
            subjects.matches(pattern, subject)
            and (not denied_queue or subjects.matches(denied_queue, queue))
            for pattern, denied_queue in self._subscribe_deny
        )

    def expect_reply(self, reply: bytes) -> None:
        """Permit an answer to a message that is being delivered."""
        # If two requests share a reply subject, this check uses up one answer, as in
        # nats-server.
        if self._responses is not None and not self.may_publish(reply):
            self._note_reply(self._responses, reply)

    def _decide(self, subject: bytes) -> bool:
        if b"" in subject.split(b"."):
            # No pattern matches an empty token, whether in an allow or a deny rule.
            return self._publish_allow is None
        if any(subjects.matches(pattern, subject) for pattern, _ in self._publish_deny):
            return False
        allow = self._publish_allow
        return allow is None or any(subjects.matches(pattern, subject) for pattern, _ in allow)

    def _note_reply(self, rules: accounts.ResponseRules, reply: bytes) -> None:
        self._drop_stale_replies()
        expires_ns = self._clock_ns() + int(rules.expires_s * times.SECOND_NS)
        self._replies[reply] = (rules.messages_max, expires_ns)

    def _drop_stale_replies(self) -> None:
        """Keep the memory of replies bounded. The oldest come first, and expire first."""
        while len(self._replies) >= DECISIONS_MAX:
            del self._replies[next(iter(self._replies))]

    def _is_expected_reply(self, subject: bytes) -> bool:
        expected = self._replies.pop(subject, None)
        if expected is None or expected[1] <= self._clock_ns():
            return False
        messages_left, expires_ns = expected
        # A limit of 0 or less means any number until the time is over.
        if messages_left <= 0:
            self._replies[subject] = expected
        elif messages_left > 1:
            self._replies[subject] = (messages_left - 1, expires_ns)
        return True


def _patterns(rules: tuple[str, ...] | None) -> list[tuple[bytes, bytes]] | None:
    """Split `subject` or `subject queue` rules into pairs."""
    if rules is None:
        return None
    pairs = []
    for rule in rules:
        subject, _, queue = rule.partition(" ")
        pairs.append((subject.encode(), queue.strip().encode()))
    return pairs


def _grants(rules: list[tuple[bytes, bytes]], subject: bytes, queue: bytes) -> bool:
    """
    Tell whether rules allow this subscription.

    A rule without a queue allows all subscriptions to its subjects. But if rules with a
    queue match too, a queue subscription needs one of those.
    """
    matching = [rule for rule in rules if subjects.contains(rule[0], subject)]
    queues = [rule_queue for _, rule_queue in matching if rule_queue]
    if queue and queues:
        return any(subjects.matches(pattern, queue) for pattern in queues)
    return len(queues) < len(matching)
