"""PubAcks: the answers to publishers, for messages stored or not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from penstock.errors import JetStreamError

if TYPE_CHECKING:
    from penstock.core.account import Account
    from penstock.jetstream.config.stream import StreamConfig


class PubAcks:
    """The PubAcks of one stream. Everything but the sequence is encoded once."""

    def __init__(self, account: Account, domain: str) -> None:
        self._account = account
        self._domain = domain

    def configure(self, config: StreamConfig) -> None:
        """Encode the common part of the stream's PubAcks."""
        name = json.dumps(config.name)
        self._refused = f'"stream":{name},"seq":0}}'
        domain = f',"domain":{json.dumps(self._domain)},' if self._domain else ","
        self._stored = f'{{"stream":{name}{domain}"seq":'.encode()

    def stored(self, sequence: int, suffix: bytes) -> bytes:
        """Return the PubAck of a stored message, with `suffix` at its end."""
        return b"%b%d%b" % (self._stored, sequence, suffix)

    def refused(self, error: JetStreamError) -> bytes:
        """Return the PubAck of a message that was not stored."""
        document = json.dumps(error.document, separators=(",", ":"))
        return f'{{"error":{document},{self._refused}'.encode()

    def send(self, first_sequence: int, replies: list[bytes]) -> None:
        """Send the PubAcks of messages stored one after another; b"" wants none."""
        if b"" not in replies:
            self._account.answer_all(replies, (self._stored, b"}"), first_sequence)
            return
        for sequence, reply in enumerate(replies, first_sequence):
            if reply:
                self._account.send(reply, b"%b%d}" % (self._stored, sequence))
