"""
A subscription: a bounded queue of messages, taken by a callback or by `async for`.

A plain function is called as soon as messages are read. One task awaits a coroutine
function, one message after another. Without a callback, iterate.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol, TypeAlias, cast

from penstock.client.connection.connection import Connection
from penstock.client.messages import Message, Sender
from penstock.errors import ClientError, ConnectionClosed, RequestTimeout, SlowConsumer
from penstock.hot.wire import Op

Callback: TypeAlias = Callable[[Message], None] | Callable[[Message], Awaitable[None]]

TURN_MESSAGES = 256
"""The number of messages a callback handles before other tasks get a turn."""


class Subscriber(Sender, Protocol):
    """A client, as its subscriptions need it."""

    connection: Connection

    def forget(self, subscription: Subscription) -> None:
        """Remove a subscription that has ended."""


class Subscription:
    """Messages on one subject, as they arrive."""

    def __init__(
        self,
        client: Subscriber,
        subject: str,
        *,
        queue: str = "",
        callback: Callback | None = None,
        messages_max: int,
        bytes_max: int,
    ) -> None:
        self.subject = subject
        self.pending_bytes = 0
        self.dropped = 0
        """Messages lost because they were not taken in time."""
        self._client = client
        self._operations: deque[Op] = deque()
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._slow = False
        self._arrived = asyncio.Event()
        self._emptied = asyncio.Event()
        self._ended = False
        self._error: Exception | None = None
        self._callback = callback
        self._worker: asyncio.Task[None] | None = None
        asynchronous = inspect.iscoroutinefunction(callback)
        self._interest = client.connection.subscribe(
            subject.encode(),
            self._enqueue if callback is None or asynchronous else self._call_back,
            queue=queue.encode(),
            ended=self._end,
        )
        if asynchronous:
            self._worker = asyncio.get_running_loop().create_task(self._work())

    @property
    def pending_messages(self) -> int:
        """The number of messages waiting to be taken."""
        return len(self._operations)

    @property
    def received(self) -> int:
        """The number of messages received in total, including dropped ones."""
        return self._interest.received

    @property
    def closed(self) -> bool:
        """Whether no more messages will come."""
        return self._ended

    async def next(self, *, timeout_s: float | None = None) -> Message:
        """Return the next message."""
        return await next_message(self, self.subject, timeout_s)

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        if not self._operations:
            await self._wait()
        operation = self._operations.popleft()
        self.pending_bytes -= len(operation[5])
        return Message(self._client, operation)

    async def batches(self) -> AsyncIterator[list[Message]]:
        """Iterate over lists of all messages that have arrived: the cheapest way to take many."""
        while True:
            try:
                if not self._operations:
                    await self._wait()
            except StopAsyncIteration:
                return
            client = self._client
            batch = [Message(client, operation) for operation in self._operations]
            self._forget()
            yield batch

    async def unsubscribe(self, *, messages_max: int = 0) -> None:
        """End now and drop waiting messages, or after `messages_max` messages in total."""
        self._client.connection.unsubscribe(self._interest, messages_max=messages_max)
        if not messages_max:
            self._forget()
            self._emptied.set()
            await self.stop()

    async def drain(self) -> None:
        """Unsubscribe, and return when every received message is taken and handled."""
        await self._client.connection.drain(self._interest)
        if self._worker is None and self._callback is None:
            await self._emptied.wait()
        elif self._worker is not None and self._worker is not asyncio.current_task():
            await asyncio.wait([self._worker])

    async def stop(self) -> None:
        """Stop the callback's task, unless the callback itself called us."""
        worker = self._worker
        if worker is not None and worker is not asyncio.current_task():
            worker.cancel()
            await asyncio.wait([worker])

    async def __aenter__(self) -> Subscription:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.unsubscribe()

    def _enqueue(self, operations: list[Op]) -> None:
        size = sum([len(operation[5]) for operation in operations])
        waiting = self._operations
        if (
            len(waiting) + len(operations) > self._messages_max
            or self.pending_bytes + size > self._bytes_max
        ):
            operations, size = self._fitting(operations)
        else:
            self._slow = False
        waiting.extend(operations)
        self.pending_bytes += size
        self._arrived.set()

    def _fitting(self, operations: list[Op]) -> tuple[list[Op], int]:
        """Return the messages that still fit; count the rest, and report it once per overflow."""
        room = self._messages_max - len(self._operations)
        fitting: list[Op] = []
        size = 0
        for operation in operations[:room]:
            if self.pending_bytes + size + len(operation[5]) > self._bytes_max:
                break
            size += len(operation[5])
            fitting.append(operation)
        self.dropped += len(operations) - len(fitting)
        if not self._slow:
            self._slow = True
            self._client.connection.report(
                SlowConsumer(f"the queue of `{self.subject}` is full: messages are dropped")
            )
        return fitting, size

    def _call_back(self, operations: list[Op]) -> None:
        callback, client = self._callback, self._client
        assert callback is not None
        for operation in operations:
            try:
                callback(Message(client, operation))
            except Exception as error:
                self._callback_failed(error)

    async def _work(self) -> None:
        callback = cast(Callable[[Message], Awaitable[None]], self._callback)
        handled = 0
        async for message in self:
            try:
                await callback(message)
            except Exception as error:
                self._callback_failed(error)
            handled += 1
            if handled % TURN_MESSAGES == 0:
                await asyncio.sleep(0)

    def _callback_failed(self, error: Exception) -> None:
        failed = ClientError(f"the callback of `{self.subject}` failed: {error!r}")
        failed.__cause__ = error
        self._client.connection.report(failed)

    async def _wait(self) -> None:
        while not self._operations:
            if self._ended:
                self._emptied.set()
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()

    def _forget(self) -> None:
        self._operations.clear()
        self.pending_bytes = 0

    def _end(self, error: Exception | None) -> None:
        self._ended = True
        # Closing on purpose is a normal end; any other reason is an error.
        self._error = None if isinstance(error, ConnectionClosed) else error
        self._client.forget(self)
        self._arrived.set()
        if not self._operations:
            self._emptied.set()


async def next_message(
    messages: AsyncIterator[Message], subject: str, timeout_s: float | None
) -> Message:
    """Return the next message; raise if none comes in time, or none will ever come."""
    try:
        async with asyncio.timeout(timeout_s):
            return await anext(messages)
    except TimeoutError:
        raise RequestTimeout(f"no message on `{subject}` in {timeout_s} s") from None
    except StopAsyncIteration:
        raise ClientError(f"the subscription to `{subject}` has ended") from None
