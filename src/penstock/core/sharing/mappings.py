"""
Mappings of the subjects that an account's clients publish to.

The first mapping with a matching source decides. With weights, a random number decides for
each message. Messages left over by the weights keep their subject. But if the source is
itself one of the destinations, they are lost, so that message loss can be simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from penstock.config.accounts import SubjectMapping
from penstock.core.runs import single_messages
from penstock.hot.wire import KIND, REPLY, SUBJECT, Op
from penstock.protocol import subjects
from penstock.protocol.transforms import Transform

ALL = 100


class Mapping:
    """One source, and its destinations."""

    def __init__(self, mapping: SubjectMapping, random: Callable[[], float]) -> None:
        self.source = mapping.source.encode()
        self._random = random
        ways = sorted(mapping.destinations, key=lambda each: each.weight)
        self._ways = [
            (each.weight, Transform(self.source, each.subject.encode(), random)) for each in ways
        ]
        self._loses = any(each.subject == mapping.source for each in mapping.destinations)
        self.is_sure = len(ways) == 1 and ways[0].weight == ALL
        """Whether there is only one destination."""

    def apply(self, subject: bytes) -> bytes | None:
        """Return the destination of one message; None drops the message."""
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
        """Return publishes under their mapped subjects."""
        return [mapped for publish in publishes for mapped in self._mapped(publish)]

    def _mapped(self, publish: Op) -> Iterator[Op]:
        for mapping in self._mappings:
            if subjects.matches(mapping.source, publish[SUBJECT]):
                for message in [publish] if mapping.is_sure else single_messages(publish):
                    subject = mapping.apply(message[SUBJECT])
                    if subject is not None:
                        yield (message[KIND], subject, *message[REPLY:])
                return
        yield publish
