"""
Names on Kafka, and the numbering of records.

| thing                      | name on Kafka           |
|----------------------------|-------------------------|
| topic `T`                  | `events.T`              |
| the group of a service `S` | `events.S`              |
| discarded events           | `events-discarded`      |
| heartbeats                 | `events-heartbeats`     |

`events` is the namespace of the bus. A record has an offset in its partition, but the bus
needs one number per topic. That number holds both: `offset * 10000 + partition + 1`.
"""

from __future__ import annotations

import re

from penstock.bus.events.names import check_topic
from penstock.errors import BusError
from penstock.protocol import subjects

NAME_CHARACTERS_MAX = 249
PARTITIONS_MAX = 10_000
_is_name = re.compile(r"[A-Za-z0-9._-]+").fullmatch


class KafkaLayout:
    """The names of one namespace."""

    def __init__(self, namespace: str, service: str) -> None:
        self._prefix = self.group_prefix = f"{namespace}."
        self.group = f"{namespace}.{service}"
        self.discarded = f"{namespace}-discarded"
        self.heartbeats = f"{namespace}-heartbeats"

    def name(self, topic: str) -> str:
        """Return what a topic is called on the broker."""
        name = self._prefix + check_topic(topic)
        if not _is_name(name) or len(name) > NAME_CHARACTERS_MAX:
            raise BusError(
                f"`{topic}` cannot be a topic of Kafka; hint: letters, digits, `_` and `-`, "
                f"{NAME_CHARACTERS_MAX - len(self._prefix)} characters at most"
            )
        return name

    def topic(self, name: str) -> str:
        """Return the topic of a name."""
        return name.removeprefix(self._prefix)

    def matches(self, pattern: str, name: str) -> bool:
        """Tell whether a name is one of the topics that a pattern stands for."""
        return name.startswith(self._prefix) and subjects.matches(
            pattern.encode(), self.topic(name).encode()
        )


def sequence_of(partition: int, offset: int) -> int:
    """Return the number of a record in its topic; never 0."""
    return offset * PARTITIONS_MAX + partition + 1


def place_of(sequence: int) -> tuple[int, int]:
    """Return partition and offset of a record by its number."""
    offset, partition = divmod(sequence - 1, PARTITIONS_MAX)
    return partition, offset


def offset_from(sequence: int, partition: int) -> int:
    """Return the first offset of a partition whose number is not below `sequence`."""
    offset, at = divmod(sequence - 1, PARTITIONS_MAX)
    return offset if partition >= at else offset + 1
