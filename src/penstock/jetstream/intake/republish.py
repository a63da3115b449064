"""
`republish`: a stream also publishes its stored messages under another subject (ADR-28).

The copies leave once the messages are safe, before the publishers get their answers. Each names its
message in the stream, and the previous one of its subject.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.hot.wire import CRLF, PUB, Op
from penstock.protocol import headers
from penstock.protocol import subjects as patterns
from penstock.protocol.rfc3339 import format_time
from penstock.protocol.transforms import Transform

if TYPE_CHECKING:
    from penstock.jetstream.config.stream import StreamConfig
    from penstock.jetstream.store.store import Store
    from penstock.jetstream.store.values import Entry

Plan = list[tuple[int, bytes, int]]
"""The entries to copy: index, target, the subject's last sequence before."""


class Republish:
    """Makes the copies of one stream."""

    def __init__(self, config: StreamConfig, random: Callable[[], float]) -> None:
        assert config.republish is not None
        source, target = config.republish["src"], config.republish["dest"]
        self._transform = Transform(source.encode(), target.encode(), random)
        self._headers_only = config.republish.get("headers_only", False)
        self._stream = config.name.encode()

    def plan(self, store: Store, entries: Sequence[Entry]) -> Plan:
        """Return which entries to copy; called before the entries are stored."""
        plan = []
        last_sequences: dict[bytes, int] = {}
        for index, (subject, _, _, _) in enumerate(entries):
            target = self._transform.apply(subject)
            if target is not None and patterns.is_valid_literal(target):
                last = last_sequences.get(subject) or store.last(subject)[0]
                plan.append((index, target, last))
                last_sequences[subject] = store.last_sequence + 1 + index
        return plan

    def copies(self, plan: Plan, entries: Sequence[Entry], first_sequence: int) -> list[Op]:
        """Return the messages to publish."""
        return [
            self._copy(target, entries[index], first_sequence + index, last)
            for index, target, last in plan
        ]

    def _copy(self, target: bytes, entry: Entry, sequence: int, last_sequence: int) -> Op:
        subject, header, payload, time_ns = entry
        size = b"Nats-Msg-Size: %d\r\n" % len(payload) if self._headers_only else b""
        block = (
            b"%bNats-Stream: %b\r\nNats-Subject: %b\r\nNats-Sequence: %d\r\n"
            b"Nats-Time-Stamp: %b\r\nNats-Last-Sequence: %d\r\n%b\r\n"
            % (
                headers.lines(header),
                self._stream,
                subject,
                sequence,
                format_time(time_ns).encode(),
                last_sequence,
                size,
            )
        )
        body = b"" if self._headers_only else payload
        data = block + body + CRLF
        return (PUB, target, b"", len(block), len(data) - 2, data)
