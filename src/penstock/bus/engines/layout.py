"""
Which subject and which stream a topic has on NATS.

| topic                      | subject            | stream          |
|----------------------------|--------------------|-----------------|
| persistent                 | `events.T`         | `events`        |
| persistent, own limits     | `events-own.T`     | `events-own+T`  |
| ephemeral, and requests    | `events-live.T`    | none            |

`events` is the namespace of the bus. One stream for all means one durable
consumer for all, and that a topic nobody declared needs no request to exist; see
docs/adr for the reasons.
"""

from __future__ import annotations


class Layout:
    """The names of one namespace."""

    def __init__(self, namespace: str) -> None:
        self.stream = namespace
        self._kept = f"{namespace}."
        self._own = f"{namespace}-own."
        self._live = f"{namespace}-live."

    def subject(self, topic: str) -> str:
        """Return the subject of a topic in the shared stream."""
        return self._kept + topic

    def own_subject(self, topic: str) -> str:
        """Return the subject of a topic with a stream of its own."""
        return self._own + topic

    def live_subject(self, topic: str) -> str:
        """Return the subject of a topic that is not kept."""
        return self._live + topic

    def own_stream(self, topic: str) -> str:
        """Return the stream of a topic that has its own."""
        return f"{self.stream}-own+{topic.replace('.', '+')}"


def topic_of(subject: str) -> str:
    """Return the topic of any of these subjects."""
    return subject.partition(".")[2]
