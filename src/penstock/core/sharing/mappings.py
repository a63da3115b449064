"""
What becomes of the subjects that the clients of an account publish to.

The first mapping whose source matches decides. With weights, each message goes where
the dice fall; what the weights leave over keeps its subject, unless that is one of
the destinations itself: then it is lost, as somebody wanted to try out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from penstock.config.accounts import SubjectMapping
from penstock.core.account import single_messages
from penstock.hot.wire import Op
from penstock.protocol import subjects
from penstock.protocol.transforms import Transform

ALL = 100


class Mapping:
    """One source, and where it leads."""

    def __init__(self, mapping: SubjectMapping, random: Callable[[], float]) -> None:
        self.source = mapping.source.encode()
        self._random = random
        ways = sorted(mapping.destinations, key=lambda each: each.weight)
        self._ways = [
            (each.weight, Transform(self.source, each.subject.encode(), random)) for each in ways
        ]
        self._loses = any(each.subject == mapping.source for each in mapping.destinations)
        self.is_sure = len(ways) == 1 and ways[0].weight == ALL
        """Whether all messages go the same way."""

    def apply(self, subject: bytes) -> bytes | None:
        """Return where one message goes; None: nowhere."""
        if self.is_sure:
            return self._ways[0][1].apply(subject)
        thrown = self._random() * ALL
        for weight, transform in self._ways:
            if thrown < weight:
                return transform.apply(subject)
            thrown -= weight
        return None if self._loses else subject


class Mappings:
    """All mappings of one account."""

    def __init__(self, mappings: Iterable[SubjectMapping], random: Callable[[], float]) -> None:
        self._mappings = [Mapping(each, random) for each in mappings]

    def apply(self, publishes: Iterable[Op]) -> list[Op]:
        """Return publishes with the subjects they are mapped to."""
        return [mapped for publish in publishes for mapped in self._mapped(publish)]

    def _mapped(self, publish: Op) -> Iterator[Op]:
        for mapping in self._mappings:
            if subjects.matches(mapping.source, publish[1]):
                for message in [publish] if mapping.is_sure else single_messages(publish):
                    subject = mapping.apply(message[1])
                    if subject is not None:
                        yield (message[0], subject, *message[2:])
                return
        yield publish
