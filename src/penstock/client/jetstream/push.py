"""
Push consumers: the server sends to a subject of its own choosing.

Heartbeats and flow control requests come between the messages. A flow control request is
answered once every message before it is handled. Neither reaches the caller.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, cast

from penstock.client.jetstream.api import CoreClient, field
from penstock.client.messages import ACK_SUBJECT, Message
from penstock.client.subscription import Callback, Subscription, next_message
from penstock.errors import ClientError
from penstock.protocol import wellknown

CONTROL = 100


class PushConsumer:
    """Messages of one push consumer as they arrive."""

    def __init__(self, client: CoreClient, subscription: Subscription) -> None:
        self._client = client
        self._subscription = subscription
        self._worker: asyncio.Task[None] | None = None

    @classmethod
    async def bind(
        cls, client: CoreClient, info: Mapping[str, Any], *, callback: Callback | None
    ) -> PushConsumer:
        """Subscribe to the deliver subject of the consumer that `info` describes."""
        config = field(info, "config", dict)
        if "deliver_subject" not in config:
            name = field(info, "name", str)
            raise ClientError(
                f"consumer `{name}` is not a push consumer; hint: use `pull_consumer`"
            )
        subscription = await client.subscribe(
            field(config, "deliver_subject", str),
            queue=field({"deliver_group": ""} | config, "deliver_group", str),
        )
        consumer = cls(client, subscription)
        if callback is not None:
            consumer._worker = asyncio.get_running_loop().create_task(consumer._work(callback))
        return consumer

    @property
    def subscription(self) -> Subscription:
        """The underlying subscription, with its counts and bounds."""
        return self._subscription

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        while True:
            message = await anext(self._subscription)
            if message.operation[3].startswith(ACK_SUBJECT):
                return message
            await self._control(message)

    async def next(self, *, timeout_s: float | None = None) -> Message:
        """Return the next message. Heartbeats do not extend `timeout_s`."""
        return await next_message(self, self._subscription.subject, timeout_s)

    async def drain(self) -> None:
        """Unsubscribe, and return when every received message is handled."""
        await self._subscription.drain()
        if self._worker is not None:
            await asyncio.wait([self._worker])

    async def stop(self) -> None:
        """Stop. Unacked messages are redelivered after their ack wait."""
        await self._subscription.unsubscribe()
        if self._worker is not None and self._worker is not asyncio.current_task():
            await asyncio.wait([self._worker])

    async def __aenter__(self) -> PushConsumer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _control(self, message: Message) -> None:
        """Answer flow control, so that the server continues now that we have caught up."""
        # Anybody who may publish to the deliver subject can ask for an answer. Answering to
        # a flow control subject is harmless; answering to an API subject would be a call in
        # our name.
        target = message.reply or message.header("Nats-Consumer-Stalled") or ""
        if target.startswith(wellknown.FLOW_CONTROL) and message.status[0] == CONTROL:
            await self._client.publish(target)

    async def _work(self, callback: Callback) -> None:
        asynchronous = inspect.iscoroutinefunction(callback)
        async for message in self:
            try:
                if asynchronous:
                    await cast(Callable[[Message], Awaitable[None]], callback)(message)
                else:
                    callback(message)
            except Exception as error:
                failed = ClientError(f"the callback of a push consumer failed: {error!r}")
                failed.__cause__ = error
                self._client.connection.report(failed)
