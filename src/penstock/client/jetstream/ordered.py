"""
Ordered consumers: a stream from a given point on, in order and without gaps (ADR-17).

The server keeps an ephemeral consumer without acks for us. The consumer sequence counts
deliveries, so a gap in it means that a message was lost on the way. After a gap, and when
the consumer is gone, we create a new one that starts right after the last message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import Any

from penstock.client.jetstream.api import Api, field
from penstock.client.jetstream.consume import Consume, ConsumeOptions
from penstock.client.jetstream.consumers import Consumers
from penstock.client.jetstream.pullrequests import PullRequests
from penstock.client.messages import Message
from penstock.errors import ConnectionLost, JetStreamError, NoResponders, RequestTimeout

GONE_S_MAX = 30.0
"""How long the stream may have no leader before it is an error."""

RETRY_WAIT_S = 0.25
RESETS_IN_A_ROW_MAX = 20
"""Consecutive consumers without a message in order before it is an error."""

INACTIVE_THRESHOLD = timedelta(minutes=1)
"""How long the server keeps the consumer of a dead client."""

CONSUME = ConsumeOptions(heartbeat_s=2.0, gone_s_max=1.0)
"""Our consumer lives on one server; when that is lost, waiting for it is useless."""

CONFIG: Mapping[str, Any] = {
    "ack_policy": "none",
    "max_deliver": 1,
    "mem_storage": True,
    "num_replicas": 1,
    "inactive_threshold": INACTIVE_THRESHOLD,
}


class OrderedConsumer:
    """Messages of a stream in order. Iterate, then `stop`."""

    def __init__(self, api: Api, stream: str, config: Mapping[str, Any]) -> None:
        self.stream = stream
        self.resets = 0
        """The number of times the consumer was created again."""
        self._api = api
        self._consumers = Consumers(api)
        self._config = dict(config)
        self._consume: Consume | None = None
        self._consumer = ""
        self._stream_sequence = 0
        self._consumer_sequence = 0
        self._resets_in_a_row = 0

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        while True:
            if self._consume is None:
                await self._create()
            assert self._consume is not None
            try:
                message = await anext(self._consume)
            except (JetStreamError, NoResponders):
                await self._reset()
                continue
            if self._in_order(message.operation[3]):
                return message
            await self._reset()

    async def stop(self) -> None:
        """Stop, and delete the consumer."""
        await self._leave()

    async def __aenter__(self) -> OrderedConsumer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _in_order(self, reply: bytes) -> bool:
        """Check the sequences in the next message's ack subject, and remember them."""
        tokens = reply.split(b".")
        first = 5 if len(tokens) == 9 else 7
        try:
            stream_sequence, consumer_sequence = map(int, tokens[first : first + 2])
        except ValueError:
            return False
        if consumer_sequence != self._consumer_sequence + 1:
            return False
        if stream_sequence <= self._stream_sequence:
            return False
        self._stream_sequence = stream_sequence
        self._consumer_sequence += 1
        self._resets_in_a_row = 0
        return True

    async def _create(self) -> None:
        config = {**self._config, **CONFIG}
        if self._stream_sequence:
            config.pop("opt_start_time", None)
            config["deliver_policy"] = "by_start_sequence"
            config["opt_start_seq"] = self._stream_sequence + 1
        info = await self._create_patiently(config)
        self._consumer = field(info, "name", str)
        self._consumer_sequence = 0
        client = self._api.client
        inbox = f"{client.new_inbox()}.".encode()
        requests = PullRequests(self._api.prefix, self.stream, self._consumer, inbox)
        self._consume = Consume(client, requests, CONSUME)

    async def _create_patiently(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Create the consumer; keep trying while an election leaves nobody to answer."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + GONE_S_MAX
        while True:
            try:
                return await self._consumers.create(self.stream, **config)
            except (NoResponders, RequestTimeout, JetStreamError) as error:
                refused = isinstance(error, JetStreamError) and error.code != 503
                if refused or loop.time() > deadline_s:
                    raise
            await asyncio.sleep(RETRY_WAIT_S)

    async def _reset(self) -> None:
        self.resets += 1
        self._resets_in_a_row += 1
        await self._leave()
        if self._resets_in_a_row > RESETS_IN_A_ROW_MAX:
            raise ConnectionLost(
                f"stream `{self.stream}` cannot be read in order: "
                f"{self._resets_in_a_row} consumers in a row delivered nothing"
            )
        if self._resets_in_a_row > 1:
            await asyncio.sleep(RETRY_WAIT_S)

    async def _leave(self) -> None:
        if self._consume is None:
            return
        await self._consume.stop()
        self._consume = None
        if self._api.client.connected:
            try:
                await self._consumers.delete(self.stream, self._consumer)
            except (JetStreamError, NoResponders, RequestTimeout):
                return  # It is gone already, or expires by itself.
