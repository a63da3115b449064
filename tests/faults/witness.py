"""Remembers what a JetStream server promised about one stream, and holds it to that."""

from __future__ import annotations

import random
from collections.abc import Iterable

from penstock.client.jetstream.puback import PubAck


class Witness:
    """
    What was published to one stream, and acknowledged on either side.

    Payloads are all different, so a payload says which message it is. Sequences
    are those of the stream.
    """

    def __init__(self, stream: str, chance: random.Random) -> None:
        self.stream = stream
        self._random = chance
        self.sent: dict[bytes, int] = {}
        """The place of each payload among those that were sent."""
        self.stored: dict[int, bytes] = {}
        """What has a PubAck: it must be there, whatever happens."""
        self.delivered: dict[int, bytes] = {}
        self.settled: set[int] = set()
        """Whose ack was itself acknowledged: it must not be delivered again."""
        self.removing: set[int] = set()
        """What we asked to remove: it may be gone."""
        self.removed: set[int] = set()
        """What we were told is removed: it must not come back."""
        self.ack_floor = 0

    def payload(self) -> bytes:
        """Return a payload that was never sent before, and note it as sent."""
        filler = self._random.randbytes(self._random.choice((0, 10, 100, 1000)))
        payload = b"%s %d %s" % (self.stream.encode(), len(self.sent), filler)
        self.sent[payload] = len(self.sent)
        return payload

    def on_stored(self, payload: bytes, ack: PubAck) -> None:
        """Take a PubAck."""
        assert not ack.duplicate
        assert ack.sequence not in self.stored, "a sequence is given once"
        assert self.delivered.get(ack.sequence, payload) == payload
        self.stored[ack.sequence] = payload

    def on_delivered(self, sequence: int, payload: bytes) -> None:
        """Take a message of the consumer."""
        assert sequence not in self.settled, f"{sequence} was acked, and is delivered again"
        assert payload in self.sent
        assert self.stored.get(sequence, payload) == payload
        # Nobody may see a message that a crash can take back.
        assert self.delivered.setdefault(sequence, payload) == payload

    def check_ack_floor(self, ack_floor: int) -> None:
        """See that the consumer did not go back: neither in what it said, nor in what it knew."""
        assert ack_floor >= self.ack_floor
        sequence = ack_floor + 1
        assert sequence not in self.settled, "the floor is below an ack that continues it"
        self.ack_floor = ack_floor

    def check_messages(self, found: Iterable[tuple[int, bytes]]) -> None:
        """See that a whole stream is what was promised: each once, in order, byte for byte."""
        messages = dict(found)
        for sequence, payload in self.stored.items():
            if sequence not in self.removing:
                assert messages.get(sequence) == payload, f"{sequence} was acked, and is not there"
        assert not self.removed & messages.keys(), "what was removed is back"
        places = [self.sent[payload] for payload in messages.values()]
        assert places == sorted(set(places)), "a message is there twice, or out of order"
        assert list(messages) == sorted(messages)

    def check_delivered(self) -> None:
        """See that the consumer was given every message that was acknowledged."""
        missing = {s for s in self.stored if self.delivered.get(s) != self.stored[s]}
        assert not missing, f"stored and never delivered: {sorted(missing)[:10]}"
