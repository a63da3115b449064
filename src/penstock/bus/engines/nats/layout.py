"""
Which subject, stream and durable consumer a topic has on NATS.

| topic                      | subject            | stream          |
|----------------------------|--------------------|-----------------|
| persistent                 | `events.T`         | `events`        |
| persistent, own limits     | `events-own.T`     | `events-own+T`  |
| dead letters               | `events-dead.T`    | `events-dead`   |
| ephemeral, and requests    | `events-live.T`    | none            |
| who leads a service        | `events-leases.S`  | `events-leases` |
| members of a service       | `events-members.S.M.…` | none        |

`events` is the namespace of the bus. One stream for all means that a topic nobody
declared needs no request to exist. A service has a durable consumer for each pattern
that it handles, named after both: `billing+orders+@` reads `orders.*` for `billing`.
See docs/adr for the reasons.
"""

from __future__ import annotations

from penstock.protocol import subjects

ONE, ALL = "@", "@@"
"""The wildcards of a pattern in the name of a consumer, which may have none."""


class Layout:
    """The names of one namespace."""

    def __init__(self, namespace: str) -> None:
        self.stream = namespace
        self.dead_stream = f"{namespace}-dead"
        self.lease_stream = f"{namespace}-leases"
        self._kept = f"{namespace}."
        self._own = f"{namespace}-own."
        self._dead = f"{namespace}-dead."
        self._live = f"{namespace}-live."

    def subject(self, topic: str) -> str:
        """Return the subject of a topic in the shared stream."""
        return self._kept + topic

    def own_subject(self, topic: str) -> str:
        """Return the subject of a topic with a stream of its own."""
        return self._own + topic

    def dead_subject(self, topic: str) -> str:
        """Return the subject of a topic of dead letters."""
        return self._dead + topic

    def live_subject(self, topic: str) -> str:
        """Return the subject of a topic that is not kept."""
        return self._live + topic

    def lease_subject(self, service: str) -> str:
        """Return where it is kept which process reads for a service."""
        return f"{self.lease_stream}.{service}"

    def member_subject(self, service: str, member: str) -> str:
        """Return where a member of a service is spoken to."""
        return f"{self.stream}-members.{service}.{member}"

    def own_stream(self, topic: str) -> str:
        """Return the stream of a topic that has its own."""
        return f"{self.stream}-own+{topic.replace('.', '+')}"


def topic_of(subject: str) -> str:
    """Return the topic of any of these subjects."""
    return subject.partition(".")[2]


def matches(pattern: str, topic: str) -> bool:
    """Tell whether a pattern stands for a topic."""
    return subjects.matches(pattern.encode(), topic.encode())


def durable_of(service: str, pattern: str) -> str:
    """Return the name of the consumer that reads a pattern for a service."""
    tokens = [{"*": ONE, ">": ALL}.get(token, token) for token in pattern.split(".")]
    return "+".join([service, *tokens])


def pattern_of(service: str, durable: str) -> str:
    """Return the pattern that a consumer reads for a service; empty if it is not the service's."""
    owner, *tokens = durable.split("+")
    if owner != service:
        return ""
    return ".".join({ONE: "*", ALL: ">"}.get(token, token) for token in tokens)
