"""The connection between the members of a service: what `group` decides, as messages in time."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from penstock.bus.engine import PIN_ID, Delivery
from penstock.bus.engines.nats.acks import is_ack_subject
from penstock.bus.engines.nats.layout import Layout
from penstock.bus.engines.nats.members.group import BEATS, Group
from penstock.bus.engines.nats.members.words import (
    ACKED_AT,
    Beat,
    Event,
    Grant,
    Report,
    Revoke,
    Word,
    event_subject,
    read_event,
)
from penstock.bus.operate.failures import STOPS
from penstock.client import Client
from penstock.hot.wire import Op
from penstock.protocol import headers as header_block

logger = logging.getLogger("penstock.bus")

LOOK_S = 0.05
"""How often one that leaves, or has not heard of its leader, says that it lives."""
KINDS: dict[type, str] = {Beat: "beat", Report: "report", Grant: "grant", Revoke: "revoke"}
WORDS: dict[bytes, type] = {kind.encode(): word for word, kind in KINDS.items()}


class Post:
    """Sends and receives for one member."""

    group: Group

    def __init__(
        self, client: Client, layout: Layout, *, service: str, name: str, takeover_s: float
    ) -> None:
        self._client = client
        self._layout = layout
        self._service = service
        self._takeover_s = takeover_s
        subject = layout.member_subject(service, name)
        self._skipped = len(subject) + 1
        self._listened_at = f"{subject}.>"
        self._hurry = asyncio.Event()

    def serve(self, group: Group) -> None:
        """Begin."""
        self.group = group
        self._interest = self._client.listen(self._listened_at, self._receive)
        self._client.connection.watchers.append(self)
        self._ticking = asyncio.get_running_loop().create_task(self._tick_for_ever())

    def hurry(self) -> None:
        """Say often that this process lives, until its leader answers."""
        self._hurry.set()

    def send(self, member: str, word: Word) -> None:
        """Send a word to a member."""
        base = self._layout.member_subject(self._service, member)
        if isinstance(word, Event):
            self._send_event(base, word)
        elif self._client.connected or not isinstance(word, Beat):
            subject = f"{base}.{KINDS[type(word)]}"
            self._client.send_nowait(subject.encode(), msgspec.json.encode(word), b"", b"")

    async def through(self) -> None:
        """Return once nothing of a member that leaves is in the books of its leader."""
        looks = 0
        while not self.group.is_through and looks * LOOK_S < self.group.leaving_s_max:
            self.group.tick()
            looks += self._client.connected  # a server that is away cannot be waited for too long
            await asyncio.sleep(LOOK_S)

    async def close(self) -> None:
        """Leave."""
        self.group.go()
        self._client.unlisten(self._interest)
        self._client.connection.watchers.remove(self)
        self._ticking.cancel()
        await asyncio.gather(self._ticking, return_exceptions=True)

    def disconnected(self, error: Exception) -> None:
        """Nothing is heard any more."""

    def reconnected(self) -> None:
        """Say at once that this process lives."""
        self.group.reconnected()

    def closed(self, error: Exception) -> None:
        """Nothing will be heard any more."""

    def _receive(self, operations: list[Op]) -> None:
        for operation in operations:
            try:
                self._read(operation)
            except (ValueError, msgspec.MsgspecError) as error:
                logger.info("= a member says what cannot be read: %s", error)

    def _read(self, operation: Op) -> None:
        kind, _, rest = operation[1][self._skipped :].partition(b".")
        if kind != b"event":
            word = WORDS.get(kind)
            if word is not None:
                data = operation[5][operation[4] :]
                self.group.heard(msgspec.json.decode(data, type=word))
            return
        reply = ACKED_AT + operation[3]
        if is_ack_subject(reply):
            message = (*operation[:3], reply, *operation[4:])
            self.group.heard_event(read_event(rest), message)

    def _send_event(self, base: str, event: Event) -> None:
        delivery: Delivery = event.delivery
        block, payload = delivery.block, delivery.payload
        if len(block) + len(payload) > self._client.connection.payload_bytes_max:
            block = _without_pin(block)
        reply = delivery.handle.removeprefix(ACKED_AT)
        self._client.send_nowait(event_subject(base, event), payload, reply, block)

    async def _tick_for_ever(self) -> None:
        every_s = wait_s = self._takeover_s / BEATS
        while True:
            try:
                async with asyncio.timeout(wait_s):
                    await self._hurry.wait()
                wait_s = LOOK_S
            except TimeoutError:
                # Who leads may not be ready yet to answer.
                wait_s = every_s if self.group.is_answered else min(2 * wait_s, every_s)
            self._hurry.clear()
            try:
                self.group.tick()
            except STOPS:
                raise
            except BaseException:
                logger.exception("! looking after the members of a service failed")


def _without_pin(block: bytes) -> bytes:
    """Return headers without the one that the server has added."""
    pairs = [pair for pair in header_block.decode(block) if pair[0] != PIN_ID]
    return header_block.encode(pairs) if pairs else b""
